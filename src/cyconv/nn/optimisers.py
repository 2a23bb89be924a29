"""Optimisers, with PyTorch's formulas and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ..operands import Array
from .module import Parameter


class _Optimiser:
    # Names of arguments, and of arrays of a parameter's shape: PyTorch's. `step` counts.
    options: ClassVar[tuple[str, ...]]
    buffers: ClassVar[tuple[str, ...]]
    _optional = False  # whether there are steps without buffers

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("parameters is empty")
        self.lr = _at_least_0("lr", lr)
        self._state: list[dict[str, Any]] = [{} for _ in self.parameters]

    def state_dict(self) -> dict[str, Array]:
        """Return what the next step depends on beside the parameters, as copies.

        The arguments by name, and "0.step", "0.exp_avg" and the like for the first parameter, in
        PyTorch's names and shapes, whatever the layout, as NumPy's arrays. `cyconv.nn.save` takes
        it.
        """
        state = {name: np.array(getattr(self, name)) for name in self.options}
        for i, (parameter, own) in enumerate(zip(self.parameters, self._state, strict=True)):
            for name, value in own.items():
                array = parameter.exported(value) if name in self.buffers else np.array(value)
                state[f"{i}.{name}"] = array
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another optimiser was.

        Parameters
        ----------
        state : mapping of str to array_like
            What `state_dict` of an optimiser of this kind returned, for parameters of the same
            order and shapes.

        Raises
        ------
        KeyError
            If names are missing or unexpected.
        ShapeError
            If a shape differs. Nothing has been changed then.
        """
        rest = dict(state)
        missing = [name for name in self.options if name not in rest]
        options = {name: rest.pop(name) for name in self.options if name in rest}
        new: list[dict[str, Any]] = [{} for _ in self.parameters]
        for i, parameter in enumerate(self.parameters):
            found = [name for name in self.buffers if f"{i}.{name}" in rest]
            if found or f"{i}.step" in rest:  # else it has not been moved yet
                names = ("step", *(found if self._optional else self.buffers))
                missing += [f"{i}.{name}" for name in names if f"{i}.{name}" not in rest]
                new[i]["step"] = int(rest.pop(f"{i}.step", 0))
            for name in found:
                new[i][name] = parameter.imported(f"{i}.{name}", rest.pop(f"{i}.{name}"))
        if missing or rest:
            raise KeyError(f"state: missing {sorted(missing)}, unexpected {sorted(rest)}")
        for name, value in options.items():
            array = np.asarray(value)
            setattr(self, name, tuple(array.tolist()) if array.ndim else array.item())
        self._state = new

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        for parameter, state in zip(self.parameters, self._state, strict=True):
            if parameter.grad is not None:
                state["step"] = state.get("step", 0) + 1
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

    options = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    buffers = ("momentum_buffer",)
    _optional = True

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
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = gradient.copy()
            else:
                buffer = state["momentum_buffer"]
                buffer *= self.momentum
                buffer += (1 - self.dampening) * gradient if self.dampening else gradient
            buffer = state["momentum_buffer"]
            gradient = gradient + self.momentum * buffer if self.nesterov else buffer
        step: Array = self.lr * gradient
        return np.subtract(value, step, out=step)


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

    options = ("lr", "betas", "eps", "weight_decay")
    buffers = ("exp_avg", "exp_avg_sq")

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
        for name in self.buffers:
            if name not in state:
                state[name] = np.zeros_like(value)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        (first, second), count = self.betas, state["step"]
        step: Array = gradient - mean
        step *= 1 - first
        mean += step
        np.multiply(gradient, gradient, out=step)
        step *= 1 - second
        square *= second
        square += step
        np.sqrt(square, out=step)
        step /= (1 - second**count) ** 0.5
        step += self.eps
        np.divide(mean, step, out=step)
        step *= self.lr / (1 - first**count)
        return np.subtract(value, step, out=step)
