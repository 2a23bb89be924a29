"""HIPS autograd: cyconv's operators as primitives with gradients of any order.

>>> import autograd, autograd.numpy as np
>>> from cyconv.adapters.hips import conv_forward
>>> w = np.ones((1, 1, 3, 3))
>>> autograd.grad(lambda x: np.sum(conv_forward(x, w)))(np.ones((1, 1, 4, 4)))[0, 0, 1]
array([2., 4., 4., 2.])
"""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
from autograd.extend import defvjp, primitive

import cyconv

from ._geometry import Geometry, geometry, transposed_geometry

__all__ = ["conv_forward", "conv_transpose"]


# --- the three operators, and their gradients among themselves ------------------------------------


def _forward_of_arrays(x: Any, w: Any, g: Geometry, how: str | None) -> Any:
    return cyconv.conv_forward(x, w, strategy=how, **g._asdict())


def _data_backward_of_arrays(dy: Any, w: Any, shape: Any, g: Geometry, how: str | None) -> Any:
    return cyconv.conv_data_backward(dy, w, shape, strategy=how, **g._asdict())


def _weight_backward_of_arrays(x: Any, dy: Any, shape: Any, g: Geometry, how: str | None) -> Any:
    return cyconv.conv_weight_backward(x, dy, shape, strategy=how, **g._asdict())


_forward = primitive(_forward_of_arrays)
_data_backward = primitive(_data_backward_of_arrays)
_weight_backward = primitive(_weight_backward_of_arrays)

defvjp(
    _forward,
    lambda y, x, w, g, how: lambda v: _data_backward(v, w, x.shape, g, how),
    lambda y, x, w, g, how: lambda v: _weight_backward(x, v, w.shape, g, how),
)
defvjp(
    _data_backward,
    lambda y, dy, w, shape, g, how: lambda v: _forward(v, w, g, how),
    lambda y, dy, w, shape, g, how: lambda v: _weight_backward(v, dy, w.shape, g, how),
)
defvjp(
    _weight_backward,
    lambda y, x, dy, shape, g, how: lambda v: _data_backward(dy, v, x.shape, g, how),
    lambda y, x, dy, shape, g, how: lambda v: _forward(x, v, g, how),
)


# --- what users call ------------------------------------------------------------------------------


def _with_bias(y: Any, bias: Any, g: Geometry) -> Any:
    if bias is None:
        return y
    return y + (bias if g.layout == "channels_last" else anp.reshape(bias, (-1, *[1] * g.ndim)))


def conv_forward(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
) -> Any:
    """Convolve; parameters as in `cyconv.conv_forward`.

    Parameters
    ----------
    x, w, bias : array or box
    stride, padding, dilation, groups, layout, strategy
        As in `cyconv.conv_forward`.

    Returns
    -------
    array or box

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_forward`.
    """
    g = geometry(x.shape, w.shape, stride, padding, dilation, groups, layout)
    return _with_bias(_forward(x, w, g, strategy), bias, g)


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
) -> Any:
    """Convolve transposed; parameters as in `cyconv.conv_transpose`.

    Parameters
    ----------
    x, w, bias : array or box
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `cyconv.conv_transpose`.

    Returns
    -------
    array or box

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_transpose`.
    """
    g, shape, edges = transposed_geometry(
        x.shape, w.shape, stride, padding, output_padding, output_size, dilation, groups, layout
    )
    y = _data_backward(x, w, shape, g, strategy)
    if any(map(any, edges)):
        y = y[tuple(slice(drop, None) for drop, _ in edges)]
        y = anp.pad(y, [(0, zeros) for _, zeros in edges], "constant")
    return _with_bias(y, bias, g)
