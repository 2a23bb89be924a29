"""``direct``: the definition as compiled loops, summed in float64. It serves everything."""

from __future__ import annotations

from ..kernels import _direct
from ..kernels._geometry import Geometry
from ..problem import ConvProblem
from .base import Run


class Direct:
    """Loops over the definition; the accurate reference for float32."""

    name = "direct"
    reproducible = True
    precision = "highest"
    bound = "u |y| + gamma_{K+1}(float64) sum |x||w|"
    uses_scratch = True

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve everything."""
        return None

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Need no scratch."""
        return 0

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`."""
        _direct.run(call)
        call.finish()
        return True
