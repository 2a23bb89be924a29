"""The rows of convolution: three operators, each one's gradients among the other two.

With ``g`` the gradient of the result::

    y  = forward(x, w)            dx: data_backward(g, w)     dw: weight_backward(x, g)
    dx = data_backward(dy, w)     ddy: forward(g, w)          dw: weight_backward(g, dy)
    dw = weight_backward(x, dy)   dx: data_backward(dy, g)    ddy: forward(x, g)

A transposed convolution is the second row.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from .. import arguments, functional, request
from ..errors import ShapeError
from ..explanation import explain
from ..operands import Array
from ..problem import ConvProblem
from .activations import activate, may_be_done, record_done
from .arithmetic import broadcast_to, put, reshape
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
    activation = arguments.activation_of(parameters[-1])
    done = may_be_done(activation, a, b, bias, residual)
    last = {} if residual is None else {"residual": raw(residual)}
    if activation is not None and done:
        last["activation"] = parameters[-1]
    if kind == "transposed":
        y = _transposed(rank, a, b, bias, extra, parameters, more, last)
    else:
        request.spatial_axes("w", raw(b).shape, rank)
        y = forward(a, b, bias, last=last, **more)
    y = record_done(y, residual, activation if done else None)
    return y if done or activation is None else activate(y, activation)


def _transposed(
    rank: int | None,
    x: Any,
    w: Any,
    bias: Any,
    sizes: tuple[Any, ...],
    parameters: request.Raw,
    more: dict[str, Any],
    last: dict[str, Any],
) -> Any:
    output_padding, output_size = sizes
    checked = request.transposed(
        raw(x), raw(w), raw(bias), output_padding, output_size, rank, parameters
    )
    problem = checked.problem
    # Output padding that reaches the stride leaves room for outputs that x does not have: zeros.
    whole = tuple(
        (n + lo + hi - extent) // step + 1
        for n, (lo, hi), extent, step in zip(
            problem.in_size, problem.padding, problem.effective_kernel, problem.stride, strict=True
        )
    )
    if whole != problem.out_size:
        x = _extended(x, problem, whole, checked.batched)
    shape = problem.x_shape if checked.batched else problem.x_shape[1:]
    return data_backward(
        x, w, bias, input_shape=shape, last=last, **{**more, "padding": problem.padding}
    )


def _extended(x: Any, problem: ConvProblem, spatial: tuple[int, ...], batched: bool) -> Any:
    """Put zeros after each spatial axis."""
    shape = replace(problem, out_size=spatial).y_shape
    if not batched:
        shape = shape[1:]
    return put(x, index=tuple(slice(n) for n in x.shape), shape=shape)


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
