"""The rows of activations, and what a convolution does that applies one itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import Activation
from ..operands import Array
from .arithmetic import computed, erf, exp, sigmoid, tanh, zero_where
from .recording import recording
from .tape import Operator, Variable, raw


def _relu_rule(g: Any, y: Any, x: Any) -> Any:
    return zero_where(g, raw(y) <= 0)


def _relu6_rule(g: Any, y: Any, x: Any) -> Any:
    return zero_where(g, (raw(y) <= 0) | (raw(y) >= 6))


def _leaky_relu_rule(g: Any, y: Any, x: Any, *, alpha: float) -> Any:
    # For a positive alpha, y has the sign of x.
    negative = (raw(y) if alpha > 0 else raw(x)) <= 0
    return zero_where(g, negative) + alpha * zero_where(g, ~negative)


def _hardsigmoid_rule(g: Any, y: Any, x: Any, *, alpha: float) -> Any:
    return alpha * zero_where(g, (raw(y) <= 0) | (raw(y) >= 1))


def _hardswish_rule(g: Any, y: Any, x: Any) -> Any:
    low, high = raw(x) <= -3, raw(x) >= 3
    return zero_where(g, ~high) + zero_where(g * (x / 3 + 0.5), low | high)


def _silu_rule(g: Any, y: Any, x: Any) -> Any:
    s = sigmoid(x)
    return g * (s + y * (1 - s))


def _gelu_rule(g: Any, y: Any, x: Any) -> Any:
    density = exp(-0.5 * x * x) / (2 * np.pi) ** 0.5
    return g * (0.5 * (1 + erf(x / 2**0.5)) + x * density)


def _row(name: str, rule: Callable[..., Any]) -> Operator:
    return Operator(name, computed(name), (rule,))


relu = _row("relu", _relu_rule)
silu = _row("silu", _silu_rule)
gelu = _row("gelu", _gelu_rule)
ACTIVATIONS = {
    "relu": relu,
    "relu6": _row("relu6", _relu6_rule),
    "leaky_relu": _row("leaky_relu", _leaky_relu_rule),
    "hardsigmoid": _row("hardsigmoid", _hardsigmoid_rule),
    "hardswish": _row("hardswish", _hardswish_rule),
    "sigmoid": sigmoid,
    "silu": silu,
    "tanh": tanh,
    "gelu": gelu,
}
_TAKE_ALPHA = ("leaky_relu", "hardsigmoid")


def _same(y: Array, **parameters: Any) -> Array:
    return y


# What a convolution has done already, to be recorded: rules that look at the result only.
_DONE = {
    name: Operator(name, _same, ACTIVATIONS[name].rules)
    for name in ("relu", "relu6", "leaky_relu", "hardsigmoid", "sigmoid", "tanh")
}
_ADDED = Operator("add", lambda y, residual: y, (lambda g, y, a, b: g, lambda g, y, a, b: g))


def _parameters(activation: Activation) -> dict[str, float]:
    return {"alpha": activation.alpha} if activation.name in _TAKE_ALPHA else {}


def activate(y: Any, activation: Activation) -> Any:
    """Apply an activation."""
    return ACTIVATIONS[activation.name](y, **_parameters(activation))


def may_be_done(activation: Activation | None, *operands: Any) -> bool:
    """Whether a convolution of these operands may apply the activation itself.

    It may where no gradient will ask for what the activation was applied to.
    """
    if activation is None or not recording.get():
        return True
    if all(not isinstance(a, Variable) or a.source is None for a in operands):
        return True
    if activation.name == "leaky_relu" and activation.alpha <= 0:
        return False
    return activation.name in _DONE


def record_done(y: Any, residual: Any, activation: Activation | None) -> Any:
    """Record that a convolution's result y has the residual and the activation in it."""
    if residual is not None:
        y = _ADDED(y, residual)
    if activation is None or y.source is None:
        return y
    return _DONE[activation.name](y, **_parameters(activation))
