"""The reverse pass: gradients from a result back to what it came from.

Each node is visited once, results before inputs; what reaches a node by several ways is added up
first. Only gradients that someone wants are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..devices import check_places, namespace
from ..errors import ShapeError
from ..kernels._memory import Recycling
from ..operands import as_array
from .recording import no_grad, record
from .tape import Leaf, Node, Variable, order_of, raw


def backward(variable: Variable, gradient: Any = None, create_graph: bool = False) -> None:
    """Do what `Tensor.backward` says."""
    found = _reverse(variable, gradient, create_graph, None)
    with record() if create_graph else no_grad(), Recycling():
        for source, value in found.items():
            owner = source.owner() if isinstance(source, Leaf) else None
            if owner is None:
                continue
            if owner.grad is not None:
                owner.grad = owner.grad + value
            elif isinstance(value, Variable):
                owner.grad = variable.of(value.data.copy(), value.source)
            else:
                owner.grad = variable.of(namespace(value).array(value))


def grad(
    result: Variable,
    inputs: Sequence[Variable],
    gradient: Any = None,
    create_graph: bool = False,
) -> list[Any]:
    """Return the gradients of a tensor with respect to others, which may lie inside the graph.

    Nothing is stored in ``grad``, and only what leads to `inputs` is computed.

    Parameters
    ----------
    result : Tensor
    inputs : sequence of Tensor
        Leaves or intermediate results.
    gradient : array_like or Tensor, optional
        As in `Tensor.backward`.
    create_graph : bool
        As in `Tensor.backward`.

    Returns
    -------
    list of (Tensor or None)
        None where `result` does not depend on the input.

    Raises
    ------
    ValueError
        If an input does not require a gradient, and as in `Tensor.backward`.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> from cyconv.autograd import grad
    >>> x = cyconv.Tensor(np.array(3.0), requires_grad=True)
    >>> (first,) = grad(x**3, [x], create_graph=True)
    >>> (second,) = grad(first, [x])
    >>> first.item(), second.item()
    (27.0, 18.0)
    """
    targets = []
    for i, variable in enumerate(inputs):
        if not isinstance(variable, Variable) or variable.source is None:
            raise ValueError(f"inputs[{i}] must be a tensor that requires a gradient")
        targets.append(variable.source)
    found = _reverse(result, gradient, create_graph, set(targets))
    answers: list[Any] = []
    for source in targets:
        value = found.get(source)
        if value is not None and not isinstance(value, Variable):
            value = result.of(namespace(value).array(value))
        answers.append(value)
    return answers


def _seed(variable: Variable, gradient: Any, create_graph: bool) -> Any:
    """Check the gradient that a reverse pass starts with, or make it."""
    if gradient is None:
        if variable.size != 1:
            raise ValueError(
                f"gradient is needed for a tensor of shape {variable.shape}; "
                "it defaults to one for a single number only"
            )
        gradient = np.ones_like(variable.data, order="C")
    array = as_array("gradient", raw(gradient))
    check_places(tensor=variable.data, gradient=array)
    if array.shape != variable.shape:
        raise ShapeError(f"gradient has shape {array.shape}, should be {variable.shape}")
    if not create_graph:
        return array.astype(variable.dtype, copy=False)
    if isinstance(gradient, Variable):
        return gradient if array.dtype == variable.dtype else gradient.astype(variable.dtype)  # type: ignore[attr-defined]
    return variable.of(array.astype(variable.dtype, copy=False))


def _reverse(
    variable: Variable, gradient: Any, create_graph: bool, targets: set[Node | Leaf] | None
) -> dict[Node | Leaf, Any]:
    """Return the gradient of every leaf, or of the targets, as arrays or recorded tensors."""
    root = variable.source
    if root is None:
        raise ValueError("the tensor does not require a gradient: nothing leads to it")
    kind = type(variable) if create_graph else None
    with record() if create_graph else no_grad(), Recycling():
        table: dict[Node | Leaf, Any] = {root: _seed(variable, gradient, create_graph)}
        order = order_of(root) if isinstance(root, Node) else []
        leading = None if targets is None else _leading(order, targets)
        for node in reversed(order):
            value = table.get(node)
            if targets is None or node not in targets:
                table.pop(node, None)
            wanted = [
                source is not None and (leading is None or source in leading)
                for source in node.sources
            ]
            if value is None or not any(wanted):
                continue
            pulled = node.pull(value, wanted, kind)
            for source, more in zip(node.sources, pulled, strict=True):
                if source is not None and more is not None:
                    table[source] = table[source] + more if source in table else more
    return table


def _leading(order: Sequence[Node], targets: set[Node | Leaf]) -> set[Node | Leaf]:
    """Return the sources by which a gradient reaches a target."""
    leading = set(targets)
    for node in order:
        if any(source in leading for source in node.sources):
            leading.add(node)
    return leading
