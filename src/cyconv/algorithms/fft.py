"""``fft``: large kernels by real Fourier transforms of overlapping tiles.

Sources: T. G. Stockham, "High-speed convolution and correlation", 1966, for overlap-save; M.
Mathieu, M. Henaff, Y. LeCun, "Fast training of convolutional networks through FFTs", 2014, for the
sum over channels at each frequency. The transforms are `scipy.fft`'s.

`_fft_views` says how each operator is one correlation of an image with a filter, `_fft_tiles` how
it is cut into passes, and `_fft_rounding` judges whether the result keeps to the bound. In a pass
the transformed axes come first, then group, job, rows and channels, so that a frequency's products
are those of small matrices. Operands are multiplied by powers of two that make them at most 1, so
that nothing overflows on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import frexp, isfinite, prod
from typing import Any

import numpy as np

from ..kernels._geometry import Geometry
from ..operands import Array
from ..problem import ConvProblem
from ._fft_rounding import Rounding, energies, largest
from ._fft_tiles import LONGEST_SUM, plan, sizes_of
from ._fft_views import Side, missed, views_of
from .base import Run, per_channel

# Strides and dilation put zeros between elements, which are transformed too.
_MOST_POINTS = 2**31

_Job = tuple[int, ...]
Spectra = np.ndarray[Any, np.dtype[np.complexfloating[Any, Any]]]


class Fft:
    """Transforms of tiles, products at each frequency, and a transform back."""

    name = "fft"
    reproducible = False
    precision = "high"
    bound = "8 u log2(n) max sum |x||w|"
    uses_scratch = False

    def supports(self, problem: ConvProblem) -> str | None:
        """Serve kernels of more than one tap."""
        if max(problem.kernel) == 1:
            return f"the kernel is {problem.kernel}: there is nothing to transform"
        sizes = sizes_of(problem)
        points = prod(n + k - 1 for n, k in zip(sizes.extent, sizes.kernel, strict=True))
        if points > _MOST_POINTS:
            return f"an image has {points} points, zeros between pixels and taps counted"
        return None

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Spectra of filters, and tiles with theirs; NumPy and SciPy allocate them."""
        if problem.macs == 0:
            return 0
        tiles = plan(sizes_of(problem), limit)
        return tiles.nbytes + (tiles.workers(limit, threads) - 1) * tiles.worker_nbytes

    def run(self, call: Run) -> bool:
        """See `Algorithm.run`; hand what is not finite, or could miss the bound, over."""
        op = call.problem.op
        operands = {"fwd": (call.x, call.w), "dx": (call.y, call.w), "dw": (call.x, call.y)}[op]
        with np.errstate(all="ignore"):
            sizes = [largest(a) for a in operands]
            if not all(isfinite(size) for size in sizes):
                return False
            exponents = [_exponent(size, call.x.dtype) for size in sizes]
            rounding = _Correlation(call, exponents).compute()
            if not _is_finite(rounding.result, sum(exponents), call.x.dtype):
                return False
            if not rounding.within_bound(rounding.result):
                absolute = _Correlation(call, exponents, absolute=True).compute()
                if not rounding.within_bound(absolute.result):
                    return False
            call.finish()
            return True


def _exponent(size: float, dtype: np.dtype[Any]) -> int:
    """Return e such that 2^-e makes an array of this size at most 1 (4 for the largest)."""
    most = int(np.finfo(dtype).maxexp) - 2
    return min(max(frexp(size)[1], -most), most)


def _is_finite(size: float, exponent: int, dtype: np.dtype[Any]) -> bool:
    """Whether size times 2^e is surely below what overflows."""
    return isfinite(size) and frexp(size)[1] + exponent < int(np.finfo(dtype).maxexp)


