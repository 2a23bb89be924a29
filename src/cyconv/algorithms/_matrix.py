"""What ``im2col`` and ``pointwise`` share: the run of a convolution as a matrix product."""

from __future__ import annotations

from ..kernels import _gemm
from ..kernels._geometry import Geometry
from ..kernels.blas_threads import limited_to
from ..operands import Array
from ..problem import ConvProblem
from .base import per_channel

BOUND = "gamma_{K+1} sum |x||w|"
# BLAS takes its sizes as 32-bit integers.
LARGEST = 2**31 - 1
_PARALLEL_MACS = 2**24


def run_product(
    pointwise: bool,
    problem: ConvProblem,
    geometry: Geometry,
    x: Array,
    w: Array,
    y: Array,
    bias: Array | None,
    scratch: Array,
    limit: int,
    threads: int,
) -> None:
    """Fill the result with the bias where the product is added to it, then multiply."""
    accumulate = bias is not None
    result = y if problem.op == "fwd" else x
    if bias is not None:
        result[...] = per_channel(bias, problem)
    elif not _gemm.overwrites(geometry, problem.op, pointwise, limit):
        result[...] = 0
        accumulate = True
    # One pool of threads a call: BLAS's where its products are large, ours where they are small.
    # Alternating between the two, each finds the processors taken by the other's waiting threads.
    in_blas = _gemm.tile_macs(geometry, problem.op, pointwise, limit) >= _PARALLEL_MACS
    with limited_to(threads if in_blas else 1):
        _gemm.run(
            geometry, problem.op, pointwise, x, w, y, accumulate, scratch, limit,
            1 if in_blas else threads,
        )  # fmt: skip


def too_large(*sizes: int) -> str | None:
    """Refuse a matrix whose side BLAS cannot count."""
    return "a matrix side is beyond 2**31 - 1" if max(sizes) > LARGEST else None
