"""`Module`: layers that own parameters and other layers, named as PyTorch names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..autograd import Tensor, raw
from ..devices import beside, on_host
from ..errors import ShapeError
from ..operands import Array


class _State(Tensor):
    """An array that a module owns; `channels_last` says that PyTorch's axis 1 lies last here."""

    __slots__ = ("channels_last",)

    def __init__(
        self, array: Any, requires_grad: bool = False, *, channels_last: bool = False
    ) -> None:
        super().__init__(array, requires_grad)
        self.channels_last = channels_last

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.data, self.requires_grad, self.channels_last)

    def exported(self, array: Array) -> Array:
        """Return a copy of an array of this shape, in PyTorch's order of axes, for NumPy."""
        host = on_host(array)
        return np.array(np.moveaxis(host, -1, 1) if self.channels_last else host, order="C")

    def imported(self, name: str, value: Any) -> Array:
        """Bring what is called so from PyTorch's order of axes into this one, and to its device.

        The shape is checked, and the dtype is that of this array.
        """
        array = on_host(raw(value))
        shape = self.shape
        if self.channels_last:
            shape = (shape[0], shape[-1], *shape[1:-1])
        if array.shape != shape:
            raise ShapeError(f"state[{name!r}] has shape {array.shape}, should be {shape}")
        moved = np.moveaxis(array, 1, -1) if self.channels_last else array
        return beside(self.data, np.array(moved, self.dtype, order="C"))  # type: ignore[no-any-return]


def _restored(kind: type[_State], array: Array, requires_grad: bool, channels_last: bool) -> _State:
    return kind(array, requires_grad, channels_last=channels_last)


class Parameter(_State):
    """A tensor that a module learns.

    Parameters
    ----------
    array : array_like
    requires_grad : bool
        False freezes it: no gradient is computed.
    channels_last : bool
        Whether the axis that is 1 in PyTorch lies last here.
    """

    __slots__ = ()

    def __init__(
        self, array: Any, requires_grad: bool = True, *, channels_last: bool = False
    ) -> None:
        super().__init__(array, requires_grad, channels_last=channels_last)


class Buffer(_State):
    """A tensor that belongs to a module's state but is not learnt, such as a running mean.

    Parameters
    ----------
    array : array_like
    requires_grad : bool
    channels_last : bool
        As for `Parameter`.
    """

    __slots__ = ()


class Module:
    """Base of layers: its attributes that are parameters, buffers and modules make its state.

    A subclass sets them in ``__init__`` and computes in ``forward``.

    Attributes
    ----------
    training : bool
        Set by `train` and `eval`.

    Examples
    --------
    >>> import numpy as np
    >>> from cyconv import nn
    >>> class Twice(nn.Module):
    ...     def __init__(self):
    ...         self.layer = nn.Linear(3, 3, rng=0)
    ...
    ...     def forward(self, x):
    ...         return self.layer(self.layer(x))
    >>> model = Twice()
    >>> model(np.ones((2, 3), np.float32)).shape
    (2, 3)
    >>> sorted(model.state_dict())
    ['layer.bias', 'layer.weight']
    """

    training = True

    def forward(self, *inputs: Any) -> Any:
        """Compute the output; a subclass says how."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Compute the output."""
        return self.forward(*inputs, **keywords)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the name and module of each layer directly inside."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def modules(self) -> Iterator[Module]:
        """Yield this module and all inside it."""
        yield self
        for _, child in self.named_children():
            yield from child.modules()

    def _named_state(self, prefix: str = "") -> Iterator[tuple[str, _State]]:
        for name, value in vars(self).items():
            if isinstance(value, _State):
                yield prefix + name, value
        for name, child in self.named_children():
            yield from child._named_state(f"{prefix}{name}.")

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the dotted name and the parameter, each parameter once."""
        seen = set()
        for name, value in self._named_state():
            if isinstance(value, Parameter) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        """Yield each parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def buffers(self) -> Iterator[Buffer]:
        """Yield each buffer once."""
        found = {id(value): value for _, value in self._named_state()}
        for value in found.values():
            if isinstance(value, Buffer):
                yield value

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module and all inside it; return the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set the mode in which a trained network is used; return the module."""
        return self.train(False)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of parameters and buffers, in PyTorch's names and shapes.

        They are NumPy's arrays, wherever the parameters lie.
        """
        return {name: value.exported(value.data) for name, value in self._named_state()}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Overwrite parameters and buffers.

        Parameters
        ----------
        state : mapping of str to array_like
            In PyTorch's names and shapes: what `state_dict` gives here or there. Values are
            converted to the dtype of what they replace, and brought to where it lies.
        strict : bool
            Whether each name must be on both sides.

        Raises
        ------
        KeyError
            If names are missing or unexpected and `strict` is true.
        ShapeError
            If a shape differs. Nothing has been overwritten then.
        """
        own = dict(self._named_state())
        missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if strict and (missing or unexpected):
            raise KeyError(f"state: missing {missing}, unexpected {unexpected}")
        new = {
            name: value.imported(name, state[name]) for name, value in own.items() if name in state
        }
        for name, array in new.items():
            own[name].assign(array)

    def extra_repr(self) -> str:
        """Say the arguments of the layer, for its ``repr``."""
        return ""

    def __repr__(self) -> str:
        lines = [
            f"  ({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self.named_children()
        ]
        inside = "\n".join(["", *lines, ""]) if lines else self.extra_repr()
        return f"{type(self).__name__}({inside})"


class Sequential(Module):
    """Modules one after the other, named "0", "1", ... or as a mapping names them.

    Parameters
    ----------
    *modules : Module or mapping of str to Module
        The modules, or one mapping.

    Examples
    --------
    >>> from cyconv import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> list(model.state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named = dict(modules[0])
        else:
            named = {str(i): module for i, module in enumerate(modules)}  # type: ignore[misc]
        for name, module in named.items():
            if not isinstance(module, Module):
                raise TypeError(f"module {name!r} must be a Module, not {module!r}")
            setattr(self, name, module)

    def forward(self, x: Any) -> Any:
        """Pass through all modules."""
        for module in self:
            x = module(x)
        return x

    def __iter__(self) -> Iterator[Module]:
        return (module for _, module in self.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> Module:
        return list(self)[index]
