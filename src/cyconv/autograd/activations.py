"""The rows of activations, and their names for ``activation=``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..devices import special
from ..operands import Array
from .arithmetic import erf, exp, sigmoid, tanh, zero_where
from .tape import Operator, raw


def _relu_rule(g: Any, y: Any, x: Any) -> Any:
    return zero_where(g, raw(y) <= 0)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + special("erf", x / 2**0.5))  # type: ignore[no-any-return]


def _silu_rule(g: Any, y: Any, x: Any) -> Any:
    s = sigmoid(x)
    return g * (s + y * (1 - s))


def _gelu_rule(g: Any, y: Any, x: Any) -> Any:
    density = exp(-0.5 * x * x) / (2 * np.pi) ** 0.5
    return g * (0.5 * (1 + erf(x / 2**0.5)) + x * density)


relu = Operator("relu", lambda x: np.maximum(x, 0), (_relu_rule,))
silu = Operator("silu", lambda x: x * special("expit", x), (_silu_rule,))
gelu = Operator("gelu", _gelu, (_gelu_rule,))

ACTIVATIONS = {"relu": relu, "silu": silu, "gelu": gelu, "sigmoid": sigmoid, "tanh": tanh}

# Rules that look at the result only let it take the place of the input, where nobody else has that.
_IN_PLACE = {
    "relu": Operator("relu", lambda x: np.maximum(x, 0, out=x), relu.rules),
    "sigmoid": Operator("sigmoid", lambda x: special("expit", x, out=x), sigmoid.rules),
    "tanh": Operator("tanh", lambda x: np.tanh(x, out=x), tanh.rules),
}


def check_activation(name: str | None) -> None:
    """Raise ValueError for a name that is not among the activations."""
    if name is not None and name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; it may be {', '.join(ACTIVATIONS)}")


def activate_own(y: Any, name: str | None) -> Any:
    """Apply an activation to a result that nobody else has seen, in place where that can be."""
    return y if name is None else _IN_PLACE.get(name, ACTIVATIONS[name])(y)
