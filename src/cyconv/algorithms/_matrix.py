"""What ``im2col`` and ``pointwise`` share: the run of a convolution as a matrix product."""

from __future__ import annotations

from ..kernels import _gemm
from ..kernels.blas_threads import limited_to
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


def too_large(*sizes: int) -> str | None:
    """Refuse a matrix whose side BLAS cannot count."""
    return "a matrix side is beyond 2**31 - 1" if max(sizes) > LARGEST else None
