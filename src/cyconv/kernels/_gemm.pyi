from ..operands import Array
from ._geometry import Geometry

def workspace(geometry: Geometry, op: str, pointwise: bool, limit: int) -> int: ...
def tile_macs(geometry: Geometry, op: str, pointwise: bool, limit: int) -> int: ...
def overwrites(geometry: Geometry, op: str, pointwise: bool, limit: int) -> bool: ...
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
