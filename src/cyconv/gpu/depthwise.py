"""``depthwise``: kernels for groups of one input channel."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..problem import ConvProblem
from ..settings import Config
from ..split import ordered
from .base import Run
from .module import Device, Kernel, launch
from .params import SUMS, TYPES, Sizes
from .phases import phases
from .sums import blocks_for, fold, parts

_FILES = ("ptx", "prims", "direct", "depthwise")
_THREADS = 256
# A part of a plane that a block has: rows and columns of the result.
_PART = (8, 32)
# Narrower planes leave most of a part's threads idle.
_FEWEST_COLUMNS = 12
_MOST_TILE_NBYTES = 48 * 1024
# As many elements as 16 bytes have.
_VECTOR = {"f32": 4, "f64": 2, "f16": 8, "bf16": 8}
# Of weight gradients: threads of a block, its taps, and the channels it has by layout.
_DW_THREADS = 128
_DW_TAPS = 8
_DW_CHANNELS = {"nchw": 1, "nhwc": 32}
_DW_BLOCKS = 8
_DW_FEWEST_PIXELS = 256
# Each phase of a data gradient is a launch.
_MOST_PHASES = 64
# Bytes a second, and multiply-adds, of one processor.
_BANDWIDTH = 15e9
_RATE = 2e10
_START = 5e-6


def _lanes(op: str, dtype: str, vector: int) -> Kernel:
    return Kernel(_FILES, f"depthwise_{op}<{TYPES[dtype]}, {vector}>")


def _rows(op: str, dtype: str) -> Kernel:
    return Kernel(_FILES, f"depthwise_{op}_rows<{TYPES[dtype]}>")


def _dw(dtype: str, layout: str) -> Kernel:
    return Kernel(_FILES, f"depthwise_dw<{TYPES[dtype]}, {_DW_CHANNELS[layout]}>")


KERNELS = (
    *(_lanes(op, dtype, n) for op in ("fwd", "dx") for dtype in TYPES for n in (1, _VECTOR[dtype])),
    *(_rows(op, dtype) for op in ("fwd", "dx") for dtype in TYPES),
    *(_dw(dtype, layout) for dtype in TYPES for layout in _DW_CHANNELS),
)


class Depthwise:
    """One image for each output channel, read by vectors of channels or by tiles of a plane."""

    name = "depthwise"
    reproducible = True
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Refuse groups of several input channels, and strides of many phases."""
        if problem.c_in != problem.groups:
            return f"a group has {problem.c_in // problem.groups} input channels, not one"
        if problem.op == "dx" and prod(problem.stride) > _MOST_PHASES:
            return f"the stride {problem.stride} has more than {_MOST_PHASES} phases"
        return None

    def workspace(self, problem: ConvProblem, device: Device, settings: Config) -> int:
        """Return the bytes of the partial sums of a weight gradient."""
        if problem.op != "dw":
            return 0
        return _splits(problem, device, settings.workspace_limit) * _part_nbytes(problem)

    def estimate(self, problem: ConvProblem, device: Device, settings: Config) -> float:
        """Count the bytes of the arrays, multiply-adds, and launches."""
        nbytes = sum(problem.elements.values()) * problem.itemsize
        launches = prod(problem.stride) if problem.op == "dx" else 1 + (problem.op == "dw")
        return (nbytes / _BANDWIDTH + problem.macs / _RATE) / device.processors + _START * launches

    def run(self, call: Run) -> None:
        """Launch a kernel, one for each phase of a data gradient, and a fold for weights."""
        if call.problem.op == "fwd":
            _launch(call, Sizes.of(call.problem), call.w, call.y)
        elif call.problem.op == "dx":
            for phase in phases(call.problem):
                w = call.w[ordered(phase.w, call.problem.layout)]
                dx = call.x[ordered(phase.x, call.problem.layout)]
                _launch(call, phase.sizes, w, dx)
        else:
            _weight_gradient(call)


def _launch(call: Run, sizes: Sizes, w: Any, out: Any) -> None:
    """Launch the kernel of "fwd" or "dx" that fits, on views of the weights and of the result."""
    problem, op = call.problem, call.problem.op
    forward = op == "fwd"
    first = call.x if forward else call.y
    packed = call.packed(sizes, call.x if forward else out, w)
    args = (first, w, call.bias, out, packed)
    size = sizes.out_size if forward else sizes.in_size
    tile = _tile_nbytes(problem, sizes)
    if problem.layout == "nchw" and size[2] >= _FEWEST_COLUMNS and tile <= _MOST_TILE_NBYTES:
        planes = sizes.n * (problem.c_out if forward else problem.c_in) * size[0]
        blocks = planes * -(-size[1] // _PART[0]) * -(-size[2] // _PART[1])
        launch(_rows(op, problem.dtype), blocks, _THREADS, args, tile)
        return
    vector = _VECTOR[problem.dtype]
    if not _vectors(problem, first, vector) or not _vectors(problem, out, vector):
        vector = 1
    blocks = blocks_for(out.size // vector, call.device)
    launch(_lanes(op, problem.dtype, vector), blocks, _THREADS, args)


def _tile_nbytes(problem: ConvProblem, sizes: Sizes) -> int:
    """Shared memory of a part: the inputs that its outputs read."""
    sides = (
        (part - 1) * step + (k - 1) * dilation + 1
        for part, step, k, dilation in zip(
            _PART, sizes.stride[1:], sizes.kernel[1:], sizes.dilation[1:], strict=True
        )
    )
    return prod(sides) * SUMS[problem.dtype].itemsize


def _vectors(problem: ConvProblem, array: Any, vector: int) -> bool:
    """Whether channels come in whole, aligned vectors, and each has one output."""
    *_, channel = array.strides
    nbytes = vector * array.itemsize
    return (
        problem.layout == "nhwc"
        and problem.c_in == problem.c_out
        and problem.c_in % vector == 0
        and channel == array.itemsize
        and array.data.ptr % nbytes == 0
        and all(stride % nbytes == 0 for stride in array.strides[:-1])
    )


def _weight_gradient(call: Run) -> None:
    problem = call.problem
    splits = _splits(problem, call.device, call.settings.workspace_limit)
    partial = parts(splits, prod(problem.w_shape), SUMS[problem.dtype])
    blocks = _dw_blocks(problem) * partial.shape[0]
    packed = call.packed(Sizes.of(problem))
    args = (call.x, call.y, partial, np.int32(partial.shape[0]), packed)
    launch(_dw(problem.dtype, problem.layout), blocks, _DW_THREADS, args)
    fold(partial, call.w, problem.dtype)


def _dw_blocks(problem: ConvProblem) -> int:
    """Blocks of one share of the pixels."""
    across = -(-problem.c_out // _DW_CHANNELS[problem.layout])
    return int(across * -(-prod(problem.kernel) // _DW_TAPS))


def _part_nbytes(problem: ConvProblem) -> int:
    return prod(problem.w_shape) * SUMS[problem.dtype].itemsize


def _splits(problem: ConvProblem, device: Device, limit: int) -> int:
    """Return how many shares of the pixels are summed apart: enough to keep the device busy."""
    wanted = _DW_BLOCKS * device.processors // _dw_blocks(problem)
    pixels = problem.batch * prod(problem.out_size)
    return max(1, min(wanted, pixels // _DW_FEWEST_PIXELS, limit // _part_nbytes(problem)))
