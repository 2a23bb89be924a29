"""On a machine with a GPU: run the tests marked ``gpu``, then time cyconv beside PyTorch and cuDNN.

Both libraries get the same float32 or float16 data on the device and are timed by events, the
median of several runs after a warm-up; TF32 is off in both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import cyconv

ROOT = Path(__file__).parents[1]
LAYERS = {
    "resnet50.3x3": "n32 ci64 co64 i56x56 k3x3 p1",
    "resnet50.3x3.stride": "n32 ci128 co128 i56x56 k3x3 s2 p1",
    "resnet50.1x1": "n32 ci256 co512 i28x28 k1x1",
    "vgg16.first": "n32 ci3 co64 i224x224 k3x3 p1",
    "mobilenet.depthwise": "n32 g144 ci144 co144 i56x56 k3x3 p1",
    "volume": "n4 ci16 co32 i32x64x64 k3x3x3 p1",
}
DTYPES = {"f32": np.float32, "f16": np.float16}
RUNS = 20


def main() -> int:
    """Run the tests, unless told not to, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-tests", action="store_true", help="only the table")
    options = parser.parse_args()
    try:
        import cupy

        cupy.cuda.Device().compute_capability  # noqa: B018 - raises where there is no device
    except Exception as error:  # no CuPy, no driver, no device: each says so itself
        print(f"no GPU: {type(error).__name__}: {error}")
        return 1
    if not options.no_tests:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"]
        if subprocess.run(command, cwd=ROOT).returncode:
            return 1
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    print(f"{properties['name'].decode()}, CuPy {cupy.__version__}; milliseconds, median of {RUNS}")
    _print_table(cupy)
    return 0


def _print_table(cupy: object) -> None:
    torch = _torch()
    head = f"{'problem':<60}{'strategy':>15}{'cyconv':>9}"
    print(head + (f"{'cuDNN':>9}{'ratio':>7}" if torch else "   (no PyTorch with CUDA)"))
    for name, sizes in LAYERS.items():
        for dtype in DTYPES:
            for layout in ("nchw", "nhwc"):
                for op in ("fwd", "dx", "dw"):
                    problem = cyconv.ConvProblem.parse(f"{op} {dtype} {layout} {sizes}")
                    _print_row(cupy, torch, name, problem)


def _torch() -> object | None:
    try:
        import torch
    except ImportError:
        return None
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch if torch.cuda.is_available() else None


def _print_row(cupy, torch, name, problem) -> None:  # type: ignore[no-untyped-def]
    rng = cupy.random.default_rng(0)
    shapes = {"fwd": ("x", "w"), "dx": ("y", "w"), "dw": ("x", "y")}[problem.op]
    arrays = [
        rng.standard_normal(getattr(problem, f"{role}_shape")).astype(DTYPES[problem.dtype])
        for role in shapes
    ]
    plan = cyconv.plan(problem, device="gpu")
    ours = _milliseconds(cupy, lambda: plan(*arrays))
    text = f"{name} {problem.op} {problem.dtype} {problem.layout}"
    row = f"{text:<60}{plan.strategy:>15}{ours:>9.3f}"
    if torch is not None:
        theirs = _milliseconds(cupy, _peer(torch, problem, arrays))
        row += f"{theirs:>9.3f}{ours / theirs:>7.2f}"
    print(row, flush=True)


def _peer(torch, problem, arrays) -> Callable[[], object]:  # type: ignore[no-untyped-def]
    """Return the same operator of PyTorch, on the same memory."""
    tensors = [torch.from_dlpack(array) for array in arrays]
    if problem.layout == "nhwc":
        tensors = [tensor.movedim(-1, 1) for tensor in tensors]
    keywords = {
        "stride": problem.stride,
        "padding": tuple(low for low, _ in problem.padding),
        "dilation": problem.dilation,
        "groups": problem.groups,
    }
    stream = torch.cuda.ExternalStream(0)
    gradient = getattr(torch.nn.grad, f"conv{problem.ndim}d_input")
    weight = getattr(torch.nn.grad, f"conv{problem.ndim}d_weight")
    forward = getattr(torch.nn.functional, f"conv{problem.ndim}d")
    x_shape, w_shape = (
        (shape[0], shape[-1], *shape[1:-1]) if problem.layout == "nhwc" else shape
        for shape in (problem.x_shape, problem.w_shape)
    )

    def run() -> object:
        with torch.cuda.stream(stream):
            if problem.op == "fwd":
                return forward(*tensors, **keywords)
            if problem.op == "dx":
                return gradient(x_shape, tensors[1], tensors[0], **keywords)
            return weight(tensors[0], w_shape, tensors[1], **keywords)

    return run


def _milliseconds(cupy, run) -> float:  # type: ignore[no-untyped-def]
    for _ in range(3):
        run()
    times = []
    for _ in range(RUNS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
