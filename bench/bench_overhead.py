"""What a call costs beside its arithmetic: itself, page faults of its result, and the import.

The arithmetic of an 8 by 8 image under a 3 by 3 kernel is nothing, so the time is the call's own,
beside PyTorch's. A fresh result beyond 32 MB is new memory in every call, and the system clears
each of its pages at the first touch; `out=` and kept workspaces should cost no faults.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
from cells import OPERATORS, read_shapes, select_cells
from measure import Effort, measure_cell
from side import Side
from worker import fastest

import cyconv

TINY = "tiny.8x8"
EFFORT = Effort(rounds=7, seconds=1.5, timeout=30.0)
# What cyconv itself imports is loaded first, so that only its own part is counted.
IMPORT = """
import time, numpy, scipy.linalg
start = time.perf_counter()
import cyconv
print(time.perf_counter() - start)
"""


def import_seconds(runs: int) -> list[float]:
    """Time `import cyconv` after NumPy and scipy.linalg, each in a fresh interpreter."""
    return [
        float(
            subprocess.run(
                [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(runs)
    ]


def call_times(threads: int) -> None:
    """Print the times of a tiny call of each operator in microseconds."""
    ours, torch = Side("cyconv", threads, "auto"), Side("torch", threads)
    try:
        for cell in select_cells(
            {TINY: read_shapes()[TINY]}, operators=OPERATORS, layouts=["nchw"], threads=[threads]
        ):
            (record,) = measure_cell(cell, [ours], [torch], EFFORT)
            columns = []
            for name, entry in (("cyconv", record["cyconv"]), ("torch", record["peers"]["torch"])):
                seconds = entry.get("seconds")
                told = f"{seconds * 1e6:.1f} us" if seconds else entry["status"]
                columns.append(f"{name} {told}")
            ratio = "" if record["ratio"] is None else f"ratio {record['ratio']:.2f}"
            print(f"{OPERATORS[cell.problem.op]:16s} {'  '.join(columns)}  {ratio}", flush=True)
    finally:
        ours.stop()
        torch.stop()


def faults(call: Callable[[], object], times: int = 5) -> float:
    """Count the page faults of a call that is repeated."""
    for _ in range(2):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / times


def page_faults(threads: int) -> None:
    """Print page faults and milliseconds of large calls with a fresh result, and with `out=`."""
    image = np.ones((3, 64, 256, 256), np.float32)  # 50 MB: what glibc never keeps when freed
    dense, depthwise = np.ones((64, 64, 3, 3), np.float32), np.ones((64, 1, 3, 3), np.float32)
    options = {"padding": 1, "threads": threads}
    calls = {
        "forward": partial(cyconv.conv2d, image, dense, **options),
        "fwd, im2col": partial(cyconv.conv2d, image, dense, strategy="im2col", **options),
        "fwd, depthwise": partial(cyconv.conv2d, image, depthwise, groups=64, **options),
        "data_backward": partial(cyconv.conv_data_backward, image, dense, image.shape, **options),
        "weight_backward": partial(
            cyconv.conv_weight_backward, image, image, dense.shape, **options
        ),
    }
    for name, call in calls.items():
        into = partial(call, out=np.empty_like(call()))
        columns = (
            f"{told} {faults(one):6.0f} faults {fastest(one, 0.5)[0] * 1e3:7.2f} ms"
            for told, one in (("fresh", call), ("out=", into))
        )
        print(f"{name:16s} {'   '.join(columns)}", flush=True)


def main() -> None:
    """Measure calls, then page faults, then imports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--imports", type=int, default=7, help="fresh interpreters to start")
    options = parser.parse_args()
    call_times(options.threads)
    page_faults(options.threads)
    if options.imports:
        times = [seconds * 1e3 for seconds in import_seconds(options.imports)]
        print(
            f"import cyconv beyond numpy and scipy.linalg: least {min(times):.1f} ms, "
            f"median {statistics.median(times):.1f} ms of {options.imports}"
        )


if __name__ == "__main__":
    main()
