"""Transposed convolutions whose kernel is the stride: a matrix product, then a permutation.

Such a convolution makes of every pixel a block of pixels, and blocks do not overlap. So it is a
pointwise convolution that computes the pixels of a block, and putting them where they belong. The
latter can wait until after other pointwise convolutions: an image of fewer channels is cheaper to
permute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ._conv import conv
from ._draft import Draft, Replacement
from ._network import Array, Node


def split_blocks(x: Array, *, pixels: int) -> Array:
    """(N, pixels·C, ..., W) -> (N, C, ..., W·pixels): a block's pixels, side by side.

    Of an array that is channels last in memory it is a view.
    """
    last = np.moveaxis(x, 1, -1)
    *outer, width, channels = last.shape
    return np.moveaxis(last.reshape(*outer, width * pixels, channels // pixels), -1, 1)


def place_blocks(x: Array, *, block: Sequence[int]) -> Array:
    """(N, C, D1, ..., Dn·∏b) -> (N, C, D1·b1, ..., Dn·bn): every pixel where it belongs."""
    last = np.moveaxis(x, 1, -1)
    n, *sizes, channels = last.shape
    sizes[-1] //= math.prod(block)
    parts = last.reshape(n, *sizes, *block, channels)
    placed = np.empty(
        (n, *(size * b for size, b in zip(sizes, block, strict=True)), channels), x.dtype
    )
    outer: tuple[Any, ...] = (slice(None),) * (1 + len(sizes))
    # Pixel by pixel of the block: NumPy gets long runs, of which a transposed copy has none.
    for pixel in itertools.product(*map(range, block)):
        places = tuple(slice(first, None, b) for first, b in zip(pixel, block, strict=True))
        placed[(slice(None), *places)] = parts[outer + pixel]
    return np.moveaxis(placed, -1, 1)


def pointwise(draft: Draft, node: Node) -> Replacement | None:
    """Compute blocks by a pointwise convolution, then place them."""
    w = draft.constant(node.inputs[1])
    attributes = node.attributes
    if w is None or len(node.inputs) > 3 or attributes.get("group", 1) != 1:
        return None
    block = w.shape[2:]
    trivial = {"dilations": 1, "output_padding": 0, "pads": 0}
    if any({*attributes.get(name, ())} - {value} for name, value in trivial.items()):
        return None
    if tuple(attributes.get("strides", ())) != block or "output_shape" in attributes:
        return None
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    pixels = math.prod(block)
    rows = np.moveaxis(w.reshape(*w.shape[:2], pixels), 0, -1)  # (C_out, pixels, C_in)
    matrix = np.moveaxis(rows, 0, 1).reshape(-1, len(w), *(1,) * len(block))
    inputs = [node.inputs[0], draft.keep(f"{node.output}.blocks", np.ascontiguousarray(matrix))]
    if len(node.inputs) > 2 and node.inputs[2]:
        b = draft.constant(node.inputs[2])
        if b is None:
            return None
        inputs.append(draft.keep(f"{node.output}.bias", np.tile(b, pixels)))
    computed, split = (draft.fresh(f"{node.output}.{name}") for name in ("computed", "split"))
    kept = {name: attributes[name] for name in ("activation",) if name in attributes}
    return [
        Node(node.name, "Conv", conv, kept, tuple(inputs), computed),
        Node(split, "SplitBlocks", split_blocks, {"pixels": pixels}, (computed,), split),
        Node(node.output, "PlaceBlocks", place_blocks, {"block": block}, (split,), node.output),
    ]


def place_later(draft: Draft, node: Node) -> Replacement | None:
    """Let a pointwise convolution come before the placing of blocks."""
    place = draft.private_producer(node.inputs[0], "PlaceBlocks")
    w = draft.constant(node.inputs[1])
    if place is None or w is None or {*w.shape[2:]} != {1} or len(node.inputs) > 3:
        return None
    attributes = node.attributes
    if {*attributes.get("strides", ())} - {1} or {*attributes.get("pads", ())} - {0}:
        return None
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    before = draft.fresh(f"{node.output}.unplaced")
    return [
        replace(node, inputs=(place.inputs[0], *node.inputs[1:]), output=before),
        replace(place, inputs=(before,), output=node.output),
    ]
