"""The tape: what was computed. It knows no operator.

An `Operator` is a row of the gradient table: a function of arrays, and one rule for each input
that turns the gradient of the result into that of the input. Rules are written once, in terms of
operators; given arrays they compute arrays, given tensors they record themselves, so gradients of
any order come from the same rows.

A graph consists of nodes, arrays and leaves, and holds no tensors: a tensor is a view of a node or
leaf. Nothing therefore refers in circles, and memory goes when the last reference goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ..devices import on_gpu
from ..errors import CyconvError, DTypeError, ShapeError
from ..kernels._memory import Recycling
from ..operands import Array, as_array
from .recording import recording
from .sums import summed

Rule = Callable[..., Any]


class _Version:
    """Counts the changes of an array in place; tensors that share memory share it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Leaf:
    """Where a gradient ends: stands in the graph for a tensor without keeping it alive."""

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: Variable) -> None:
        self.owner = weakref.ref(owner)

    def __repr__(self) -> str:
        owner = self.owner()
        return "<Leaf>" if owner is None else f"<Leaf {owner.shape} {owner.dtype}>"


class Variable:
    """An array with its place in a graph; `Tensor` adds the arithmetic."""

    __slots__ = ("__weakref__", "_version", "data", "grad", "source")

    # What operators return, whatever class their inputs are of; None: the class itself.
    result_class: ClassVar[type[Variable] | None] = None

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        if isinstance(array, Variable):
            raise TypeError("array is a tensor already; detach() gives one without its graph")
        self.data: Array = as_array("array", array)
        self.grad: Variable | None = None
        self._version = _Version()
        self.source: Node | Leaf | None = None
        self.requires_grad = requires_grad

    @classmethod
    def of(
        cls, data: Array, source: Node | Leaf | None = None, version: _Version | None = None
    ) -> Self:
        """Make a tensor of what a graph holds."""
        self = cls.__new__(cls.result_class or cls)
        self.data, self.grad, self.source = data, None, source
        self._version = version or _Version()
        return self  # type: ignore[return-value]

    @property
    def node(self) -> Node | None:
        """The operation that made this tensor, if it was recorded; its text is the graph."""
        return self.source if isinstance(self.source, Node) else None

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded; may be set on tensors without a node."""
        return self.source is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if isinstance(self.source, Node):
            raise ValueError(
                "requires_grad of a recorded result cannot be set; detach() leaves the graph"
            )
        if value and not _is_float(self.data.dtype):
            raise DTypeError(f"requires_grad needs a float dtype, not {self.data.dtype}")
        if bool(value) != self.requires_grad:
            self.source = Leaf(self) if value else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.data.size

    def numpy(self) -> Array:
        """Return the array itself, not a copy."""
        return self.data

    def detach(self) -> Self:
        """Return a tensor of the same memory that is not part of the graph."""
        return self.of(self.data, None, self._version)

    def assign(self, values: Any) -> None:
        """Overwrite the array in place; not recorded.

        A graph that saved this tensor refuses its reverse pass from then on.

        Parameters
        ----------
        values : array_like
            Of a shape that broadcasts to this one.
        """
        self.data[...] = values.data if isinstance(values, Variable) else values
        self._version.count += 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle leaves; a graph cannot be."""
        if self.node is not None:
            raise TypeError("a recorded result cannot be copied or pickled; detach() it first")
        return type(self), (self.data, self.requires_grad)

    def __repr__(self) -> str:
        kind = type(self).__name__
        end = ", requires_grad=True" if isinstance(self.source, Leaf) else ""
        if self.node is not None:
            end = f", node={self.node.operator.name}"
        values = np.array2string(self.data, separator=", ", prefix=f"{kind}(")
        return f"{kind}({values}, dtype={self.dtype}{end})"


