from ..arguments import Activation
from ..operands import Array
from ..problem import ConvProblem
from ._geometry import Geometry

OPERATORS: dict[str, int]
ACTIVATIONS: dict[str, int]

def finish_array(
    y: Array, activation: Activation | None, residual: Array | None, threads: int
) -> None: ...

class Run:
    problem: ConvProblem
    geometry: Geometry
    x: Array
    w: Array
    y: Array
    bias: Array | None
    residual: Array | None
    activation: Activation | None
    packed: Array | None
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
        residual: Array | None,
        activation: Activation | None,
        packed: Array | None,
        scratch: Array,
        limit: int,
        threads: int,
        flush: bool,
    ) -> None: ...
    def finish(self, first: int = 0, count: int = -1) -> None: ...
