"""The layers around convolution: normalisation, pooling, linear maps, activations."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from .. import arguments
from ..autograd import (
    ACTIVATIONS,
    Moments,
    avg_pool,
    batch_norm,
    linear,
    max_pool,
    moments,
    raw,
)
from ..errors import ShapeError
from .initialisation import Rng, kaiming_uniform, uniform_bias
from .module import Buffer, Module, Parameter


class Linear(Module):
    """``x @ weight.T + bias``, along the last axis.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
        Whether to add a learnt bias.
    rng, dtype
        As for `Conv2d`.

    Attributes
    ----------
    weight : Parameter, shape (out_features, in_features)
    bias : Parameter or None, shape (out_features,)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rng: Rng = None,
        dtype: Any = np.float32,
    ) -> None:
        arguments.integer("in_features", in_features, 1)
        arguments.integer("out_features", out_features, 1)
        shape = (out_features, in_features)
        rng = np.random.default_rng(rng)
        self.weight = Parameter(kaiming_uniform(shape, rng, dtype=dtype))
        self.bias = None
        if bias:
            self.bias = Parameter(uniform_bias(out_features, shape, rng, dtype=dtype))

    def forward(self, x: Any) -> Any:
        """Map a tensor or array of shape (..., in_features)."""
        if raw(x).shape[-1:] != self.weight.shape[1:]:
            raise ShapeError(
                f"x has shape {raw(x).shape}, its last axis should be {self.weight.shape[1]}"
            )
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Say the arguments of the layer."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


class _BatchNorm(Module):
    rank: ClassVar[tuple[int, ...]]  # numbers of spatial axes that are taken

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        layout: str = "channels_first",
        dtype: Any = np.float32,
    ) -> None:
        arguments.integer("num_features", num_features, 1)
        last = arguments.layout_of(layout, max(self.rank)) == "nhwc"
        self.num_features, self.eps, self.momentum, self.layout = (
            num_features,
            eps,
            momentum,
            layout,
        )
        self._channel = -1 if last else 1
        self.weight = Parameter(np.ones(num_features, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_features, dtype)) if affine else None
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            self.running_mean = Buffer(np.zeros(num_features, dtype))
            self.running_var = Buffer(np.ones(num_features, dtype))
            self.num_batches_tracked = Buffer(np.zeros((), np.int64))

    def forward(self, x: Any) -> Any:
        """Normalise a tensor or array: by its own statistics in training, else by the running."""
        values = raw(x)
        if values.ndim - 2 not in self.rank or values.shape[self._channel] != self.num_features:
            axes = " or ".join(str(rank + 2) for rank in self.rank)
            raise ShapeError(
                f"x has shape {values.shape}, should have {axes} axes and "
                f"{self.num_features} channels on axis {self._channel}"
            )
        own = self.training or self.running_mean is None or self.running_var is None
        if own:
            given = moments(values, self._channel)
            if self.training:
                self._follow(given, values.size // self.num_features)
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            given = Moments(self.running_mean.numpy(), self.running_var.numpy())
        return batch_norm(
            x, self.weight, self.bias,
            given=given, constant=not own, channel=self._channel, eps=self.eps,
        )  # fmt: skip

    def _follow(self, seen: Moments, count: int) -> None:
        """Move the running statistics towards those of a batch; the variance without bias."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.assign(self.num_batches_tracked.numpy() + 1)
        part = self.momentum
        if part is None:
            part = 1 / float(self.num_batches_tracked.item())
        unbiased = seen.variance * (count / max(count - 1, 1))
        for running, value in ((self.running_mean, seen.mean), (self.running_var, unbiased)):
            running.assign((1 - part) * running.numpy() + part * value)

    def extra_repr(self) -> str:
        """Say the arguments of the layer."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of input with one spatial axis, or none; see `BatchNorm2d`."""

    rank = (0, 1)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of input with two spatial axes.

    Parameters
    ----------
    num_features : int
        Channels.
    eps : float
        Added to the variance.
    momentum : float or None
        How far the running statistics move towards those of a batch; None averages all batches.
    affine : bool
        Whether to scale and shift by learnt numbers.
    track_running_stats : bool
        Whether to keep statistics for use after training; without, those of the batch are used.
    layout : str
    dtype : dtype

    Attributes
    ----------
    weight, bias : Parameter or None, shape (num_features,)
    running_mean, running_var : Buffer or None, shape (num_features,)
    num_batches_tracked : Buffer or None
    """

    rank = (2,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of input with three spatial axes; see `BatchNorm2d`."""

    rank = (3,)


class _MaxPool(Module):
    rank: ClassVar[int]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        *,
        layout: str = "channels_first",
    ) -> None:
        self.kernel_size = kernel_size
        self.options = {
            "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode,
            "layout": layout,
        }  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Pool a tensor or array."""
        return max_pool(self.rank, x, self.kernel_size, **self.options)

    def extra_repr(self) -> str:
        """Say the arguments of the layer."""
        return ", ".join([f"{self.kernel_size}", *(f"{k}={v!r}" for k, v in self.options.items())])


class _AvgPool(Module):
    rank: ClassVar[int]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        layout: str = "channels_first",
    ) -> None:
        self.kernel_size = kernel_size
        self.options = {
            "stride": stride, "padding": padding, "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad, "layout": layout,
        }  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Pool a tensor or array."""
        return avg_pool(self.rank, x, self.kernel_size, **self.options)

    extra_repr = _MaxPool.extra_repr


