"""Partial sums in a workspace, their fold in a fixed order, and sums over channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import devices
from ..operands import element_strides
from ..problem import ConvProblem
from .module import Device, Kernel, current_device, launch
from .params import SUMS, TYPES, Sizes, pack

_FILES = ("ptx", "prims", "sums")
_THREADS = 256
_CHANNEL_THREADS = 128
# Blocks of a processor at a time, and pixels that a block should have to add up.
_BLOCKS = 8
_FEWEST_PIXELS = 2048

_C_NAMES = {"float32": "float", "float64": "double"}


def _fold(dtype: str, sum_dtype: np.dtype[Any]) -> Kernel:
    return Kernel(_FILES, f"fold<{TYPES[dtype]}, {_C_NAMES[sum_dtype.name]}>")


def _channel_sums(dtype: str) -> Kernel:
    return Kernel(_FILES, f"channel_sums<{TYPES[dtype]}>")


KERNELS = (
    *(_fold(dtype, SUMS[dtype]) for dtype in TYPES),
    *(_fold(dtype, np.dtype(np.float64)) for dtype in TYPES if dtype != "f64"),
    *map(_channel_sums, TYPES),
)


def blocks_for(elements: int, device: Device) -> int:
    """Return the blocks of a kernel whose threads stride over this many elements."""
    return min(-(-elements // _THREADS), device.processors * _BLOCKS)


def parts(splits: int, elements: int, dtype: np.dtype[Any]) -> Any:
    """Allocate partial sums, of fewer splits if the GPU has no memory for all of them.

    Returns
    -------
    cupy.ndarray, shape (splits or less, elements)
    """
    cupy = devices.cupy()
    while True:
        try:
            return cupy.empty((splits, elements), dtype)
        except cupy.cuda.memory.OutOfMemoryError:
            if splits == 1:
                raise
            splits = (splits + 1) // 2


def fold(partial: Any, out: Any, problem: ConvProblem) -> None:
    """Add partial sums, shape (splits, elements), into a contiguous array of that problem."""
    splits, elements = partial.shape
    launch(
        _fold(problem.dtype, partial.dtype),
        blocks_for(elements, current_device()),
        _THREADS,
        (partial, out, np.int32(splits), np.int64(elements)),
    )


def bias_gradient(dy: Any, problem: ConvProblem) -> Any:
    """Sum dy over batch and space in float64, and round once.

    Parameters
    ----------
    dy : cupy.ndarray of ``problem.y_shape`` and dtype
    problem : ConvProblem
        Of any operator.

    Returns
    -------
    cupy.ndarray, shape (C_out,)
    """
    device = current_device()
    sizes = Sizes.of(problem)
    channels = problem.c_out
    splits = _channel_splits(sizes.out_pixels, channels, device)
    partial = parts(splits, channels, np.dtype(np.float64))
    strides = element_strides(dy, problem.layout)
    launch(
        _channel_sums(problem.dtype),
        partial.size,
        _CHANNEL_THREADS,
        (dy, partial, np.int32(partial.shape[0]), pack(sizes, strides, strides, strides)),
    )
    out = devices.cupy().empty(channels, dy.dtype)
    fold(partial, out, problem)
    return out


def _channel_splits(pixels: int, channels: int, device: Device) -> int:
    """Enough blocks for the device, but no block without work."""
    wanted = -(-device.processors * _BLOCKS // max(channels, 1))
    return max(1, min(wanted, pixels // _FEWEST_PIXELS))
