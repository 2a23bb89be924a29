"""Sums of arrays: those of half types are taken in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operands import Array


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether sums in this type stick: float16 and bfloat16."""
    return dtype.itemsize == 2 and dtype.name in ("float16", "bfloat16")


def summed(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Sum over axes, by default all, with NumPy's dtype."""
    if is_half(x.dtype):
        wide = x.astype(np.float32).sum(axis=axis, keepdims=keepdims)
        return wide.astype(x.dtype)  # type: ignore[no-any-return]
    return x.sum(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def averaged(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Average over axes, by default all, with NumPy's dtype."""
    if is_half(x.dtype):
        wide = x.astype(np.float32).mean(axis=axis, keepdims=keepdims)
        return wide.astype(x.dtype)  # type: ignore[no-any-return]
    return x.mean(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
