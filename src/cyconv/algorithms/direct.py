"""``direct``: the definition as compiled loops, summed in float64. It serves everything."""

from __future__ import annotations

from ..kernels import _direct
from ..kernels._geometry import Geometry
from ..operands import Array
from ..problem import ConvProblem


class Direct:
    """Loops over the definition; the accurate reference for float32."""

    name = "direct"
    reproducible = True
    bound = "u |y| + gamma_{K+1}(float64) sum |x||w|"

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve everything."""
        return None

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Need no scratch."""
        return 0

    def run(
        self,
        problem: ConvProblem,
        geometry: Geometry,
        x: Array,
        w: Array,
        y: Array,
        bias: Array | None,
        scratch: Array,
        limit: int,
        threads: int,
    ) -> bool:
        """See `Algorithm.run`."""
        if problem.op == "fwd":
            _direct.forward(geometry, x, w, bias, y, threads)
        elif problem.op == "dx":
            _direct.data_backward(geometry, y, w, bias, x, threads)
        else:
            _direct.weight_backward(geometry, x, y, w, threads)
        return True
