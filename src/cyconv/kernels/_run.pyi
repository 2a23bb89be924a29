from ..operands import Array
from ..problem import ConvProblem
from ._geometry import Geometry

OPERATORS: dict[str, int]

class Run:
    problem: ConvProblem
    geometry: Geometry
    x: Array
    w: Array
    y: Array
    bias: Array | None
    scratch: Array
    limit: int
    threads: int
    flush: bool
    def __init__(
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
        flush: bool,
    ) -> None: ...
