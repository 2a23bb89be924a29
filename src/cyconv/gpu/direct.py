"""``direct``: the definition, one thread an element of the result; serves every problem."""

from __future__ import annotations

from math import prod

import numpy as np

from ..problem import OPERATORS, ConvProblem
from ..settings import Config
from .base import Run
from .module import Device, Kernel, launch
from .params import TYPES, WIDE, Sizes
from .sums import blocks_for, fold, parts

_THREADS = 256
# Threads that a weight gradient should have, and pixels that each should add up.
_THREADS_WANTED = 2048
_FEWEST_PIXELS = 64
# Multiply-adds a second of one processor: in float64 many devices are slow. A thread waits for
# memory at each of its terms, and a kernel takes a while to start.
_RATE = 2e9
_TERM = 2e-8
_START = 5e-6


def _kernel(op: str, dtype: str) -> Kernel:
    return Kernel(("ptx", "prims", "direct"), f"direct_{op}<{TYPES[dtype]}>")


KERNELS = tuple(_kernel(op, dtype) for op in OPERATORS for dtype in TYPES)


class Direct:
    """Loops over the definition; float32 data is summed in float64, halves in float32."""

    name = "direct"
    reproducible = True
    precision = "highest"
    bound = "u |y| + gamma_{K+1}(float64) sum |x||w|"

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Serve everything."""
        return None

    def workspace(self, problem: ConvProblem, device: Device, settings: Config) -> int:
        """Return the bytes of the partial sums of a weight gradient."""
        if problem.op != "dw":
            return 0
        elements = prod(problem.w_shape)
        return (
            _splits(problem, device, settings.workspace_limit)
            * elements
            * WIDE[problem.dtype].itemsize
        )

    def estimate(self, problem: ConvProblem, device: Device, settings: Config) -> float:
        """Count multiply-adds, or the terms of one thread if there are few threads."""
        terms = problem.terms
        if problem.op == "dw":
            terms = -(-terms // _splits(problem, device, 2**62))
        return _START + max(problem.macs / (_RATE * device.processors), terms * _TERM)

    def run(self, call: Run) -> None:
        """Launch one kernel, and a fold for weight gradients."""
        problem = call.problem
        kernel = _kernel(problem.op, problem.dtype)
        packed = call.packed(Sizes.of(problem))
        if problem.op == "dw":
            elements = prod(problem.w_shape)
            splits = _splits(problem, call.device, call.settings.workspace_limit)
            partial = parts(splits, elements, WIDE[problem.dtype])
            blocks = blocks_for(partial.size, call.device)
            args = (call.x, call.y, partial, np.int32(partial.shape[0]), packed)
            launch(kernel, blocks, _THREADS, args)
            fold(partial, call.w, problem.dtype)
            return
        blocks = blocks_for(prod(problem.result_shape), call.device)
        first, out = (call.x, call.y) if problem.op == "fwd" else (call.y, call.x)
        launch(kernel, blocks, _THREADS, (first, call.w, call.bias, out, packed))


def _splits(problem: ConvProblem, device: Device, limit: int) -> int:
    """Return how many shares of the pixels are summed apart: enough to keep the device busy."""
    pixels = problem.batch * prod(problem.out_size)
    elements = max(prod(problem.w_shape), 1)
    wanted = _THREADS_WANTED * device.processors // elements
    most = limit // (elements * WIDE[problem.dtype].itemsize)
    return max(1, min(wanted, pixels // _FEWEST_PIXELS, most))
