"""The row of batch normalisation.

``y = (x - mean) / sqrt(variance + eps) * weight + bias`` for each channel, with the mean and
variance of the batch [1]_ or with given ones.

NumPy walks through memory once for each step of a formula. Images are therefore taken some at a
time, few enough that all steps but the first find them in the cache; their moments are combined
[2]_. CuPy's arrays are taken whole, by the formulas as they stand.

.. [1] S. Ioffe, C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
   Internal Covariate Shift", 2015.
.. [2] T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
   Sample Variances", 1979.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from ..devices import check_places, on_gpu
from ..errors import ShapeError
from ..kernels._channel_sums import channel_sums
from ..operands import Array
from ..settings import resolve
from .arithmetic import reshape
from .sums import is_half
from .tape import Operator, Variable, raw

_ELEMENTS = 131072  # to take together: some arrays of them fit the cache
_ROWS = 64  # of channels in a row that NumPy is fast along


class Moments(NamedTuple):
    """Mean and (biased) variance of each channel."""

    mean: Array
    variance: Array


def _axes(ndim: int, channel: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(ndim) if axis != channel)


def _kept(x: Any, channel: int) -> tuple[int, ...]:
    """Shape of what belongs to channels, to go with x."""
    return tuple(n if axis == channel else 1 for axis, n in enumerate(x.shape))


class _Channels:
    """How an array is read as images, whose channels lie in a row of their own each.

    The shape is (n, channels, pixels) or, with the channels last, (n, pixels * channels): NumPy is
    slow along short rows, so those of some pixels are taken as one.
    """

    def __init__(self, shape: tuple[int, ...], channel: int) -> None:
        self.n_channels = shape[channel]
        self.count = prod(shape) // max(self.n_channels, 1)  # numbers a channel
        self._last = channel == len(shape) - 1
        self._pixels = gcd(self.count, _ROWS) if self._last else 1
        self._threads = resolve("fwd", None, None).threads or 1
        self.shape: tuple[int, ...] = (shape[0], self.n_channels, prod(shape[2:]))
        if self._last:
            self.shape = (self.count // self._pixels, self._pixels * self.n_channels)

    def parts(self) -> Iterator[slice]:
        """Yield which images to take together."""
        step = max(_ELEMENTS // max(prod(self.shape[1:]), 1), 1)
        for start in range(0, self.shape[0], step):
            yield slice(start, start + step)

    def spread(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """Bring what belongs to channels into a shape and dtype that go with images."""
        values = values.astype(dtype)
        return np.tile(values, self._pixels) if self._last else values[:, None]

    def sums(self, images: Array) -> Array:
        """Sum over all but the channels, in float64."""
        if self._last:
            images = images.reshape(len(images), self._pixels, self.n_channels)
        return channel_sums(images, 2 if self._last else 1, self._threads)


def _wide(x: Array) -> Array:
    """Turn half types into float32, in which they are squared and summed."""
    return x.astype(np.float32) if is_half(x.dtype) else x


def _whole_moments(x: Array, channel: int) -> Moments:
    axes = _axes(x.ndim, channel)
    mean = x.mean(axis=axes, dtype=np.float64)
    centred = _wide(x)
    centred = centred - mean.astype(centred.dtype).reshape(_kept(x, channel))
    variance = np.square(centred).mean(axis=axes, dtype=np.float64)
    return Moments(mean.astype(x.dtype), variance.astype(x.dtype))


def moments(x: Any, channel: int) -> Moments:
    """Mean and variance over all axes but the channel's.

    Parameters
    ----------
    x : numpy.ndarray or cupy.ndarray
    channel : int
        The axis of the channels.

    Returns
    -------
    Moments
        Two arrays of shape (C,).
    """
    channel %= x.ndim
    if on_gpu(x):
        return _whole_moments(x, channel)
    channels = _Channels(x.shape, channel)
    images = x.reshape(channels.shape)
    mean, squares = np.zeros(channels.n_channels), np.zeros(channels.n_channels)
    seen = 0.0
    for part in channels.parts() if channels.count else ():
        some = _wide(images[part])  # squares of half types may exceed their range
        more = some.size / channels.n_channels
        centre = channels.sums(some) / more
        centred = some - channels.spread(centre, some.dtype)
        seen += more
        step = centre - mean
        mean += step * (more / seen)
        squares += channels.sums(np.square(centred, out=centred))
        squares += step**2 * (more * (seen - more) / seen)
    return Moments(mean.astype(x.dtype), (squares / max(seen, 1)).astype(x.dtype))


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
    if on_gpu(x):
        scale, shift = (a.astype(x.dtype).reshape(_kept(x, channel)) for a in (scale, shift))
        return x * scale + shift
    channels = _Channels(x.shape, channel)
    scale, shift = (channels.spread(a, x.dtype) for a in (scale, shift))
    images, y = x.reshape(channels.shape), np.empty(channels.shape, x.dtype)
    for part in channels.parts():
        some = np.multiply(images[part], scale, out=y[part])
        some += shift
    return y.reshape(x.shape)


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
    if on_gpu(g):
        g, x, given = _wide(g), _wide(x), Moments(*map(_wide, given))
    mean, variance = (reshape(a, shape=kept) for a in given)
    if of_batch and isinstance(g, Variable):  # the statistics are to be differentiated too
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
    """Compute the same without temporary arrays of the size of x.

    `count` is how many numbers of x each of the moments was taken from; None for constants.
    """
    channels = _Channels(x.shape, channel)
    images, slopes = x.reshape(channels.shape), g.reshape(channels.shape)
    inverse = 1 / np.sqrt(given.variance.astype(np.float64) + eps)
    scale = inverse if weight is None else inverse * weight
    mean = channels.spread(given.mean, x.dtype)
    d_bias, d_weight = np.zeros(channels.n_channels), np.zeros(channels.n_channels)
    for part in channels.parts() if count is not None or any(wanted[1:]) else ():
        d_bias += channels.sums(slopes[part])
        product = images[part] - mean
        product *= slopes[part]
        d_weight += channels.sums(product)
    d_weight *= inverse
    if not wanted[0]:
        return [None, d_weight, d_bias]
    dx = np.empty(channels.shape, x.dtype)
    factor = channels.spread(scale, x.dtype)
    of_x = of_all = np.zeros(0)
    if count is not None:
        of_x = channels.spread(-scale * inverse * d_weight / count, x.dtype)
        of_all = channels.spread(-scale * d_bias / count, x.dtype)
    for part in channels.parts():
        some = np.multiply(slopes[part], factor, out=dx[part])
        if count is not None:
            centred = images[part] - mean
            centred *= of_x
            some += centred
            some += of_all
    return [dx.reshape(x.shape), d_weight, d_bias]


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
    Tensor, or an array if all operands are arrays

    Raises
    ------
    TypeError
        If some operands are CuPy arrays and others are not.
    ShapeError
        If a shape does not fit, or there are not two numbers a channel to take a variance of.
    """
    values = raw(x)
    channel %= values.ndim
    channels = (values.shape[channel],)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and np.shape(raw(value)) != channels:
            raise ShapeError(f"{name} has shape {np.shape(raw(value))}, should be {channels}")
    mean, variance = (None, None) if given is None else given
    check_places(x=values, weight=raw(weight), bias=raw(bias), mean=mean, variance=variance)
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
