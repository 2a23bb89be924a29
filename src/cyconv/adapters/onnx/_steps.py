"""From a graph to a list of calls: attributes bound, weights prepared, values in numbered slots.

In an optimised graph, convolutions with constant weights compute channels last, where depthwise
convolutions and matrix products are fastest. An array keeps its ONNX shape all the same: it is a
transposed view. NumPy's elementwise functions keep that order in memory, so most of a network stays
in it; a function that wants another order makes a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import cyconv
from cyconv.settings import resolve

from ._attributes import conv_keywords, conv_transpose_keywords, sizes_its_output
from ._conv import Activation, convolve
from ._network import Array, Graph, Node

Call = Callable[..., Array]


class Step(NamedTuple):
    """A node, its function of the operands alone, and the slots of the values."""

    call: Call
    reads: tuple[int, ...]
    writes: int
    releases: tuple[int, ...]
    node: Node


class Program:
    """What a run needs: a slot for each value, of which constants are filled, and the steps.

    Slot 0 holds None, for operands that are left out.
    """

    def __init__(self, graph: Graph, *, optimise: bool) -> None:
        names = ["", *graph.constants, *(value.name for value in graph.inputs)]
        names += [node.output for node in graph.nodes]
        self.slots = {name: slot for slot, name in enumerate(names)}
        self.values: list[Array | None] = [None] * len(names)
        for name, array in graph.constants.items():
            self.values[self.slots[name]] = array
        self.steps = tuple(self._steps(graph, optimise))

    def _steps(self, graph: Graph, optimise: bool) -> Iterator[Step]:
        for node in graph.nodes:
            call = _layer(node, graph) if optimise else None
            yield Step(
                call or partial(node.function, **node.attributes),
                tuple(self.slots[name] for name in node.inputs),
                self.slots[node.output],
                tuple(self.slots[name] for name in node.releases),
                node,
            )


def _layer(node: Node, graph: Graph) -> Call | None:
    """Return a convolution with constant weights, channels last; None where that does not apply."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    names = (*node.inputs[1:3], "")[:2]
    w, b = (graph.constants.get(name) for name in names)
    if w is None or (b is None and names[1]):
        return None
    attributes = dict(node.attributes)
    activation = attributes.pop("activation", None)
    try:
        # Of the input only the number of axes matters, except where an output's size is given.
        if node.op_type == "Conv":
            keywords = conv_keywords(w, w, **attributes)
        elif sizes_its_output(attributes):
            return None
        else:
            keywords = conv_transpose_keywords(w, w, **attributes)
    except ValueError:
        return None  # the run will raise it, and say where
    return _channels_last(node, w, b, activation, keywords)


def _channels_last(
    node: Node, w: Array, b: Array | None, activation: Activation | None, keywords: dict[str, Any]
) -> Call:
    product = node.op_type == "Conv" and {*w.shape[2:]} == {1} and keywords["groups"] == 1
    operator = "forward" if node.op_type == "Conv" else "transposed"
    last = (0, *range(2, w.ndim), 1)
    first = (0, w.ndim - 1, *range(1, w.ndim - 1))

    @cache
    def layer(strategy: str | None, activation: Activation | None) -> cyconv.Prepared:
        options = {**keywords, "layout": "channels_last", "strategy": strategy}
        return cyconv.prepare(
            w.transpose(last), b, operator=operator, activation=activation, **options
        )

    def call(x: Array, w: Array, b: Array | None = None, residual: Array | None = None) -> Array:
        if x.ndim != w.ndim:
            return node.function(x, w, b, residual, **node.attributes)  # which says what is wrong
        image, strategy = x.transpose(last), _of_products() if product else None

        def compute(activation: Activation | None = None, residual: Any = None) -> Array:
            return layer(strategy, activation)(image, residual)

        other = None if residual is None else residual.transpose(last)
        return convolve(compute, other, activation).transpose(first)

    return call


def _of_products() -> str | None:
    """Return the strategy for pointwise convolutions, None for what is in force.

    BLAS has threads of its own. In a network that goes back and forth between matrix products and
    other layers they fight with ours for the cores, so on several threads products are ours too.
    """
    settings = resolve("fwd", None, None)
    return "implicit_gemm" if settings.strategy == "auto" and (settings.threads or 2) > 1 else None
