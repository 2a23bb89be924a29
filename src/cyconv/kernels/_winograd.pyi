from ..operands import Array
from ._geometry import Geometry

def workspace(geometry: Geometry, op: str, limit: int, threads: int) -> int: ...
def outputs_of_a_tile(geometry: Geometry, op: str) -> int: ...
def run(
    geometry: Geometry,
    op: str,
    x: Array,
    w: Array,
    y: Array,
    bias: Array | None,
    scratch: Array,
    limit: int,
    threads: int,
    flush: bool,
) -> bool: ...
