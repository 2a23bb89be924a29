"""The graph optimiser: its table of rewrites, and the loop that applies them.

A rewrite looks at one node and what it reads. It gives a value that is the same, or nodes for the
same output that read further back; then what nobody reads any more goes. So no rewrite changes what
another node or the user sees, and a value with several readers stays for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import _blocks, _folding, _fusing
from ._draft import Draft, Replacement
from ._network import Graph, Node
from ._operators import OPERATORS


class Rewrite(NamedTuple):
    """A function, the operators of the node that it looks at, and why results stay the same.

    The function returns None where the pattern, or what makes it right, is not there.
    """

    apply: Callable[[Draft, Node], Replacement | None]
    operators: tuple[str, ...]
    why: str


# In this order, each until it finds nothing more: patterns are read before folding breaks them.
REWRITES = (
    Rewrite(_folding.constant, tuple(OPERATORS), "the operator itself computes it, once"),
    Rewrite(_folding.nothing, ("Identity", "Dropout"), "they give their input"),
    Rewrite(_folding.constant_second, ("Add", "Mul"), "addition and product commute exactly"),
    Rewrite(_fusing.hard_sigmoid, ("Div", "Mul"), "clip(z, 0, k)/k = clip(z/k, 0, 1) for k > 0"),
    Rewrite(_fusing.hard_swish, ("Mul",), "its definition"),
    Rewrite(_fusing.hard_swish_in_pieces, ("Div", "Mul"), "its definition, divided last"),
    Rewrite(_fusing.silu, ("Mul",), "its definition"),
    Rewrite(_fusing.gelu, ("Mul",), "its definition; products commute"),
    Rewrite(_fusing.gate, ("Add",), "distributive law"),
    Rewrite(_folding.affine_after, _folding.AFFINE, "a convolution is linear in its weights"),
    Rewrite(_folding.affine_before, ("Conv",), "a convolution is linear in its input"),
    Rewrite(_fusing.repeat, ("Resize",), "the nearest of an element's s copies is the element"),
    Rewrite(_fusing.add_repeated, ("Add",), "each copy of an element is added once"),
    Rewrite(_fusing.concat_repeated, ("Concat",), "each copy of an element is written once"),
    Rewrite(_fusing.residual, ("Add",), "the sum is the same, rounded once less"),
    Rewrite(_fusing.activation, tuple(_fusing.ACTIVATIONS), "the same function of the same sum"),
    Rewrite(_blocks.pointwise, ("ConvTranspose",), "blocks that do not overlap are no sums"),
    Rewrite(_blocks.place_later, ("Conv",), "a pointwise convolution sees each pixel by itself"),
)


def optimised(graph: Graph) -> Graph:
    """Return a network with the same inputs and outputs, whose results differ by rounding only."""
    draft = Draft(graph)
    while sum(_exhaust(draft, rewrite) for rewrite in REWRITES):
        pass  # until a round of all of them finds nothing
    return draft.graph()


def _exhaust(draft: Draft, rewrite: Rewrite) -> bool:
    """Apply one rewrite as often as it can be; return whether it was at all."""
    applied = False
    again = True
    while again:
        again = False
        for node in draft.nodes:
            if node.op_type in rewrite.operators and draft.holds(node):
                replacement = rewrite.apply(draft, node)
                if replacement is not None and draft.replace(node, replacement):
                    again = applied = True
    return applied
