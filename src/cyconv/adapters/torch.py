"""PyTorch: cyconv's operators as custom operators of `torch.library`, differentiable to any order.

Tensors on the CPU share their memory with the arrays that cyconv reads. ``torch.compile`` sees each
operator as one opaque call with known shapes.

>>> import torch
>>> from cyconv.adapters.torch import conv_forward
>>> x = torch.ones(1, 1, 4, 4, requires_grad=True)
>>> y = conv_forward(x, torch.ones(1, 1, 3, 3))
>>> y.sum().backward()
>>> x.grad[0, 0, 1].tolist()
[2.0, 4.0, 4.0, 2.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import cyconv

from ._geometry import Geometry, geometry, transposed_geometry

__all__ = ["conv_forward", "conv_transpose"]

# Every operator takes its parameters in this form; padding is (before, after) of each axis in turn.
_PARAMETERS = "int[] stride, int[] padding, int[] dilation, int groups, str layout, str? strategy"


def _flat(g: Geometry, strategy: str | None) -> tuple[Any, ...]:
    padding = [n for pair in g.padding for n in pair]
    return (list(g.stride), padding, list(g.dilation), g.groups, g.layout, strategy)


def _keywords(parameters: tuple[Any, ...]) -> dict[str, Any]:
    stride, padding, dilation, groups, layout, strategy = parameters
    return {
        "stride": tuple(stride),
        "padding": tuple(zip(padding[::2], padding[1::2], strict=True)),
        "dilation": tuple(dilation),
        "groups": groups,
        "layout": layout,
        "strategy": strategy,
    }


def _array(tensor: Tensor | None) -> Any:
    """See the memory of a tensor as an array; NumPy has no bfloat16 of its own."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# --- the three operators --------------------------------------------------------------------------


def _forward(x: Tensor, w: Tensor, bias: Tensor | None, *parameters: Any) -> Tensor:
    return _tensor(cyconv.conv_forward(_array(x), _array(w), _array(bias), **_keywords(parameters)))


def _data_backward(dy: Tensor, w: Tensor, input_shape: list[int], *parameters: Any) -> Tensor:
    return _tensor(
        cyconv.conv_data_backward(
            _array(dy), _array(w), tuple(input_shape), **_keywords(parameters)
        )
    )


def _weight_backward(x: Tensor, dy: Tensor, weight_shape: list[int], *parameters: Any) -> Tensor:
    return _tensor(
        cyconv.conv_weight_backward(
            _array(x), _array(dy), tuple(weight_shape), **_keywords(parameters)
        )
    )


def _empty(shape: Any, *operands: Tensor | None) -> Tensor:
    """Return a tensor without values, as tracing wants it."""
    given = [t for t in operands if t is not None]
    dtype = given[0].dtype
    for t in given[1:]:
        dtype = torch.promote_types(dtype, t.dtype)
    return given[0].new_empty(tuple(shape), dtype=dtype)


def _forward_fake(x: Tensor, w: Tensor, bias: Tensor | None, *parameters: Any) -> Tensor:
    words = _keywords(parameters)
    words.pop("strategy")
    return _empty(Geometry(**words).output_shape(tuple(x.shape), tuple(w.shape)), x, w, bias)


forward = torch.library.custom_op(
    "cyconv::conv_forward",
    _forward,
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor w, Tensor? bias, {_PARAMETERS}) -> Tensor",
)
data_backward = torch.library.custom_op(
    "cyconv::conv_data_backward",
    _data_backward,
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor dy, Tensor w, SymInt[] input_shape, {_PARAMETERS}) -> Tensor",
)
weight_backward = torch.library.custom_op(
    "cyconv::conv_weight_backward",
    _weight_backward,
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor dy, SymInt[] weight_shape, {_PARAMETERS}) -> Tensor",
)
forward.register_fake(_forward_fake)
data_backward.register_fake(lambda dy, w, shape, *parameters: _empty(shape, dy, w))
weight_backward.register_fake(lambda x, dy, shape, *parameters: _empty(shape, x, dy))


# --- their gradients, among themselves ------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, third, *parameters = inputs
    ctx.save_for_backward(first, second)
    ctx.shapes, ctx.parameters = (first.shape, second.shape), parameters
    ctx.bias_dtype = third.dtype if isinstance(third, Tensor) else None


def _like(gradient: Tensor, operand: Tensor) -> Tensor:
    return gradient.to(operand.dtype)


def _forward_rule(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    want_x, want_w, want_bias, *_ = ctx.needs_input_grad
    dx = _like(data_backward(g, w, x.shape, *ctx.parameters), x) if want_x else None
    dw = _like(weight_backward(x, g, w.shape, *ctx.parameters), w) if want_w else None
    db = None
    if want_bias:
        last = ctx.parameters[4] == "channels_last"
        channel = g.ndim - 1 if last else g.ndim - (w.ndim - 2) - 1
        db = g.sum([axis for axis in range(g.ndim) if axis != channel]).to(ctx.bias_dtype)
    return (dx, dw, db, *[None] * len(ctx.parameters))


def _data_rule(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    dy, w = ctx.saved_tensors
    want_dy, want_w, *_ = ctx.needs_input_grad
    return (
        _like(forward(g, w, None, *ctx.parameters), dy) if want_dy else None,
        _like(weight_backward(g, dy, w.shape, *ctx.parameters), w) if want_w else None,
        *[None] * (1 + len(ctx.parameters)),
    )


def _weight_rule(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, dy = ctx.saved_tensors
    want_x, want_dy, *_ = ctx.needs_input_grad
    return (
        _like(data_backward(dy, g, x.shape, *ctx.parameters), x) if want_x else None,
        _like(forward(x, g, None, *ctx.parameters), dy) if want_dy else None,
        *[None] * (1 + len(ctx.parameters)),
    )


forward.register_autograd(_forward_rule, setup_context=_save)
data_backward.register_autograd(_data_rule, setup_context=_save)
weight_backward.register_autograd(_weight_rule, setup_context=_save)


# --- what users call ------------------------------------------------------------------------------


def conv_forward(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
) -> Tensor:
    """Convolve tensors on the CPU; parameters as in `cyconv.conv_forward`.

    Parameters
    ----------
    x, w, bias : torch.Tensor
    stride, padding, dilation, groups, layout, strategy
        As in `cyconv.conv_forward`.

    Returns
    -------
    torch.Tensor
        Of the promoted dtype of the operands.

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_forward`.
    """
    g = geometry(tuple(x.shape), tuple(w.shape), stride, padding, dilation, groups, layout)
    y: Tensor = forward(x, w, bias, *_flat(g, strategy))
    return y


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
) -> Tensor:
    """Convolve tensors on the CPU transposed; parameters as in `cyconv.conv_transpose`.

    Parameters
    ----------
    x, w, bias : torch.Tensor
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `cyconv.conv_transpose`.

    Returns
    -------
    torch.Tensor

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_transpose`.
    """
    g, shape, edges = transposed_geometry(
        tuple(x.shape), tuple(w.shape), stride, padding, output_padding, output_size, dilation,
        groups, layout,
    )  # fmt: skip
    y: Tensor = data_backward(x, w, shape, *_flat(g, strategy))
    if any(map(any, edges)):
        widths = [n for drop, zeros in reversed(edges) for n in (-drop, zeros)]
        y = torch.nn.functional.pad(y, widths)
    if bias is not None:
        y = y + (bias if g.layout == "channels_last" else bias.reshape(-1, *[1] * g.ndim))
    return y
