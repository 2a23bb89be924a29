"""``implicit_gemm``: matrix products whose patches are gathered from the image as they are needed.

There are two families of kernels, ``src/igemm.cuh`` for everything and ``src/tensor.cuh`` on tensor
cores. This file says which of them serves a call and with which tile, and cuts data gradients
into phases and weight gradients into splits.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..operands import element_strides
from ..problem import ConvProblem
from ..split import ordered
from .base import Run
from .module import Device, Kernel, launch
from .params import SUMS, TYPES, Sizes
from .phases import phases
from .sums import fold, parts
from .tiles import Product, Tile, choose_splits, choose_tile

_MOST_BLOCKS = 2**31 - 1
# Kernels round a depth up to whole steps, in 32 bits.
_MOST_DEPTH = 2**31 - 64
# Coordinates beyond this stand for a pixel or tap that does not exist (``nowhere`` of gather.cuh).
_MOST_REACH = 2**30 - 1
_MOST_PHASES = 64
# Pixels that a split of a weight gradient sums: fewer do not pay for its fold.
_FEWEST_PIXELS = 512
_LAUNCH_SECONDS = 5e-6

# Copies to tensor cores move 16 bytes; a tile is 64 bytes deep, and waits in three stages.
_CHUNK_NBYTES, _DEPTH_NBYTES, _STAGES = 16, 64, 3
# Rows that pass through shared memory together on their way out.
_STAGED_ROWS = 64
_TENSOR_CAPABILITY = 80


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
    return Family(files, "tensor", tiles[: 1 + (large > 0)], _TENSOR_CAPABILITY)


# Rates are of an A100, halved. In the large tile a loaded number is used twice as often; in
# float64 its sums would take too many registers.
_IGEMM = {
    "f32": _igemm(5e10, 7e10),
    "f64": _igemm(2.5e10, 0),
    "f16": _igemm(5e10, 7e10),
    "bf16": _igemm(5e10, 7e10),
}
_TENSOR = {
    "f32": _tensor(4, 2e11, 3e11),
    "f64": _tensor(8, 4.5e10, 0),
    "f16": _tensor(2, 4e11, 7e11),
    "bf16": _tensor(2, 4e11, 7e11),
}

KERNELS = (
    *(
        _IGEMM[dtype].kernel(op, dtype, layout, tile)
        for op in ("fwd", "dx", "dw")
        for dtype in TYPES
        for layout in ("nchw", "nhwc")
        for tile in _IGEMM[dtype].tiles
    ),
    *(
        _TENSOR[dtype].kernel(op, dtype, "nhwc", tile)
        for op in ("fwd", "dx", "dw")
        for dtype in TYPES
        for tile in _TENSOR[dtype].tiles
    ),
)


class ImplicitGemm:
    """Own kernels, without a column buffer; on tensor cores where channels lie side by side.

    Products are summed in float32, of float64 in float64. Tensor cores serve the half types and
    float64, and float32 under ``precision="medium"``: there operands are rounded to TF32 (10 bits
    of mantissa), which adds about ``2**-10 sum |x||w|`` to the bound.
    """

    name = "implicit_gemm"
    reproducible = True
    precision = "highest"
    bound = "gamma_{K+1} sum |x||w|"

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Serve all but data gradients of very large strides, and what cannot be counted."""
        if problem.op == "dx" and prod(problem.stride) > _MOST_PHASES:
            return f"the stride {problem.stride} has more than {_MOST_PHASES} phases"
        sizes = Sizes.of(problem)
        if sizes.reach > _MOST_REACH:
            return "along an axis, the image with its padding and the kernel's reach exceeds 2**30"
        product = Product.of(problem.op, sizes)
        if product.depth > _MOST_DEPTH:
            return f"a sum has {product.depth} terms, more than {_MOST_DEPTH}"
        blocks = product.blocks(_IGEMM[problem.dtype].tiles[0])
        if blocks > _MOST_BLOCKS:
            return f"the product has {blocks} tiles, more than a grid can have"
        return None

    def workspace(self, problem: ConvProblem, device: Device, limit: int) -> int:
        """Return the bytes of the partial sums of a weight gradient."""
        if problem.op != "dw":
            return 0
        families = [_IGEMM[problem.dtype]]
        if tensor_refusal(problem, device, "medium") is None:
            families.append(_TENSOR[problem.dtype])
        splits = max(_plan_dw(problem, family, device, limit)[1] for family in families)
        return splits * _part_nbytes(problem) if _apart(problem, splits) else 0

    def estimate(self, problem: ConvProblem, device: Device) -> float:
        """Count multiply-adds in whole tiles, and launches."""
        tensor = tensor_refusal(problem, device, "high") is None
        family = (_TENSOR if tensor else _IGEMM)[problem.dtype]
        if problem.op == "dw":
            tile, splits = _plan_dw(problem, family, device, 2**62)
            product = Product.of("dw", Sizes.of(problem))
            return product.seconds(tile, device.processors, splits) + 2 * _LAUNCH_SECONDS
        seconds = 0.0
        for sizes in _passes(problem):
            product = Product.of(problem.op, sizes)
            tile = choose_tile(product, family.tiles, device.processors)
            seconds += product.seconds(tile, device.processors) + _LAUNCH_SECONDS
        return seconds

    def run(self, call: Run) -> None:
        """Launch a product; for data gradients one a phase, for weight gradients a fold too."""
        problem = call.problem
        refusal = tensor_refusal(problem, call.device, call.precision) or layout_refusal(call)
        family = (_IGEMM if refusal else _TENSOR)[problem.dtype]
        if problem.op == "fwd":
            _launch(call, family, Sizes.of(problem), call.x, call.w, call.y)
        elif problem.op == "dx":
            for phase in phases(problem):
                w = call.w[ordered(phase.w, problem.layout)]
                dx = call.x[ordered(phase.x, problem.layout)]
                _launch(call, family, phase.sizes, call.y, w, dx)
        else:
            _weight_backward(call, family)


