"""The rows of convolution: three operators, each one's gradients among the other two.

With ``g`` the gradient of the result::

    y  = forward(x, w)            dx: data_backward(g, w)     dw: weight_backward(x, g)
    dx = data_backward(dy, w)     ddy: forward(g, w)          dw: weight_backward(g, dy)
    dw = weight_backward(x, dy)   dx: data_backward(dy, g)    ddy: forward(x, g)

A transposed convolution is the second row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import arguments, functional, request
from ..devices import entered
from ..errors import ShapeError
from ..explanation import explain
from ..operands import Array
from .activations import activate, may_be_done, record_done
from .arithmetic import broadcast_to, put, reshape, zero_where
from .tape import Operator, raw

_PARAMETERS = ("stride", "padding", "dilation", "groups", "layout", "strategy", "threads")


def _is_first(layout: str, ndim: int) -> bool:
    """Whether a layout has its channels first."""
    return arguments.layout_of(layout, ndim) == "nchw"


def _spatial(shape: tuple[int, ...], ndim: int, layout: str) -> tuple[int, ...]:
    """Spatial sizes of a shape with or without a batch axis."""
    end = len(shape) - (not _is_first(layout, ndim))
    return shape[end - ndim : end]


def _told(operator: str, *operands: Any, **keywords: Any) -> str:
    how = explain(*operands, operator=operator, **keywords)
    return f"{how.problem}: {how.strategy}"


# --- bias -----------------------------------------------------------------------------------------


def _bias_gradient(dy: Array, *, layout: str, ndim: int) -> Array:
    return functional.bias_backward(dy if dy.ndim == ndim + 2 else dy[None], layout=layout)


def _bias_rule(g: Any, y: Any, dy: Any, *, layout: str, ndim: int) -> Any:
    kept = (g.shape[0], *[1] * ndim) if _is_first(layout, ndim) else g.shape
    return broadcast_to(reshape(g, shape=kept), shape=dy.shape)


bias_gradient = Operator("bias_backward", _bias_gradient, (_bias_rule,))


# --- the three rows -------------------------------------------------------------------------------


# `last`: keywords for what is done to the result last, which the next rows record.


def _forward(x: Array, w: Array, bias: Array | None, *, last: dict[str, Any], **more: Any) -> Array:
    return functional.conv_forward(x, w, bias, **last, **more)


def _data_backward(
    dy: Array,
    w: Array,
    bias: Array | None,
    *,
    input_shape: tuple[int, ...],
    last: dict[str, Any],
    **more: Any,
) -> Array:
    if bias is None and not last:
        return functional.conv_data_backward(dy, w, input_shape, **more)
    size = _spatial(input_shape, w.ndim - 2, more["layout"])
    return functional.conv_transpose(dy, w, bias, output_size=size, **last, **more)


def _weight_backward(x: Array, dy: Array, *, weight_shape: tuple[int, ...], **more: Any) -> Array:
    return functional.conv_weight_backward(x, dy, weight_shape, **more)


def _bias_of(g: Any, w: Any, more: dict[str, Any]) -> Any:
    return bias_gradient(g, layout=more["layout"], ndim=w.ndim - 2)


forward: Operator = Operator(
    "conv_forward",
    _forward,
    (
        lambda g, y, x, w, bias, *, last, **more: data_backward(
            g, w, None, input_shape=x.shape, last={}, **more
        ),
        lambda g, y, x, w, bias, *, last, **more: weight_backward(
            x, g, weight_shape=w.shape, **more
        ),
        lambda g, y, x, w, bias, *, last, **more: _bias_of(g, w, more),
    ),
    note=lambda x, w, bias, *, last, **more: _told("forward", x, w, bias=bias, **more),
)
data_backward: Operator = Operator(
    "conv_data_backward",
    _data_backward,
    (
        lambda g, y, dy, w, bias, *, input_shape, last, **more: forward(
            g, w, None, last={}, **more
        ),
        lambda g, y, dy, w, bias, *, input_shape, last, **more: weight_backward(
            g, dy, weight_shape=w.shape, **more
        ),
        lambda g, y, dy, w, bias, *, input_shape, last, **more: _bias_of(g, w, more),
    ),
    note=lambda dy, w, bias, *, input_shape, last, **more: _told(
        "data_backward", dy, w, input_shape, **more
    ),
)
weight_backward: Operator = Operator(
    "conv_weight_backward",
    _weight_backward,
    (
        lambda g, y, x, dy, *, weight_shape, **more: data_backward(
            dy, g, None, input_shape=x.shape, last={}, **more
        ),
        lambda g, y, x, dy, *, weight_shape, **more: forward(x, g, None, last={}, **more),
    ),
    note=lambda x, dy, *, weight_shape, **more: _told(
        "weight_backward", x, dy, weight_shape, **more
    ),
)


# --- calls of the public functions that met a tensor ----------------------------------------------


def call(
    kind: str,
    rank: int | None,
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    extra: tuple[Any, ...],
    parameters: request.Raw,
    out: Any,
) -> Any:
    """Do what a public function was asked to do, by the rows; see `calls.run`."""
    if out is not None:
        raise TypeError("out= is for arrays; a call with a tensor makes a new one")
    more = dict(zip(_PARAMETERS, parameters[:-1], strict=True))
    if kind == "bias_backward":
        return bias_gradient(a, layout=more["layout"], ndim=a.ndim - 2)
    if kind == "data_backward":
        return data_backward(a, b, None, input_shape=extra[0], last={}, **more)
    if kind == "weight_backward":
        return weight_backward(a, b, weight_shape=extra[0], **more)
    after = _After(residual, arguments.activation_of(parameters[-1]), parameters[-1])
    if kind == "transposed":
        return _transposed(rank, a, b, bias, extra, parameters, more, after)
    request.spatial_axes("w", raw(b).shape, rank)
    return after.fused(lambda last: forward(a, b, bias, last=last, **more), a, b, bias)


class _After(NamedTuple):
    """What follows a convolution."""

    residual: Any
    activation: arguments.Activation | None
    given: Any  # the activation as the caller named it

    def fused(self, compute: Callable[[dict[str, Any]], Any], *operands: Any) -> Any:
        """Let the convolution do it, given as keywords, as far as gradients permit."""
        done = may_be_done(self.activation, *operands, self.residual)
        last = {} if self.residual is None else {"residual": raw(self.residual)}
        if self.activation is not None and done:
            last["activation"] = self.given
        y = record_done(compute(last), self.residual, self.activation if done else None)
        return y if done or self.activation is None else activate(y, self.activation)

    def apart(self, y: Any) -> Any:
        """Do it after the convolution."""
        if self.residual is not None:
            y = y + self.residual
        return y if self.activation is None else activate(y, self.activation)


def _transposed(
    rank: int | None,
    x: Any,
    w: Any,
    bias: Any,
    sizes: tuple[Any, ...],
    parameters: request.Raw,
    more: dict[str, Any],
    after: _After,
) -> Any:
    output_padding, output_size = sizes
    checked = request.transposed(
        raw(x), raw(w), raw(bias), output_padding, output_size, rank, parameters
    )
    problem = checked.problem
    padding, size, edges = arguments.reached_geometry(
        arguments.parameters(len(problem.kernel), *parameters[:5]),
        problem.out_size, problem.kernel, problem.padding, problem.in_size,
    )  # fmt: skip
    reached = replace(problem, in_size=size, padding=padding)
    first, shape = (p.x_shape if checked.batched else p.x_shape[1:] for p in (reached, problem))
    more = {**more, "padding": padding}

    def compute(last: dict[str, Any]) -> Any:
        return data_backward(x, w, bias, input_shape=first, last=last, **more)

    if not any(map(any, edges)):
        return after.fused(compute, x, w, bias)
    return after.apart(_placed(compute({}), bias, edges, shape, more["layout"]))


def _placed(y: Any, bias: Any, edges: arguments.Pairs, shape: tuple[int, ...], layout: str) -> Any:
    """Drop cells at the start, and add those that hold nothing but the bias at the end."""
    ndim = len(edges)
    first = (slice(None),) * (y.ndim - ndim - (not _is_first(layout, ndim)))
    y = y[(*first, *[slice(drop, None) for drop, _ in edges])]
    index = tuple(slice(n) for n in y.shape)
    y = put(y, index=index, shape=shape)
    if bias is None:
        return y
    with entered(raw(y)) as xp:
        taken = xp.zeros(shape, bool)
        taken[index] = True
    kept = (len(bias), *[1] * ndim) if _is_first(layout, ndim) else bias.shape
    return y + zero_where(broadcast_to(reshape(bias, shape=kept), shape=shape), taken)


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    """Map the last axis linearly, ``x @ w.T + bias``: a convolution of images of one pixel.

    Parameters
    ----------
    x : Tensor or array, shape (..., in)
    w : Tensor or array, shape (out, in)
    bias : Tensor or array, shape (out,), optional

    Returns
    -------
    Tensor, or numpy.ndarray if all operands are arrays

    Raises
    ------
    ShapeError
        If the shapes do not fit together.

    Notes
    -----
    As a convolution it runs on cyconv's threads. Those of NumPy's BLAS would stay busy for some
    milliseconds after a product of matrices and slow the next convolutions down.
    """
    shape, weight_shape = np.shape(raw(x)), np.shape(raw(w))
    if len(weight_shape) != 2:
        raise ShapeError(f"w must have 2 axes, not {len(weight_shape)}: {weight_shape}")
    if shape[-1:] != weight_shape[1:]:
        raise ShapeError(f"x has shape {shape}, its last axis should be {weight_shape[1]}")
    out, inner = weight_shape
    y = functional.conv_forward(
        reshape(x, shape=(prod(shape[:-1]), 1, inner)),
        reshape(w, shape=(out, 1, inner)),
        bias,
        layout="NWC",
    )
    return reshape(y, shape=(*shape[:-1], out))
