"""Gradients checked against differences of the function: `gradcheck` and `gradgradcheck`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..devices import beside, on_host
from ..operands import Array
from .reverse import grad
from .tape import Variable


class GradientError(AssertionError):
    """A gradient that does not agree with differences of the function."""


def gradcheck(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> bool:
    """Check the gradients of a function against central differences.

    Parameters
    ----------
    function : callable
        Takes `inputs`, returns a tensor.
    inputs : sequence
        Tensors, of float64 where they require a gradient, and anything else.
    eps : float
        Step of the differences.
    rtol, atol : float
        Entries may differ by ``atol + rtol * largest entry``.

    Returns
    -------
    bool
        True.

    Raises
    ------
    GradientError
        If a gradient is wrong; the message says of which input, where and by how much.
    TypeError, ValueError
        If there is nothing to check, or in too coarse a type for differences.

    Notes
    -----
    Every input element costs two evaluations. The result is contracted with random numbers of a
    fixed seed, so one reverse pass checks all of it.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> from cyconv.autograd import gradcheck
    >>> x = cyconv.Tensor(np.arange(5.0).reshape(1, 1, 5), requires_grad=True)
    >>> gradcheck(lambda x: cyconv.conv1d(x, np.ones((1, 1, 3)), padding=1), [x])
    True
    """
    chosen = _differentiable(inputs)
    result = function(*inputs)
    weights = beside(result.data, np.random.default_rng(0).standard_normal(result.shape))
    gradients = grad(result, [inputs[i] for i in chosen], weights)
    for i, found in zip(chosen, gradients, strict=True):
        expected = _differences(function, inputs, i, weights, eps)
        got = np.zeros_like(expected) if found is None else on_host(found.data)
        limit = atol + rtol * np.abs(expected).max(initial=0)
        error = np.abs(got - expected)
        if not error.max(initial=0) <= limit:
            where = tuple(
                int(n)
                for n in np.unravel_index(np.nan_to_num(error, nan=np.inf).argmax(), error.shape)
            )
            raise GradientError(
                f"gradient of input {i} at {where} is {got[where]:.9g}, differences give "
                f"{expected[where]:.9g}; the limit is {limit:.2g}"
            )
    return True


def gradgradcheck(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> bool:
    """Check the second derivatives of a function against differences of its gradients.

    Parameters
    ----------
    function, inputs, eps, rtol, atol
        As for `gradcheck`.

    Returns
    -------
    bool
        True.

    Raises
    ------
    GradientError, TypeError, ValueError
        As in `gradcheck`.
    """
    chosen = _differentiable(inputs)
    result = function(*inputs)
    rng = np.random.default_rng(1)
    normal = beside(result.data, rng.standard_normal(result.shape))
    seed = type(inputs[chosen[0]])(normal, requires_grad=True)
    factors = [beside(normal, rng.standard_normal(inputs[i].shape)) for i in chosen]

    def contracted(seed: Any, *inputs: Any) -> Any:
        gradients = grad(function(*inputs), [inputs[i] for i in chosen], seed, create_graph=True)
        # An input without a gradient, such as that of a sum's second derivative, adds nothing.
        parts = [(g * f).sum() for g, f in zip(gradients, factors, strict=True) if g is not None]
        return sum(parts[1:], parts[0])

    return gradcheck(contracted, [seed, *inputs], eps=eps, rtol=rtol, atol=atol)


def _differentiable(inputs: Sequence[Any]) -> list[int]:
    chosen = [i for i, x in enumerate(inputs) if isinstance(x, Variable) and x.requires_grad]
    if not chosen:
        raise ValueError("inputs has no tensor that requires a gradient")
    for i in chosen:
        if inputs[i].dtype != np.float64:
            raise TypeError(f"inputs[{i}] must be float64 to be checked, not {inputs[i].dtype}")
    return chosen


def _differences(
    function: Callable[..., Any], inputs: Sequence[Any], i: int, weights: Array, eps: float
) -> Array:
    """Central differences of the contracted result with respect to one input."""

    def value(array: Array) -> float:
        moved = type(inputs[i])(array, requires_grad=True)
        result = function(*inputs[:i], moved, *inputs[i + 1 :])
        return float((result.numpy() * weights).sum())

    slopes = np.zeros(inputs[i].shape)
    for where in np.ndindex(*slopes.shape):
        up, down = inputs[i].numpy().copy(), inputs[i].numpy().copy()
        up[where] += eps
        down[where] -= eps
        slopes[where] = (value(up) - value(down)) / float(up[where] - down[where])
    return slopes
