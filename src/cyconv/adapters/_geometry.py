"""What the skins of other frameworks share: the parameters of a call, resolved, and its shapes.

Sizes may be symbols of a tracing framework: they are added and divided, and compared only where the
caller's parameters ask for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import arguments

Shape = tuple[Any, ...]


class Geometry(NamedTuple):
    """Parameters of a convolution, hashable, one entry per spatial axis; padding as pairs."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    layout: str  # "channels_first" or "channels_last"

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.stride)

    def spatial(self, shape: Shape) -> Shape:
        """Return the spatial sizes of a shape, with or without a batch axis."""
        end = len(shape) - (self.layout == "channels_last")
        return tuple(shape[end - self.ndim : end])

    def with_spatial(self, shape: Shape, channels: Any, sizes: Shape) -> Shape:
        """Return a shape like another with other channels and spatial sizes."""
        batch = tuple(shape[: len(shape) - self.ndim - 1])
        if self.layout == "channels_last":
            return (*batch, *sizes, channels)
        return (*batch, channels, *sizes)

    def output_shape(self, x: Shape, w: Shape) -> Shape:
        """Return the shape of the forward result."""
        sizes = tuple(
            (n + lo + hi - (d * (k - 1) + 1)) // s + 1
            for n, k, s, (lo, hi), d in zip(
                self.spatial(x), self.spatial(w), self.stride, self.padding, self.dilation,
                strict=True,
            )
        )  # fmt: skip
        return self.with_spatial(x, w[0], sizes)


def geometry(
    x: Shape, w: Shape, stride: Any, padding: Any, dilation: Any, groups: Any, layout: str
) -> Geometry:
    """Check the parameters of a forward call on operands of these shapes."""
    ndim = len(w) - 2
    params = arguments.parameters(ndim, stride, padding, dilation, groups, layout)
    loose = _loose(params)
    return loose._replace(
        padding=arguments.resolve_padding(params, loose.spatial(x), loose.spatial(w))
    )


def transposed_geometry(
    x: Shape,
    w: Shape,
    stride: Any,
    padding: Any,
    output_padding: Any,
    output_size: Any,
    dilation: Any,
    groups: Any,
    layout: str,
) -> tuple[Geometry, Shape, arguments.Pairs]:
    """Check the parameters of a transposed call.

    Returns the geometry of the forward convolution that it is the gradient of, the shape of that
    gradient, and how many cells to drop at the start and zeros to put at the end of each of its
    axes, see `arguments.reached_geometry`.
    """
    ndim = len(w) - 2
    params = arguments.parameters(ndim, stride, padding, dilation, groups, layout)
    loose = _loose(params)
    sizes, kernel = loose.spatial(x), loose.spatial(w)
    pairs, result = arguments.transposed_geometry(
        params, sizes, kernel, output_padding, output_size
    )
    pairs, result, edges = arguments.reached_geometry(params, sizes, kernel, pairs, result)
    settled = loose._replace(padding=pairs)
    channels = (w[1] if settled.layout == "channels_first" else w[-1]) * settled.groups
    nothing = ((0, 0),) * len(x)
    return (
        settled,
        settled.with_spatial(x, channels, result),
        settled.with_spatial(nothing, (0, 0), edges),
    )


def _loose(params: arguments.Parameters) -> Geometry:
    layout = "channels_first" if params.layout == "nchw" else "channels_last"
    return Geometry(params.stride, (), params.dilation, params.groups, layout)
