"""``implicit_gemm``: a matrix product whose patches are read from the image as they lie.

Sources: K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008, for
the loops; M. Dukhan, "The indirect convolution algorithm", 2019, for the rows.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..kernels import _implicit_gemm
from ..kernels._geometry import Geometry
from ..operands import Array
from ..problem import ConvProblem
from .base import Run, beyond_passes


class ImplicitGemm:
    """Own microkernels over packed weights, without a column buffer."""

    name = "implicit_gemm"
    reproducible = True
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve all but data gradients of very large strides."""
        return beyond_passes(problem)

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Packed weights, and for each thread a part of the image and of the result."""
        return _implicit_gemm.workspace(geometry, problem.op, limit, threads)

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; hand data gradients of non-finite weights over."""
        return _implicit_gemm.run(call)

    def packing(self, problem: ConvProblem, geometry: Geometry) -> tuple[Hashable, int]:
        """See `Packs.packing`."""
        return _implicit_gemm.packing(geometry, problem.op)

    def pack(
        self, problem: ConvProblem, geometry: Geometry, w: Array, packed: Array, threads: int
    ) -> bool:
        """See `Packs.pack`."""
        return _implicit_gemm.pack(geometry, problem.op, w, packed, threads)
