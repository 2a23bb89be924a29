"""The phases of a strided data gradient: each is a gradient of stride 1 on views of the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, gcd

from ..problem import ConvProblem
from .params import Sizes, three


@dataclass(frozen=True, slots=True)
class Phase:
    """The part of a data gradient whose inputs have one residue modulo the stride, along each axis.

    It is a data gradient of stride 1 on the views ``dx[x]`` and ``w[w]`` (slices over first axis,
    channel and spatial axes). Along an axis where no tap has that residue, the kernel is 0.
    """

    x: tuple[slice, ...]
    w: tuple[slice, ...]
    sizes: Sizes


def phases(problem: ConvProblem) -> Iterator[Phase]:
    """Cut a data gradient into phases of stride 1.

    Along an axis, input i is met by the taps t with ``p s + t d - l = i``. For ``i = j s + r``
    these are ``t = t0 + u s / g``, with g the greatest common divisor of s and d, and they belong
    to the outputs ``p = j + c - u d / g`` with ``c = (r + l - t0 d) / s``: a gradient of stride 1,
    dilation ``d / g`` and padding c.
    """
    whole = Sizes.of(problem)
    axes = [_residues(problem, axis) for axis in range(problem.ndim)]
    everything = (slice(None), slice(None))
    for residues in product(*axes):
        x = (*everything, *(residue.inputs for residue in residues))
        w = (*everything, *(residue.taps for residue in residues))
        yield Phase(
            x,
            w,
            Sizes(
                whole.n, whole.groups, whole.ci, whole.co,
                three([residue.n_inputs for residue in residues], 1),
                three([residue.n_taps for residue in residues], 1),
                whole.out_size,
                (1, 1, 1),
                three([residue.pad for residue in residues], 0),
                three([residue.dilation for residue in residues], 1),
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Residue:
    inputs: slice
    n_inputs: int
    taps: slice
    n_taps: int
    pad: int
    dilation: int


def _residues(problem: ConvProblem, axis: int) -> list[_Residue]:
    """List the residues of one axis that have inputs."""
    size, k = problem.in_size[axis], problem.kernel[axis]
    step, dilation, low = problem.stride[axis], problem.dilation[axis], problem.padding[axis][0]
    common = gcd(step, dilation)
    every = step // common
    found = []
    for residue in range(min(step, size)):
        n_inputs = ceil((size - residue) / step)
        begins = (t for t in range(min(every, k)) if (residue + low - t * dilation) % step == 0)
        first = next(begins, k)
        n_taps = len(range(first, k, every))
        found.append(
            _Residue(
                slice(residue, None, step),
                n_inputs,
                slice(first, None, every),
                n_taps,
                (residue + low - first * dilation) // step if n_taps else 0,
                dilation // common if n_taps > 1 else 1,
            )
        )
    return found
