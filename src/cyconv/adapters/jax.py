"""JAX: cyconv's operators as host callbacks with gradients, under ``jit``, ``grad`` and ``vmap``.

Each operator is one `jax.pure_callback` on the CPU. Under ``vmap`` the calls run one after another.
Reverse mode works to any order; forward mode does not.

>>> import jax, jax.numpy as jnp
>>> from cyconv.adapters.jax import conv_forward
>>> x, w = jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 3, 3))
>>> jax.jit(jax.grad(lambda x: conv_forward(x, w).sum()))(x)[0, 0, 1].tolist()
[2.0, 4.0, 4.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cyconv

from ._geometry import Geometry, geometry, transposed_geometry

__all__ = ["conv_forward", "conv_transpose"]


def _on_host(function: Callable[..., Any], shape: Any, a: Any, b: Any) -> Any:
    """Call a function of two arrays; both have the dtype of the result."""

    def call(*arrays: Any) -> Any:
        return np.asarray(function(*map(np.asarray, arrays)))

    described: Any = jax.ShapeDtypeStruct  # untyped
    return jax.pure_callback(call, described(shape, a.dtype), a, b, vmap_method="sequential")


# --- the three operators, and their gradients among themselves ------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _forward(x: Any, w: Any, g: Geometry, strategy: str | None) -> Any:
    function = partial(cyconv.conv_forward, strategy=strategy, **g._asdict())
    return _on_host(function, g.output_shape(x.shape, w.shape), x, w)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _data_backward(
    dy: Any, w: Any, shape: tuple[int, ...], g: Geometry, strategy: str | None
) -> Any:
    function = partial(
        cyconv.conv_data_backward, input_shape=shape, strategy=strategy, **g._asdict()
    )
    return _on_host(function, shape, dy, w)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _weight_backward(
    x: Any, dy: Any, shape: tuple[int, ...], g: Geometry, strategy: str | None
) -> Any:
    function = partial(
        cyconv.conv_weight_backward, weight_shape=shape, strategy=strategy, **g._asdict()
    )
    return _on_host(function, shape, x, dy)


def _saving(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass of an operator: its result, and its operands kept."""
    return lambda a, b, *parameters: (operator(a, b, *parameters), (a, b))


_forward.defvjp(
    _saving(_forward),
    lambda g, how, kept, y: (
        _data_backward(y, kept[1], kept[0].shape, g, how),
        _weight_backward(kept[0], y, kept[1].shape, g, how),
    ),
)
_data_backward.defvjp(
    _saving(_data_backward),
    lambda shape, g, how, kept, dx: (
        _forward(dx, kept[1], g, how),
        _weight_backward(dx, kept[0], kept[1].shape, g, how),
    ),
)
_weight_backward.defvjp(
    _saving(_weight_backward),
    lambda shape, g, how, kept, dw: (
        _data_backward(kept[1], dw, kept[0].shape, g, how),
        _forward(kept[0], dw, g, how),
    ),
)


# --- what users call ------------------------------------------------------------------------------


def _promoted(x: Any, w: Any, bias: Any) -> tuple[Any, Any]:
    arrays = [jnp.asarray(a) for a in (x, w, bias) if a is not None]
    dtype = jnp.result_type(*arrays)
    return arrays[0].astype(dtype), arrays[1].astype(dtype)


def _with_bias(y: Any, bias: Any, g: Geometry) -> Any:
    if bias is None:
        return y
    bias = jnp.asarray(bias)
    return y + (bias if g.layout == "channels_last" else bias.reshape(-1, *[1] * g.ndim))


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
    x, w, bias : jax.Array
    stride, padding, dilation, groups, layout, strategy
        As in `cyconv.conv_forward`; they are static under ``jit``.

    Returns
    -------
    jax.Array
        Of the promoted dtype of the operands.

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_forward`.
    """
    x, w = _promoted(x, w, bias)
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
    x, w, bias : jax.Array
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `cyconv.conv_transpose`; they are static under ``jit``.

    Returns
    -------
    jax.Array

    Raises
    ------
    ValueError, TypeError
        As in `cyconv.conv_transpose`.
    """
    x, w = _promoted(x, w, bias)
    g, shape, edges = transposed_geometry(
        x.shape, w.shape, stride, padding, output_padding, output_size, dilation, groups, layout
    )
    y = _data_backward(x, w, shape, g, strategy)
    y = jax.lax.pad(y, jnp.zeros((), y.dtype), [(-drop, zeros, 0) for drop, zeros in edges])
    return _with_bias(y, bias, g)
