"""``im2col``: patches in bounded tiles, multiplied by BLAS.

Source: K. Chellapilla, S. Puri, P. Simard, "High performance convolutional neural networks for
document processing", 2006.
"""

from __future__ import annotations

from math import prod

from ..kernels import _gemm
from ..kernels._geometry import Geometry
from ..problem import ConvProblem
from ._matrix import BOUND, run_product, too_large
from .base import Run


class Im2col:
    """Convolution as a matrix product over gathered patches."""

    name = "im2col"
    reproducible = False
    precision = "highest"
    bound = BOUND
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve all but matrices that BLAS cannot count."""
        taps = prod(problem.kernel)
        return too_large(problem, problem.c_in // problem.groups * taps, problem.c_out)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Columns of a tile, and blocks of weights or outputs that BLAS cannot read in place."""
        return int(_gemm.workspace(geometry, problem.op, False, limit))

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`."""
        run_product(False, call)
        return True