def tensor_refusal(problem: ConvProblem, device: Device, precision: str) -> str | None:
    """Return None if tensor cores can serve a problem, else the reason why not."""
    if device.capability < _TENSOR_CAPABILITY:
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


def _passes(problem: ConvProblem) -> list[Sizes]:
    if problem.op == "dx":
        return [phase.sizes for phase in phases(problem)]
    return [Sizes.of(problem)]


def _launch(call: Run, family: Family, sizes: Sizes, source: Any, w: Any, out: Any) -> None:
    problem = call.problem
    product = Product.of(problem.op, sizes)
    tile = choose_tile(product, family.tiles, call.device.processors)
    launch(
        family.kernel(problem.op, problem.dtype, problem.layout, tile),
        product.blocks(tile),
        tile.threads,
        (source, w, call.bias, out, call.packed(sizes, out if problem.op == "dx" else source, w)),
        tile.shared_nbytes,
    )


def _part_nbytes(problem: ConvProblem) -> int:
    return prod(problem.w_shape) * SUMS[problem.dtype].itemsize


def _apart(problem: ConvProblem, splits: int) -> bool:
    """Whether sums need a place of their own: there are several, or dw has another type."""
    return splits > 1 or problem.dtype in ("f16", "bf16")


def _plan_dw(problem: ConvProblem, family: Family, device: Device, limit: int) -> tuple[Tile, int]:
    """Choose the tile that fits the matrix: its depth is split until the device is full."""
    product = Product.of("dw", Sizes.of(problem))
    small, large = family.tiles[0], family.tiles[-1]
    tile = large if min(product.rows, product.lanes) > small.size else small
    nbytes = _part_nbytes(problem)
    return tile, choose_splits(product, tile, device.processors, _FEWEST_PIXELS, limit, nbytes)


def _weight_backward(call: Run, family: Family) -> None:
    problem = call.problem
    tile, splits = _plan_dw(problem, family, call.device, call.limit)
    apart = _apart(problem, splits)
    elements = prod(problem.w_shape)
    sums = parts(splits, elements, SUMS[problem.dtype]) if apart else call.w.reshape(1, elements)
    sizes = Sizes.of(problem)
    launch(
        family.kernel("dw", problem.dtype, problem.layout, tile),
        Product.of("dw", sizes).blocks(tile) * sums.shape[0],
        tile.threads,
        (call.x, call.y, sums, np.int32(sums.shape[0]), call.packed(sizes)),
        tile.shared_nbytes,
    )
    if apart:
        fold(sums, call.w, problem.dtype)
