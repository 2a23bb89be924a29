"""``direct``: the definition, one thread an element of the result; serves every problem."""

from __future__ import annotations

from math import prod

import numpy as np

from ..problem import ConvProblem
from .base import Run
from .module import Device, Kernel, launch
from .params import TYPES, WIDE, Sizes
from .sums import blocks_for, fold, parts

_THREADS = 256
# Threads that a weight gradient should have, and pixels that each should add up.
_THREADS_WANTED = 2048
_FEWEST_PIXELS = 64
# Multiply-adds a second of one processor: in float64 many devices are slow.
_RATE = 2e9


def _kernel(op: str, dtype: str, layout: str) -> Kernel:
    last = "true" if layout == "nhwc" else "false"
    return Kernel(("ptx", "prims", "direct"), f"direct_{op}<{TYPES[dtype]}, {last}>")


KERNELS = tuple(
    _kernel(op, dtype, layout)
    for op in ("fwd", "dx", "dw")
    for dtype in TYPES
    for layout in ("nchw", "nhwc")
)


class Direct:
    """Loops over the definition; float32 data is summed in float64, halves in float32."""

    name = "direct"
    reproducible = True
    precision = "highest"
    bound = "u |y| + gamma_{K+1}(float64) sum |x||w|"

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Serve everything."""
        return None

    def workspace(self, problem: ConvProblem, device: Device, limit: int) -> int:
        """Return the bytes of the partial sums of a weight gradient."""
        if problem.op != "dw":
            return 0
        return _splits(problem, device, limit) * _part_nbytes(problem)

    def estimate(self, problem: ConvProblem, device: Device) -> float:
        """Count multiply-adds."""
        return problem.macs / (_RATE * device.processors)

    def run(self, call: Run) -> None:
        """Launch one kernel, and a fold for weight gradients."""
        problem = call.problem
        kernel = _kernel(problem.op, problem.dtype, problem.layout)
        packed = call.packed(Sizes.of(problem))
        if problem.op == "dw":
            elements = prod(problem.w_shape)
            splits = _splits(problem, call.device, call.limit)
            partial = parts(splits, elements, WIDE[problem.dtype])
            blocks = blocks_for(partial.size, call.device)
            args = (call.x, call.y, partial, np.int32(partial.shape[0]), packed)
            launch(kernel, blocks, _THREADS, args)
            fold(partial, call.w, problem)
            return
        blocks = blocks_for(prod(problem.result_shape), call.device)
        first, out = (call.x, call.y) if problem.op == "fwd" else (call.y, call.x)
        launch(kernel, blocks, _THREADS, (first, call.w, call.bias, out, packed))


def _part_nbytes(problem: ConvProblem) -> int:
    return prod(problem.w_shape) * WIDE[problem.dtype].itemsize


def _splits(problem: ConvProblem, device: Device, limit: int) -> int:
    """Return how many shares of the pixels are summed apart: enough to keep the device busy."""
    pixels = problem.batch * prod(problem.out_size)
    wanted = _THREADS_WANTED * device.processors // prod(problem.w_shape)
    return max(1, min(wanted, pixels // _FEWEST_PIXELS, limit // _part_nbytes(problem)))
