from ..operands import Array
from ._geometry import Geometry

def serves(geometry: Geometry, op: str) -> bool: ...
def workspace(geometry: Geometry, op: str, threads: int) -> int: ...
def run(
    geometry: Geometry,
    op: str,
    x: Array,
    w: Array,
    y: Array,
    bias: Array | None,
    scratch: Array,
    threads: int,
    flush: bool,
) -> bool: ...
