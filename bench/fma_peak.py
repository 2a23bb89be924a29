"""The arithmetic peak of this machine, in GFLOP/s: a register-only FMA loop on one or more threads.

``fma_peak.c`` is compiled on demand with ``$CC`` (default ``cc``) into the user's cache and called
through ctypes, which releases the GIL. Run as a script it prints a small table.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("fma_peak.c")
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC"]
FACTOR, TERM = 0.5, 1.0


def available_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _library() -> ctypes.CDLL:
    compiler = os.environ.get("CC", "cc").split()
    key = hashlib.sha256(SOURCE.read_bytes() + repr((compiler, FLAGS)).encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cyconv-bench"
    target = root / f"fma_peak-{key}.so"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Built beside the target, then renamed: a second process never sees half a library.
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            built = Path(scratch) / target.name
            subprocess.run([*compiler, *FLAGS, "-o", str(built), str(SOURCE)], check=True)
            built.replace(target)
    library = ctypes.CDLL(str(target))
    for name, real in (("fma_run_f32", ctypes.c_float), ("fma_run_f64", ctypes.c_double)):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_long, real, real, ctypes.POINTER(ctypes.c_double)]
        function.restype = ctypes.c_double
    library.fma_isa.restype = ctypes.c_char_p
    return library


def isa() -> str:
    """Name the instruction set that the loop runs with: baseline, avx2 or avx512."""
    return _library().fma_isa().decode()


def _run(dtype: str, iterations: int, threads: int) -> float:
    """Measure one run: all operations over the time from common start to last end."""
    function = getattr(_library(), f"fma_run_{dtype}")
    flop = [0.0] * threads
    ends = [0.0] * threads
    barrier = threading.Barrier(threads + 1)

    def work(index: int) -> None:
        sink = ctypes.c_double()
        barrier.wait()
        flop[index] = function(iterations, FACTOR, TERM, ctypes.byref(sink))
        ends[index] = time.perf_counter()

    pool = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in pool:
        thread.start()
    # Taken before the barrier opens: a thread may start before this one runs again.
    start = time.perf_counter()
    barrier.wait()
    for thread in pool:
        thread.join()
    return sum(flop) / (max(ends) - start) / 1e9


def fma_peak(
    dtype: str = "f32", threads: int = 1, seconds: float = 0.01, repeats: int = 3
) -> float:
    """Measure the best GFLOP/s of `repeats` runs of about `seconds` each.

    Parameters
    ----------
    dtype : {"f32", "f64"}
    threads : int
    seconds, repeats : float, int
        Length of one run, and how many. The machine's clock drifts, so measure close in time to
        whatever the peak is compared with.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        No C compiler, or it failed.
    """
    calibration = 20_000
    flop_per_iteration = getattr(_library(), f"fma_run_{dtype}")(
        1, FACTOR, TERM, ctypes.byref(ctypes.c_double())
    )
    rate = max(_run(dtype, calibration, 1) for _ in range(2)) * 1e9
    iterations = max(calibration, int(seconds * rate / flop_per_iteration))
    return max(_run(dtype, iterations, threads) for _ in range(repeats))


def main() -> None:
    """Print the peak of both types, for one thread and for all cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, available_cores()])
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one run")
    options = parser.parse_args()
    print(f"instruction set: {isa()}")
    for threads in options.threads:
        for dtype in ("f32", "f64"):
            peak = fma_peak(dtype, threads, options.seconds)
            print(f"{threads:3d} thread(s) {dtype}: {peak:8.1f} GFLOP/s")


if __name__ == "__main__":
    main()
