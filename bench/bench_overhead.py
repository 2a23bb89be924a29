"""What a call and an import cost: tiny arrays beside PyTorch, and `import cyconv` beyond SciPy's.

The arithmetic of an 8 by 8 image under a 3 by 3 kernel is nothing, so the time is the call's own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from cells import OPERATORS, read_shapes, select_cells
from measure import Effort, measure_cell
from side import Side

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


def main() -> None:
    """Measure calls, then imports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--imports", type=int, default=7, help="fresh interpreters to start")
    options = parser.parse_args()
    call_times(options.threads)
    if options.imports:
        times = [seconds * 1e3 for seconds in import_seconds(options.imports)]
        print(
            f"import cyconv beyond numpy and scipy.linalg: least {min(times):.1f} ms, "
            f"median {statistics.median(times):.1f} ms of {options.imports}"
        )


if __name__ == "__main__":
    main()
