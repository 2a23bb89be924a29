"""Rewrites that make one node of several: activations in pieces, and what follows a convolution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import _math, _resize
from ._draft import Draft, Replacement
from ._folding import CONVOLUTIONS
from ._network import Node
from ._operators import Function


def hard_sigmoid(draft: Draft, node: Node) -> Replacement | None:
    """Read Clip(x + b, 0, k) / k as HardSigmoid(x) with alpha = 1/k and beta = b/k."""
    clip = draft.producer(node.inputs[0], "Clip")
    shifted = clip and draft.producer(clip.inputs[0], "Add")
    if not (clip and shifted):
        return None
    low, high = _limits(draft, clip)
    shift = draft.number(shifted.inputs[1])
    if low != 0 or high is None or shift is None or not _is(_divisor(draft, node), high):
        return None
    attributes = {"alpha": 1 / high, "beta": shift / high}
    return [_new(node, "HardSigmoid", _math.hard_sigmoid, [shifted.inputs[0]], attributes)]


def hard_swish(draft: Draft, node: Node) -> Replacement | None:
    """Read x·HardSigmoid(x) with alpha = 1/6 and beta = 1/2 as HardSwish(x)."""
    for x, gate in _both_ways(node):
        gating = draft.producer(gate, "HardSigmoid")
        if gating and gating.inputs[0] == x:
            alpha, beta = (gating.attributes.get(n, d) for n, d in (("alpha", 0.2), ("beta", 0.5)))
            if _is(alpha, 1 / 6) and beta == 0.5:
                return [_new(node, "HardSwish", _math.hard_swish, [x])]
    return None


def hard_swish_in_pieces(draft: Draft, node: Node) -> Replacement | None:
    """Read x·Clip(x + 3, 0, 6) / 6 as HardSwish(x)."""
    product = draft.producer(node.inputs[0], "Mul")
    if product is None or not _is(_divisor(draft, node), 6):
        return None
    for x, gate in _both_ways(product):
        clip = draft.producer(gate, "Clip")
        shifted = clip and draft.producer(clip.inputs[0], "Add")
        if not (clip and shifted) or shifted.inputs[0] != x:
            continue
        if _limits(draft, clip) == (0, 6) and draft.number(shifted.inputs[1]) == 3:
            return [_new(node, "HardSwish", _math.hard_swish, [x])]
    return None


def silu(draft: Draft, node: Node) -> Replacement | None:
    """Read x·Sigmoid(x) as SiLU(x)."""
    for x, gate in _both_ways(node):
        gating = draft.producer(gate, "Sigmoid")
        if gating and gating.inputs[0] == x:
            return [_new(node, "Silu", _math.silu, [x])]
    return None


def gelu(draft: Draft, node: Node) -> Replacement | None:
    """Read x·(1 + Erf(x/√2))·0.5, its factors in any order, as Gelu(x)."""
    factors = list(_factors(draft, node))
    if len(factors) != 3:
        return None
    for half in factors:
        if draft.number(half) != 0.5:
            continue
        first, second = (name for name in factors if name is not half)
        for x, one_plus in ((first, second), (second, first)):
            added = draft.producer(one_plus, "Add")
            if added is None or draft.number(added.inputs[1]) != 1:
                continue
            error = draft.producer(added.inputs[0], "Erf")
            inner = error and draft.producer(error.inputs[0], "Div", "Mul")
            if inner and inner.inputs[0] == x and _is(_divisor(draft, inner), math.sqrt(2)):
                return [_new(node, "Gelu", _math.gelu, [x])]
    return None


def gate(draft: Draft, node: Node) -> Replacement | None:
    """Read x + x·g as x·(1 + g): a pass over x less where g has one number per channel."""
    for x, product in _both_ways(node):
        gating = draft.private_producer(product, "Mul")
        for same, g in _both_ways(gating) if gating else ():
            if same == x:
                return [_new(node, "Gate", _math.gate, [x, g])]
    return None


def repeat(draft: Draft, node: Node) -> Replacement | None:
    """Read Resize by integers, where it copies each element, as Repeat."""
    scales = draft.constant(node.inputs[2]) if len(node.inputs) == 3 else None
    factors = None if scales is None else _resize.repetition(scales, **node.attributes)
    if factors is None:
        return None
    return [_new(node, "Repeat", _resize.repeat, node.inputs[:1], {"factors": factors})]


def add_repeated(draft: Draft, node: Node) -> Replacement | None:
    """Add the elements that a Repeat repeats without making it."""
    for x, repeated in _both_ways(node):
        source = draft.private_producer(repeated, "Repeat")
        if source:
            inputs = (x, source.inputs[0])
            return [_new(node, "AddRepeated", _resize.add_repeated, inputs, source.attributes)]
    return None


def concat_repeated(draft: Draft, node: Node) -> Replacement | None:
    """Let Concat repeat the elements that it joins."""
    sources = [draft.private_producer(name, "Repeat") for name in node.inputs]
    if not any(sources):
        return None
    ndim = next(len(source.attributes["factors"]) for source in sources if source)
    inputs = [s.inputs[0] if s else name for s, name in zip(sources, node.inputs, strict=True)]
    factors = tuple(s.attributes["factors"] if s else (1,) * ndim for s in sources)
    attributes = {**node.attributes, "factors": factors}
    return [_new(node, "ConcatRepeated", _resize.concat_repeated, inputs, attributes)]


def residual(draft: Draft, node: Node) -> Replacement | None:
    """Let a convolution add conv(x) + other as it writes."""
    for value, other in _both_ways(node):
        conv = draft.private_producer(value, *CONVOLUTIONS)
        if conv is None or draft.constant(other) is not None:
            continue
        if len(conv.inputs) <= 3 and "activation" not in conv.attributes:
            operands = (*conv.inputs, "")[:3]
            return [replace(conv, inputs=(*operands, other), output=node.output)]
    return None


def activation(draft: Draft, node: Node) -> Replacement | None:
    """Let a convolution apply the activation that follows as it writes."""
    conv = draft.private_producer(node.inputs[0], *CONVOLUTIONS)
    named = _activation(draft, node)
    if conv is None or named is None or "activation" in conv.attributes:
        return None
    attributes = {**conv.attributes, "activation": named}
    return [replace(conv, attributes=attributes, output=node.output)]


# Operators that a convolution can apply; None: its parameters tell, see `_activation`.
ACTIVATIONS: dict[str, str | None] = {
    "Clip": None,
    "Gelu": "gelu",
    "HardSigmoid": None,
    "HardSwish": "hardswish",
    "LeakyRelu": None,
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Silu": "silu",
    "Tanh": "tanh",
}


def _activation(draft: Draft, node: Node) -> str | tuple[str, float] | None:
    match node.op_type:
        case "Clip":
            low, high = _limits(draft, node)
            return {6.0: "relu6", math.inf: "relu"}.get(high) if low == 0 and high else None
        case "LeakyRelu":
            return ("leaky_relu", node.attributes.get("alpha", 0.01))
        case "HardSigmoid":
            half = node.attributes.get("beta", 0.5) == 0.5
            return ("hardsigmoid", node.attributes.get("alpha", 0.2)) if half else None
    return ACTIVATIONS[node.op_type]


def _new(
    node: Node,
    op_type: str,
    function: Function,
    inputs: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
) -> Node:
    """Return a node of another operator with a node's name and output."""
    return Node(node.name, op_type, function, attributes or {}, tuple(inputs), node.output)


