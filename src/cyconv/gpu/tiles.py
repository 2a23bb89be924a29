"""Tiles of a matrix product: how many blocks it has, which tile suits it, how its depth is split.

Nothing here needs a GPU. `igemm.cuh` and `tensor.cuh` cut their products the same way.
"""

from __future__ import annotations

from typing import NamedTuple

from .params import Sizes

# To start a kernel, and bytes a second of one processor.
LAUNCH_SECONDS = 5e-6
_BANDWIDTH = 15e9


class Tile(NamedTuple):
    """A square part of the result, which one block computes.

    Attributes
    ----------
    size : int
        Rows, and lanes.
    depth : int
        Terms of a sum that are loaded at a time.
    threads : int
        Of a block.
    shared_nbytes : int
        Dynamic shared memory.
    resident : int
        Blocks that a processor holds at a time, by their registers and shared memory.
    rate : float
        Multiply-adds a second of one processor that is full of them; good for ranking only.
    """

    size: int
    depth: int
    threads: int
    shared_nbytes: int
    resident: int
    rate: float


class Cut(NamedTuple):
    """How a product is cut: into tiles, and its depth into ranges that are summed apart."""

    tile: Tile
    splits: int


class Product(NamedTuple):
    """The matrix product of an operator, for each group: C[row, lane] is a sum over depth."""

    groups: int
    rows: int
    lanes: int
    depth: int

    @classmethod
    def of(cls, op: str, sizes: Sizes) -> Product:
        """Rows are pixels and depth is taps, for a weight gradient the other way round."""
        if op == "fwd":
            return cls(sizes.groups, sizes.out_pixels, sizes.co, sizes.ci * sizes.taps)
        if op == "dx":
            return cls(sizes.groups, sizes.in_pixels, sizes.ci, sizes.co * sizes.taps)
        return cls(sizes.groups, sizes.ci * sizes.taps, sizes.co, sizes.out_pixels)

    @property
    def elements(self) -> int:
        """Elements of the result."""
        return self.groups * self.rows * self.lanes

    def blocks(self, tile: Tile) -> int:
        """Blocks of one split."""
        return self.groups * -(-self.rows // tile.size) * -(-self.lanes // tile.size)

    def seconds(self, tile: Tile, processors: int, splits: int = 1) -> float:
        """Estimate the time of the processor that has the most blocks.

        Less than half full, it is no faster for that.
        """
        blocks = max(-(-self.blocks(tile) * splits // processors), tile.resident / 2)
        depth = -(-self.depth // (splits * tile.depth)) * tile.depth
        return blocks * tile.size**2 * depth / tile.rate


def fold_seconds(nbytes: int, processors: int, splits: int) -> float:
    """Estimate the time to add up parts of so many bytes each, which were written before."""
    if splits == 1:
        return 0.0
    return LAUNCH_SECONDS + 2 * splits * nbytes / (_BANDWIDTH * processors)


def choose_cut(
    product: Product,
    tiles: tuple[Tile, ...],
    processors: int,
    fewest: int,
    limit: int,
    itemsize: int,
) -> Cut:
    """Return the cut that should finish first, with its fold; of equals the first.

    Small images with many channels are few tiles, so their depth is split until the device is full.

    Parameters
    ----------
    fewest, limit
        As for `choose_splits`.
    itemsize : int
        Bytes of a sum.
    """
    nbytes = product.elements * itemsize
    cuts = [
        Cut(tile, splits)
        for tile in tiles
        for splits in (1, choose_splits(product, tile, processors, fewest, limit, nbytes))
    ]
    return min(cuts, key=lambda cut: cut_seconds(product, cut, processors, nbytes))


def cut_seconds(product: Product, cut: Cut, processors: int, nbytes: int) -> float:
    """Estimate the time of a cut, whose result takes so many bytes."""
    fold = fold_seconds(nbytes, processors, cut.splits)
    return product.seconds(cut.tile, processors, cut.splits) + LAUNCH_SECONDS + fold


def choose_splits(
    product: Product, tile: Tile, processors: int, fewest: int, limit: int, nbytes: int
) -> int:
    """Return how many ranges of its depth a product sums apart: as many as fill the device.

    Parameters
    ----------
    fewest : int
        Terms that a range must have, to be worth adding up.
    limit, nbytes : int
        Bytes that all results may take, and that one takes.
    """
    wanted = processors * tile.resident // product.blocks(tile)
    return max(1, min(wanted, product.depth // fewest, limit // nbytes))
