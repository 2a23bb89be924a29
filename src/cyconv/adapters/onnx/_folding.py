"""Rewrites that compute ahead: constants, and what can go into a convolution's weights and bias.

Weights are computed in float64 and rounded once. Where a shape is not known or the new weights
would not be finite, nothing is folded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ._draft import Draft, Replacement
from ._network import Array, Node

CONVOLUTIONS = ("Conv", "ConvTranspose")
AFFINE = ("Add", "Sub", "Mul", "Div", "BatchNormalization")
_MOST_BYTES = 1 << 20


def constant(draft: Draft, node: Node) -> Replacement | None:
    """Compute a node that reads only constants, if the result is small."""
    operands = [draft.constant(name) for name in node.inputs]
    if any(a is None and name for a, name in zip(operands, node.inputs, strict=True)):
        return None
    with np.errstate(all="ignore"):
        try:
            result = np.array(node.function(*operands, **node.attributes))
        except Exception:
            return None  # the run will raise it, and say where
    return result if result.nbytes <= _MOST_BYTES else None


def nothing(draft: Draft, node: Node) -> Replacement | None:
    """Read past Identity, and past Dropout outside training."""
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    flag = draft.constant(training)
    if training and (flag is None or flag.any()):
        return None
    return node.inputs[0]


def constant_second(draft: Draft, node: Node) -> Replacement | None:
    """Swap the operands of Add and Mul so that the other rewrites find a constant second."""
    first, second = node.inputs
    if draft.constant(first) is None or draft.constant(second) is not None:
        return None
    return [replace(node, inputs=(second, first))]


def affine_after(draft: Draft, node: Node) -> Replacement | None:
    """Make scale·conv(x) + shift a convolution with other weights and another bias."""
    conv = draft.private_producer(node.inputs[0], *CONVOLUTIONS)
    found = conv and _weights(draft, conv)
    if not (conv and found) or len(conv.inputs) > 3 or "activation" in conv.attributes:
        return None
    w, b = found
    step = _affine(draft, node, b.size, w.ndim)
    if step is None:
        return None
    per_output = step.scale.reshape(-1, *(1,) * (w.ndim - 1))
    if conv.op_type == "Conv":
        scaled = w * per_output
    else:
        groups = conv.attributes.get("group", 1)
        grouped = w.reshape(groups, -1, *w.shape[1:])  # (groups, C_in/groups, C_out/groups, k...)
        scaled = grouped * per_output.reshape(groups, 1, w.shape[1], *(1,) * (w.ndim - 2))
    moved = replace(conv, output=node.output)
    return _with_weights(draft, moved, scaled.reshape(w.shape), b * step.scale + step.shift)


def affine_before(draft: Draft, node: Node) -> Replacement | None:
    """Make conv(scale·x + shift) the same; but padding is zeros to which no shift was added."""
    source = draft.producer(node.inputs[0], *AFFINE)
    found = source and _weights(draft, node)
    if not (source and found):
        return None
    w, b = found
    groups = node.attributes.get("group", 1)
    step = _affine(draft, source, w.shape[1] * groups, w.ndim)
    if step is None:
        return None
    if step.shift.any() and not _unpadded(node):
        return _scale_before_shift(draft, node, source, w, b)
    grouped = w.reshape(groups, -1, *w.shape[1:])  # (groups, C_out/groups, C_in/groups, k...)
    column = (groups, 1, w.shape[1], *(1,) * (w.ndim - 2))
    shifts = (grouped * step.shift.reshape(column)).reshape(len(w), -1).sum(axis=1)
    scaled = (grouped * step.scale.reshape(column)).reshape(w.shape)
    moved = replace(node, inputs=(source.inputs[0], *node.inputs[1:]))
    return _with_weights(draft, moved, scaled, b + shifts)


def _scale_before_shift(
    draft: Draft, node: Node, shifted: Node, w: Array, b: Array
) -> Replacement | None:
    """Make conv(scale·x + shift) the convolution of x + shift/scale with scaled weights."""
    scaled = draft.private_producer(shifted.inputs[0], "Mul")
    if shifted.op_type != "Add" or scaled is None or not draft.private(shifted.output):
        return None
    shift, scale = draft.number(shifted.inputs[1]), draft.number(scaled.inputs[1])
    if shift is None or not scale or not np.isfinite(shift / scale):
        return None
    name = draft.keep(f"{shifted.output}/scale", np.array(shift / scale, draft.dtype(node)))
    under = replace(shifted, inputs=(scaled.inputs[0], name), output=draft.fresh(f"{name}+x"))
    moved = replace(node, inputs=(under.output, *node.inputs[1:]))
    folded = _with_weights(draft, moved, w * scale, b)
    return folded and [under, *folded]


class _Affine(NamedTuple):
    """A node as scale·x + shift, one of each per channel."""

    scale: Array
    shift: Array


def _affine(draft: Draft, node: Node, channels: int, ndim: int) -> _Affine | None:
    """Read a node of `AFFINE` so, if its operands are constant, on arrays of `ndim` axes."""
    arrays = [draft.constant(name) for name in node.inputs[1:]]
    if any(a is None for a in arrays):
        return None
    wide = [a.astype(np.float64) for a in arrays if a is not None]
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op_type == "BatchNormalization":
        gain, offset, mean, variance = wide
        scale = gain / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        return _Affine(scale, offset - mean * scale) if scale.shape == (channels,) else None
    k = _per_channel(wide[0], channels, ndim)
    if k is None:
        return None
    return {
        "Add": lambda: _Affine(one, k),
        "Sub": lambda: _Affine(one, -k),
        "Mul": lambda: _Affine(k, zero),
        "Div": lambda: _Affine(1 / k, zero),
    }[node.op_type]()


def _per_channel(k: Array, channels: int, ndim: int) -> Array | None:
    """Return a constant as one number per channel, if that is what broadcasting makes of it."""
    if k.ndim > ndim:
        return None
    shape = (1,) * (ndim - k.ndim) + k.shape
    if shape[1] not in (1, channels) or k.size != shape[1]:
        return None
    return np.array(np.broadcast_to(k.reshape(-1), (channels,)))


def _weights(draft: Draft, conv: Node) -> tuple[Array, Array] | None:
    """Return a convolution's weights and bias in float64, if they are constant."""
    w = draft.constant(conv.inputs[1])
    if w is None or w.ndim < 3:
        return None
    channels = w.shape[0]
    if conv.op_type == "ConvTranspose":
        channels = w.shape[1] * conv.attributes.get("group", 1)
    name = conv.inputs[2] if len(conv.inputs) > 2 else ""
    b = draft.constant(name) if name else np.zeros(channels)
    if b is None or b.shape != (channels,):
        return None
    return w.astype(np.float64), b.astype(np.float64)


def _with_weights(draft: Draft, conv: Node, w: Array, b: Array) -> list[Node] | None:
    """Return the convolution with other weights and another bias."""
    dtype = draft.dtype(conv)
    with np.errstate(over="ignore"):
        w, b = w.astype(dtype), b.astype(dtype)
    if not (np.isfinite(w).all() and np.isfinite(b).all()):
        return None
    names = (draft.keep(f"{conv.output}.w", w), draft.keep(f"{conv.output}.b", b))
    return [replace(conv, inputs=(conv.inputs[0], *names, *conv.inputs[3:]))]


def _unpadded(conv: Node) -> bool:
    """Whether a convolution surely reads no padding."""
    attributes = conv.attributes
    return attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and not any(
        attributes.get("pads") or ()
    )
