"""``reference``: NumPy in float64, a tap at a time. The oracle of the tests; slow and plain.

A tap sees a strided slice of the zero-padded image, so each operator is one product of matrices a
tap: forward adds it, data backward adds it into the slice, weight backward is it. The products are
``einsum``'s own loops: BLAS may skip zeros, and 0 times infinity is not zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from ..kernels._geometry import Geometry
from ..operands import Array
from ..problem import ConvProblem
from .base import Run

_Index = tuple[slice | int, ...]


class Reference:
    """The definition in NumPy, summed in float64."""

    name = "reference"
    reproducible = True
    precision = "highest"
    bound = "u |y| + gamma_{K+1}(float64) sum |x||w|"
    uses_scratch = False

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve everything."""
        return None

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Float64 arrays of one image and group: padded input, output, and a product as large."""
        padded = problem.c_in // problem.groups * prod(_padded_size(problem))
        output = problem.c_out // problem.groups * prod(problem.out_size)
        weights = prod(problem.w_shape) // problem.groups
        window = problem.c_in // problem.groups * prod(problem.out_size)
        return 8 * (padded + 2 * output + window + 2 * weights)

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; `threads` and `scratch` are not used."""
        problem, bias = call.problem, call.bias
        x, w, y = (_channels_first(a, problem.layout) for a in (call.x, call.w, call.y))
        operator = {"fwd": _forward, "dx": _data_backward, "dw": _weight_backward}[problem.op]
        ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
        # Non-finite operands are the caller's business: they give what the definition gives.
        with np.errstate(all="ignore"):
            for group in range(problem.groups):
                inputs = slice(group * ci, (group + 1) * ci)
                outputs = slice(group * co, (group + 1) * co)
                start = np.zeros(())
                if bias is not None:
                    of_group = bias[outputs if problem.op == "fwd" else inputs]
                    start = of_group.reshape(-1, *(1,) * problem.ndim).astype(np.float64)
                operator(problem, x[:, inputs], w[outputs], y[:, outputs], start)
        call.finish()
        return True


def _own(array: Array) -> Array:
    """Copy broadcast elements.

    ``einsum`` takes a factor of stride 0 out of the sum, which changes what infinities give.
    """
    return np.ascontiguousarray(array)


def _channels_first(array: Array, layout: str) -> Array:
    return array if layout == "nchw" else np.moveaxis(array, -1, 1)


def _padded_size(problem: ConvProblem) -> tuple[int, ...]:
    """Input with padding, and with what a kernel reaches behind it."""
    return tuple(
        max(n + lo + hi, (out - 1) * s + k)
        for n, (lo, hi), out, s, k in zip(
            problem.in_size,
            problem.padding,
            problem.out_size,
            problem.stride,
            problem.effective_kernel,
            strict=True,
        )
    )


def _inside(problem: ConvProblem) -> _Index:
    """Where the image lies in its padded form."""
    return (
        slice(None),
        *(slice(lo, lo + n) for (lo, _), n in zip(problem.padding, problem.in_size, strict=True)),
    )


def _taps(problem: ConvProblem) -> Iterator[tuple[_Index, _Index]]:
    """Each tap's index in a weight, and the slice of the padded image that it sees."""
    for tap in product(*(range(k) for k in problem.kernel)):
        window = (
            slice(t * d, t * d + (out - 1) * s + 1, s)
            for t, d, out, s in zip(
                tap, problem.dilation, problem.out_size, problem.stride, strict=True
            )
        )
        yield (slice(None), slice(None), *tap), (slice(None), *window)


def _pad(problem: ConvProblem, image: Array) -> Array:
    padded = np.zeros((image.shape[0], *_padded_size(problem)))
    padded[_inside(problem)] = image
    return padded


def _forward(problem: ConvProblem, x: Array, w: Array, y: Array, start: Array) -> None:
    w = _own(w)
    for image, result in zip(x, y, strict=True):
        padded = _pad(problem, image)
        total = np.zeros(result.shape) + start
        for tap, window in _taps(problem):
            total += np.einsum("oc,c...->o...", w[tap], padded[window], dtype=np.float64)
        result[...] = total


def _data_backward(problem: ConvProblem, dx: Array, w: Array, dy: Array, start: Array) -> None:
    w = _own(w)
    for result, gradient in zip(dx, map(_own, dy), strict=True):
        padded = np.zeros((result.shape[0], *_padded_size(problem))) + start
        for tap, window in _taps(problem):
            padded[window] += np.einsum("oc,o...->c...", w[tap], gradient, dtype=np.float64)
        result[...] = padded[_inside(problem)]


def _weight_backward(problem: ConvProblem, x: Array, dw: Array, dy: Array, start: Array) -> None:
    total = np.zeros(dw.shape) + start
    space = "xyz"[: problem.ndim]
    sums = f"o{space},c{space}->oc"
    for image, gradient in zip(x, map(_own, dy), strict=True):
        padded = _pad(problem, image)
        for tap, window in _taps(problem):
            total[tap] += np.einsum(sums, gradient, padded[window], dtype=np.float64)
    dw[...] = total