class _Correlation:
    """One call: views of its operands, and the tiles that they are cut into.

    Of absolute values it writes nothing; they only tell how large the sums are.
    """

    def __init__(self, call: Run, exponents: list[int], absolute: bool = False) -> None:
        problem = call.problem
        self.call, self.sizes, self.absolute = call, sizes_of(problem), absolute
        self.tiles = plan(self.sizes, call.limit)
        self.views = views_of(problem, call.x, call.w, call.y)
        long, flat = self.views.long, self.views.flat
        self.points, self.steps, self.extent = (
            tuple(values[a] for a in (*long, *flat))
            for values in (self.tiles.points, self.tiles.blocks, self.sizes.extent)
        )
        self.lengths, self.rows = self.points[: len(long)], self.points[len(long) :]
        self.axes = tuple(range(len(long)))
        self.taps = tuple(slice(0, self.sizes.kernel[a], problem.dilation[a]) for a in long)
        self.workers = self.tiles.workers(call.limit, call.threads)
        # For the image, and for filters or blocks; then for results, in two steps, since a type
        # does not hold all powers.
        self.shrink = [2.0**-e for e in exponents]
        back = sum(exponents)
        self.grow = 2.0 ** (back // 2), 2.0 ** (back - back // 2)

    def compute(self) -> Rounding:
        """Write the result, and tell its rounding."""
        rounding = Rounding(self.tiles.transformed)
        compute = self._gradients if self.call.problem.op == "dw" else self._blocks
        for groups, outputs in self._channels():
            compute(groups, outputs, rounding)
        if self.call.problem.op != "dw":
            self._write_missed()
        return rounding

    # What a pass holds is local to a method, so that it is gone before the next one.

    def _blocks(self, groups: slice, outputs: slice, rounding: Rounding) -> None:
        """Correlate image and filters: forward and data backward."""
        filters, energy = self._filters(groups, outputs)
        for jobs in self._passes():
            circular = self._pass(jobs, groups, filters, energy, rounding)
            for job, block in zip(jobs, self._by_job(circular, len(jobs)), strict=True):
                place, which = self.views.block.meet(job[1:], self.steps)
                results = block[_index(slice(None), *place)]
                rounding.add_results(results)
                part = self.views.block.array[_index(job[0], groups, *which, outputs)]
                self._write(results, part, groups, outputs)

    def _pass(
        self, jobs: list[_Job], groups: slice, filters: Spectra, energy: Array, rounding: Rounding
    ) -> Array:
        images, of_images = self._spectra(self.views.image, self.points, jobs, groups, slice(None))
        products = _product(images, filters)
        del images
        circular = self._back(products)
        rounding.add_circular(circular, of_images @ energy)
        return circular

    def _gradients(self, groups: slice, outputs: slice, rounding: Rounding) -> None:
        """Correlate image and blocks, summed over jobs in their order: weight backward."""
        total: Spectra | None = None
        energy: Array | None = None
        for jobs in self._passes():
            term, of_term = self._term(jobs, groups, outputs)
            total = term if total is None else np.add(total, term, out=total)
            energy = of_term if energy is None else energy + of_term
            del term
        part = self.views.filter[..., groups, :, outputs]
        if total is None or energy is None:
            part[...] = 0
            return
        circular = self._back(total)
        rounding.add_circular(circular, energy)
        results = circular[self.taps]
        rounding.add_results(results)
        self._write(results, part, groups, outputs)

    def _term(self, jobs: list[_Job], groups: slice, outputs: slice) -> tuple[Spectra, Array]:
        images, of_images = self._spectra(self.views.image, self.points, jobs, groups, slice(None))
        blocks, of_blocks = self._spectra(self.views.block, self.steps, jobs, groups, outputs)
        np.conjugate(blocks, out=blocks)
        return _product(images.swapaxes(-1, -2), blocks), of_images.swapaxes(-1, -2) @ of_blocks

    def _write(self, results: Array, part: Array, groups: slice, outputs: slice) -> None:
        """Write some results into their place, in their own size again, with the bias."""
        if self.absolute:
            return
        first, second = self.grow
        results *= first
        np.multiply(results, second, out=part)
        bias = self.call.bias
        if bias is not None:
            each = bias.reshape(self.sizes.groups, *(1,) * self.call.problem.ndim, -1)
            part += each[groups, ..., outputs]

    def _write_missed(self) -> None:
        """Write zeros, or the bias, where no tap reaches: transforms leave their errors there."""
        problem, bias = self.call.problem, self.call.bias
        if self.absolute:
            return
        result = self.call.y if problem.op == "fwd" else self.call.x
        first = 1 if problem.layout == "nhwc" else 2
        for axis in range(problem.ndim):
            places = missed(problem, axis)
            if places.size:
                index: tuple[Any, ...] = (*(slice(None),) * (first + axis), places)
                result[index] = 0 if bias is None else per_channel(bias, problem)

    def _channels(self) -> Iterator[tuple[slice, slice]]:
        """Yield groups, and channels of the blocks, whose filters are transformed together."""
        sizes, tiles = self.sizes, self.tiles
        for group in range(0, sizes.groups, tiles.groups):
            groups = slice(group, min(group + tiles.groups, sizes.groups))
            for output in range(0, sizes.block, tiles.outputs):
                yield groups, slice(output, output + tiles.outputs)

    def _passes(self) -> Iterator[list[_Job]]:
        """Yield jobs in passes: an image, and where a tile with any element of a block starts."""
        starts = (range(0, n, step) for n, step in zip(self.extent, self.steps, strict=True))
        jobs = (
            job
            for job in product(range(self.call.problem.batch), *starts)
            if all(which.stop for which in self.views.block.meet(job[1:], self.steps)[1])
        )
        while some := list(islice(jobs, self.tiles.jobs)):
            yield some

    def _filters(self, groups: slice, outputs: slice) -> tuple[Spectra, Array]:
        """Transform filters, with zeros between dilated taps, for a correlation."""
        taps = self.views.filter[..., groups, :, outputs]
        buffer = np.zeros((*self.lengths, *taps.shape[-3:]), taps.dtype)
        np.multiply(taps, self.shrink[1], out=buffer[self.taps])
        spectra, energy = self._forth(buffer)
        return np.conjugate(spectra, out=spectra), energy

    def _spectra(
        self,
        side: Side,
        window: tuple[int, ...],
        jobs: list[_Job],
        groups: slice,
        channels: slice,
    ) -> tuple[Spectra, Array]:
        """Gather the windows of some jobs, zeros around and between, and transform them."""
        shrink = self.shrink[side is not self.views.image]
        n_groups = groups.stop - groups.start
        n_channels = len(range(side.array.shape[-1])[channels])
        rows = len(jobs) * prod(self.rows)
        buffer = np.zeros((*self.lengths, n_groups, rows, n_channels), side.array.dtype)
        for job, tile in zip(jobs, self._by_job(buffer, len(jobs)), strict=True):
            place, which = side.meet(job[1:], window)
            elements = side.array[_index(job[0], groups, *which, channels)]
            np.multiply(elements, shrink, out=tile[_index(slice(None), *place)])
        return self._forth(buffer)

    def _by_job(self, a: Array, jobs: int) -> Array:
        """View a pass as (job, group, axes with a kernel, axes without, channel)."""
        long = len(self.axes)
        a = a.reshape(*a.shape[: long + 1], jobs, *self.rows, a.shape[-1])
        return np.moveaxis(a, (long + 1, long), (0, 1))

    def _forth(self, a: Array) -> tuple[Spectra, Array]:
        """Transform, and give the energies as well."""
        from scipy.fft import rfftn

        if self.absolute:
            np.abs(a, out=a)
        spectra: Spectra = rfftn(a, axes=self.axes, workers=self.workers)
        return spectra, energies(a, len(self.axes))

    def _back(self, spectra: Spectra) -> Array:
        from scipy.fft import irfftn

        a: Array = irfftn(spectra, self.lengths, self.axes, overwrite_x=True, workers=self.workers)
        return a


def _index(*each: int | slice) -> tuple[Any, ...]:
    return each


def _product(a: Spectra, b: Spectra) -> Spectra:
    """Multiply the matrices of each frequency; those of one term are faster by the element."""
    terms = a.shape[-1]
    if terms == 1:
        return a * b
    total: Spectra = np.matmul(a[..., :LONGEST_SUM], b[..., :LONGEST_SUM, :])
    for start in range(LONGEST_SUM, terms, LONGEST_SUM):
        part = slice(start, start + LONGEST_SUM)
        total += np.matmul(a[..., part], b[..., part, :])
    return total