class MaxPool1d(_MaxPool):
    """Largest value of each window, over one axis; see `MaxPool2d`."""

    rank = 1


class MaxPool2d(_MaxPool):
    """Largest value of each window, over two axes.

    Parameters
    ----------
    kernel_size : int or sequence of int
    stride : int or sequence of int, optional
        By default `kernel_size`.
    padding : int, sequence, or str
        At most half of the window.
    dilation : int or sequence of int
    ceil_mode : bool
        Whether a last window may reach over the end.
    layout : str
    """

    rank = 2


class MaxPool3d(_MaxPool):
    """Largest value of each window, over three axes; see `MaxPool2d`."""

    rank = 3


class AvgPool1d(_AvgPool):
    """Mean of each window, over one axis; see `AvgPool2d`."""

    rank = 1


class AvgPool2d(_AvgPool):
    """Mean of each window, over two axes.

    Parameters
    ----------
    kernel_size : int or sequence of int
    stride : int or sequence of int, optional
        By default `kernel_size`.
    padding : int, sequence, or str
        At most half of the window.
    ceil_mode : bool
        Whether a last window may reach over the end.
    count_include_pad : bool
        Whether cells of the padding count.
    layout : str
    """

    rank = 2


class AvgPool3d(_AvgPool):
    """Mean of each window, over three axes; see `AvgPool2d`."""

    rank = 3


class GlobalAvgPool(Module):
    """Mean over all spatial axes: (N, C, *spatial) to (N, C).

    Parameters
    ----------
    layout : str
    """

    def __init__(self, *, layout: str = "channels_first") -> None:
        self.layout = layout

    def forward(self, x: Any) -> Any:
        """Average a tensor or array."""
        ndim = raw(x).ndim
        last = arguments.layout_of(self.layout, ndim - 2) == "nhwc"
        return x.mean(axis=tuple(range(1, ndim - 1) if last else range(2, ndim)))


class Flatten(Module):
    """All axes after the first made one.

    Parameters
    ----------
    layout : str
        A channels-last image is read in the order of a channels-first one, so that the weights
        of a linear layer behind fit both.
    """

    def __init__(self, *, layout: str = "channels_first") -> None:
        self.layout = layout

    def forward(self, x: Any) -> Any:
        """Flatten a tensor or array."""
        shape = raw(x).shape
        n = len(shape)
        if n > 2 and arguments.layout_of(self.layout, n - 2) == "nhwc":
            x = x.transpose((0, n - 1, *range(1, n - 1)))
        return x.reshape((shape[0], prod(shape[1:])))


class _Activation(Module):
    operator: ClassVar[str]

    def forward(self, x: Any) -> Any:
        """Apply the function to each element of a tensor or array."""
        return ACTIVATIONS[self.operator](x)


class ReLU(_Activation):
    """``max(x, 0)``."""

    operator = "relu"


class SiLU(_Activation):
    """``x * sigmoid(x)``."""

    operator = "silu"


class GELU(_Activation):
    """``x * P(X <= x)`` for a standard normal X."""

    operator = "gelu"


class Sigmoid(_Activation):
    """``1 / (1 + exp(-x))``."""

    operator = "sigmoid"


class Tanh(_Activation):
    """The hyperbolic tangent."""

    operator = "tanh"