def _both_ways(node: Node) -> tuple[tuple[str, str], ...]:
    first, second = node.inputs
    return ((first, second), (second, first))


def _factors(draft: Draft, node: Node) -> Iterator[str]:
    """Yield what is multiplied in a tree of products that nobody else reads."""
    for name in node.inputs:
        inner = draft.private_producer(name, "Mul")
        if inner is None:
            yield name
        else:
            yield from _factors(draft, inner)


def _divisor(draft: Draft, node: Node) -> float | None:
    """Return k of x / k, or of x · (1/k)."""
    number = draft.number(node.inputs[1])
    return 1 / number if number and node.op_type == "Mul" else number


def _limits(draft: Draft, clip: Node) -> tuple[float | None, float | None]:
    """Return the bounds of a Clip, infinite where there is none, None where it is computed."""

    def limit(at: int, name: str, absent: float) -> float | None:
        if len(clip.inputs) > at and clip.inputs[at]:
            return draft.number(clip.inputs[at])
        return float(clip.attributes.get(name, absent))

    return limit(1, "min", -math.inf), limit(2, "max", math.inf)


def _is(number: float | None, wanted: float | None) -> bool:
    """Whether a constant is the nearest of its float32 neighbours to what is wanted."""
    return (
        number is not None and wanted is not None and bool(np.float32(number) == np.float32(wanted))
    )
