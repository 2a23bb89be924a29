"""The rows of arithmetic: NumPy computes, the rules say how gradients flow back.

NumPy's functions hand CuPy's arrays to CuPy; what is made anew is made like an array that is there.

A rule is ``rule(g, y, *inputs)``: the gradient and value of the result, then the inputs. What
broadcasting did to an input is undone by the tape, so the rules do not mention it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .. import isa
from ..arguments import Activation
from ..devices import entered, on_gpu, special
from ..kernels._run import finish_array
from ..operands import Array
from .sums import averaged, summed
from .tape import Operator, raw


def computed(name: str) -> Callable[..., Array]:
    """Return an activation of arrays: the convolutions' own, half types in float32."""

    def compute(x: Array, *, alpha: float = 0.0) -> Array:
        if on_gpu(x):
            from .. import gpu

            with entered(x):
                return gpu.activated(x, Activation(name, alpha))  # type: ignore[no-any-return]
        isa.settle()
        x = np.asarray(x)
        dtype = x.dtype if x.dtype.kind == "f" or x.dtype.name == "bfloat16" else np.dtype(float)
        y = np.array(x, np.float64 if dtype.itemsize == 8 else np.float32, order="C")
        finish_array(y, Activation(name, alpha), None, 1)
        return y.astype(dtype, copy=False)

    return compute


add = Operator("add", np.add, (lambda g, y, a, b: g, lambda g, y, a, b: g))
subtract = Operator("subtract", np.subtract, (lambda g, y, a, b: g, lambda g, y, a, b: -g))
multiply = Operator("multiply", np.multiply, (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a))
divide = Operator(
    "divide", np.true_divide, (lambda g, y, a, b: g / b, lambda g, y, a, b: -g * y / b)
)
negative = Operator("negative", np.negative, (lambda g, y, x: -g,))


def _power_base(g: Any, y: Any, a: Any, b: Any) -> Any:
    # Where b is 0 the factor b says all; a ** -1 must not make NaN of it at a = 0.
    return g * b * a ** (b - 1 + (raw(b) == 0))


def _power_exponent(g: Any, y: Any, a: Any, b: Any) -> Any:
    # 0 ** b is 0 for all b > 0, hence flat in b.
    return g * y * log(a + (raw(a) == 0))


power = Operator("power", np.power, (_power_base, _power_exponent))
exp = Operator("exp", np.exp, (lambda g, y, x: g * y,))
log = Operator("log", np.log, (lambda g, y, x: g / x,))
sigmoid = Operator("sigmoid", computed("sigmoid"), (lambda g, y, x: g * y * (1 - y),))
tanh = Operator("tanh", computed("tanh"), (lambda g, y, x: g * (1 - y * y),))
erf = Operator(
    "erf", lambda x: special("erf", x), (lambda g, y, x: g * (2 / np.pi**0.5) * exp(-x * x),)
)


def _zero_where(x: Array, mask: Array) -> Array:
    """Give exact zeros where the mask is true, also for what is not finite.

    By bits, as NumPy's masked copies branch at each element and take several times as long.
    """
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    kept: Array = np.multiply(bits, ~mask)
    return kept.view(x.dtype)


zero_where: Operator = Operator(
    "zero_where", _zero_where, (lambda g, y, x, mask: zero_where(g, mask), None)
)
astype = Operator(
    "astype", lambda x, *, dtype: x.astype(dtype, copy=False), (lambda g, y, x, *, dtype: g,)
)


# --- shapes ---------------------------------------------------------------------------------------

reshape: Operator = Operator(
    "reshape",
    lambda x, *, shape: x.reshape(shape),
    (lambda g, y, x, *, shape: reshape(g, shape=x.shape),),
)
broadcast_to = Operator(
    "broadcast_to",
    lambda x, *, shape: np.broadcast_to(x, shape),
    (lambda g, y, x, *, shape: g,),
)
transpose: Operator = Operator(
    "transpose",
    lambda x, *, axes: x.transpose(axes),
    (lambda g, y, x, *, axes: transpose(g, axes=tuple(int(i) for i in np.argsort(axes))),),
)


def _put(g: Array, *, index: Any, shape: tuple[int, ...]) -> Array:
    """Give zeros of a shape with values added at an index, which may name a place twice."""
    result = np.zeros_like(g, order="C", shape=shape)
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or isinstance(part, int | slice | type(...)) for part in parts):
        result[index] = g
    else:
        np.add.at(result, index, g)
    return result


getitem: Operator = Operator(
    "getitem",
    lambda x, *, index: x[index],
    (lambda g, y, x, *, index: put(g, index=index, shape=x.shape),),
)
put: Operator = Operator("put", _put, (lambda g, y, x, *, index, shape: getitem(g, index=index),))


# --- sums -----------------------------------------------------------------------------------------


def _spread(g: Any, x: Any, axis: Any) -> Any:
    """Repeat along the axes of `x` that were summed over."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis) % x.ndim
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return broadcast_to(reshape(g, shape=kept), shape=x.shape)


def _count(x: Any, axis: Any) -> int:
    return prod(x.shape if axis is None else [x.shape[int(i)] for i in np.atleast_1d(axis)])


total = Operator(
    "sum",
    lambda x, *, axis, keepdims: summed(x, axis, keepdims),
    (lambda g, y, x, *, axis, keepdims: _spread(g, x, axis),),
)
mean = Operator(
    "mean",
    lambda x, *, axis, keepdims: averaged(x, axis, keepdims),
    (lambda g, y, x, *, axis, keepdims: _spread(g / _count(x, axis), x, axis),),
)


# --- products of matrices -------------------------------------------------------------------------


def _swapped(x: Any) -> Any:
    return transpose(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _column(x: Any) -> Any:
    return reshape(x, shape=(*x.shape, 1))


def _row(x: Any) -> Any:
    return reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def _matmul_left(g: Any, y: Any, a: Any, b: Any) -> Any:
    if b.ndim == 1:
        return g * b if a.ndim == 1 else _column(g) * b
    if a.ndim == 1:
        return reshape(matmul(b, _column(g)), shape=b.shape[:-1])
    return matmul(g, _swapped(b))


def _matmul_right(g: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 1:
        return g * a if b.ndim == 1 else _column(a) * _row(g)
    if b.ndim == 1:
        return reshape(matmul(_swapped(a), _column(g)), shape=(*a.shape[:-2], a.shape[-1]))
    return matmul(_swapped(a), g)


matmul: Operator = Operator("matmul", operator.matmul, (_matmul_left, _matmul_right))
