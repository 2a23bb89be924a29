"""``pointwise``: a convolution with kernel 1, as one matrix product on the arrays as they lie."""

from __future__ import annotations

from math import prod

from ..kernels import _gemm
from ..kernels._geometry import Geometry
from ..problem import ConvProblem
from ._matrix import BOUND, run_product, too_large
from .base import Run


class Pointwise:
    """Matrix product without a column buffer; only strided pixels of NCHW are gathered."""

    name = "pointwise"
    reproducible = False
    precision = "highest"
    bound = BOUND
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve kernel size 1 without padding."""
        if prod(problem.kernel) != 1:
            return f"the kernel is {problem.kernel}, not 1 along every axis"
        if any(p for pair in problem.padding for p in pair):
            return f"the padding is {problem.padding}, not 0"
        return too_large(problem, problem.c_in, problem.c_out)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Tiles of operands that BLAS cannot read in place; often none."""
        return int(_gemm.workspace(geometry, problem.op, True, limit))

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`."""
        run_product(True, call)
        return True
