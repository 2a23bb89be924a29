"""``im2col``: patches become the columns of a matrix, a tile at a time, and cuBLAS multiplies.

K. Chellapilla, S. Puri, P. Simard, "High performance convolutional neural networks for document
processing", 2006. Matrices are in the type of sums, so halves are summed in float32 whatever cuBLAS
would do; a data gradient is made of its phases, each a product like a forward one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import devices
from ..problem import ConvProblem
from ..settings import Config
from ..split import ordered
from .base import Run
from .module import Device, Kernel, launch
from .params import SUMS, TYPES, Sizes
from .phases import phases
from .sums import blocks_for, fold

_FILES = ("ptx", "prims", "direct", "columns")
_THREADS = 256
_NAMES = ("columns_fwd", "columns_dx", "columns_of_y", "columns_to_y", "columns_to_dx")
# Columns of a tile: fewer make a poor product; more than this many bytes bring nothing.
_FEWEST_COLUMNS = 64
_MOST_TILE_NBYTES = 256 * 2**20
_MOST_PHASES = 64
# Multiply-adds and bytes a second of one processor of an A100, and seconds for starting a kernel.
_RATE = {"f32": 7e10, "f64": 6e10, "f16": 7e10, "bf16": 7e10}
_BANDWIDTH = 15e9
_START = 5e-6


def _kernel(name: str, dtype: str) -> Kernel:
    return Kernel(_FILES, f"{name}<{TYPES[dtype]}>")


KERNELS = tuple(_kernel(name, dtype) for name in _NAMES for dtype in TYPES)


class Im2col:
    """Gather patches into columns, and multiply by cuBLAS."""

    name = "im2col"
    reproducible = False
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Serve everything but data gradients of many phases."""
        if problem.op == "dx" and prod(problem.stride) > _MOST_PHASES:
            return f"the stride {problem.stride} has more than {_MOST_PHASES} phases"
        return None

    def workspace(self, problem: ConvProblem, device: Device, settings: Config) -> int:
        """Return the bytes of a tile of columns, its product and a copy of the weights."""
        return _fixed_nbytes(problem) + _columns(
            problem, settings.workspace_limit
        ) * _column_nbytes(problem)

    def estimate(self, problem: ConvProblem, device: Device, settings: Config) -> float:
        """Count multiply-adds, the columns written and read, and the kernels."""
        pixels = problem.batch * prod(problem.in_size if problem.op == "dx" else problem.out_size)
        tiles = -(-pixels // _columns(problem, _MOST_TILE_NBYTES))
        nbytes = 2 * pixels * _column_nbytes(problem)
        rates = problem.macs / _RATE[problem.dtype] + nbytes / _BANDWIDTH
        return rates / device.processors + 3 * _START * tiles

    def run(self, call: Run) -> None:
        """Run tile after tile."""
        if call.problem.op == "fwd":
            _forward(call)
        elif call.problem.op == "dx":
            for phase in phases(call.problem):
                layout = call.problem.layout
                _data_gradient(
                    call, phase.sizes, call.w[ordered(phase.w, layout)],
                    call.x[ordered(phase.x, layout)],
                )  # fmt: skip
        else:
            _weight_gradient(call)


# --- tiles ----------------------------------------------------------------------------------------


def _fixed_nbytes(problem: ConvProblem) -> int:
    """Weights in the type of sums; weight gradients are added up, so have two."""
    return 2 * prod(problem.w_shape) * SUMS[problem.dtype].itemsize


def _column_nbytes(problem: ConvProblem) -> int:
    """Return the bytes of a column of patches, and of one of the product or of dy."""
    terms = (problem.c_out if problem.op == "dx" else problem.c_in) * prod(problem.kernel)
    channels = problem.c_in if problem.op == "dx" else problem.c_out
    return int((terms + channels) * SUMS[problem.dtype].itemsize)


def _columns(problem: ConvProblem, limit: int) -> int:
    """Return how many columns a tile has."""
    room = min(limit - _fixed_nbytes(problem), _MOST_TILE_NBYTES)
    pixels = problem.batch * prod(problem.in_size if problem.op == "dx" else problem.out_size)
    return min(max(room // _column_nbytes(problem), _FEWEST_COLUMNS), pixels)


def _launch(call: Run, name: str, elements: int, args: tuple[Any, ...]) -> None:
    blocks = blocks_for(elements, call.device)
    launch(_kernel(name, call.problem.dtype), blocks, _THREADS, args)


def _tiles(call: Run, pixels: int) -> list[tuple[np.int32, np.int32]]:
    """First pixel and count of each tile."""
    step = _columns(call.problem, call.settings.workspace_limit)
    return [
        (np.int32(first), np.int32(min(step, pixels - first))) for first in range(0, pixels, step)
    ]


def _empty(call: Run, *shape: Any) -> Any:
    return devices.cupy().empty(tuple(map(int, shape)), SUMS[call.problem.dtype])


# --- operators ------------------------------------------------------------------------------------


def _forward(call: Run) -> None:
    cupy, problem, sizes = devices.cupy(), call.problem, Sizes.of(call.problem)
    terms = sizes.ci * sizes.taps
    packed = call.packed(sizes)
    weights = cupy.ascontiguousarray(call.w, SUMS[problem.dtype])
    weights = weights.reshape(sizes.groups, sizes.co, terms)
    for first, count in _tiles(call, sizes.out_pixels):
        columns = _empty(call, sizes.groups, terms, count)
        _launch(call, "columns_fwd", columns.size, (call.x, columns, first, count, packed))
        product = cupy.matmul(weights, columns)
        args = (product, call.bias, call.y, first, count, packed)
        _launch(call, "columns_to_y", product.size, args)


def _data_gradient(call: Run, sizes: Sizes, w: Any, dx: Any) -> None:
    """Run one phase, on views of the weights and of the result."""
    cupy = devices.cupy()
    packed = call.packed(sizes, dx, w)
    weights = _transposed(call, sizes, w)
    terms = sizes.co * sizes.taps
    for first, count in _tiles(call, sizes.in_pixels):
        columns = _empty(call, sizes.groups, terms, count)
        _launch(call, "columns_dx", columns.size, (call.y, columns, first, count, packed))
        product = cupy.matmul(weights, columns)
        args = (product, call.y, w, call.bias, dx, first, count, packed)
        _launch(call, "columns_to_dx", product.size, args)


def _transposed(call: Run, sizes: Sizes, w: Any) -> Any:
    """Return weights as (groups, ci, co * taps), whatever their layout."""
    last = call.problem.layout == "nhwc"
    inner = (sizes.taps, sizes.ci) if last else (sizes.ci, sizes.taps)
    split = w.reshape(sizes.groups, sizes.co, *inner)
    ordered_w = split.transpose(0, 3, 1, 2) if last else split.transpose(0, 2, 1, 3)
    copy = devices.cupy().ascontiguousarray(ordered_w, SUMS[call.problem.dtype])
    return copy.reshape(sizes.groups, sizes.ci, sizes.co * sizes.taps)


def _weight_gradient(call: Run) -> None:
    cupy, problem, sizes = devices.cupy(), call.problem, Sizes.of(call.problem)
    terms = sizes.ci * sizes.taps
    packed = call.packed(sizes)
    total = None
    for first, count in _tiles(call, sizes.out_pixels):
        columns = _empty(call, sizes.groups, terms, count)
        _launch(call, "columns_fwd", columns.size, (call.x, columns, first, count, packed))
        gradient = _empty(call, sizes.groups, sizes.co, count)
        _launch(call, "columns_of_y", gradient.size, (call.y, gradient, first, count, packed))
        product = cupy.matmul(gradient, columns.transpose(0, 2, 1))
        total = product if total is None else cupy.add(total, product, out=total)
    assert total is not None
    fold(total.reshape(1, -1), call.w, problem.dtype)
