"""ONNX pooling: the largest value or the mean of a sliding window, or of a whole image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def global_average_pool(x: Array) -> Array:
    """Return the mean over all pixels, whose axes stay with size 1."""
    pixels = math.prod(x.shape[2:])
    rows = np.moveaxis(x, 1, -1).reshape(len(x), pixels, -1) if pixels else x
    if not pixels or not np.may_share_memory(rows, x):
        return np.asarray(np.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True))
    # Channels are last in memory. NumPy adds row by row, and of a row of few channels most is
    # overhead: so several pixels make a row.
    joined = math.gcd(pixels, 16)
    wide = rows.reshape(len(x), pixels // joined, -1).sum(axis=1)
    mean = wide.reshape(len(x), joined, -1).sum(axis=1) / pixels
    return np.asarray(mean.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)))


def global_max_pool(x: Array) -> Array:
    """Return the largest value over all pixels, whose axes stay with size 1."""
    return np.asarray(np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Array:
    """Return the largest value of each window; padding never wins."""
    del storage_order  # it orders the second output, which the runner refuses
    axes = _axes(x.shape[2:], kernel_shape, auto_pad, ceil_mode, dilations, pads, strides)
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    return reduce(np.maximum, _taps(x, axes, lowest))


def average_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Return the mean of each window: over its pixels, or with ``count_include_pad`` all cells.

    The overhang that ``ceil_mode`` adds behind the padding never counts.
    """
    axes = _axes(x.shape[2:], kernel_shape, auto_pad, ceil_mode, dilations, pads, strides)
    total = reduce(np.add, _taps(x, axes, 0))
    pixels = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        padding = [(0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)]
        pixels = np.pad(pixels, padding, constant_values=1)
        axes = [replace(axis, before=0, after=0) for axis in axes]
    return np.asarray(total / reduce(np.add, _taps(pixels, axes, 0)), x.dtype)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of the windows: taps, their distance, the windows' number and distance, padding."""

    kernel: int
    dilation: int
    count: int
    stride: int
    before: int
    after: int
    overhang: int  # what the last window needs behind the padding


def _axes(
    sizes: Sequence[int],
    kernel_shape: Sequence[int],
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> list[_Axis]:
    n = len(sizes)
    axes = []
    for i, size in enumerate(sizes):
        kernel = kernel_shape[i]
        stride = strides[i] if strides else 1
        dilation = dilations[i] if dilations else 1
        extent = dilation * (kernel - 1) + 1
        before, after = (pads[i], pads[i + n]) if pads and auto_pad == "NOTSET" else (0, 0)
        if auto_pad.startswith("SAME"):
            count = -(-size // stride)
            total = max((count - 1) * stride + extent - size, 0)
            smaller, larger = total // 2, total - total // 2
            before, after = (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)
        else:
            room = size + before + after - extent
            count = (-(-room // stride) if ceil_mode else room // stride) + 1
            # A window that starts behind the input and the padding before it sees no pixel.
            if ceil_mode and (count - 1) * stride >= size + before:
                count -= 1
        overhang = max((count - 1) * stride + extent - (before + size + after), 0)
        axes.append(_Axis(kernel, dilation, count, stride, before, after, overhang))
    return axes


def _taps(x: Array, axes: Sequence[_Axis], filling: float) -> Iterator[Array]:
    """Yield for each tap what it sees in all windows: a strided view of the padded input."""
    widths = [(0, 0), (0, 0), *((axis.before, axis.after + axis.overhang) for axis in axes)]
    padded = np.pad(x, widths, constant_values=filling)
    reach = [range(0, axis.kernel * axis.dilation, axis.dilation) for axis in axes]
    for firsts in itertools.product(*reach):
        windows = tuple(
            slice(first, first + (axis.count - 1) * axis.stride + 1, axis.stride)
            for first, axis in zip(firsts, axes, strict=True)
        )
        yield padded[(slice(None), slice(None), *windows)]
