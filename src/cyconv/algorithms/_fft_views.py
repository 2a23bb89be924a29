"""The operands of ``fft`` as views on one grid of unit steps: image, blocks of results, filter.

All three operators are one correlation of an *image* (x; dy for data gradients) with a *filter*:
strides are zeros between the pixels of dy, or results that are dropped, and dilation is zeros
between taps. Axes with a kernel come first, as they are the ones to transform.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from ..operands import Array
from ..problem import ConvProblem

Window = tuple[slice, ...]


class Side(NamedTuple):
    """x or y as a view (batch, group, axes with a kernel, axes without, channel).

    Along each spatial axis its elements lie at ``offset + i * step`` on the unit grid.
    """

    array: Array
    offsets: tuple[int, ...]
    steps: tuple[int, ...]

    def meet(self, starts: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[Window, Window]:
        """Return the places inside of a window that hold elements, and which elements these are."""
        met = [
            _meet(*axis)
            for axis in zip(
                starts, lengths, self.offsets, self.steps, self.array.shape[2:-1], strict=True
            )
        ]
        return tuple(place for place, _ in met), tuple(which for _, which in met)


def _meet(start: int, length: int, offset: int, step: int, size: int) -> tuple[slice, slice]:
    first = max(0, -((offset - start) // step))
    last = min(size, (start + length - 1 - offset) // step + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    place = offset + first * step - start
    return slice(place, place + (last - first - 1) * step + 1, step), slice(first, last)


class Views(NamedTuple):
    """Views of the operands; `long` are the axes with a kernel, `flat` those without.

    `image` is what the filter slides over, `block` what there is for each of its places: the
    results, but dy for weight gradients. `filter` has the axes (axes with a kernel, group, image
    channel, block channel).
    """

    image: Side
    block: Side
    filter: Array
    long: tuple[int, ...]
    flat: tuple[int, ...]


def views_of(problem: ConvProblem, x: Array, w: Array, y: Array) -> Views:
    """View the operands of a problem."""
    long = tuple(a for a in range(problem.ndim) if problem.kernel[a] > 1)
    flat = tuple(a for a in range(problem.ndim) if problem.kernel[a] == 1)
    met = [
        pairs(problem, axis) if axis in flat else (slice(None), slice(None))
        for axis in range(problem.ndim)
    ]
    x = _ordered(problem, x, [which for which, _ in met], (*long, *flat))
    y = _ordered(problem, y, [which for _, which in met], (*long, *flat))
    none, ones = (0,) * problem.ndim, (1,) * problem.ndim
    low = tuple(problem.padding[a][0] for a in long)
    strides = (*(problem.stride[a] for a in long), *ones[len(long) :])
    if problem.op == "dx":
        reach = (problem.effective_kernel[a] - 1 for a in long)
        offsets = (k - p for k, p in zip(reach, low, strict=True))
        image, block = Side(y, (*offsets, *none[len(long) :]), strides), Side(x, none, ones)
    else:
        image, block = Side(x, (*low, *none[len(long) :]), ones), Side(y, none, strides)
    return Views(image, block, _filter(problem, w), long, flat)


@lru_cache(maxsize=1024)
def missed(problem: ConvProblem, axis: int) -> Array:
    """Return which results no pair of an element and a tap reaches along an axis."""
    size = (problem.in_size if problem.op == "dx" else problem.out_size)[axis]
    reached = np.zeros(size, bool)
    for tap in range(problem.kernel[axis]):
        x, y = pairs(problem, axis, tap)
        reached[x if problem.op == "dx" else y] = True
    return np.flatnonzero(~reached)


def pairs(problem: ConvProblem, axis: int, tap: int = 0) -> tuple[slice, slice]:
    """Return which elements of x and y meet at a tap along an axis, one to one and in order."""
    n, out, s = problem.in_size[axis], problem.out_size[axis], problem.stride[axis]
    low = problem.padding[axis][0] - tap * problem.dilation[axis]
    first = max(ceil(low / s), 0)
    last = max(min(out, (n - 1 + low) // s + 1), first)
    start = first * s - low
    return slice(start, start + max((last - first - 1) * s + 1, 0), s), slice(first, last)


def _ordered(problem: ConvProblem, a: Array, chosen: list[slice], axes: tuple[int, ...]) -> Array:
    """View chosen pixels of x or y with the axes of a `Side`."""
    if problem.layout == "nchw":
        a = np.moveaxis(a, 1, -1)
    a = a[(slice(None), *chosen)]
    a = a.reshape(*a.shape[:-1], problem.groups, a.shape[-1] // problem.groups)
    return a.transpose(0, a.ndim - 2, *(1 + axis for axis in axes), -1)


def _filter(problem: ConvProblem, w: Array) -> Array:
    if problem.layout == "nchw":
        w = np.moveaxis(w, 1, -1)
    w = w[(slice(None), *(0 if k == 1 else slice(None) for k in problem.kernel))]
    w = w.reshape(problem.groups, w.shape[0] // problem.groups, *w.shape[1:])
    if problem.op == "dx":
        turned = np.flip(w, tuple(range(2, w.ndim - 1)))
        return np.moveaxis(turned, (0, 1), (-3, -2))
    return np.moveaxis(w, (0, 1, -1), (-3, -1, -2))
