"""The rows of max pooling, and average pooling as the convolution that it is.

Max pooling finds the place of each largest value once; picking values at places and adding them
back there are each other's gradients. The average of a window is a depthwise convolution with
equal weights, so its gradients are those of convolution.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import functional
from ..devices import entered, on_gpu
from ..kernels import _pooling
from ..kernels._memory import Recycling
from ..operands import Array, as_array, result_dtype
from ..settings import resolve
from ..windows import Windows, windows_of
from .tape import Operator, raw

_PARALLEL_CELLS = 32768  # fewer results are not worth a second thread


def _array(x: Any) -> Array:
    return as_array("x", raw(x))


# --- maximum --------------------------------------------------------------------------------------


class _Largest(NamedTuple):
    """The largest value of each window, and its cell in the input's volume, or -1."""

    value: Array
    place: Array
    shape: tuple[int, ...]  # of the input
    windows: Windows

    def volumes(self, array: Array) -> Array:
        """Read an array as (images and channels, cells, 1) or (images, cells, channels)."""
        shape, n = array.shape, self.windows.ndim
        if self.windows.first:
            return array.reshape(-1, prod(shape[len(shape) - n :]), 1)
        return array.reshape(-1, prod(shape[-1 - n : -1]), shape[-1])


def _threads(cells: int) -> int:
    return (resolve("fwd", None, None).threads or 1) if cells >= _PARALLEL_CELLS else 1


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which kernels compute: float32 for the half types, which loses nothing."""
    return dtype if dtype in (np.float32, np.float64) else np.dtype(np.float32)


def _find_largest(x: Array, windows: Windows) -> _Largest:
    if on_gpu(x):
        from .. import gpu

        with entered(x):
            return _Largest(*gpu.largest(x, windows), x.shape, windows)
    ndim, dtype = windows.ndim, _wide(x.dtype)
    shape = windows.result_shape(x.shape)
    channels = 1 if windows.first else x.shape[-1]
    value, place = np.empty(shape, dtype), np.empty(shape, np.intc)
    ones, zeros = (1,) * (3 - ndim), (0,) * (3 - ndim)
    images = prod(shape) // (prod(windows.out) * max(channels, 1))
    _pooling.forward(
        np.ascontiguousarray(x, dtype).reshape(images, *ones, *windows.size, channels),
        (*ones, *windows.kernel),
        (*ones, *windows.stride),
        (*ones, *windows.dilation),
        (*zeros, *(lo for lo, _ in windows.padding)),
        -np.inf,
        value.reshape(images, *ones, *windows.out, channels),
        place.reshape(images, *ones, *windows.out, channels),
        _threads(value.size),
    )
    return _Largest(value.astype(x.dtype, copy=False), place, x.shape, windows)


def _pick(x: Array, *, found: _Largest) -> Array:
    volumes, place = found.volumes(x), found.volumes(found.place)
    picked = np.take_along_axis(volumes, np.maximum(place, 0), axis=1)
    return np.where(place < 0, picked.dtype.type(0), picked).reshape(found.place.shape)


def _put_back(g: Array, *, found: _Largest) -> Array:
    if on_gpu(g):
        from .. import gpu

        with entered(g):
            return gpu.put_back(g, found.place, found.shape, found.windows)  # type: ignore[no-any-return]
    dtype = _wide(g.dtype)
    result = np.empty(found.shape, dtype)
    _pooling.scatter(
        found.volumes(np.ascontiguousarray(g, dtype)),
        found.volumes(found.place),
        found.volumes(result),
        _threads(g.size),
    )
    return result.astype(g.dtype, copy=False)


largest: Operator = Operator(
    "max_pool",
    lambda x, *, found: found.value,
    (lambda g, y, x, *, found: put_back(g, found=found),),
)
put_back: Operator = Operator(
    "max_pool_backward", _put_back, (lambda g, y, x, **more: pick(g, **more),)
)
pick: Operator = Operator("pick", _pick, (lambda g, y, x, **more: put_back(g, **more),))


def max_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "channels_first",
) -> Any:
    """Largest value of each window; padding never wins, and NaN always does.

    Parameters
    ----------
    rank : int
        Number of spatial axes, 1 to 3.
    x : Tensor or array, shape (N, C, *spatial) or (C, *spatial)
        ``(N, *spatial, C)`` in a channels-last layout.
    kernel_size : int or sequence of int
    stride : int or sequence of int, optional
        By default `kernel_size`.
    padding : int, sequence, or {"valid", "same", "same_lower"}
        As in `cyconv.conv_forward`, at most half of the window.
    dilation : int or sequence of int
    ceil_mode : bool
        Whether a last window may reach over the end.
    layout : str

    Returns
    -------
    Tensor, or numpy.ndarray for an array

    Raises
    ------
    ShapeError
        If `x` has another rank, or there is no output.
    ValueError, TypeError
        If a parameter has a wrong value or type.

    Notes
    -----
    Of equal values in a window the first gets the gradient, as in PyTorch.
    """
    array = _array(x)
    result_dtype(x=array)
    windows = windows_of(
        rank, array.shape, kernel_size, stride, padding, dilation, ceil_mode, layout
    )
    with Recycling():
        found = _find_largest(array, windows)
    return largest(x, found=found)


# --- average --------------------------------------------------------------------------------------


def _counts(windows: Windows, count_include_pad: bool) -> list[Array]:
    """How many cells each window counts along each axis: those of the input, and of the padding."""
    counts = []
    for n, k, s, d, (lo, hi), out in zip(
        windows.size, windows.kernel, windows.stride, windows.dilation, windows.padding,
        windows.out, strict=True,
    ):  # fmt: skip
        cells = np.arange(out)[:, None] * s + np.arange(k) * d - lo
        before, after = (lo, hi) if count_include_pad else (0, 0)
        counts.append(((cells >= -before) & (cells < n + after)).sum(axis=1))
    return counts


def avg_pool(
    rank: int,
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "channels_first",
) -> Any:
    """Mean of each window, as a depthwise convolution.

    Parameters
    ----------
    rank, x, kernel_size, stride, padding, ceil_mode, layout
        As for `max_pool`.
    count_include_pad : bool
        Whether cells of the padding count. What reaches over the end in `ceil_mode` never does.

    Returns
    -------
    Tensor, or numpy.ndarray for an array

    Raises
    ------
    ShapeError, ValueError, TypeError
        As for `max_pool`.
    """
    array = _array(x)
    dtype = result_dtype(x=array)
    windows = windows_of(rank, array.shape, kernel_size, stride, padding, 1, ceil_mode, layout)
    counts = _counts(windows, count_include_pad)
    uniform = all((count == k).all() for count, k in zip(counts, windows.kernel, strict=True))
    channels = array.shape[array.ndim - rank - 1] if windows.first else array.shape[-1]
    ends = tuple(
        (lo, max((out - 1) * s + k - n - lo, 0))
        for n, k, s, (lo, _), out in zip(
            windows.size, windows.kernel, windows.stride, windows.padding, windows.out, strict=True
        )
    )
    shape = (channels, 1, *windows.kernel) if windows.first else (channels, *windows.kernel, 1)
    with entered(array) as xp:
        weight = xp.full(shape, 1 / prod(windows.kernel) if uniform else 1, dtype)
    y = functional.conv_forward(
        x, weight, stride=windows.stride, padding=ends, groups=channels, layout=layout
    )
    if uniform:
        return y
    share = np.ones(())
    for count in counts:
        share = share[..., None] / count
    with entered(array) as xp:
        return y * xp.asarray(share if windows.first else share[..., None], dtype)
