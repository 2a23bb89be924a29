"""The two ceilings of this machine, on one or more threads: arithmetic and memory.

The arithmetic peak is that of a register-only FMA loop: ``fma_peak.c``, compiled on demand with
``$CC`` (default ``cc``) into the user's cache and called through ctypes, which releases the GIL.
The bandwidth is that of copying arrays which no cache holds. Run as a script it prints a small
table.
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
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("fma_peak.c")
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC"]
FACTOR, TERM = 0.5, 1.0
COPIED_NBYTES = 1 << 27  # of all threads together; several times what the largest caches hold


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


def _together(work: Callable[[int], object], threads: int) -> float:
    """Run `work` on so many threads at once; the seconds from common start to last end."""
    ends = [0.0] * threads
    barrier = threading.Barrier(threads + 1)

    def run(index: int) -> None:
        barrier.wait()
        work(index)
        ends[index] = time.perf_counter()

    pool = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in pool:
        thread.start()
    # Taken before the barrier opens: a thread may start before this one runs again.
    start = time.perf_counter()
    barrier.wait()
    for thread in pool:
        thread.join()
    return max(ends) - start


def _run(dtype: str, iterations: int, threads: int) -> float:
    """Measure one run of the FMA loop in GFLOP/s."""
    function = getattr(_library(), f"fma_run_{dtype}")
    flop = [0.0] * threads

    def work(index: int) -> None:
        flop[index] = function(iterations, FACTOR, TERM, ctypes.byref(ctypes.c_double()))

    seconds = _together(work, threads)
    return sum(flop) / seconds / 1e9


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


def copy_bandwidth(threads: int = 1, repeats: int = 3) -> float:
    """Measure the best GB/s of copying, a byte read and a byte written counted as two.

    Each thread copies a part of its own, into memory that was touched before. What a processor
    reads before it writes a line is not counted; copies of this length mostly avoid it.
    """
    part = COPIED_NBYTES // threads
    arrays = [(np.ones(part, np.uint8), np.ones(part, np.uint8)) for _ in range(threads)]
    seconds = min(
        _together(lambda index: np.copyto(*arrays[index]), threads) for _ in range(repeats)
    )
    return 2 * part * threads / seconds / 1e9


def main() -> None:
    """Print the peak of both types and the bandwidth, for one thread and for all cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, available_cores()])
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one run")
    options = parser.parse_args()
    print(f"instruction set: {isa()}")
    for threads in options.threads:
        for dtype in ("f32", "f64"):
            peak = fma_peak(dtype, threads, options.seconds)
            print(f"{threads:3d} thread(s) {dtype}: {peak:8.1f} GFLOP/s")
        print(f"{threads:3d} thread(s) copy: {copy_bandwidth(threads):7.1f} GB/s")


if __name__ == "__main__":
    main()
