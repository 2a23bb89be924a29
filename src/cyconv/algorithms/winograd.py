"""``winograd``: kernel 3 and stride 1 by minimal filtering, a quarter of the multiplications.

Sources: S. Winograd, "Arithmetic complexity of computations", 1980; A. Lavin, S. Gray, "Fast
algorithms for convolutional neural networks", 2016; on the choice of points, B. Barabasz,
A. Anderson, K. Soodhalter, D. Gregg, "Error analysis and improving the accuracy of Winograd
convolution for deep neural networks", 2020.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..kernels import _winograd
from ..kernels._geometry import Geometry
from ..operands import Array
from ..problem import ConvProblem
from .base import Run, beyond_passes


class Winograd:
    """Own microkernels over tiles of 4 or 2 outputs an axis; other axes are summed over."""

    name = "winograd"
    reproducible = True
    precision = "high"
    bound = "64 u max sum |x||w|"
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve kernel 3 along the last axis, or the last but one, at stride 1."""
        kernel = (1, *problem.kernel)
        if kernel[-1] != 3 and kernel[-2:] != (3, 1):
            return f"the kernel is {problem.kernel}, not 3 along the last axis or two"
        if max(problem.stride) > 1:
            return f"the stride is {problem.stride}, not 1"
        return beyond_passes(problem)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Need room for transformed filters, or a block of them, and transformed tiles."""
        if problem.macs == 0:
            return 0
        return _winograd.workspace(geometry, problem.op, limit, threads)

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; hand what is not finite, or overflows on the way, over."""
        return _winograd.run(call)

    def packing(self, problem: ConvProblem, geometry: Geometry) -> tuple[Hashable, int]:
        """See `Packs.packing`."""
        return _winograd.packing(geometry, problem.op)

    def pack(
        self, problem: ConvProblem, geometry: Geometry, w: Array, packed: Array, threads: int
    ) -> bool:
        """See `Packs.pack`."""
        return _winograd.pack(geometry, problem.op, w, packed, threads)
