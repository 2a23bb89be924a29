"""What ``im2col`` and ``pointwise`` share: the run of a convolution as a matrix product."""

from __future__ import annotations

from math import prod

from ..kernels import _gemm
from ..kernels.blas_threads import limited_to
from ..problem import ConvProblem
from .base import Run, per_channel

BOUND = "gamma_{K+1} sum |x||w|"
# BLAS takes its sizes as 32-bit integers.
LARGEST = 2**31 - 1
_PARALLEL_MACS = 2**24


def run_product(pointwise: bool, call: Run) -> None:
    """Fill the result with the bias where the product is added to it, then multiply."""
    problem, geometry, limit, threads = call.problem, call.geometry, call.limit, call.threads
    macs, overwrites = _gemm.prospect(geometry, problem.op, pointwise, limit)
    accumulate = call.bias is not None
    result = call.y if problem.op == "fwd" else call.x
    if call.bias is not None:
        result[...] = per_channel(call.bias, problem)
    elif not overwrites:
        result[...] = 0
        accumulate = True
    # One pool of threads a call: BLAS's where its products are large, ours where they are small.
    # Alternating between the two, each finds the processors taken by the other's waiting threads.
    in_blas = macs >= _PARALLEL_MACS
    with limited_to(threads if in_blas else 1):
        _gemm.run(call, pointwise, accumulate, 1 if in_blas else threads)


def too_large(problem: ConvProblem, *sizes: int) -> str | None:
    """Refuse a matrix whose side BLAS cannot count, or whose rows are too far apart for it.

    Operands that are too far apart are packed, but forward lets BLAS write the result in place.
    """
    if max(sizes) > LARGEST:
        return "a matrix side is beyond 2**31 - 1"
    if problem.op == "fwd" and problem.layout == "nchw" and prod(problem.out_size) > LARGEST:
        return "a plane of the result is beyond 2**31 - 1"
    return None
