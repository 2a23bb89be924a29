"""Whether a call of ``fft`` keeps to its bound, 8 u log2(n) max sum |x||w|.

A transform spreads its rounding errors over a whole tile, so what counts is the size of a tile and
of a filter, whether or not their large elements meet in a result. Let z be the circular convolution
of a tile x and a filter w of n points. A transform has an error of c u sqrt(log2 n) of its size:
partly white, which the other spectrum multiplies, partly in proportion to the spectrum. Roundings
taken as independent, an error of z thus is at most a few times

    u sqrt(log2 n) (|x| |w| / sqrt(n) + max |z|)

in Euclidean norms, whose products are summed in squares over channels, and for weight gradients
over tiles. By the inequality of Cauchy and Schwarz neither term is more than the largest |x| * |w|
of any shift: if all shifts were results, the bound would hold for any data. But results leave
shifts out: those that wrap around, padding that is less than full, strides. So both terms are found
beside every product, and compared with the largest result, which no max sum |x||w| is below; if
that does not suffice, with the largest sum itself, from another convolution.

Sources: J. C. Schatzman, "Accuracy of the discrete Fourier transform and the fast Fourier
transform", 1996; N. J. Higham, T. Mary, "A new approach to probabilistic rounding error analysis",
2019.
"""

from __future__ import annotations

from math import log2, prod, sqrt
from typing import Any

import numpy as np

from ..operands import Array

# How many times each term: the largest found on noise, ramps, tones, spikes and outliers.
_WHITE = 8.0
_PROPORTIONAL = 6.0
_BOUND = 8.0


class Rounding:
    """The sizes that errors of a call follow, and the largest of its results."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.white = 0.0
        self.circular = 0.0
        self.result = 0.0

    def add_circular(self, circular: Array, energy: Array) -> None:
        """Take circular convolutions, and the products of their operands' energies."""
        self.white = max(self.white, sqrt(energy.max() / self.points))
        self.circular = max(self.circular, largest(circular))

    def add_results(self, results: Array) -> None:
        """Take those elements of circular convolutions that are results."""
        self.result = max(self.result, largest(results))

    def within_bound(self, largest_sum: float) -> bool:
        """Return whether errors are within the bound for this max sum |x||w|."""
        errors = _WHITE * self.white + _PROPORTIONAL * self.circular
        return errors <= _BOUND * sqrt(log2(self.points)) * largest_sum


def energies(a: Array, axes: int) -> Array:
    """Sum the squares of a contiguous array over its first axes."""
    rows = a.reshape(prod(a.shape[:axes]), -1)
    sums: np.ndarray[Any, np.dtype[Any]] = np.einsum("nk,nk->k", rows, rows)
    return sums.reshape(a.shape[axes:]).astype(np.float64)


def largest(a: Array) -> float:
    """Return the largest absolute value; not finite if an element is not."""
    return float(max(a.max(initial=0), -a.min(initial=0)))
