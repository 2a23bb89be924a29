"""``implicit_gemm``: matrix products whose patches are gathered from the image as they are needed.

This file cuts data gradients into phases and long sums into splits, and launches the kernels of
`families`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .. import devices
from ..problem import ConvProblem
from ..settings import Config
from ..split import ordered
from . import families
from .base import Run
from .families import IGEMM, TENSOR, Family, layout_refusal, tensor_refusal
from .module import Device, Kernel, launch
from .params import SUMS, TYPES, Sizes
from .phases import phases
from .sums import THREADS, blocks_for, fold, parts
from .tiles import LAUNCH_SECONDS, Cut, Product, choose_cut, choose_splits, cut_seconds

_MOST_BLOCKS = 2**31 - 1
# Kernels round a depth up to whole steps, in 32 bits.
_MOST_DEPTH = 2**31 - 64
# Coordinates beyond this stand for a pixel or tap that does not exist (``nowhere`` of gather.cuh).
_MOST_REACH = 2**30 - 1
_MOST_PHASES = 64
# Pixels that a split of a weight gradient sums: fewer do not pay for its fold.
_FEWEST_PIXELS = 512
# Terms that a split of another operator sums.
_FEWEST_TERMS = 128


def _fold_pixels(op: str, dtype: str) -> Kernel:
    operator = {"fwd": "FORWARD", "dx": "DATA"}[op]
    files = ("ptx", "prims", "direct", "gather")
    return Kernel(files, f"fold_pixels<{operator}, {TYPES[dtype]}>")


KERNELS = (
    *families.KERNELS,
    *(_fold_pixels(op, dtype) for op in ("fwd", "dx") for dtype in TYPES),
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
        blocks = product.blocks(IGEMM[problem.dtype].tiles[0])
        if blocks > _MOST_BLOCKS:
            return f"the product has {blocks} tiles, more than a grid can have"
        return None

    def workspace(self, problem: ConvProblem, device: Device, settings: Config) -> int:
        """Return the bytes of the partial sums, of the phase of a data gradient that has most."""
        serving = [IGEMM[problem.dtype]]
        if tensor_refusal(problem, device, settings.precision) is None:
            serving.append(TENSOR[problem.dtype])
        if problem.op == "dw":
            limit = settings.workspace_limit
            splits = max(_cut_dw(problem, family, device, limit).splits for family in serving)
            return splits * _part_nbytes(problem) if _apart(problem, splits) else 0
        most = 0
        for sizes in _passes(problem):
            product = Product.of(problem.op, sizes)
            for family in serving:
                splits = _cut(product, problem, family, device, settings).splits
                most = max(most, _sums_nbytes(product, problem, splits))
        return most

    def estimate(self, problem: ConvProblem, device: Device, settings: Config) -> float:
        """Count multiply-adds in whole tiles, launches and folds."""
        tensor = tensor_refusal(problem, device, settings.precision) is None
        family = (TENSOR if tensor else IGEMM)[problem.dtype]
        if problem.op == "dw":
            tile, splits = _cut_dw(problem, family, device, settings.workspace_limit)
            product = Product.of("dw", Sizes.of(problem))
            return product.seconds(tile, device.processors, splits) + 2 * LAUNCH_SECONDS
        seconds = 0.0
        for sizes in _passes(problem):
            product = Product.of(problem.op, sizes)
            cut = _cut(product, problem, family, device, settings)
            nbytes = product.elements * SUMS[problem.dtype].itemsize
            seconds += cut_seconds(product, cut, device.processors, nbytes)
        return seconds

    def run(self, call: Run) -> None:
        """Launch a product, for data gradients one a phase; and a fold where sums are split."""
        problem, precision = call.problem, call.settings.precision
        refusal = tensor_refusal(problem, call.device, precision) or layout_refusal(call)
        family = (IGEMM if refusal else TENSOR)[problem.dtype]
        if problem.op == "fwd":
            _pixels(call, family, Sizes.of(problem), call.x, call.w, call.y)
        elif problem.op == "dx":
            for phase in phases(problem):
                w = call.w[ordered(phase.w, problem.layout)]
                dx = call.x[ordered(phase.x, problem.layout)]
                _pixels(call, family, phase.sizes, call.y, w, dx)
        else:
            _weight_backward(call, family)


def _passes(problem: ConvProblem) -> list[Sizes]:
    if problem.op == "dx":
        return [phase.sizes for phase in phases(problem)]
    return [Sizes.of(problem)]


def _cut(
    product: Product, problem: ConvProblem, family: Family, device: Device, settings: Config
) -> Cut:
    """Cut the product of a forward convolution, or of a phase of a data gradient.

    Splits change the order of a sum, and their number depends on the batch.
    """
    limit = 0 if settings.reproducible else settings.workspace_limit
    itemsize = SUMS[problem.dtype].itemsize
    return choose_cut(product, family.tiles, device.processors, _FEWEST_TERMS, limit, itemsize)


def _sums_nbytes(product: Product, problem: ConvProblem, splits: int) -> int:
    """Bytes of partial sums: none where a sum is whole."""
    return splits * product.elements * SUMS[problem.dtype].itemsize if splits > 1 else 0


def _pixels(call: Run, family: Family, sizes: Sizes, source: Any, w: Any, out: Any) -> None:
    """Launch the product of "fwd" or of a phase of "dx", and a fold if its sums are split."""
    problem = call.problem
    product = Product.of(problem.op, sizes)
    tile, wanted = _cut(product, problem, family, call.device, call.settings)
    sums = _room(wanted, product.elements, SUMS[problem.dtype])
    splits = np.int32(1 if sums is None else sums.shape[0])
    packed = call.packed(sizes, out if problem.op == "dx" else source, w)
    launch(
        family.kernel(problem.op, problem.dtype, problem.layout, tile),
        product.blocks(tile) * int(splits),
        tile.threads,
        (source, w, call.bias, out, sums, splits, packed),
        tile.shared_nbytes,
    )
    if splits > 1:
        launch(
            _fold_pixels(problem.op, problem.dtype),
            blocks_for(product.elements, call.device),
            THREADS,
            (sums, source, w, call.bias, out, splits, packed),
        )


def _room(splits: int, elements: int, dtype: np.dtype[Any]) -> Any:
    """Allocate partial sums; None for whole sums, or where the GPU has no memory for parts."""
    if splits == 1:
        return None
    try:
        return parts(splits, elements, dtype)
    except devices.cupy().cuda.memory.OutOfMemoryError:
        return None


def _part_nbytes(problem: ConvProblem) -> int:
    return prod(problem.w_shape) * SUMS[problem.dtype].itemsize


def _apart(problem: ConvProblem, splits: int) -> bool:
    """Whether sums need a place of their own: there are several, or dw has another type."""
    return splits > 1 or problem.dtype in ("f16", "bf16")


def _cut_dw(problem: ConvProblem, family: Family, device: Device, limit: int) -> Cut:
    """Choose the tile that fits the matrix: its depth is split until the device is full."""
    product = Product.of("dw", Sizes.of(problem))
    small, large = family.tiles[0], family.tiles[-1]
    tile = large if min(product.rows, product.lanes) > small.size else small
    nbytes = _part_nbytes(problem)
    return Cut(tile, choose_splits(product, tile, device.processors, _FEWEST_PIXELS, limit, nbytes))


def _weight_backward(call: Run, family: Family) -> None:
    problem = call.problem
    tile, splits = _cut_dw(problem, family, call.device, call.settings.workspace_limit)
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
