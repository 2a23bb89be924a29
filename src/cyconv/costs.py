"""Estimated times of the algorithms: what ``auto`` ranks by, and `explain` shows.

One model for all machines, built from the shapes and from the lanes of a vector: multiply-adds at
the rate of two vectors a cycle, times the share of lanes that do useful work, plus the elements
that are moved. Rates are for one core of 3 GHz; only their ratios matter. They were fitted to the
benchmark layers (``bench/bench_conv.py --strategy ...`` times every strategy side by side).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

from .algorithms._fft_tiles import plan, sizes_of
from .kernels import _ukernels
from .kernels._implicit_gemm import few_pixels
from .problem import ConvProblem

_CYCLES = 3e9
# Share of the peak that each algorithm's product reaches when nothing is in its way.
_GEMM_SHARE = 0.82
_DEPTHWISE_SHARE = 0.45
_BLAS_SHARE = 0.8
# A panel of one vector has too few sums to hide the latency of an addition.
_ONE_VECTOR_PENALTY = {"fwd": 2.2, "dx": 2.2, "dw": 2.5}
# A matrix product of few rows or columns leaves BLAS's own tiles half empty; one of few terms is
# over before its packing has paid.
_THIN = 32
_THIN_PENALTY = 1.6
_SHALLOW = 64
_SHALLOW_PENALTY = 1.2
# A tile of columns at a time is a smaller product.
_TILED_PENALTY = 1.1
# Weight gradients also pack dy, and add up the sums of blocks.
_GRADIENT_PENALTY = 1.1
# Pairs of an input and an output channel of a group, whose gradients' planes stay in the cache.
_FEW_PAIRS = 32
# Seconds for each element that is moved: streamed through a cache, transposed in small blocks,
# gathered with a stride, copied into columns and read back by BLAS.
_STREAMED = 0.25e-9
_TRANSPOSED = 0.5e-9
_GATHERED = 1.0e-9
_COLUMN = 0.7e-9
# Seconds for each weight that is packed ahead of the product, or unpacked after it.
_PACKED = {"fwd": 0.7e-9, "dx": 1.5e-9, "dw": 0.8e-9}
# Seconds for finding the pixels of a tile, whatever its channels.
_TILE = 0.3e-6
# Seconds for each point of a filter that is transformed, and for each tap that is gathered for it,
# or scattered from it.
_FILTER_POINT = 0.1e-9
_FILTER_TAP = {
    "nchw": {"fwd": 0.5e-9, "dx": 0.5e-9, "dw": 1.5e-9},
    "nhwc": {"fwd": 0.9e-9, "dx": 0.8e-9, "dw": 1.5e-9},
}
# Tiles of transforms are judged by this workspace, whatever a call has.
_UNLIMITED = 2**26
# Scalar loops.
_DIRECT_MACS = 1.0e9
_REFERENCE_MACS = 0.2e9


def _peak(problem: ConvProblem) -> float:
    """Multiply-adds a second of one core that does nothing else."""
    lanes = _ukernels.tile("f64" if problem.dtype == "f64" else "f32")[1]
    return 2 * lanes * _CYCLES


def _moved(problem: ConvProblem) -> int:
    """Elements of the three arrays."""
    return sum(problem.elements.values())


def _implicit_gemm(problem: ConvProblem, prepared: bool = False) -> float:
    pixels = problem.batch * prod(problem.out_size)
    few = few_pixels(pixels, problem.c_out // problem.groups)
    if few and problem.op == "fwd" and not prepared:
        return _few_pixels(problem, pixels)
    channels = (problem.c_in if problem.op == "dx" else problem.c_out) // problem.groups
    vector = _ukernels.tile("f64" if problem.dtype == "f64" else "f32")[1]
    full, rest = divmod(channels, 2 * vector)
    lanes = full * 2 * vector
    if rest > vector:
        lanes += 2 * vector
    elif rest:
        lanes += int(vector * _ONE_VECTOR_PENALTY[problem.op])
    product = problem.macs * lanes / channels / (_GEMM_SHARE * _peak(problem))
    if problem.op == "dw":
        product *= _GRADIENT_PENALTY
    moved = _moved(problem) * _STREAMED
    if not prepared:
        moved += problem.elements["w"] * _PACKED[problem.op]
    if problem.layout == "nhwc" and problem.groups > 1:
        moved = _moved(problem) * _GATHERED
    return product + moved


def _few_pixels(problem: ConvProblem, pixels: int) -> float:
    """Seconds where pixels are the lanes, and patches are packed instead of weights."""
    vector = _ukernels.tile("f64" if problem.dtype == "f64" else "f32")[1]
    product = (
        problem.macs * ceil(pixels / vector) * vector / pixels / (_GEMM_SHARE * _peak(problem))
    )
    patches = pixels * problem.c_in * prod(problem.kernel)
    return product + _moved(problem) * _STREAMED + patches * _GATHERED


def _depthwise(problem: ConvProblem) -> float:
    inner = problem.c_in // problem.groups, problem.c_out // problem.groups
    planes = problem.layout == "nchw" or problem.c_in == 1 or inner == (1, 1)
    moved = _moved(problem) * (_STREAMED if planes else _TRANSPOSED)
    product = problem.macs / (_DEPTHWISE_SHARE * _peak(problem))
    if problem.op == "dw":
        # Every tap of every output channel reads the planes, which leave the first cache level.
        product *= _GRADIENT_PENALTY if prod(inner) <= _FEW_PAIRS else 2 * _GRADIENT_PENALTY
    return product + moved


def _columns(problem: ConvProblem) -> float:
    """Seconds for writing and reading the columns of every patch."""
    pixels = problem.batch * prod(problem.out_size)
    return pixels * problem.c_in * prod(problem.kernel) * _COLUMN


def _pointwise(problem: ConvProblem) -> float:
    product = problem.macs / (_BLAS_SHARE * _peak(problem))
    fewest = min(problem.c_in, problem.c_out) // problem.groups
    if fewest < _THIN and (problem.layout == "nchw" or problem.op == "dw"):
        product *= _THIN_PENALTY
    elif fewest <= _SHALLOW:
        product *= _SHALLOW_PENALTY
    moved = _moved(problem) * _STREAMED + problem.elements["w"] * _PACKED[problem.op] / 2
    if max(problem.stride) == 1:
        return product + moved
    if problem.layout == "nchw":
        return product + moved + _columns(problem)
    # In place, but only a row of pixels at a time.
    return 1.5 * product + moved


def _im2col(problem: ConvProblem) -> float:
    product = _TILED_PENALTY * problem.macs / (_BLAS_SHARE * _peak(problem))
    packed = problem.elements["w"] * _PACKED[problem.op]
    return product + packed + _moved(problem) * _STREAMED + _columns(problem)


def _winograd(problem: ConvProblem, prepared: bool = False) -> float:
    return min(_winograd_tiles(problem, 4, prepared), _winograd_tiles(problem, 2, prepared))


def _winograd_tiles(problem: ConvProblem, outputs: int, prepared: bool) -> float:
    """Seconds by tiles of this many outputs along each of the last two axes with kernel 3."""
    ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
    tiles, points, slices = problem.batch, 1, 1
    sizes = problem.in_size if problem.op == "dx" else problem.out_size
    for axis, (size, k, d) in enumerate(zip(sizes, problem.kernel, problem.dilation, strict=True)):
        if k == 3 and axis >= problem.ndim - 2:
            tiles *= size // (outputs * d) * d + min(size % (outputs * d), d)  # they interleave
            points *= outputs + 2
        else:
            tiles *= size
            slices *= k
    vector = _ukernels.tile("f64" if problem.dtype == "f64" else "f32")[1]
    lanes, depth = (co, ci) if problem.op == "fwd" else (ci, co)
    products = points * tiles * slices * depth * ceil(lanes / vector) * vector
    transformed = points * tiles * (slices * ceil(ci / vector) + ceil(co / vector)) * vector
    filters = (
        slices * ci * co * (points * _FILTER_POINT + 9 * _FILTER_TAP[problem.layout][problem.op])
    )
    if prepared:
        filters = slices * ci * co * points * _STREAMED
    return (
        problem.groups
        * (
            products / (_GEMM_SHARE * _peak(problem))
            + transformed * _STREAMED
            + tiles * _TILE
            + filters
        )
        + _moved(problem) * _STREAMED
    )


_ESTIMATES: dict[str, Callable[[ConvProblem], float]] = {
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "implicit_gemm": _implicit_gemm,
    "im2col": _im2col,
    "winograd": _winograd,
    "fft": lambda problem: plan(sizes_of(problem), _UNLIMITED).seconds,
    "direct": lambda problem: problem.macs / _DIRECT_MACS,
    "reference": lambda problem: problem.macs / _REFERENCE_MACS,
}


# Those that differ where weights are packed ahead.
_PREPARED: dict[str, Callable[[ConvProblem, bool], float]] = {
    "implicit_gemm": _implicit_gemm,
    "winograd": _winograd,
}


def estimate(name: str, problem: ConvProblem, prepared: bool = False) -> float:
    """Return the estimated seconds of a strategy on one core, for a problem that it serves.

    `prepared` says that weights are packed ahead.
    """
    if problem.macs == 0:
        return 0.0
    if prepared and name in _PREPARED:
        return _PREPARED[name](problem, True)
    return _ESTIMATES[name](problem)
