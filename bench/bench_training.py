"""A training step beside PyTorch's: forward, loss, backward, optimiser, on a few small networks.

Each library has a process of its own; they take turns in every round, on the same number of
threads, with the same shapes. The ratio is the median over rounds of time(cyconv) / time(PyTorch).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from turns import turn

Step = Callable[[], float]

# A network is a list of layers: (kind, arguments). Both libraries read them from here. The first is
# that of ``python -m cyconv train``.
NETWORKS: dict[str, tuple[tuple[int, ...], list[tuple[Any, ...]], int]] = {
    "digits": (
        (64, 1, 8, 8),
        [("conv", 1, 32), ("relu",), ("conv", 32, 64), ("norm", 64), ("relu",), ("max",),
         ("flat",), ("linear", 1024, 10)],
        10,
    ),
    "vgg 32x32": (
        (32, 3, 32, 32),
        [("conv", 3, 32), ("relu",), ("conv", 32, 32), ("relu",), ("max",),
         ("conv", 32, 64), ("relu",), ("conv", 64, 64), ("relu",), ("max",),
         ("conv", 64, 128), ("relu",), ("max",), ("flat",), ("linear", 2048, 10)],
        10,
    ),
    "batch norm 32x32": (
        (32, 3, 32, 32),
        [("conv", 3, 32), ("norm", 32), ("relu",), ("conv", 32, 32), ("norm", 32), ("relu",),
         ("max",), ("conv", 32, 64), ("norm", 64), ("relu",), ("average",), ("flat",),
         ("linear", 4096, 10)],
        10,
    ),
    "autoencoder 32x32": (
        (32, 1, 32, 32),
        [("down", 1, 32), ("relu",), ("down", 32, 64), ("relu",), ("up", 64, 32), ("relu",),
         ("up", 32, 1)],
        0,
    ),
}  # fmt: skip


def fused(layers: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Give a ReLU behind a convolution to that layer, as users of cyconv can."""
    result: list[tuple[Any, ...]] = []
    for layer in layers:
        if layer == ("relu",) and result[-1][0] in ("conv", "down", "up"):
            result[-1] = (*result[-1], "relu")
        else:
            result.append(layer)
    return result


def cyconv_step(name: str, layout: str, threads: int) -> Step:
    """Return a function that trains one step and returns the loss."""
    import cyconv
    from cyconv import autograd, nn

    shape, layers, classes = NETWORKS[name]
    rng = np.random.default_rng(0)
    kinds: dict[str, Callable[..., nn.Module]] = {
        "conv": lambda i, o, a=None: nn.Conv2d(
            i, o, 3, padding=1, activation=a, layout=layout, rng=rng
        ),
        "down": lambda i, o, a=None: nn.Conv2d(
            i, o, 4, stride=2, padding=1, activation=a, layout=layout, rng=rng
        ),
        "up": lambda i, o, a=None: nn.ConvTranspose2d(
            i, o, 4, stride=2, padding=1, activation=a, layout=layout, rng=rng
        ),
        "norm": lambda c: nn.BatchNorm2d(c, layout=layout),
        "max": lambda: nn.MaxPool2d(2, layout=layout),
        "average": lambda: nn.AvgPool2d(2, layout=layout),
        "relu": nn.ReLU,
        "flat": lambda: nn.Flatten(layout=layout),
        "linear": lambda i, o: nn.Linear(i, o, rng=rng),
    }
    model = nn.Sequential(*(kinds[kind](*arguments) for kind, *arguments in fused(layers)))
    optimiser = nn.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, target = data(shape, classes)
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def step() -> float:
        with cyconv.config(threads=threads):
            optimiser.zero_grad()
            y = model(cyconv.Tensor(x))
            loss = autograd.cross_entropy(y, target) if classes else autograd.mse_loss(y, x)
            loss.backward()
            optimiser.step()
            return float(loss)

    return step


def torch_step(name: str, layout: str, threads: int) -> Step:
    """Return the same of PyTorch; channels last is its memory format."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape, layers, classes = NETWORKS[name]
    kinds: dict[str, Callable[..., nn.Module]] = {
        "conv": lambda i, o: nn.Conv2d(i, o, 3, padding=1),
        "down": lambda i, o: nn.Conv2d(i, o, 4, stride=2, padding=1),
        "up": lambda i, o: nn.ConvTranspose2d(i, o, 4, stride=2, padding=1),
        "norm": nn.BatchNorm2d,
        "max": lambda: nn.MaxPool2d(2),
        "average": lambda: nn.AvgPool2d(2),
        "relu": nn.ReLU,
        "flat": nn.Flatten,
        "linear": nn.Linear,
    }
    model = nn.Sequential(*(kinds[kind](*arguments) for kind, *arguments in layers))
    x, target = map(torch.from_numpy, data(shape, classes))
    if layout == "NHWC":
        x, model = (
            x.contiguous(memory_format=torch.channels_last),
            model.to(memory_format=torch.channels_last),
        )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimiser.zero_grad()
        y = model(x)
        functional = nn.functional
        loss = functional.cross_entropy(y, target) if classes else functional.mse_loss(y, x)
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def data(shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw images, and labels where there are classes."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape, dtype=np.float32)
    return x, rng.integers(0, max(classes, 1), shape[0])


def serve(side: str, name: str, layout: str, threads: int) -> None:
    """Worker: answer each line, a number of steps, with the seconds of the fastest of them."""
    step = {"cyconv": cyconv_step, "torch": torch_step}[side](name, layout, threads)
    for _ in range(5):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(min(times), flush=True)


class Worker:
    """A side in a process of its own."""

    def __init__(self, side: str, name: str, layout: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", side, "--networks", name, "--layouts", layout,
             "--threads", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with turn(self._process):
            self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}")
        return line

    def time(self, steps: int) -> float:
        """Return the seconds of the fastest of some steps."""
        assert self._process.stdin is not None
        with turn(self._process):
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
            return float(self._line())

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with turn(self._process):
            self._process.stdin.close()
            self._process.wait()


def compare(name: str, layout: str, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    """Measure one network on both sides."""
    workers = {side: Worker(side, name, layout, threads) for side in ("cyconv", "torch")}
    try:
        times = [
            {side: worker.time(steps) for side, worker in workers.items()} for _ in range(rounds)
        ]
    finally:
        for worker in workers.values():
            worker.stop()
    return {
        "network": name,
        "layout": layout,
        "threads": threads,
        "ratio": statistics.median(t["cyconv"] / t["torch"] for t in times),
        **{side: min(t[side] for t in times) for side in workers},
    }


def main() -> None:
    """Measure and print a row for each network and layout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--layouts", nargs="+", choices=("NCHW", "NHWC"), default=["NCHW", "NHWC"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.networks[0], options.layouts[0], options.threads)
        return
    for name in options.networks:
        for layout in options.layouts:
            row = compare(name, layout, options.threads, options.rounds, options.steps)
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{name:20s} {layout}  cyconv {row['cyconv'] * 1e3:8.2f} ms  "
                f"torch {row['torch'] * 1e3:8.2f} ms  ratio {row['ratio']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
