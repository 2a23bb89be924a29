from ..operands import Array
from ._geometry import Geometry

def forward(
    geometry: Geometry, x: Array, w: Array, bias: Array | None, y: Array, threads: int
) -> None: ...
def data_backward(
    geometry: Geometry, dy: Array, w: Array, bias: Array | None, dx: Array, threads: int
) -> None: ...
def weight_backward(geometry: Geometry, x: Array, dy: Array, dw: Array, threads: int) -> None: ...
