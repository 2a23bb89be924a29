"""Cutting a problem in two, so that copies of its operands fit the workspace.

An operand that no kernel can read where it lies (another dtype or byte order, misaligned) is
copied. Where the copies would exceed the workspace limit, the problem is halved along an axis that
shrinks the largest of them, again and again. Halves are problems like any other: a forward half
along a spatial axis, say, has its own padding. The halves' results lie side by side, except that
weight gradients of halves along batch or space are added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .operands import Operands
from .problem import ConvProblem

# Axes whose halving shrinks an operand, in order of preference; "space" is any spatial axis.
# Halving an axis that an operator sums over is left out where another does.
_SHRINKS = {
    "fwd": {
        "x": ("batch", "groups", "space"),
        "w": ("groups", "c_out"),
        "y": ("batch", "groups", "c_out", "space"),
    },
    "dx": {
        "x": ("batch", "groups", "c_in", "space"),
        "w": ("groups", "c_in"),
        "y": ("batch", "groups", "space"),
    },
    "dw": {
        "x": ("groups", "batch", "space"),
        "w": ("groups", "c_out", "c_in"),
        "y": ("groups", "c_out", "batch", "space"),
    },
}


class Part(NamedTuple):
    """A smaller problem, and which part of each operand it is.

    Slices are over (batch or output channel, channel, spatial axes); `bias` is over the result's
    channels. `adds` tells that the parts' results are summed.
    """

    problem: ConvProblem
    x: tuple[slice, ...]
    w: tuple[slice, ...]
    y: tuple[slice, ...]
    bias: slice
    adds: bool


def part_of(operands: Operands, part: Part) -> Operands:
    """Take the views that a part of the problem works on."""
    layout = part.problem.layout
    x, w, y = (ordered(slices, layout) for slices in (part.x, part.w, part.y))
    bias, residual = operands.bias, operands.residual
    return Operands(
        operands.x[x],
        operands.w[w],
        operands.y[y],
        None if bias is None else bias[part.bias],
        None if residual is None else residual[y if part.problem.op == "fwd" else x],
        operands.activation,
    )


def ordered(slices: tuple[slice, ...], layout: str) -> tuple[slice, ...]:
    """Put slices over (first, channel, spatial axes) into the order of a layout."""
    if layout == "nchw":
        return slices
    first, channel, *spatial = slices
    return (first, *spatial, channel)


def halves(problem: ConvProblem, largest: str) -> tuple[Part, Part] | None:
    """Halve a problem so that operand `largest` ("x", "w" or "y") shrinks; None if it cannot."""
    for axis in _SHRINKS[problem.op][largest]:
        if axis == "space":
            sizes = problem.in_size if problem.op == "dx" else problem.out_size
            if max(sizes) > 1:
                return _space_halves(problem, sizes.index(max(sizes)))
        elif axis == "batch" and problem.batch > 1:
            return _batch_halves(problem)
        elif axis == "groups" and problem.groups > 1:
            return _group_halves(problem)
        elif axis in ("c_in", "c_out") and problem.groups == 1 and getattr(problem, axis) > 1:
            return _channel_halves(problem, axis)
    return None


def _two(n: int) -> tuple[slice, slice]:
    return slice(0, n // 2), slice(n // 2, n)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _part(problem: ConvProblem, **slices: slice) -> Part:
    """Name a part by its slices of n, ci, co (all channels), wci (of a filter)."""
    everything = slice(None)
    spatial = (everything,) * problem.ndim
    n, ci, co = (slices.get(key, everything) for key in ("n", "ci", "co"))
    return Part(
        problem,
        (n, ci, *spatial),
        (co, slices.get("wci", everything), *spatial),
        (n, co, *spatial),
        co if problem.op == "fwd" else ci,
        adds=False,
    )


def _batch_halves(problem: ConvProblem) -> tuple[Part, Part]:
    first, second = (
        _part(replace(problem, batch=_length(n)), n=n)._replace(adds=problem.op == "dw")
        for n in _two(problem.batch)
    )
    return first, second


def _group_halves(problem: ConvProblem) -> tuple[Part, Part]:
    ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups

    def half(groups: slice) -> Part:
        count = _length(groups)
        smaller = replace(problem, groups=count, c_in=count * ci, c_out=count * co)
        return _part(
            smaller,
            ci=slice(groups.start * ci, groups.stop * ci),
            co=slice(groups.start * co, groups.stop * co),
        )

    first, second = _two(problem.groups)
    return half(first), half(second)


def _channel_halves(problem: ConvProblem, axis: str) -> tuple[Part, Part]:
    def half(channels: slice) -> Part:
        if axis == "c_out":
            return _part(replace(problem, c_out=_length(channels)), co=channels)
        smaller = replace(problem, c_in=_length(channels))
        return _part(smaller, ci=channels, wci=channels)

    first, second = _two(getattr(problem, axis))
    return half(first), half(second)


def _space_halves(problem: ConvProblem, axis: int) -> tuple[Part, Part]:
    n, out = problem.in_size[axis], problem.out_size[axis]
    (low, _), s, k = problem.padding[axis], problem.stride[axis], problem.effective_kernel[axis]

    def from_outputs(outputs: slice) -> tuple[slice, slice, tuple[int, int]]:
        """Find the inputs start .. stop-1 that outputs need; what lies outside is padding."""
        start = outputs.start * s - low
        stop = (outputs.stop - 1) * s - low + k
        inside = slice(min(max(start, 0), n), max(min(stop, n), 0))
        if inside.stop <= inside.start:
            return slice(0, 0), outputs, (k + (_length(outputs) - 1) * s, 0)
        return inside, outputs, (inside.start - start, stop - inside.stop)

    def from_inputs(inputs: slice) -> tuple[slice, slice, tuple[int, int]]:
        """Find outputs first .. last-1 that hold all those which reach the inputs."""
        first = min(max((inputs.start + low - k + 1) // s, 0), out - 1)
        last = max(min((inputs.stop - 1 + low) // s + 1, out), first + 1)
        before = low + inputs.start - first * s
        after = max((last - first - 1) * s + k - _length(inputs) - before, 0)
        return inputs, slice(first, last), (before, after)

    def half(span: slice) -> Part:
        cut = from_inputs(span) if problem.op == "dx" else from_outputs(span)
        inputs, outputs, padding = cut
        smaller = replace(
            problem,
            in_size=_put(problem.in_size, axis, _length(inputs)),
            out_size=_put(problem.out_size, axis, _length(outputs)),
            padding=_put(problem.padding, axis, padding),
        )
        whole = _part(smaller)
        return whole._replace(
            x=_put(whole.x, 2 + axis, inputs),
            y=_put(whole.y, 2 + axis, outputs),
            adds=problem.op == "dw",
        )

    first, second = _two(n if problem.op == "dx" else out)
    return half(first), half(second)


def _put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
