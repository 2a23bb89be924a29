"""Max pooling on a GPU: largest values with their places, and what is added back there."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import devices
from ..errors import UnsupportedError
from ..operands import NAMES, element_strides, is_ready
from ..windows import Windows
from .module import Kernel, current_device, launch
from .params import MOST, TYPES, Sizes, pack, three
from .sums import THREADS, blocks_for


def _kernel(name: str, dtype: str) -> Kernel:
    return Kernel(("ptx", "prims", "direct", "pooling"), f"{name}<{TYPES[dtype]}>")


KERNELS = tuple(_kernel(name, dtype) for name in ("largest", "put_back") for dtype in TYPES)


def largest(x: Any, windows: Windows) -> tuple[Any, Any]:
    """Find the largest value of each window.

    Parameters
    ----------
    x : cupy.ndarray
        On the current device, of a float type; with or without a batch axis, as `windows` knows it.
    windows : Windows

    Returns
    -------
    cupy.ndarray, cupy.ndarray of int32
        The values, and the cell of each in its volume, or -1.

    Raises
    ------
    UnsupportedError
        If coordinates within the padding exceed 31 bits.
    """
    cupy, shape = devices.cupy(), windows.result_shape(x.shape)
    x = _readable(x)
    y, places = cupy.empty(shape, x.dtype), cupy.empty(shape, np.int32)
    _run("largest", windows, x, y, (x, y, places))
    return y, places


def put_back(dy: Any, places: Any, shape: tuple[int, ...], windows: Windows) -> Any:
    """Add what belongs to windows to the cells that their values came from; the others get 0.

    Parameters
    ----------
    dy : cupy.ndarray
        One number a window, of a float type.
    places : cupy.ndarray of int32
        From `largest`.
    shape : tuple of int
        Of the input.
    windows : Windows

    Returns
    -------
    cupy.ndarray, of this shape
    """
    cupy = devices.cupy()
    dy, dx = cupy.ascontiguousarray(dy), cupy.empty(shape, dy.dtype)
    _run("put_back", windows, dx, dy, (dy, places, dx))
    return dx


def _readable(x: Any) -> Any:
    """Copy an array whose strides are not whole elements."""
    return x if is_ready(x, x.dtype) else devices.cupy().ascontiguousarray(x)


def _run(name: str, windows: Windows, x: Any, y: Any, arrays: tuple[Any, ...]) -> None:
    """Launch a kernel, for as many images at a time as it can count."""
    if x.ndim == windows.ndim + 1:
        x, y, arrays = x[None], y[None], tuple(array[None] for array in arrays)
    kernel = _kernel(name, NAMES[x.dtype.name])
    step = MOST // max(prod(windows.size), prod(windows.out))
    for first in range(0, len(x), step):
        images = slice(first, first + step)
        result = x[images] if name == "put_back" else y[images]
        args = (*(array[images] for array in arrays), _packed(x[images], y[images], windows))
        launch(kernel, blocks_for(result.size, current_device()), THREADS, args)


def _packed(x: Any, y: Any, windows: Windows) -> Any:
    layout = windows.layout
    channels = x.shape[1] if windows.first else x.shape[-1]
    axes = list(zip(windows.kernel, windows.out, windows.stride, windows.dilation, strict=True))
    sizes = Sizes(
        len(x), 1, channels, channels,
        three(windows.size, 1),
        three(windows.kernel, 1),
        three(windows.out, 1),
        # A step along an axis of one element is one.
        three([step if out > 1 else 1 for _, out, step, _ in axes], 1),
        three([low for low, _ in windows.padding], 0),
        three([dilation if k > 1 else 1 for k, _, _, dilation in axes], 1),
    )  # fmt: skip
    if sizes.reach > MOST:
        raise UnsupportedError("along an axis, the image with its padding exceeds 2**31 cells")
    xs, ys = element_strides(x, layout), element_strides(y, layout)
    return pack(sizes, xs, (0,) * len(xs), ys, not windows.first)
