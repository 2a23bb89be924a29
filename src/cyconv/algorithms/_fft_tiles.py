"""How ``fft`` cuts a convolution into tiles: their points, what a pass holds, bytes and seconds.

Along an axis with a kernel a tile of `points` holds a `block` of results and the reach of the
kernel (overlap-save); an axis of kernel 1 is cut into rows without a transform. A pass transforms
the tiles of some groups, output channels and jobs (a job is one tile of one image) together. None
of this depends on the number of threads, and so no bit of a result does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import ceil, log2, prod
from typing import NamedTuple

from ..problem import ConvProblem
from ._fft_views import pairs

# Lengths of a tile to try, in kernels; the whole axis as well.
_LENGTHS = (1.5, 2, 3, 4, 6, 8, 12, 16)
# NumPy's BLAS multiplies matrices of so few multiply-adds on the caller's thread alone.
_SERIAL_PRODUCT = 2**18
# Terms of a sum; longer ones are summed in parts, whose errors grow less.
LONGEST_SUM = 64
# Passes beyond this size leave the caches and gain nothing.
_PASS_BYTES = 2**23
# Beside the arrays: what transforms gather in, a length for each thread, and Python's own.
_LANES = 16
_OTHER_BYTES = 2**16

# Seconds: a pass; a job in it, gathered and written; a product of matrices; a point that is copied
# in or out, and its share for each factor 2 of the tile; a point of a filter, whose taps lie apart;
# a multiply-add of complex numbers' parts; a number that is added to a sum of spectra. They were
# fitted as those of `costs`.
_PASS = 100e-6
_JOB = 35e-6
_MATRIX = 0.7e-6
_POINT = 4.5e-9
_LEVEL = 0.15e-9
_FILTER = 0.8e-9
_MAC = 1 / 9e9
_SUM = 2e-9


class Tiles(NamedTuple):
    """Sizes of a pass; `points` and `blocks` have an entry for each spatial axis."""

    points: tuple[int, ...]
    blocks: tuple[int, ...]
    groups: int
    outputs: int
    jobs: int
    nbytes: int
    worker_nbytes: int
    seconds: float

    def workers(self, limit: int, threads: int) -> int:
        """Return how many threads may transform within a limit; `nbytes` has room for one."""
        return max(1, min(threads, 1 + (limit - self.nbytes) // self.worker_nbytes))

    @property
    def transformed(self) -> int:
        """Points of a transformed tile: the n of the error bound."""
        return prod(p for p, b in zip(self.points, self.blocks, strict=True) if p > b)


class Sizes(NamedTuple):
    """What tiles are planned from: channels of a group, and the results on the unit grid."""

    op: str
    batch: int
    groups: int
    image: int
    block: int
    extent: tuple[int, ...]
    kernel: tuple[int, ...]
    itemsize: int


def _extent(problem: ConvProblem, axis: int) -> int:
    if problem.kernel[axis] == 1:
        _, paired = pairs(problem, axis)
        return max(int(paired.stop - paired.start), 1)
    if problem.op == "dx":
        return problem.in_size[axis]
    return (problem.out_size[axis] - 1) * problem.stride[axis] + 1


def sizes_of(problem: ConvProblem) -> Sizes:
    """Read a problem as a correlation."""
    ci, co = problem.c_in // problem.groups, problem.c_out // problem.groups
    image, block = (co, ci) if problem.op == "dx" else (ci, co)
    extent = tuple(_extent(problem, axis) for axis in range(problem.ndim))
    return Sizes(
        problem.op,
        problem.batch,
        problem.groups,
        image,
        block,
        extent,
        tuple(
            1 if k == 1 else n
            for k, n in zip(problem.kernel, problem.effective_kernel, strict=True)
        ),
        problem.compute_dtype.itemsize,
    )


@lru_cache(maxsize=1024)
def plan(sizes: Sizes, limit: int) -> Tiles:
    """Return the tiles of least estimated time within the limit, else those of fewest bytes."""
    choices = [_fitted(sizes, points, limit) for points in _candidates(sizes)]
    within = [tiles for tiles in choices if tiles.nbytes <= limit]
    if within:
        return min(within, key=lambda tiles: tiles.seconds)
    return min(choices, key=lambda tiles: tiles.nbytes)


def _candidates(sizes: Sizes) -> Iterator[tuple[int, ...]]:
    """Yield points of a tile; those of axes without a kernel are its rows."""
    axes = []
    for n, k in zip(sizes.extent, sizes.kernel, strict=True):
        if k == 1:
            axes.append([n])
            continue
        whole = _fast(n + k - 1)
        shorter = {_fast(ceil(k * times) + 1) for times in _LENGTHS}
        axes.append(sorted({whole, *(p for p in shorter if p < whole)}))
    return product(*axes)


@lru_cache(maxsize=4096)
def _fast(length: int) -> int:
    from scipy.fft import next_fast_len  # takes longer to load than all of cyconv

    fast: int = next_fast_len(length, real=True)
    return fast


def _fitted(sizes: Sizes, points: tuple[int, ...], limit: int) -> Tiles:
    """Find how many output channels, jobs and groups a pass takes, for tiles of these points."""
    rows = [p if k == 1 else 1 for p, k in zip(points, sizes.kernel, strict=True)]

    def tiles(outputs: int, jobs: int, groups: int) -> Tiles:
        full = tuple(r if k == 1 else p for r, p, k in zip(rows, points, sizes.kernel, strict=True))
        return _measured(sizes, full, groups, outputs, jobs)

    def fits(candidate: Tiles, most: int) -> bool:
        product = prod(rows) * candidate.jobs * sizes.image * candidate.outputs
        return candidate.nbytes <= most and product <= _SERIAL_PRODUCT

    outputs = sizes.block
    while outputs > 1 and not fits(tiles(outputs, 1, 1), limit):
        if max(rows) > 1:
            rows[rows.index(max(rows))] = ceil(max(rows) / 2)
        else:
            outputs = ceil(outputs / 2)
    while max(rows) > 1 and not fits(tiles(outputs, 1, 1), limit):
        rows[rows.index(max(rows))] = ceil(max(rows) / 2)
    counts = (
        ceil(n / (r if k == 1 else p - k + 1))
        for n, r, p, k in zip(sizes.extent, rows, points, sizes.kernel, strict=True)
    )
    jobs = sizes.batch * prod(counts)
    most = min(limit, max(_PASS_BYTES, 2 * tiles(outputs, 1, 1).nbytes))
    if sizes.image == 1 and sizes.op != "dw":
        jobs = 1  # its product is of arrays, longest for a single job
    while jobs > 1 and not fits(tiles(outputs, jobs, 1), most):
        jobs = ceil(jobs / 2)
    groups = sizes.groups
    while groups > 1 and not fits(tiles(outputs, jobs, groups), most):
        groups = ceil(groups / 2)
    return tiles(outputs, jobs, groups)


def _measured(sizes: Sizes, points: tuple[int, ...], groups: int, outputs: int, jobs: int) -> Tiles:
    """Name the bytes that a pass holds at most, and the seconds of all passes."""
    blocks = tuple(p - k + 1 for p, k in zip(points, sizes.kernel, strict=True))
    axes = [p for p, k in zip(points, sizes.kernel, strict=True) if k > 1]
    rows = jobs * prod(p for p, k in zip(points, sizes.kernel, strict=True) if k == 1)
    real = prod(axes)
    frequencies = real // axes[-1] * (axes[-1] // 2 + 1)
    spectrum = 2 * frequencies  # a complex number is two real ones

    filters, images, results = (
        groups * n for n in (sizes.image * outputs, rows * sizes.image, rows * outputs)
    )
    if sizes.op == "dw":
        held = spectrum * filters
        at_once = max(
            (real + spectrum) * images,
            spectrum * images + (real + spectrum) * results,
            spectrum * (images + results + filters * (1 if rows <= LONGEST_SUM else 2)),
            (spectrum + real) * filters,
        )
    else:
        held = spectrum * filters
        at_once = max(
            real * filters,
            (real + spectrum) * images,
            spectrum * (images + results * (1 if sizes.image <= LONGEST_SUM else 2)),
            (2 * spectrum + real) * results,
        )
    worker_nbytes = max(axes) * _LANES * sizes.itemsize
    nbytes = (held + at_once) * sizes.itemsize + worker_nbytes + _OTHER_BYTES

    wide = sizes.itemsize / 4
    all_jobs = sizes.batch * prod(ceil(n / b) for n, b in zip(sizes.extent, blocks, strict=True))
    parts = ceil(sizes.block / outputs)
    tiles = all_jobs * (rows // jobs)
    passes = ceil(sizes.groups / groups) * parts * ceil(all_jobs / jobs)
    transforms = sizes.groups * (
        tiles * (parts * sizes.image + sizes.block) + sizes.image * sizes.block
    )
    products = sizes.groups * frequencies * parts * ceil(all_jobs / jobs)
    if (rows if sizes.op == "dw" else sizes.image) == 1:
        products = 0
    summed = sizes.groups * frequencies * sizes.image * sizes.block * ceil(all_jobs / jobs)
    filter_points = sizes.groups * sizes.image * sizes.block * real
    macs = 4 * sizes.groups * frequencies * tiles * sizes.image * sizes.block
    if sizes.op != "dw":
        summed = 0
    seconds = (
        passes * (_PASS + jobs * _JOB)
        + products * _MATRIX
        + wide
        * (
            transforms * real * (_POINT + _LEVEL * log2(real))
            + filter_points * _FILTER
            + macs * _MAC
            + summed * _SUM
        )
    )
    return Tiles(points, blocks, groups, outputs, jobs, nbytes, worker_nbytes, seconds)
