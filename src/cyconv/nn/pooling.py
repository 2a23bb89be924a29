"""Pooling layers."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import arguments
from ..autograd import avg_pool, max_pool, raw
from .module import Module


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