class Operator:
    """A row of the gradient table: a function of arrays, and how to differentiate it.

    Parameters
    ----------
    name : str
    forward : callable
        ``forward(*inputs, **parameters)``: arrays in, an array out. It must not write to its
        inputs. Inputs may also be numbers or None; parameters are never differentiated.
    rules : sequence of callable or None, or callable
        One rule an input, ``rule(gradient, result, *inputs, **parameters)``, which returns the
        gradient of that input, or one that broadcasts from it: sums over broadcast axes and a
        change of dtype are done for it. None for an input that has no gradient. Instead of a
        sequence, one function ``rules(wanted, gradient, result, *inputs, **parameters)`` may
        return all gradients, with None where ``wanted`` is false.
    note : callable, optional
        ``note(*inputs, **parameters)`` returns what the text of a graph says of such a node.

    Notes
    -----
    Rules get arrays in a reverse pass, and tensors if that pass is recorded. Where a rule calls
    nothing but operators and arithmetic, second and higher derivatives follow from it.

    Examples
    --------
    An operator of one's own:

    >>> import numpy as np, cyconv
    >>> from cyconv.autograd import Operator
    >>> sin = Operator("sin", np.sin, [lambda g, y, x: g * cos(x)])
    >>> cos = Operator("cos", np.cos, [lambda g, y, x: -g * sin(x)])
    >>> x = cyconv.Tensor(np.zeros(2), requires_grad=True)
    >>> sin(x).backward(np.ones(2))
    >>> x.grad.numpy()
    array([1., 1.])
    """

    __slots__ = ("forward", "name", "note", "rules")

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        rules: Sequence[Rule | None] | Rule,
        *,
        note: Callable[..., str] | None = None,
    ) -> None:
        self.name, self.forward, self.rules, self.note = name, forward, rules, note

    def __call__(self, *inputs: Any, **parameters: Any) -> Any:
        """Compute; with a tensor among the inputs the result is one, and is recorded."""
        kind = None
        requires_grad = False
        for value in inputs:
            if isinstance(value, Variable):
                kind = kind or type(value)
                requires_grad = requires_grad or value.source is not None
        if kind is None:
            return self.forward(*inputs, **parameters)
        values = tuple([v.data if isinstance(v, Variable) else v for v in inputs])
        with Recycling():
            data = self.forward(*values, **parameters)
            if not on_gpu(data):
                data = np.asarray(data)
        version = _version_of(data, inputs)
        if not (requires_grad and recording.get()):
            return kind.of(data, None, version)
        return kind.of(data, Node(self, inputs, values, parameters, data, version), version)

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"


