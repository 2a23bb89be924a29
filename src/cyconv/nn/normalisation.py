"""Batch normalisation as layers that follow the statistics of their batches."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import arguments
from ..autograd import Moments, batch_norm, moments, raw
from ..devices import check_places
from ..errors import ShapeError
from .module import Buffer, Module, Parameter


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
        check_places(x=values, running_mean=raw(self.running_mean))
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
