"""Choices that need no GPU: tiles, splits, the size of grids, which family serves a problem."""

from __future__ import annotations

import pytest

from cyconv.gpu import families, implicit_gemm
from cyconv.gpu.families import tensor_refusal
from cyconv.gpu.implicit_gemm import ImplicitGemm
from cyconv.gpu.module import Device
from cyconv.gpu.params import Sizes
from cyconv.gpu.tiles import Product, Tile, choose_cut, choose_splits
from cyconv.problem import ConvProblem
from cyconv.settings import Config

A100 = Device(0, "A100", 80, 108, 166912)
T4 = Device(0, "T4", 75, 40, 65536)
SMALL, LARGE = families.IGEMM["f32"].tiles
RESNET = "n32 g1 ci64 co128 i56x56 k3x3 s1 p1 d1"


def choose_tile(product, tiles, processors):
    """The tile of a product whose sums are not split."""
    cut = choose_cut(product, tiles, processors, 128, 0, 4)
    assert cut.splits == 1
    return cut.tile


def product(text):
    problem = ConvProblem.parse(text)
    return Product.of(problem.op, Sizes.of(problem))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("fwd", Product(2, 3 * 4 * 5, 6, 4 * 9)),
        ("dx", Product(2, 3 * 8 * 9, 4, 6 * 9)),
        ("dw", Product(2, 4 * 9, 6, 3 * 4 * 5)),
    ],
)
def test_product_of_an_operator(op, expected):
    assert product(f"{op} f32 n3 g2 ci8 co12 i8x9 k3x3 s2 p1 d1") == expected


@pytest.mark.parametrize(
    ("rows", "lanes", "blocks"), [(1, 1, 3), (64, 64, 3), (65, 64, 6), (129, 65, 18)]
)
def test_blocks_cover_the_product(rows, lanes, blocks):
    assert Product(3, rows, lanes, 100).blocks(SMALL) == blocks


@pytest.mark.parametrize("processors", [1, 40, 108, 132])
def test_tile_by_the_size_of_the_product(processors):
    tiles = (SMALL, LARGE)
    assert choose_tile(Product(1, 1, 1, 1), tiles, processors) is SMALL
    assert choose_tile(Product(1, 10**6, 32, 500), tiles, processors) is SMALL
    assert choose_tile(Product(1, 10**6, 512, 500), tiles, processors) is LARGE


def test_small_tiles_fill_more_processors():
    few = Product(1, 1024, 256, 1000)
    assert choose_tile(few, (SMALL, LARGE), 4) is LARGE
    assert choose_tile(few, (SMALL, LARGE), 108) is SMALL


@pytest.mark.parametrize(
    ("depth", "limit", "splits"),
    [
        (10**6, 10**9, 216),  # two blocks for each processor
        (5000, 10**9, 9),  # 512 pixels each
        (100, 10**9, 1),
        (10**6, 7 * 400, 7),  # what memory allows
        (10**6, 0, 1),
    ],
)
def test_splits(depth, limit, splits):
    assert choose_splits(Product(1, 10, 10, depth), SMALL, 108, 512, limit, 400) == splits


def test_a_full_device_needs_no_splits():
    assert choose_splits(Product(1000, 64, 64, 10**6), SMALL, 108, 512, 10**9, 400) == 1


@pytest.mark.parametrize("op", ["fwd", "dx"])
@pytest.mark.parametrize("processors", [40, 108, 132])
def test_small_images_of_many_channels_are_split(op, processors):
    """Until all processors have blocks, but not beyond."""
    deep = product(f"{op} f32 n1 g1 ci512 co512 i7x7 k3x3 p1")
    cut = choose_cut(deep, (SMALL, LARGE), processors, 128, 2**26, 4)
    blocks = deep.blocks(cut.tile) * cut.splits
    assert 0.75 * processors * cut.tile.resident < blocks <= processors * cut.tile.resident
    nbytes = deep.elements * 4
    for parts in (1, 3):  # within the limit, no parts or three
        assert choose_cut(deep, (SMALL, LARGE), processors, 128, parts * nbytes, 4).splits == parts
    full = product(f"{op} f32 {RESNET}")
    assert choose_cut(full, (SMALL, LARGE), processors, 128, 2**26, 4).splits == 1


def test_short_sums_are_not_worth_a_fold():
    short = product("fwd f32 n1 g1 ci4 co64 i7x7 k3x3 p1")
    assert choose_cut(short, (SMALL, LARGE), 132, 8, 2**26, 4).splits == 1


@pytest.mark.parametrize("op", ["fwd", "dx"])
def test_reproducible_sums_are_not_split(op):
    """The number of splits depends on the batch, and with it the order of a sum."""
    problem = ConvProblem.parse(f"{op} f16 nhwc n1 g1 ci512 co512 i7x7 k3x3 p1")
    strategy = ImplicitGemm()
    split = strategy.workspace(problem, A100, Config())
    assert split % (49 * 512 * 4) == 0
    assert split > 49 * 512 * 4
    assert strategy.workspace(problem, A100, Config(reproducible=True)) == 0
    whole = strategy.estimate(problem, A100, Config(workspace_limit=0))
    assert strategy.estimate(problem, A100, Config()) < 0.5 * whole


