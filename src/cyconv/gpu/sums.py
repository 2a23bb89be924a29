"""Partial sums in a workspace, their fold in a fixed order, and sums over channels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import devices
from ..errors import UnsupportedError
from ..operands import NAMES, element_strides
from .module import Device, Kernel, current_device, launch
from .params import MOST, SUMS, TYPES, Sizes, pack

_FILES = ("ptx", "prims", "sums")
THREADS = 256
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
    return min(-(-elements // THREADS), device.processors * _BLOCKS)


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


def fold(partial: Any, out: Any, dtype: str) -> None:
    """Add partial sums, shape (splits, elements), into a contiguous array of a problem's dtype."""
    splits, elements = partial.shape
    launch(
        _fold(dtype, partial.dtype),
        blocks_for(elements, current_device()),
        THREADS,
        (partial, out, np.int32(splits), np.int64(elements)),
    )


def bias_gradient(dy: Any, layout: str) -> Any:
    """Sum dy over batch and space in float64, and round once.

    Parameters
    ----------
    dy : cupy.ndarray, shape (N, C_out, *out) or, for "nhwc", (N, *out, C_out)
        On the current device, with strides of whole elements.
    layout : {"nchw", "nhwc"}

    Returns
    -------
    cupy.ndarray, shape (C_out,)

    Raises
    ------
    UnsupportedError
        If an image has more pixels than kernels can count.
    """
    channels, space = (
        (dy.shape[1], dy.shape[2:]) if layout == "nchw" else (dy.shape[-1], dy.shape[1:-1])
    )
    if prod(space) > MOST:
        raise UnsupportedError(f"dy of shape {dy.shape} has images of more than {MOST} pixels")
    dtype = NAMES[dy.dtype.name]
    step = MOST // max(prod(space), 1)
    images = [dy[first : first + step] for first in range(0, dy.shape[0], step)] or [dy]
    splits = _channel_splits(len(images[0]) * prod(space), channels, current_device())
    partial = parts(len(images) * splits, channels, np.dtype(np.float64))
    splits = partial.shape[0] // len(images)
    for i, image in enumerate(images):
        strides = element_strides(image, layout)
        packed = pack(Sizes.of_image(len(image), channels, space), strides, strides, strides)
        rows = partial[i * splits : (i + 1) * splits]
        args = (image, rows, np.int32(splits), packed)
        launch(_channel_sums(dtype), rows.size, _CHANNEL_THREADS, args)
    out = devices.cupy().empty(channels, dy.dtype)
    fold(partial[: len(images) * splits], out, dtype)
    return out


def _channel_splits(pixels: int, channels: int, device: Device) -> int:
    """Enough blocks for the device, but no block without work."""
    wanted = -(-device.processors * _BLOCKS // max(channels, 1))
    return max(1, min(wanted, pixels // _FEWEST_PIXELS))
