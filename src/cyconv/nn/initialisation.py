"""Initial weights, drawn from a NumPy generator.

K. He, X. Zhang, S. Ren, J. Sun, "Delving Deep into Rectifiers", 2015; with the constants that
PyTorch's layers start from.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

from ..operands import Array

Rng = np.random.Generator | int | None


def fan_in(shape: tuple[int, ...]) -> int:
    """Count the inputs of one output: the product of all axes but the first.

    Parameters
    ----------
    shape : tuple of int
        Of the weight, in PyTorch's order.
    """
    return prod(shape[1:])


def kaiming_uniform(
    shape: tuple[int, ...], rng: Rng = None, *, slope: float = sqrt(5), dtype: Any = np.float32
) -> Array:
    """Uniform numbers within ``sqrt(6 / ((1 + slope**2) * fan_in))``.

    Parameters
    ----------
    shape : tuple of int
        Of the weight, in PyTorch's order.
    rng : numpy.random.Generator, int or None
        A generator, which moves on; or a seed.
    slope : float
        Of the rectifier that follows, for negative inputs: 0 for ReLU. The default is that of
        PyTorch's layers and gives ``1 / sqrt(fan_in)``.
    dtype : dtype
    """
    bound = sqrt(6 / ((1 + slope**2) * max(fan_in(shape), 1)))
    return np.random.default_rng(rng).uniform(-bound, bound, shape).astype(dtype)


def uniform_bias(
    size: int, weight_shape: tuple[int, ...], rng: Rng = None, *, dtype: Any = np.float32
) -> Array:
    """Uniform numbers within ``1 / sqrt(fan_in)``, for a bias.

    Parameters
    ----------
    size : int
    weight_shape : tuple of int
        Of the weight beside it, in PyTorch's order.
    rng, dtype
        As for `kaiming_uniform`.
    """
    bound = 1 / sqrt(max(fan_in(weight_shape), 1))
    return np.random.default_rng(rng).uniform(-bound, bound, size).astype(dtype)
