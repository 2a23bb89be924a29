"""ONNX operators that compute element by element, reduce along axes, or multiply matrices.

Parameters carry ONNX's names. Where a later version of an operator turned an attribute into an
input, the attribute had the input's name, so one function serves both versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyconv import UnsupportedError

Array = NDArray[Any]


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    """Return x where x ≥ 0, else alpha·x."""
    return np.where(x < 0, alpha * x, x)


def prelu(x: Array, slope: Array) -> Array:
    """Return x where x ≥ 0, else slope·x."""
    return np.where(x < 0, slope * x, x)


def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """Return x where x ≥ 0, else alpha·(exp(x) − 1)."""
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(−x)); an overflowing exponential gives the right limit, 0."""
    y = np.asarray(np.exp(-x))
    y += 1
    return np.asarray(np.divide(1, y, out=y))


def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """Return alpha·x + beta, clipped to [0, 1]."""
    y = np.asarray(alpha * x)
    y += beta
    np.maximum(y, 0, out=y)
    return np.asarray(np.minimum(y, 1, out=y))


def hard_swish(x: Array) -> Array:
    """Return x·HardSigmoid(x) with alpha = 1/6, beta = 1/2."""
    y = hard_sigmoid(x, alpha=1 / 6)
    y *= x
    return y


def silu(x: Array) -> Array:
    """Return x·Sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """Return x·(1 + erf(x/√2))/2."""
    return np.asarray(x * (0.5 + 0.5 * erf(x * (1 / math.sqrt(2)))))


def gate(x: Array, g: Array) -> Array:
    """Return x·(1 + g)."""
    return np.asarray(x * (1 + g))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


def erf(x: Array) -> Array:
    """Return the error function."""
    from scipy import special  # not needed before the first use

    return np.asarray(special.erf(x), x.dtype)


def clip(x: Array, min: Array | float | None = None, max: Array | float | None = None) -> Array:
    """Limit x to [min, max]; max wins where the two cross."""
    low = x if min is None else np.maximum(x, np.asarray(min, x.dtype))
    return low if max is None else np.minimum(low, np.asarray(max, x.dtype))


def divide(a: Array, b: Array) -> Array:
    """Return a / b; integers truncate towards zero, as in C."""
    if np.issubdtype(a.dtype, np.integer):
        return (a - np.fmod(a, b)) // b
    return np.divide(a, b)


def power(x: Array, y: Array) -> Array:
    """Return x to the y, in the type of x."""
    return np.power(x, y).astype(x.dtype, copy=False)


def maximum(*operands: Array) -> Array:
    """Return the largest of the operands; NaN wins."""
    return reduce(np.maximum, operands)


def minimum(*operands: Array) -> Array:
    """Return the smallest of the operands; NaN wins."""
    return reduce(np.minimum, operands)


def where(condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition holds, else y."""
    return np.where(condition, x, y)


def _reduced(
    function: Any,
    data: Array,
    axes: Sequence[int] | None,
    keepdims: int,
    noop_with_empty_axes: int,
    **options: Any,
) -> Array:
    chosen = () if axes is None else tuple(int(axis) for axis in axes)
    if not chosen:
        if noop_with_empty_axes:
            return data
        chosen = tuple(range(data.ndim))
    return np.asarray(function(data, axis=chosen, keepdims=bool(keepdims), **options), data.dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the lowest and highest value of a type: the extremes of nothing."""
    if dtype == np.bool_:
        return False, True
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


def reduce_mean(
    data: Array,
    axes: Sequence[int] | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """Return the mean along the axes, by default along all."""
    return _reduced(np.mean, data, axes, keepdims, noop_with_empty_axes)


def reduce_sum(
    data: Array,
    axes: Sequence[int] | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """Return the sum along the axes, by default along all."""
    # dtype= keeps a sum of small integers in its own type, as ONNX wants.
    return _reduced(np.sum, data, axes, keepdims, noop_with_empty_axes, dtype=data.dtype)


def reduce_max(
    data: Array,
    axes: Sequence[int] | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """Return the largest value along the axes, by default along all."""
    lowest, _ = _limits(data.dtype)
    return _reduced(np.max, data, axes, keepdims, noop_with_empty_axes, initial=lowest)


def reduce_min(
    data: Array,
    axes: Sequence[int] | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Array:
    """Return the smallest value along the axes, by default along all."""
    _, highest = _limits(data.dtype)
    return _reduced(np.min, data, axes, keepdims, noop_with_empty_axes, initial=highest)


def arg_max(data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Return the index of the largest value along an axis, of several the first (or last)."""
    if select_last_index:
        found = data.shape[axis] - 1 - np.argmax(np.flip(data, axis), axis, keepdims=bool(keepdims))
    else:
        found = np.argmax(data, axis, keepdims=bool(keepdims))
    return np.asarray(found, np.int64)


def softmax(x: Array, *, axis: int = -1) -> Array:
    """Return exp(x) / Σ exp(x) along an axis."""
    shifted = np.exp(x - np.max(x, axis, keepdims=True))
    return np.asarray(shifted / np.sum(shifted, axis, keepdims=True))


def softmax_flattened(x: Array, *, axis: int = 1) -> Array:
    """Return softmax over all axes from ``axis`` on, taken as one: before version 13."""
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return softmax(flat, axis=1).reshape(x.shape)


def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Return alpha·A·B + beta·C, A and B transposed on request."""
    product = (a.T if transA else a) @ (b.T if transB else b)
    if alpha != 1:
        product = product * alpha
    if c is not None:
        product = product + (c if beta == 1 else c * beta)
    return np.asarray(product, a.dtype)


def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
) -> Array:
    """Return scale·(x − mean) / √(var + epsilon) + bias per channel, with stored statistics."""
    del momentum, spatial, training_mode  # training only, or limited to their default in the table
    channels = (-1,) + (1,) * (x.ndim - 2)
    factor = scale / np.sqrt(var + epsilon)
    shift = bias - mean * factor
    return np.asarray(x * factor.reshape(channels) + shift.reshape(channels), x.dtype)


def dropout(
    data: Array,
    ratio: Array | float = 0.5,
    training_mode: Array | bool | None = None,
    *,
    seed: int = 0,
) -> Array:
    """Return the data: inference keeps every value."""
    del ratio, seed
    if training_mode is not None and bool(training_mode):
        raise UnsupportedError("Dropout: training mode is not supported")
    return data
