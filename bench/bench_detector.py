"""A whole network beside ONNX Runtime: the text detector of PP-OCRv4 on a part of a scanned page.

Each library has a process of its own; they take turns in every round, on the same number of
threads, with the same image. The ratio is the median over rounds of time(cyconv) / time(ONNX
Runtime). The network is in the package rapidocr-onnxruntime, the page in scikit-image.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from turns import turn

Run = Callable[[], np.ndarray]
SIDES = ("cyconv", "onnxruntime")


def image(size: tuple[int, int]) -> np.ndarray:
    """Return the upper left corner of the page, as the detector wants it."""
    from skimage import data

    from cyconv.demo._detector import prepare

    height, width = size
    page = data.page()
    tiles = [-(-height // page.shape[0]), -(-width // page.shape[1])]
    return prepare(np.repeat(np.tile(page, tiles)[:height, :width, None], 3, axis=2))


def cyconv_run(x: np.ndarray, threads: int) -> Run:
    """Return a run of the network by cyconv."""
    from cyconv.adapters.onnx import Model
    from cyconv.demo._model import model_path

    path = model_path()
    assert path is not None
    model = Model(path, threads=threads)
    return lambda: next(iter(model.run({"x": x}).values()))


def onnxruntime_run(x: np.ndarray, threads: int) -> Run:
    """Return the same by ONNX Runtime, with all its optimisations, as they are by default."""
    import onnxruntime

    from cyconv.demo._model import model_path

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(model_path()), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]


def serve(side: str, size: tuple[int, int], threads: int) -> None:
    """Worker: answer each line, a number of runs, with the seconds of the fastest of them."""
    run = {"cyconv": cyconv_run, "onnxruntime": onnxruntime_run}[side](image(size), threads)
    for _ in range(3):
        marked = run() > 0.3
    print(float(marked.mean()), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(min(times), flush=True)


class Worker:
    """A side in a process of its own; `marked` is the share of pixels that it finds to be text."""

    def __init__(self, side: str, size: tuple[int, int], threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", side, "--sizes", "x".join(map(str, size)),
             "--threads", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with turn(self._process):
            self.marked = self._number()

    def _number(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        return float(line)

    def time(self, runs: int) -> float:
        """Return the seconds of the fastest of some runs."""
        assert self._process.stdin is not None
        with turn(self._process):
            self._process.stdin.write(f"{runs}\n")
            self._process.stdin.flush()
            return self._number()

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with turn(self._process):
            self._process.stdin.close()
            self._process.wait()


def compare(size: tuple[int, int], threads: int, rounds: int, runs: int) -> dict[str, Any]:
    """Measure one size on both sides."""
    workers = {side: Worker(side, size, threads) for side in SIDES}
    try:
        times = [
            {side: worker.time(runs) for side, worker in workers.items()} for _ in range(rounds)
        ]
    finally:
        for worker in workers.values():
            worker.stop()
    return {
        "size": size,
        "threads": threads,
        "ratio": statistics.median(t["cyconv"] / t["onnxruntime"] for t in times),
        **{side: min(t[side] for t in times) for side in SIDES},
        "marked": {side: worker.marked for side, worker in workers.items()},
    }


def parse_size(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    height, width = map(int, text.split("x"))
    return height, width


def main() -> None:
    """Measure and print a row for each size and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(160, 384)])
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.sizes[0], options.threads[0])
        return
    for size in options.sizes:
        for threads in options.threads:
            row = compare(size, threads, options.rounds, options.runs)
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            marked = row["marked"]
            print(
                f"{size[0]}x{size[1]}  threads {threads}  cyconv {row['cyconv'] * 1e3:7.2f} ms  "
                f"onnxruntime {row['onnxruntime'] * 1e3:7.2f} ms  ratio {row['ratio']:.2f}  "
                f"text {marked['cyconv']:.2%} {marked['onnxruntime']:.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
