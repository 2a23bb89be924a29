from ..operands import Array
from ._geometry import Geometry

def workspace(geometry: Geometry, op: str, pointwise: bool, limit: int) -> int: ...
def prospect(geometry: Geometry, op: str, pointwise: bool, limit: int) -> tuple[int, bool]: ...
def run(
    geometry: Geometry,
    op: str,
    pointwise: bool,
    x: Array,
    w: Array,
    y: Array,
    accumulate: bool,
    scratch: Array,
    limit: int,
    threads: int,
) -> None: ...
