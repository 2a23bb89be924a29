"""``depthwise``: few channels a group, in vectors over neighbouring pixels or channels."""

from __future__ import annotations

from ..kernels import _depthwise
from ..kernels._geometry import Geometry
from ..problem import ConvProblem
from .base import Run, beyond_passes

_MOST_CHANNELS = 32


class Depthwise:
    """Own microkernels for depthwise convolution, small groups and filters of few channels."""

    name = "depthwise"
    reproducible = True
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve groups of few channels."""
        ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
        if max(ci, co) > _MOST_CHANNELS:
            return f"a group has {ci} to {co} channels, more than {_MOST_CHANNELS}"
        return beyond_passes(problem)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Need a part of the image for each thread, and sums of weight gradients."""
        return _depthwise.workspace(geometry, problem.op, threads)

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; hand gradients of non-finite values over."""
        return _depthwise.run(
            call.geometry, call.problem.op, call.x, call.w, call.y, call.bias, call.scratch,
            call.threads, call.flush,
        )  # fmt: skip
