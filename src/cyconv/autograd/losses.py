"""The rows of losses: softmax and its logarithm, cross-entropy, mean squared error."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..devices import check_places
from ..errors import ShapeError
from ..operands import Array, as_array
from .arithmetic import exp, reshape
from .sums import summed
from .tape import Operator, raw

REDUCTIONS = ("mean", "sum", "none")


def _softmax(x: Array, *, axis: int) -> Array:
    y: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    y /= summed(y, axis, keepdims=True)
    return y


def _log_softmax(x: Array, *, axis: int) -> Array:
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(summed(np.exp(y), axis, keepdims=True))
    return y


softmax = Operator(
    "softmax",
    _softmax,
    (lambda g, y, x, *, axis: y * (g - (g * y).sum(axis=axis, keepdims=True)),),
)
_log_softmax_row = Operator(
    "log_softmax",
    _log_softmax,
    (lambda g, y, x, *, axis: g - exp(y) * g.sum(axis=axis, keepdims=True),),
)


def _cross_entropy(logits: Array, *, target: Array, axis: int, reduction: str) -> Array:
    chosen = np.take_along_axis(_log_softmax(logits, axis=axis), np.expand_dims(target, axis), axis)
    return _reduced(-chosen.squeeze(axis), reduction)


def _reduced(losses: Array, reduction: str) -> Array:
    if reduction == "none":
        return losses
    total = losses.sum(dtype=np.float64)
    return (total / losses.size if reduction == "mean" else total).astype(losses.dtype)  # type: ignore[no-any-return]


def _cross_entropy_rule(
    g: Any, y: Any, logits: Any, *, target: Array, axis: int, reduction: str
) -> Any:
    hot = np.zeros_like(raw(logits), order="C")
    np.put_along_axis(hot, np.expand_dims(target, axis), 1, axis)
    if reduction == "mean":
        g = g / target.size
    if reduction == "none":
        g = reshape(g, shape=np.expand_dims(target, axis).shape)
    return (softmax(logits, axis=axis) - hot) * g


_cross_entropy_row = Operator("cross_entropy", _cross_entropy, (_cross_entropy_rule,))


def _squared_rule(sign: int, g: Any, a: Any, b: Any, reduction: str) -> Any:
    difference = a - b
    factor = 2 * sign / (difference.size if reduction == "mean" else 1)
    return difference * (g * factor)


_mse_row = Operator(
    "mse_loss",
    lambda a, b, *, reduction: _reduced(np.square(a - b), reduction),
    (
        lambda g, y, a, b, *, reduction: _squared_rule(1, g, a, b, reduction),
        lambda g, y, a, b, *, reduction: _squared_rule(-1, g, a, b, reduction),
    ),
)


def _check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Logarithm of the softmax along an axis.

    Parameters
    ----------
    x : Tensor or array
    axis : int

    Returns
    -------
    Tensor, or numpy.ndarray for an array
    """
    return _log_softmax_row(x, axis=axis)


def cross_entropy(logits: Any, target: Any, *, axis: int = 1, reduction: str = "mean") -> Any:
    """Cross-entropy of class scores with respect to the right classes.

    Parameters
    ----------
    logits : Tensor or array, shape (N, classes, *rest)
        Scores before the softmax.
    target : array_like of int, shape (N, *rest)
        The right class of each, from 0.
    axis : int
        Where the classes are: 1, or -1 in a channels-last layout.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor, or numpy.ndarray if `logits` is an array

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ValueError
        If a class or `reduction` is out of range.
    TypeError
        If `target` is not of an integer type.
    """
    _check_reduction(reduction)
    labels = as_array("target", raw(target))
    check_places(logits=raw(logits), target=labels)
    shape = raw(logits).shape
    expected = tuple(np.delete(np.array(shape), axis).tolist())
    if labels.shape != expected:
        raise ShapeError(f"target has shape {labels.shape}, should be {expected}")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"target must be of an integer type, not {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < shape[axis]:
        raise ValueError(
            f"target has classes from {labels.min()} to {labels.max()}; there are {shape[axis]}"
        )
    return _cross_entropy_row(
        logits, target=labels.astype(np.intp), axis=axis % len(shape), reduction=reduction
    )


def mse_loss(prediction: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squared difference, by default its mean.

    Parameters
    ----------
    prediction, target : Tensor or array
        Of one shape.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor, or numpy.ndarray if both are arrays

    Raises
    ------
    ShapeError
        If the shapes differ: broadcasting here is a mistake more often than not.
    ValueError
        If `reduction` is unknown.
    """
    _check_reduction(reduction)
    shapes = [np.shape(raw(a)) for a in (prediction, target)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"target has shape {shapes[1]}, should be {shapes[0]}")
    return _mse_row(prediction, target, reduction=reduction)
