"""Windows over the spatial axes of an image: what the arguments of a pooling call say."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from . import arguments
from .errors import ShapeError


class Windows(NamedTuple):
    """Windows over the spatial axes of an input, one entry per axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    size: tuple[int, ...]
    out: tuple[int, ...]
    layout: str  # "nchw" or "nhwc", for any rank

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def first(self) -> bool:
        """Whether channels come before the spatial axes."""
        return self.layout == "nchw"

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the results over an input of this shape."""
        if self.first:
            return (*shape[: len(shape) - self.ndim], *self.out)
        return (*shape[: len(shape) - self.ndim - 1], *self.out, shape[-1])


def windows_of(
    rank: int,
    shape: tuple[int, ...],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    layout: str,
) -> Windows:
    """Check the arguments of a pooling call, and count its windows.

    Parameters
    ----------
    rank : int
        Number of spatial axes.
    shape : tuple of int
        Of the input, with or without a batch axis.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As for `autograd.max_pool`.

    Raises
    ------
    ShapeError
        If the input has another rank, or there is no output.
    ValueError, TypeError
        If a parameter has a wrong value or type.
    """
    if len(shape) not in (rank + 1, rank + 2):
        raise ShapeError(
            f"x must have {rank + 2} axes, or {rank + 1} without a batch, not {len(shape)}: {shape}"
        )
    kernel = arguments.per_axis("kernel_size", kernel_size, rank, 1)
    stride = kernel if stride is None else stride
    params = arguments.parameters(rank, stride, padding, dilation, 1, layout)
    end = len(shape) - (params.layout == "nhwc")
    size = shape[end - rank : end]
    pairs = arguments.resolve_padding(params, size, kernel)
    out = []
    for axis in range(rank):
        n, s, (lo, hi) = size[axis], params.stride[axis], pairs[axis]
        extent = params.dilation[axis] * (kernel[axis] - 1) + 1
        if max(lo, hi) > extent // 2:
            raise ValueError(
                f"padding {(lo, hi)} of spatial axis {axis} is more than half of the window's "
                f"extent {extent}"
            )
        room = n + lo + hi - extent
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= n + lo:
            count -= 1  # a window that starts behind the input and the padding before it
        if count < 1 or n == 0:
            raise ShapeError(
                f"no output along spatial axis {axis}: the input size {n} with padding "
                f"{(lo, hi)} is smaller than the window's extent {extent}"
            )
        out.append(count)
    if prod(size) >= 2**31:
        raise ShapeError(f"x of shape {shape} has 2**31 cells a channel or more")
    return Windows(kernel, params.stride, params.dilation, pairs, size, tuple(out), params.layout)
