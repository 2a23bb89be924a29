"""Optimisers, with PyTorch's formulas and arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..operands import Array
from .module import Parameter


class _Optimiser:
    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("parameters is empty")
        self.lr = _at_least_0("lr", lr)
        self._state: list[dict[str, Any]] = [{} for _ in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        for parameter, state in zip(self.parameters, self._state, strict=True):
            if parameter.grad is not None:
                parameter.assign(self._moved(parameter.data, parameter.grad.data, state))

    def _moved(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        raise NotImplementedError


def _at_least_0(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, not {value!r}")
    return value


class SGD(_Optimiser):
    """Stochastic gradient descent, with momentum.

    Parameters
    ----------
    parameters : iterable of Parameter
    lr : float
        Step size; may be changed between steps.
    momentum : float
    dampening : float
        Part of a new gradient that does not enter the momentum.
    weight_decay : float
        Adds this times the parameter to its gradient.
    nesterov : bool
        Whether to look ahead along the momentum.

    References
    ----------
    .. [1] I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of initialization and
       momentum in deep learning", 2013.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr)
        self.momentum = _at_least_0("momentum", momentum)
        self.weight_decay = _at_least_0("weight_decay", weight_decay)
        self.dampening, self.nesterov = dampening, nesterov
        if nesterov and (not momentum or dampening):
            raise ValueError("nesterov needs a momentum and no dampening")

    def _moved(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * value
        if self.momentum:
            if "momentum" not in state:
                state["momentum"] = gradient.copy()
            else:
                buffer = state["momentum"]
                buffer *= self.momentum
                buffer += (1 - self.dampening) * gradient
            buffer = state["momentum"]
            gradient = gradient + self.momentum * buffer if self.nesterov else buffer
        return value - self.lr * gradient


class Adam(_Optimiser):
    """Adam: steps scaled by running means of the gradient and of its square.

    Parameters
    ----------
    parameters : iterable of Parameter
    lr : float
        Step size; may be changed between steps.
    betas : (float, float)
        How much of the two means is kept each step.
    eps : float
    weight_decay : float
        Adds this times the parameter to its gradient.

    References
    ----------
    .. [1] D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        for i, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise ValueError(f"betas[{i}] must be at least 0 and below 1, not {beta!r}")
        self.betas, self.eps = betas, _at_least_0("eps", eps)
        self.weight_decay = _at_least_0("weight_decay", weight_decay)

    def _moved(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * value
        if not state:
            state.update(steps=0, mean=np.zeros_like(value), square=np.zeros_like(value))
        state["steps"] += 1
        mean, square = state["mean"], state["square"]
        (first, second), steps = self.betas, state["steps"]
        mean += (1 - first) * (gradient - mean)
        square *= second
        square += (1 - second) * (gradient * gradient)
        spread = np.sqrt(square)
        spread /= (1 - second**steps) ** 0.5
        spread += self.eps
        step: Array = mean / spread
        step *= self.lr / (1 - first**steps)
        return value - step
