"""A network in memory: what the reader makes, the optimiser rewrites and the runner runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._operators import Function

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a graph; a size is a name or None where the model leaves it open."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape is what the model declares."""
        return self.shape is None or (
            len(self.shape) == len(shape)
            and all(
                size == actual
                for size, actual in zip(self.shape, shape, strict=True)
                if isinstance(size, int)
            )
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A checked node: what to call, with which values, and which values nobody needs after it.

    An optional input that is left out has the name ``""``.
    """

    name: str
    op_type: str
    function: Function
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    output: str
    releases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """What a file holds, constants (read-only) apart from the nodes."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: dict[str, Array]
    nodes: tuple[Node, ...]

    def with_releases(self) -> Graph:
        """Note at each node the values that no later node reads, from the last to the first."""
        needed = {*self.constants, *(value.name for value in self.outputs)}
        nodes = []
        for node in reversed(self.nodes):
            names = {name for name in (*node.inputs, node.output) if name}
            nodes.append(replace(node, releases=tuple(sorted(names - needed))))
            needed |= names
        return replace(self, nodes=tuple(reversed(nodes)))
