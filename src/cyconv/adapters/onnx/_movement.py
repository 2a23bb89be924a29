"""ONNX operators that move, select, pad or reinterpret elements and compute none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def identity(x: Array) -> Array:
    """Return the same values."""
    return x


def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Convert to another numeric type; ``saturate`` and ``round_mode`` speak of float8 only."""
    import onnx.helper

    del saturate, round_mode
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(to))


def concat(*inputs: Array, axis: int) -> Array:
    """Join along an existing axis."""
    return np.concatenate(inputs, axis)


def reshape(data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Change the shape; a 0 in it keeps the input's size there, a -1 is computed."""
    sizes = [int(size) for size in shape]
    if not allowzero:
        sizes = [data.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return data.reshape(sizes)


def flatten(x: Array, *, axis: int = 1) -> Array:
    """Return a matrix: the axes before ``axis`` are its rows, the others its columns."""
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def transpose(data: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Permute the axes, by default reverse them."""
    return np.transpose(data, perm)


def squeeze(data: Array, axes: Sequence[int] | None = None) -> Array:
    """Remove the named axes of size 1, by default all of those."""
    return np.squeeze(data, None if axes is None else tuple(int(axis) for axis in axes))


def unsqueeze(data: Array, axes: Sequence[int]) -> Array:
    """Insert axes of size 1 at these places of the result."""
    return np.expand_dims(data, tuple(int(axis) for axis in axes))


def expand(data: Array, shape: Array) -> Array:
    """Broadcast data and ``shape`` against each other."""
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(int(n) for n in shape)))


def shape(data: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return the sizes of the axes from ``start`` to ``end``."""
    return np.array(data.shape[start:end], np.int64)


def constant_of_shape(sizes: Array, *, value: Array | None = None) -> Array:
    """Return one value everywhere, by default 0 in float32."""
    filling = np.zeros(1, np.float32) if value is None else value
    return np.full(tuple(int(n) for n in sizes), filling.item(), filling.dtype)


def gather(data: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take whole slices along an axis."""
    return np.asarray(np.take(data, indices, axis))


def gather_elements(data: Array, indices: Array, *, axis: int = 0) -> Array:
    """Take single elements along an axis, one per index."""
    return np.take_along_axis(data[_extent(indices, axis)], indices, axis)


def scatter_elements(
    data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """Return a copy of the data in which single elements along an axis are replaced."""
    del reduction  # limited to its default in the table
    result = data.copy()
    np.put_along_axis(result[_extent(indices, axis)], indices, updates, axis)
    return result


def _extent(indices: Array, axis: int) -> tuple[slice, ...]:
    # On the other axes the indices may stop before the data does.
    extent = [slice(size) for size in indices.shape]
    extent[axis] = slice(None)
    return tuple(extent)


def slice_(
    data: Array,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Array:
    """Take ``starts`` to ``ends`` by ``steps`` along ``axes``; out of range is up to the border."""
    index = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else int(axes[i])
        step = 1 if steps is None else int(steps[i])
        size = data.shape[axis]
        first, stop = int(start), int(end)
        if step < 0:
            # Going backwards ONNX starts within the data and may end before its first element,
            # for which Python has no number but None.
            index[axis] = slice(max(first, -size), None if stop < -size else stop, step)
        else:
            index[axis] = slice(first, stop, step)
    return data[tuple(index)]


def pad(
    data: Array,
    pads: Sequence[int],
    value: Array | float | None = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Add elements before and after (all befores first); a negative number takes some away."""
    chosen = range(data.ndim) if axes is None else [int(axis) for axis in axes]
    before = [0] * data.ndim
    after = [0] * data.ndim
    for i, axis in enumerate(chosen):
        before[axis] = int(pads[i])
        after[axis] = int(pads[i + len(chosen)])
    cut = tuple(
        slice(max(-lo, 0), size - max(-hi, 0))
        for lo, hi, size in zip(before, after, data.shape, strict=True)
    )
    widths = [(max(lo, 0), max(hi, 0)) for lo, hi in zip(before, after, strict=True)]
    options: Any = {}
    if mode == "constant":
        options["constant_values"] = np.asarray(0 if value is None else value, data.dtype).item()
    return np.pad(data[cut], widths, mode=mode, **options)  # type: ignore[call-overload,no-any-return]
