"""The two families of kernels of ``implicit_gemm``, their tiles, and which of them serves a call.

``src/igemm.cuh`` serves everything, ``src/tensor.cuh`` what tensor cores can.
"""

from __future__ import annotations

from typing import NamedTuple

from ..operands import element_strides
from ..problem import ConvProblem
from .base import Run
from .module import Device, Kernel
from .params import TYPES
from .tiles import Tile

# Copies to tensor cores move 16 bytes; a tile is 64 bytes deep, and waits in three stages.
_CHUNK_NBYTES, _DEPTH_NBYTES, _STAGES = 16, 64, 3
# Rows that pass through shared memory together on their way out.
_STAGED_ROWS = 64
_CAPABILITY = 80


class Family(NamedTuple):
    """Kernels of one kind and type: source files, name, tiles, small ones first, and capability."""

    files: tuple[str, ...]
    name: str
    tiles: tuple[Tile, ...]
    capability: int = 75

    def kernel(self, op: str, dtype: str, layout: str, tile: Tile) -> Kernel:
        """Return the instantiation for an operator, type, layout and tile."""
        size, element = tile.size, TYPES[dtype]
        if self.name == "tensor":
            tail = f"{max(size // 2, 32)}, 32, {_STAGES}"
        else:
            tail = f"{tile.depth}, {'true' if layout == 'nhwc' else 'false'}"
        expression = f"{self.name}_{op}<{element}, {size}, {size}, {tail}>"
        return Kernel(self.files, expression, self.capability)


def _igemm(small: float, large: float) -> Family:
    """Tiles by the rate of the small one and, unless zero, of the large one."""
    tiles = (Tile(64, 8, 256, 0, 2, small), Tile(128, 8, 256, 0, 1, large))
    return Family(("ptx", "prims", "direct", "gather", "igemm"), "igemm", tiles[: 1 + (large > 0)])


def _tensor(itemsize: int, small: float, large: float) -> Family:
    depth = _DEPTH_NBYTES // itemsize

    def tile(size: int, threads: int, resident: int, rate: float) -> Tile:
        stages = _STAGES * 2 * size * _DEPTH_NBYTES
        staged = _STAGED_ROWS * (size + 8) * max(itemsize, 4)
        return Tile(size, depth, threads, max(stages, staged), resident, rate)

    tiles = (tile(64, 128, 4, small), tile(128, 256, 1, large))
    files = ("ptx", "prims", "direct", "gather", "mma", "tensor")
    return Family(files, "tensor", tiles[: 1 + (large > 0)], _CAPABILITY)


# Rates are of an A100, halved. In the large tile a loaded number is used twice as often; in
# float64 its sums would take too many registers.
IGEMM = {
    "f32": _igemm(5e10, 7e10),
    "f64": _igemm(2.5e10, 0),
    "f16": _igemm(5e10, 7e10),
    "bf16": _igemm(5e10, 7e10),
}
TENSOR = {
    "f32": _tensor(4, 2e11, 3e11),
    "f64": _tensor(8, 4.5e10, 0),
    "f16": _tensor(2, 4e11, 7e11),
    "bf16": _tensor(2, 4e11, 7e11),
}

KERNELS = (
    *(
        IGEMM[dtype].kernel(op, dtype, layout, tile)
        for op in ("fwd", "dx", "dw")
        for dtype in TYPES
        for layout in ("nchw", "nhwc")
        for tile in IGEMM[dtype].tiles
    ),
    *(
        TENSOR[dtype].kernel(op, dtype, "nhwc", tile)
        for op in ("fwd", "dx", "dw")
        for dtype in TYPES
        for tile in TENSOR[dtype].tiles
    ),
)


def tensor_refusal(problem: ConvProblem, device: Device, precision: str) -> str | None:
    """Return None if tensor cores can serve a problem, else the reason why not."""
    if device.capability < _CAPABILITY:
        return f"compute capability {device.capability / 10}, tensor cores are used from 8.0"
    if problem.dtype == "f32" and precision != "medium":
        return f"float32 would be rounded to TF32, which precision={precision!r} excludes"
    if problem.layout != "nhwc":
        return "channels are not last"
    together = _CHUNK_NBYTES // problem.itemsize
    ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
    # Forward, output channels are never copied side by side.
    if ci % together or (co % together and problem.op != "fwd"):
        return f"a group has {ci} to {co} channels, not multiples of {together}"
    return None


def layout_refusal(call: Run) -> str | None:
    """Return None if the operands lie as the copies to tensor cores need it, else the reason."""
    operands = {"fwd": ("x", "w"), "dx": ("y", "w"), "dw": ("x", "y")}[call.problem.op]
    together = _CHUNK_NBYTES // call.problem.itemsize
    for name in operands:
        array = getattr(call, name)
        strides = element_strides(array, call.problem.layout)
        first, channel, *spatial = strides
        # Of the batch too where it is 1: the choice must not depend on that.
        if channel != 1 or any(stride % together for stride in (first, *spatial)):
            return f"{name} has strides {strides}, in order batch, channel, axes"
        if array.data.ptr % _CHUNK_NBYTES:
            return f"{name} does not begin at a multiple of {_CHUNK_NBYTES} bytes"
    return None