def test_the_estimate_knows_the_precision():
    """Tensor cores take float32 under precision="medium" only, and are faster."""
    problem = ConvProblem.parse(f"fwd f32 nhwc {RESNET}")
    high, medium = (
        ImplicitGemm().estimate(problem, A100, Config(precision=name))
        for name in ("high", "medium")
    )
    assert medium < high / 2


@pytest.mark.parametrize(
    "text",
    [
        "fwd f32 nchw n1 g70000 ci70000 co70000 i3 k3",
        "fwd f32 nchw n70000 g1 ci1 co1 i64x64 k1x1",
        "dw f32 nchw n1 g70000 ci70000 co70000 i3 k3",
        "dx f32 nchw n1 g1 ci5000000 co1 i1 k1",
    ],
)
def test_grids_beyond_16_bits(cupy, monkeypatch, text):
    """They lie on the x axis, which takes them."""
    grids = []
    monkeypatch.setattr(implicit_gemm, "launch", lambda _, blocks, *rest: grids.append(blocks))
    problem = ConvProblem.parse(text)
    assert ImplicitGemm().supports(problem, A100) is None
    x, w, y = (_Shaped(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
    ImplicitGemm().run(implicit_gemm.Run(problem, x, w, y, None, A100, Config()))
    assert grids == [product(text).blocks(SMALL)]
    assert grids[0] > 65535


class _Shaped:
    """An array of which only shape and strides are looked at."""

    itemsize = 4

    def __init__(self, shape):
        self.shape = shape
        strides = [self.itemsize]
        for size in shape[:0:-1]:
            strides.append(strides[-1] * size)
        self.strides = tuple(reversed(strides))

    def reshape(self, *shape):
        return _Shaped(shape)

    def __getitem__(self, index):
        return self


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dx f32 n1 g1 ci1 co1 i99x99 k3x3 s9x8", "phases"),
        ("fwd f32 n1 g1 ci1 co1 i9 k2 d1073741824 p1073741824", "2**30"),
        ("dw f32 n2147483600 g1 ci1 co1 i1 k1", "terms"),
        ("fwd f32 n1 g2000000 ci2000000 co2000000 i70000 k1", "grid"),
    ],
)
def test_refusals(text, reason):
    refusal = ImplicitGemm().supports(ConvProblem.parse(text), A100)
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize(
    ("text", "device", "precision", "reason"),
    [
        (f"fwd f16 nhwc {RESNET}", A100, "highest", None),
        (f"fwd bf16 nhwc {RESNET}", A100, "high", None),
        (f"fwd f64 nhwc {RESNET}", A100, "high", None),
        (f"fwd f32 nhwc {RESNET}", A100, "medium", None),
        (f"fwd f32 nhwc {RESNET}", A100, "high", "TF32"),
        (f"fwd f16 nchw {RESNET}", A100, "high", "not last"),
        (f"fwd f16 nhwc {RESNET}", T4, "high", "capability 7.5"),
        ("fwd f16 nhwc n1 g1 ci12 co16 i9 k3", A100, "high", "multiples of 8"),
        ("fwd f16 nhwc n1 g4 ci16 co16 i9 k3", A100, "high", "multiples of 8"),
        ("fwd f16 nhwc n1 g1 ci16 co3 i9 k3", A100, "high", None),
        ("dw f16 nhwc n1 g1 ci16 co3 i9 k3", A100, "high", "multiples of 8"),
        ("dx f64 nhwc n1 g1 ci6 co2 i9 k3", A100, "high", None),
    ],
)
def test_tensor_cores_serve(text, device, precision, reason):
    refusal = tensor_refusal(ConvProblem.parse(text), device, precision)
    assert refusal is None if reason is None else reason in refusal


def test_workspace_holds_the_parts():
    strategy = ImplicitGemm()
    deep = ConvProblem.parse("dw f32 nchw n64 g1 ci64 co64 i56x56 k3x3 p1")
    part = 64 * 64 * 9 * 4
    assert strategy.workspace(deep, A100, Config()) % part == 0
    assert part < strategy.workspace(deep, A100, Config()) <= Config().workspace_limit
    assert strategy.workspace(deep, A100, Config(workspace_limit=0)) == 0  # straight into dw
    assert strategy.workspace(ConvProblem.parse(f"fwd f32 nchw {RESNET}"), A100, Config()) == 0


@pytest.mark.parametrize("family", ["IGEMM", "TENSOR"])
def test_tiles_fit_a_processor(family):
    """65536 registers, of which a thread may have 255, and 64 KiB of shared memory."""
    for kind in getattr(families, family).values():
        for tile in kind.tiles:
            assert isinstance(tile, Tile)
            assert tile.threads * tile.resident <= 1024
            assert tile.shared_nbytes <= 48 * 1024
