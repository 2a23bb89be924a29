"""Layers without spatial axes: linear maps, activations, and the way from images to vectors."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from .. import arguments
from ..autograd import ACTIVATIONS, linear, raw
from .initialisation import Rng, kaiming_uniform, uniform_bias
from .module import Module, Parameter


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
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Say the arguments of the layer."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


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
