"""A network while it is rewritten: who computes a value, who reads it, what is constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ._network import Array, Graph, Node

# What a rewrite has in place of a node: a value that is the same, a constant, or nodes of which the
# last has the node's output.
Replacement = str | Array | Sequence[Node]


class Draft:
    """A graph whose nodes can be replaced one at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = dict(graph.constants)
        self._nodes = list(graph.nodes)
        self._producers = {node.output: node for node in graph.nodes}
        self._outputs = {value.name for value in graph.outputs}
        self._readers = Counter(name for node in graph.nodes for name in node.inputs)
        self._readers.update(self._outputs)
        for node in reversed(graph.nodes):
            self._drop_unread(node)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in the order in which they run."""
        return tuple(self._nodes)

    def graph(self) -> Graph:
        """Return the network as it is now, without constants that nobody reads."""
        read = {name for name in self._constants if self._readers[name]}
        constants = {name: a for name, a in self._constants.items() if name in read}
        return replace(self._graph, constants=constants, nodes=self.nodes)

    def holds(self, node: Node) -> bool:
        """Whether a node is still part of the network."""
        return self._producers.get(node.output) is node

    def producer(self, value: str, *op_types: str) -> Node | None:
        """Return the node that computes a value if it is one of these operators."""
        node = self._producers.get(value)
        return node if node is not None and node.op_type in op_types else None

    def private(self, value: str) -> bool:
        """Whether a value has a single reader; a network's output has another, its user."""
        return self._readers[value] == 1

    def private_producer(self, value: str, *op_types: str) -> Node | None:
        """Return `producer` if nobody else reads the value."""
        return self.producer(value, *op_types) if self.private(value) else None

    def constant(self, value: str) -> Array | None:
        """Return a value if it is constant; an input that is left out is none."""
        return self._constants.get(value)

    def number(self, value: str) -> float | None:
        """Return a value if it is one real constant that gives its operand's shape to a result."""
        array = self._constants.get(value)
        if array is None or array.size != 1 or array.ndim > 1 or array.dtype.kind != "f":
            return None
        return float(array.item())

    def dtype(self, conv: Node) -> np.dtype[Any]:
        """Return the dtype of a convolution's weights."""
        return self._constants[conv.inputs[1]].dtype

    def fresh(self, name: str) -> str:
        """Return a name that no value has yet."""
        while name in self._constants or name in self._producers or self._readers[name]:
            name += "'"
        return name

    def keep(self, name: str, array: Array) -> str:
        """Add a constant under a fresh name."""
        name = self.fresh(name)
        array.setflags(write=False)
        self._constants[name] = array
        return name

    def replace(self, node: Node, replacement: Replacement) -> bool:
        """Put something equivalent into a node's place; return whether that could be done."""
        if isinstance(replacement, str):
            return self._bypass(node, replacement)
        if isinstance(replacement, np.ndarray):
            replacement.setflags(write=False)
            self._constants[node.output] = replacement
            replacement = ()
        at = next(i for i, other in enumerate(self._nodes) if other is node)
        self._nodes[at : at + 1] = replacement
        del self._producers[node.output]
        for new in replacement:
            self._producers[new.output] = new
            self._readers.update(new.inputs)
        self._forget_reads(node)
        return True

    def _bypass(self, node: Node, value: str) -> bool:
        """Let the readers of a node read a value instead."""
        if node.output in self._outputs:
            return False
        for i, other in enumerate(self._nodes):
            if node.output in other.inputs:
                inputs = tuple(value if name == node.output else name for name in other.inputs)
                self._nodes[i] = self._producers[other.output] = replace(other, inputs=inputs)
        self._readers[value] += self._readers.pop(node.output)
        self._drop_unread(node)
        return True

    def _drop_unread(self, node: Node) -> None:
        if not self._readers[node.output] and self.holds(node):
            self._nodes = [other for other in self._nodes if other is not node]
            del self._producers[node.output]
            self._forget_reads(node)

    def _forget_reads(self, node: Node) -> None:
        self._readers.subtract(node.inputs)
        for name in set(node.inputs):
            if name in self._producers:
                self._drop_unread(self._producers[name])
