"""The row of batch normalisation.

``y = (x - mean) / sqrt(variance + eps) * weight + bias`` for each channel, with the mean and
variance of the batch [1]_ or with given ones.

.. [1] S. Ioffe, C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
   Internal Covariate Shift", 2015.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError
from ..operands import Array
from .arithmetic import reshape
from .sums import is_half
from .tape import Operator, raw


class Moments(NamedTuple):
    """Mean and (biased) variance of each channel."""

    mean: Array
    variance: Array


def _axes(ndim: int, channel: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(ndim) if axis != channel)


def _kept(x: Any, channel: int) -> tuple[int, ...]:
    """Shape of what belongs to channels, to go with x."""
    return tuple(n if axis == channel else 1 for axis, n in enumerate(x.shape))


def _spread(values: Array, x: Array, channel: int) -> Array:
    """Bring what belongs to channels into a shape and dtype that go with x.

    With the channels last it is repeated over an image: NumPy is slow along short rows.
    """
    kept = values.reshape(_kept(x, channel)).astype(x.dtype)
    if channel == x.ndim - 1 and len(x) > 1:
        return np.ascontiguousarray(np.broadcast_to(kept[0], x.shape[1:]))
    return kept


def moments(x: Any, channel: int) -> Moments:
    """Mean and variance over all axes but the channel's.

    Parameters
    ----------
    x : numpy.ndarray
    channel : int
        The axis of the channels.

    Returns
    -------
    Moments
        Two arrays of shape (C,).
    """
    channel %= x.ndim
    n = x.size // max(x.shape[channel], 1)
    mean = (_channel_sums(x, channel) / n).astype(x.dtype)
    centred = x - _spread(mean, x, channel)
    square = _channel_sums(np.square(centred, out=centred), channel) / n
    return Moments(mean, square.astype(x.dtype))


def _channel_sums(x: Array, channel: int) -> Array:
    """Sum over all axes but the channel's, at last in float64."""
    channels = x.shape[channel]
    wide = np.float32 if is_half(x.dtype) else x.dtype
    if channel == x.ndim - 1:
        # Rows as long as an image are summed several times as fast as rows of channels.
        pixels = x.reshape(len(x), prod(x.shape[1:])).sum(axis=0, dtype=wide)
        return pixels.reshape(prod(x.shape[1:-1]), channels).sum(axis=0, dtype=np.float64)  # type: ignore[no-any-return]
    images = x.reshape(len(x), channels, prod(x.shape[2:])).sum(axis=2, dtype=wide)
    return images.sum(axis=0, dtype=np.float64)  # type: ignore[no-any-return]


def _scale_and_shift(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    given: Moments,
    of_batch: bool,
    channel: int,
    eps: float,
) -> Array:
    scale = 1 / np.sqrt(given.variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -given.mean * scale
    if bias is not None:
        shift = shift + bias
    y: Array = x * _spread(scale, x, channel)
    y += _spread(shift, x, channel)
    return y


def _rules(
    wanted: list[bool],
    g: Any,
    y: Any,
    x: Any,
    weight: Any,
    bias: Any,
    *,
    given: Moments,
    of_batch: bool,
    channel: int,
    eps: float,
) -> list[Any]:
    n = prod(x.shape) // max(x.shape[channel], 1)
    if isinstance(g, np.ndarray):
        return _array_gradients(wanted, g, x, weight, given, n if of_batch else None, channel, eps)
    axes, kept = _axes(x.ndim, channel), _kept(x, channel)
    mean, variance = (reshape(a, shape=kept) for a in given)
    if of_batch:  # the statistics are to be differentiated too
        mean = x.mean(axis=axes, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    inverse = (variance + eps) ** -0.5
    unit = (x - mean) * inverse
    d_bias = g.sum(axis=axes, keepdims=True)
    d_weight = (g * unit).sum(axis=axes, keepdims=True)
    scale = inverse if weight is None else inverse * reshape(weight, shape=kept)
    dx = scale * (g - (d_bias + unit * d_weight) / n) if of_batch else scale * g
    channels = (x.shape[channel],)
    return [dx, reshape(d_weight, shape=channels), reshape(d_bias, shape=channels)]


def _array_gradients(
    wanted: list[bool],
    g: Array,
    x: Array,
    weight: Array | None,
    given: Moments,
    count: int | None,
    channel: int,
    eps: float,
) -> list[Any]:
    """Compute the same with two arrays of the size of x instead of ten.

    `count` is how many numbers of x each of the moments was taken from; None for constants.
    """
    inverse = 1 / np.sqrt(given.variance.astype(np.float64) + eps)
    scale = inverse if weight is None else inverse * weight
    dx = d_weight = None
    d_bias = _channel_sums(g, channel)
    if wanted[1] or (wanted[0] and count is not None):
        dx = x - _spread(given.mean, x, channel)
        product = g * dx
        d_weight = _channel_sums(product, channel) * inverse
        if wanted[0] and count is not None:
            dx *= _spread(-scale * inverse * d_weight / count, x, channel)
            dx += np.multiply(g, _spread(scale, x, channel), out=product)
            dx -= _spread(scale * d_bias / count, x, channel)
    if wanted[0] and count is None:
        dx = g * _spread(scale, x, channel)
    return [dx, d_weight, d_bias]


_row = Operator("batch_norm", _scale_and_shift, _rules)


def batch_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    given: Moments | None = None,
    constant: bool = True,
    channel: int = 1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel to mean 0 and variance 1, then scale and shift it.

    Parameters
    ----------
    x : Tensor or array, shape (N, C, *spatial)
    weight, bias : Tensor or array, shape (C,), optional
    given : Moments, optional
        Mean and variance to use; by default those of `x`.
    constant : bool
        False if `given` are the moments of `x`, which someone has computed already.
    channel : int
        The axis of the channels: 1, or -1 in a channels-last layout.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor, or numpy.ndarray if all operands are arrays

    Raises
    ------
    ShapeError
        If a shape does not fit, or there are not two numbers a channel to take a variance of.
    """
    values = raw(x)
    channel %= values.ndim
    channels = (values.shape[channel],)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and np.shape(raw(value)) != channels:
            raise ShapeError(f"{name} has shape {np.shape(raw(value))}, should be {channels}")
    of_batch = given is None or not constant
    if of_batch and values.size < 2 * channels[0]:
        raise ShapeError(
            f"x has shape {values.shape}: batch statistics need at least 2 numbers a channel"
        )
    return _row(
        x, weight, bias,
        given=moments(values, channel) if given is None else given,
        of_batch=of_batch, channel=channel, eps=eps,
    )  # fmt: skip
