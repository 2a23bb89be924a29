"""Convolution layers, with PyTorch's arguments, and a layout beside them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import arguments, functional
from ..autograd import pad, raw
from ..autograd.padding import MODES
from .initialisation import Rng, kaiming_uniform, uniform_bias
from .module import Module, Parameter


class _Convolution(Module):
    """What the layers of both directions and all ranks share."""

    rank: ClassVar[int]
    transposed: ClassVar[bool]

    def _set_up(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        groups: int,
        bias: bool,
        activation: str | tuple[str, float] | None,
        layout: str,
        rng: Rng,
        dtype: Any,
    ) -> None:
        """Check what concerns the weights, and draw them in PyTorch's order."""
        arguments.integer("in_channels", in_channels, 1)
        arguments.integer("out_channels", out_channels, 1)
        arguments.integer("groups", groups, 1)
        kernel = arguments.per_axis("kernel_size", kernel_size, self.rank, 1)
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels)):
            if count % groups:
                raise ValueError(f"groups={groups} does not divide {name}={count}")
        arguments.activation_of(activation)
        channels_last = arguments.layout_of(layout, self.rank) == "nhwc"
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.groups, self.activation, self.layout = groups, activation, layout
        ends = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (ends[0], ends[1] // groups, *kernel)
        rng = np.random.default_rng(rng)
        drawn = kaiming_uniform(shape, rng, dtype=dtype)
        if channels_last:
            drawn = np.ascontiguousarray(np.moveaxis(drawn, 1, -1))
        self.weight = Parameter(drawn, channels_last=channels_last)
        self.bias = None
        if bias:
            self.bias = Parameter(uniform_bias(out_channels, shape, rng, dtype=dtype))

    def extra_repr(self) -> str:
        """Say the arguments of the layer."""
        names = ("stride", "padding", "dilation", "groups", "layout", "activation")
        more = "".join(f", {name}={getattr(self, name)!r}" for name in names)
        return f"{self.in_channels}, {self.out_channels}, {self.kernel_size}{more}"


class _Conv(_Convolution):
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        activation: str | tuple[str, float] | None = None,
        layout: str = "channels_first",
        strategy: str | None = None,
        rng: Rng = None,
        dtype: Any = np.float32,
    ) -> None:
        self._set_up(
            in_channels, out_channels, kernel_size, groups, bias, activation, layout, rng, dtype
        )
        arguments.parameters(self.rank, stride, padding, dilation, groups, layout)
        if padding_mode not in ("zeros", *MODES):
            raise ValueError(
                f"padding_mode must be one of zeros, {', '.join(MODES)}, not {padding_mode!r}"
            )
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.padding_mode, self.strategy = padding_mode, strategy

    def forward(self, x: Any) -> Any:
        """Convolve a tensor or array."""
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = pad(x, self._widths(raw(x).shape), self.padding_mode), 0
        return functional.conv_forward(
            x, self.weight, self.bias, activation=self.activation, stride=self.stride,
            padding=padding, dilation=self.dilation, groups=self.groups, layout=self.layout,
            strategy=self.strategy,
        )  # fmt: skip

    def _widths(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Cells to add before and after each axis of the input."""
        params = arguments.parameters(
            self.rank, self.stride, self.padding, self.dilation, self.groups, self.layout
        )
        end = len(shape) - (params.layout == "nhwc")
        pairs = arguments.resolve_padding(params, shape[end - self.rank : end], self.kernel_size)
        lead, trail = ((0, 0),) * (end - self.rank), ((0, 0),) * (len(shape) - end)
        return (*lead, *pairs, *trail)


class _ConvTranspose(_Convolution):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        *,
        activation: str | tuple[str, float] | None = None,
        layout: str = "channels_first",
        strategy: str | None = None,
        rng: Rng = None,
        dtype: Any = np.float32,
    ) -> None:
        self._set_up(
            in_channels, out_channels, kernel_size, groups, bias, activation, layout, rng, dtype
        )
        arguments.parameters(self.rank, stride, padding, dilation, groups, layout)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.output_padding, self.strategy = output_padding, strategy

    def forward(self, x: Any, output_size: Any = None) -> Any:
        """Convolve a tensor or array; `output_size` takes the place of the output padding."""
        return functional.conv_transpose(
            x, self.weight, self.bias, activation=self.activation, stride=self.stride,
            padding=self.padding, output_size=output_size,
            output_padding=self.output_padding if output_size is None else 0,
            dilation=self.dilation, groups=self.groups, layout=self.layout,
            strategy=self.strategy,
        )  # fmt: skip


class Conv1d(_Conv):
    """Convolution over one spatial axis; see `Conv2d`."""

    rank = 1


class Conv2d(_Conv):
    """Convolution over two spatial axes.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size : int or sequence of int
    stride, padding, dilation, groups
        As in `cyconv.conv_forward`.
    bias : bool
        Whether to add a learnt bias.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        What is around the image.
    activation : str or (str, float), optional
        As in `cyconv.conv_forward`.
    layout : str
        Channels first or last, of input, output and weight; `Module.state_dict` is the same.
    strategy : str, optional
    rng : numpy.random.Generator, int or None
        Draws the weights: a generator, which moves on, or a seed.
    dtype : dtype

    Attributes
    ----------
    weight : Parameter, shape (out_channels, in_channels / groups, *kernel)
        With the channels last in such a layout.
    bias : Parameter or None, shape (out_channels,)
    """

    rank = 2


class Conv3d(_Conv):
    """Convolution over three spatial axes; see `Conv2d`."""

    rank = 3


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one spatial axis; see `ConvTranspose2d`."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over two spatial axes.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size : int or sequence of int
    stride, padding, output_padding, groups
        As in `cyconv.conv_transpose`.
    bias : bool
        Whether to add a learnt bias.
    dilation : int or sequence of int
    activation, layout, strategy, rng, dtype
        As for `Conv2d`.

    Attributes
    ----------
    weight : Parameter, shape (in_channels, out_channels / groups, *kernel)
        With the channels last in such a layout.
    bias : Parameter or None, shape (out_channels,)
    """

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over three spatial axes; see `ConvTranspose2d`."""

    rank = 3
