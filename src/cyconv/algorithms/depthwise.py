"""``depthwise``: few channels a group, in vectors over neighbouring pixels or channels."""

from __future__ import annotations

from types import ModuleType

from ..kernels import _channel_lanes, _columns, _pixel_lanes, _slide
from ..kernels._geometry import Geometry
from ..problem import ConvProblem
from .base import Run, beyond_passes

_MOST_CHANNELS = 32


def _kernel(geometry: Geometry, op: str) -> ModuleType:
    """Return the first kernel that serves; the last one always does."""
    for kernel in (_slide, _channel_lanes, _columns):
        if kernel.serves(geometry, op):
            return kernel
    return _pixel_lanes


class Depthwise:
    """Own microkernels for depthwise convolution, small groups and filters of few channels."""

    name = "depthwise"
    reproducible = True
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve groups of few channels."""
        ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
        if max(ci, co) > _MOST_CHANNELS:
            return f"a group has {ci} to {co} channels, more than {_MOST_CHANNELS}"
        return beyond_passes(problem)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Need a part of the image for each thread, and sums of weight gradients."""
        nbytes: int = _kernel(geometry, problem.op).workspace(geometry, problem.op, threads)
        return nbytes

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; hand gradients of non-finite values over."""
        done: bool = _kernel(call.geometry, call.problem.op).run(call)
        return done