class Node:
    """One recorded operation: operator, inputs, parameters and result.

    Made when an operator meets a tensor that requires a gradient. ``str`` gives the whole graph
    that leads to it, one operation a line.

    Attributes
    ----------
    operator : Operator
    inputs : tuple
        Arrays, numbers and None, as the operator got them; by reference, not copied.
    sources : tuple of (Node, Leaf or None)
        Where each input came from; None where no gradient is wanted.
    parameters : dict
    result : numpy.ndarray
    """

    __slots__ = ("_counts", "_versions", "inputs", "operator", "parameters", "result", "sources")

    def __init__(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        values: tuple[Any, ...],
        parameters: dict[str, Any],
        result: Array,
        version: _Version,
    ) -> None:
        self.operator, self.parameters = operator, parameters
        self.inputs, self.result = values, result
        variables = [v if isinstance(v, Variable) else None for v in inputs]
        self.sources = tuple([None if v is None else v.source for v in variables])
        versions = [version, *(None if v is None else v._version for v in variables)]
        self._versions = versions
        self._counts = [None if v is None else v.count for v in versions]
        rules = operator.rules
        if not callable(rules):
            for i, source in enumerate(self.sources):
                if source is not None and (i >= len(rules) or rules[i] is None):
                    raise TypeError(f"{operator.name} has no gradient for its argument {i}")

    def pull(self, gradient: Any, wanted: Sequence[bool], kind: type[Variable] | None) -> list[Any]:
        """Turn the gradient of the result into those of the inputs, None where not wanted.

        With `kind`, rules get tensors of that class and record what they do.
        """
        if self._counts != [None if v is None else v.count for v in self._versions]:
            raise CyconvError(
                f"an array of {self.operator.name} was changed in place (assign) after the "
                "operation, so its gradient cannot be computed"
            )
        values: Sequence[Any] = self.inputs
        result: Any = self.result
        if kind is not None:
            own, *versions = self._versions
            result = kind.of(result, self, own)
            values = [
                value if source is None else kind.of(value, source, version)
                for value, source, version in zip(values, self.sources, versions, strict=True)
            ]
        rules = self.operator.rules
        if callable(rules):
            pulled = rules(wanted, gradient, result, *values, **self.parameters)
        else:
            pulled = [
                rule(gradient, result, *values, **self.parameters) if want and rule else None
                for want, rule in zip(wanted, rules, strict=False)
            ]
        return [
            self._fit(i, pulled[i]) if want and pulled[i] is not None else None
            for i, want in enumerate(wanted)
        ]

    def _fit(self, i: int, gradient: Any) -> Any:
        """Sum over the axes along which an input was broadcast, and take on its dtype."""
        shape, dtype = self.inputs[i].shape, self.inputs[i].dtype
        if gradient.shape != shape:
            more = gradient.ndim - len(shape)
            kept = gradient.shape[max(more, 0) :]
            if more < 0 or any(n not in (1, m) for n, m in zip(shape, kept, strict=True)):
                raise ShapeError(
                    f"the rule of {self.operator.name} for its argument {i} gave a gradient of "
                    f"shape {gradient.shape} for an input of shape {shape}"
                )
            axes = [more + axis for axis, n in enumerate(shape) if n == 1 != kept[axis]]
            over = (*range(more), *axes)
            if isinstance(gradient, Variable):
                gradient = gradient.sum(axis=over)  # type: ignore[attr-defined]
            else:
                gradient = summed(gradient, over)
            gradient = gradient.reshape(shape)
        return gradient if gradient.dtype == dtype else gradient.astype(dtype)

    def _label(self) -> str:
        """Say operator and result, and what the operator notes."""
        text = f"{self.operator.name} -> {self.result.dtype} {self.result.shape}"
        if self.operator.note is not None:
            text += "  " + self.operator.note(*self.inputs, **self.parameters)
        return text

    def __repr__(self) -> str:
        return f"<Node {self._label()}>"

    def __str__(self) -> str:
        order = order_of(self)
        number = {node: f"%{i}" for i, node in enumerate(order, 1)}
        lines = []
        for node in order:
            inputs = []
            for value, source in zip(node.inputs, node.sources, strict=True):
                if isinstance(source, Node):
                    inputs.append(number[source])
                elif isinstance(value, np.ndarray) or on_gpu(value):
                    inputs.append(f"{'leaf' if source else 'array'} {value.shape}")
                elif value is not None:
                    inputs.append(repr(value))
            name, _, rest = node._label().partition(" ")
            lines.append(f"{number[node]} = {name}({', '.join(inputs)}) {rest}")
        return "\n".join(lines)


def raw(value: Any) -> Any:
    """Return the array of a tensor, and anything else as it is."""
    return value.data if isinstance(value, Variable) else value


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _memory(array: Array) -> Any:
    """Return the object that owns an array's memory."""
    return array if array.base is None else array.base


def _version_of(data: Array, inputs: Sequence[Any]) -> _Version:
    """Give a result that is a view of an input the input's version, as both change together."""
    for value in inputs:
        if isinstance(value, Variable) and (
            data is value.data or (data.base is not None and _memory(data) is _memory(value.data))
        ):
            return value._version
    return _Version()


def order_of(root: Node) -> list[Node]:
    """Return the nodes that lead to the root, each once, inputs before results.

    Iterative, as a graph may be deeper than Python's stack.
    """
    order: list[Node] = []
    seen = {root}
    stack: list[tuple[Node, Iterator[Node | Leaf | None]]] = [(root, iter(root.sources))]
    while stack:
        node, sources = stack[-1]
        for source in sources:
            if isinstance(source, Node) and source not in seen:
                seen.add(source)
                stack.append((source, iter(source.sources)))
                break
        else:
            order.append(node)
            stack.pop()
    return order
