"""The rows of padding with other values than zeros: reflected, replicated, circular.

Padding an axis picks cells, so its gradient adds each cell of the margin where it came from; the
two operators are each other's gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operands import Array
from .tape import Operator, raw

# PyTorch's names, and NumPy's.
MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}

Widths = tuple[tuple[int, int], ...]


def _pad(x: Array, *, widths: Widths, mode: str) -> Array:
    y: Array = np.pad(x, widths, MODES[mode])
    return y


def _fold(g: Array, *, widths: Widths, mode: str) -> Array:
    for axis, (before, after) in enumerate(widths):
        if before == after == 0:
            continue
        g = np.moveaxis(g, axis, 0)
        n = len(g) - before - after
        inner = g[before : before + n].copy()
        origin = np.pad(np.arange(n), (before, after), MODES[mode])
        for cell in (*range(before), *range(before + n, before + n + after)):
            inner[origin[cell]] += g[cell]
        g = np.moveaxis(inner, 0, axis)
    return g


pad_row: Operator = Operator("pad", _pad, (lambda g, y, x, **more: fold(g, **more),))
fold: Operator = Operator("fold", _fold, (lambda g, y, x, **more: pad_row(g, **more),))


def pad(x: Any, widths: Widths, mode: str) -> Any:
    """Pad with values of the array itself.

    Parameters
    ----------
    x : Tensor or array
    widths : sequence of (int, int)
        Cells before and after each axis of `x`.
    mode : {"reflect", "replicate", "circular"}
        Mirrored without the edge, the edge repeated, or the other end.

    Returns
    -------
    Tensor, or numpy.ndarray for an array

    Raises
    ------
    ValueError
        If `mode` is unknown, or an axis without cells is to be padded.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    for axis, (n, width) in enumerate(zip(raw(x).shape, widths, strict=True)):
        if n == 0 and any(width):
            raise ValueError(f"axis {axis} of x has no cells to pad with")
    return pad_row(x, widths=tuple((int(lo), int(hi)) for lo, hi in widths), mode=mode)
