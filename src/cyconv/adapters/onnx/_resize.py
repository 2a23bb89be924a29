"""ONNX Resize: nearest and linear, one axis after the other; and repetition, its simplest case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Positions = NDArray[np.float64]


def _half_pixel(i: Positions, scale: float, size: int, resized: float) -> Positions:
    return (i + 0.5) / scale - 0.5


def _pytorch_half_pixel(i: Positions, scale: float, size: int, resized: float) -> Positions:
    return (i + 0.5) / scale - 0.5 if resized > 1 else np.zeros_like(i)


def _half_pixel_symmetric(i: Positions, scale: float, size: int, resized: float) -> Positions:
    # The rounding of the output size is shared between both ends.
    adjustment = len(i) / resized
    return size / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5


def _align_corners(i: Positions, scale: float, size: int, resized: float) -> Positions:
    return i * (size - 1) / (resized - 1) if resized != 1 else np.zeros_like(i)


def _asymmetric(i: Positions, scale: float, size: int, resized: float) -> Positions:
    return i / scale


# coordinate_transformation_mode -> the place in the input of output element i. ``resized`` is
# scale·size before it is rounded down to the output's size: ONNX's own cases want that in
# align_corners, where ONNX Runtime takes the rounded size.
COORDINATES: dict[str, Callable[[Positions, float, int, float], Positions]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}


def _round_prefer_floor(position: Positions) -> Positions:
    return np.ceil(position - 0.5)


def _round_prefer_ceil(position: Positions) -> Positions:
    return np.floor(position + 0.5)


# nearest_mode -> which neighbour is the nearest
ROUNDING: dict[str, Callable[[Positions], Positions]] = {
    "round_prefer_floor": _round_prefer_floor,
    "round_prefer_ceil": _round_prefer_ceil,
    "floor": np.floor,
    "ceil": np.ceil,
}


def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
) -> Array:
    """Sample the input at other places, by ``scales`` or to ``sizes``.

    ``roi`` and the attributes after ``axes`` belong to modes that the table of operators refuses.
    """
    del roi, antialias, cubic_coeff_a, exclude_outside, extrapolation_value
    del keep_aspect_ratio_policy
    chosen = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    for i, axis in enumerate(chosen):
        size = x.shape[axis]
        if scales is not None and scales.size:
            scale = float(scales[i])
            resized = scale * size
        elif sizes is not None:
            resized = float(sizes[i])
            scale = resized / size
        else:
            raise ValueError("Resize: one of scales and sizes must be given")
        count = int(np.floor(resized))
        if scale == 1:
            continue
        transform = COORDINATES[coordinate_transformation_mode]
        position = transform(np.arange(count, dtype=np.float64), scale, size, resized)
        if mode == "nearest":
            nearest = ROUNDING[nearest_mode](position).clip(0, size - 1)
            x = np.take(x, nearest.astype(np.intp), axis)
        else:
            x = _linear(x, position, axis)
    return x


def _linear(x: Array, position: Positions, axis: int) -> Array:
    last = x.shape[axis] - 1
    position = position.clip(0, last)
    low = np.floor(position).astype(np.intp)
    high = np.minimum(low + 1, last)
    column = (-1,) + (1,) * (x.ndim - 1 - axis)
    weight = (position - low).astype(x.dtype).reshape(column)
    below = np.take(x, low, axis)
    return np.asarray(below + (np.take(x, high, axis) - below) * weight, x.dtype)


# The modes in which an integer scale s copies each element s times: output i reads input i // s.
_REPEATING = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel_symmetric", "round_prefer_floor"),
    ("half_pixel_symmetric", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}


def repetition(
    scales: Array,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    **others: Any,
) -> tuple[int, ...] | None:
    """Return how often a Resize repeats the elements of each axis, if that is all it does.

    Neither is `axes` understood here.
    """
    repeating = (coordinate_transformation_mode, nearest_mode) in _REPEATING
    if mode != "nearest" or not repeating or others.get("axes") is not None:
        return None
    factors = tuple(int(scale) for scale in scales)
    return factors if min(factors, default=0) >= 1 and (scales == factors).all() else None


def repeat(x: Array, *, factors: Sequence[int]) -> Array:
    """Repeat the elements of each axis so many times, in the memory order of x."""
    order = _memory_order(x)
    result = x.transpose(order)
    for axis, place in enumerate(order):
        if factors[place] > 1:
            result = result.repeat(factors[place], axis)
    return result.transpose(np.argsort(order))


def add_repeated(x: Array, repeated: Array, *, factors: Sequence[int]) -> Array:
    """Return x + Repeat(repeated); along its outermost axis nothing is repeated in memory."""
    order = _memory_order(x)
    outer = next((axis for axis in order if factors[axis] > 1), order[0])
    inner = [1 if axis == outer else factor for axis, factor in enumerate(factors)]
    blocks = x.transpose(order)
    rows = repeat(repeated, factors=inner).transpose(order)
    fits = x.shape == tuple(n * f for n, f in zip(repeated.shape, factors, strict=True))
    if not fits or not blocks.flags.c_contiguous:
        return x + repeat(repeated, factors=factors)
    before = rows.shape[: order.index(outer) + 1]
    total = blocks.reshape(*before, factors[outer], -1) + rows.reshape(*before, 1, -1)
    return total.reshape(blocks.shape).transpose(np.argsort(order))


def concat_repeated(*inputs: Array, axis: int, factors: Sequence[Sequence[int]]) -> Array:
    """Join inputs along an axis, the elements of each of them repeated by its own factors."""
    rows = _rows(tuple(x.shape for x in inputs), axis, tuple(factors))
    last = [np.moveaxis(x, axis, -1) for x in inputs]
    if rows is None or not all(x.flags.c_contiguous for x in last):
        parts = tuple(repeat(x, factors=each) for x, each in zip(inputs, factors, strict=True))
        return np.concatenate(parts, axis)
    # The channels of a pixel are a row. NumPy copies rows out of one table fastest.
    table = np.concatenate([x.reshape(-1, x.shape[-1]) for x in last])
    sizes = [n * f for n, f in zip(last[-1].shape[:-1], np.delete(factors[-1], axis), strict=True)]
    return np.moveaxis(table.take(rows, axis=0).reshape(*sizes, -1), -1, axis)


@lru_cache(maxsize=32)
def _rows(
    shapes: tuple[tuple[int, ...], ...], axis: int, factors: tuple[tuple[int, ...], ...]
) -> NDArray[np.intp] | None:
    """Return which row goes where, if all inputs have rows of one length and fit together."""
    wholes = {
        tuple(np.delete(np.multiply(shape, each), axis))
        for shape, each in zip(shapes, factors, strict=True)
    }
    lengths = {shape[axis] for shape in shapes}
    if len(wholes) > 1 or len(lengths) > 1 or any(each[axis] > 1 for each in factors):
        return None
    found = []
    first = 0
    for shape, each in zip(shapes, factors, strict=True):
        rows = np.delete(shape, axis)
        numbers = np.arange(first, first + math.prod(rows)).reshape(rows)
        first += numbers.size
        found.append(repeat(numbers, factors=np.delete(each, axis).tolist()).ravel())
    return np.asarray(np.stack(found, axis=1).ravel())


def _memory_order(x: Array) -> list[int]:
    """Return the axes from the outermost in memory to the innermost."""
    return sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
