"""Public bug reports about convolution, one test each, under their number: G to J, which are about
large sizes, types, NaN and accuracy, and the gradients (through the functional operators).
"""

from __future__ import annotations

import os
import sys

import numpy as np
import oracle
import pytest
from lab import exact, near, ramp, random

import cyconv

# G. Large sizes and size arithmetic


def _sampled_volume(channels, size, step):
    """A lazily zeroed array that costs memory only at every step-th cell, where it holds noise."""
    x = np.zeros((1, channels, *size), "float32")
    cells = x[:, :, :: step[0], :: step[1], :: step[2]]
    cells[...] = np.random.default_rng(0).standard_normal(cells.shape)
    return x, cells


@pytest.mark.skipif(sys.maxsize < 2**32, reason="needs 64-bit addresses")
@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
def test_b27_offsets_beyond_2_to_the_31(layout, any_strategy):
    """2.6e9 elements and 10 GB of addresses, of which a strided 1x1x1 kernel touches 0.1 GB."""
    step = (140, 10, 10)
    if layout == "NCDHW":
        x, cells = _sampled_volume(2, (1300, 1000, 1000), step)
        w = random(3, 2, 1, 1, 1, dtype="float32")
    else:
        x = np.zeros((1, 1300, 1000, 1000, 2), "float32")
        cells = x[:, :: step[0], :: step[1], :: step[2]]
        cells[...] = np.random.default_rng(0).standard_normal(cells.shape)
        w = random(3, 1, 1, 1, 2, dtype="float32")
    y = cyconv.conv3d(x, w, stride=step, layout=layout, strategy=any_strategy)
    plain = "nhwc" if layout == "NDHWC" else "nchw"
    near(y, oracle.forward(cells, w, layout=plain), 1e-6)


def test_b27_broadcast_input_of_exactly_2_to_the_31_elements():
    """The report's shape on a stride-0 input: no memory for x, and every output is known."""
    column = random(1, 32, 1, 1, 1, dtype="float32")
    x = np.broadcast_to(column, (1, 32, 512, 512, 256))
    assert x.size == 2**31
    w = random(1, 32, 1, 1, 1, dtype="float32")
    y = cyconv.conv3d(x, w, stride=(8, 8, 4))
    assert y.shape == (1, 1, 64, 64, 64)
    right = float((column.astype("float64") * w).sum())
    near(y, np.full(y.shape, right), 1e-5)


@pytest.mark.large
def test_b27_input_of_7_6_gb():
    """The report itself; needs 12 GB of memory, so it runs only with CYCONV_TEST_LARGE=1."""
    x = np.empty((1, 28, 514, 514, 256), "float32")
    for c in range(28):
        x[0, c] = np.random.default_rng(c).random((514, 514, 256), dtype="float32")
    w = random(12, 28, 1, 1, 1, dtype="float32")
    y = cyconv.conv3d(x, w)
    for z in (0, 256, 513):
        for edge in (0, 256, 513):
            crop = x[:, :, z : z + 1, edge : edge + 1]
            near(y[:, :, z : z + 1, edge : edge + 1], oracle.forward(crop, w), 1e-5)


@pytest.mark.parametrize("strategy_b29", ["auto", "im2col"])
def test_b29_columns_of_3_gb(strategy_b29):
    """x (1,64,512,512), w (8,64,7,7): the columns of the whole image take 3,288,334,336 bytes."""
    x, w = random(1, 64, 512, 512, dtype="float32"), random(8, 64, 7, 7, dtype="float32")
    y = cyconv.conv2d(x, w, padding=3, strategy=strategy_b29)
    assert y.shape == (1, 8, 512, 512)
    for rows in (slice(3, 5), slice(255, 258), slice(506, 509)):
        strip = x[:, :, rows.start - 3 : rows.stop + 3]
        near(y[:, :, rows], oracle.forward(strip, w, padding=(0, 3)), 1e-4)


def test_b29_absurd_padding(lab):
    x, w = np.ones((9, 2, 3, 9)), np.ones((8, 2, 3, 3))
    with pytest.raises((ValueError, MemoryError, OverflowError)):
        lab.conv(x, w, padding=2**55, stride=2**20)
    with pytest.raises((ValueError, MemoryError, OverflowError)):
        lab.transposed(x.swapaxes(0, 1)[:, :8], w, padding=0, stride=2**62)


# H. Dtypes


@pytest.mark.parametrize("kind", ["int16", "uint16", "int64", "uint8", "bool"])
def test_b30_integers_are_refused_with_advice(kind, any_strategy, layout):
    """Not one strategy computes them, so "auto" cannot change the type or the rounding with the
    size.
    """
    ramp_up = np.linspace(0, 100, 50)
    v = np.concatenate([ramp_up, ramp_up[::-1]]).astype(kind).reshape(1, 1, 100)
    cases = [(v, {"padding": 99}), (np.full((1, 1, 1), 314159265).astype(kind), {})]
    for a, more in cases:
        a = oracle.to_layout(a, layout)
        with pytest.raises(cyconv.DTypeError, match="float"):
            cyconv.conv1d(a, a, layout=oracle.layout_name(layout, 1), strategy=any_strategy, **more)
    image = np.full((1, 5, 5, 5), 255).astype(kind)
    with pytest.raises(TypeError, match=kind):
        cyconv.conv2d(image, np.ones((5, 5, 3, 3), kind), strategy=any_strategy)


def test_b32_narrow_accumulators(any_strategy, layout):
    keywords = {"layout": oracle.layout_name(layout, 2), "strategy": any_strategy}
    half = [
        oracle.to_layout(np.ones(s, "float16"), layout)
        for s in ((1, 1, 64, 64), (1, 1, 2, 2), (1, 20000, 1, 1))
    ]
    db = cyconv.bias_backward(half[0], layout=keywords["layout"])
    assert db.dtype == "float16"
    assert db.tolist() == [4096]
    four = cyconv.conv2d(half[1], half[1], **keywords)
    assert four.dtype == "float16"
    assert four.item() == 4
    many = cyconv.conv2d(half[2], half[2], **keywords)
    assert many.dtype == "float16"
    assert many.item() == 20000
    x = oracle.to_layout(np.ones((1, 1, 128, 128), "float16"), layout)
    dw = cyconv.conv_weight_backward(
        x,
        half[0],
        oracle.to_layout(np.ones((1, 1, 3, 3)), layout).shape,
        stride=2,
        padding=1,
        **keywords,
    )
    dw = oracle.to_first(dw, layout)[0, 0]
    # The corner's sum of 3969 lies in the middle of two halves: transforms may round it to either.
    right = [[3970 if any_strategy == "fft" and dw[0, 0] == 3970 else 3968, 4032, 4032]]
    assert dw.tolist() == [*right, [4032, 4096, 4096], [4032, 4096, 4096]]


@pytest.mark.parametrize("threads_b32", [1, 2])
def test_b32_long_float32_sums(any_strategy, layout, threads_b32):
    dy = np.concatenate([np.full(262144, 1, "float32"), np.full(262144, 0.1, "float32")])
    dy = oracle.to_layout(dy.reshape(1, 1, 512, 1024), layout)
    name = oracle.layout_name(layout, 2)
    db = cyconv.bias_backward(dy, layout=name)
    assert db.dtype == "float32"
    assert abs(db.item() - 288358.4) <= 288358.4 * 1e-5
    dw = cyconv.conv_weight_backward(
        np.ones_like(dy), dy, (1, 1, 1, 1), layout=name, strategy=any_strategy, threads=threads_b32
    )
    assert dw.dtype == "float32"
    assert abs(dw.item() - 288358.4) <= 288358.4 * 1e-5


# I. NaN/Inf and accuracy of the strategies


def test_b33_one_nan_or_inf_does_not_spread(lab):
    x = np.ones((1, 1, 1000))
    x[0, 0, 100] = np.nan
    y = lab.conv(x, np.ones((1, 1, 200)))[0, 0]
    assert y.shape == (801,)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(y)), np.arange(101))
    with np.errstate(invalid="ignore"):
        y = lab.conv([[[1, np.inf, 1]]], [[[0, 1, 0]]], padding=1)
    np.testing.assert_array_equal(y, [[[np.nan, np.inf, np.nan]]])
    x = np.ones((1, 4, 32, 32))
    x[0, 2, 10, 20] = np.nan
    y = lab.conv(x, np.ones((5, 4, 3, 3)), padding=1)
    right = np.zeros((1, 5, 32, 32), bool)
    right[:, :, 9:12, 19:22] = True
    np.testing.assert_array_equal(np.isnan(y), right)
    x = np.ones((3, 6, 8, 8))
    x[0, 1, 3, 3] = np.nan
    y = lab.conv(x, np.ones((4, 3, 3, 3)), groups=2)
    assert np.isfinite(y[1:]).all()
    assert np.isfinite(y[0, 2:]).all()
    assert np.isnan(y[0, :2, 1:4, 1:4]).all()


B34 = """
import numpy as np, cyconv
import sys; sys.path[:0] = [TESTS]
import oracle
from itertools import product
waste = [np.full(10**6, np.nan) for _ in range(20)]
del waste
rng = np.random.default_rng(0)
names = ("auto", *(s for s in cyconv.strategies() if s not in ("auto", "profile", "autotune")))
axes = (1, 3, 5, 17), (1, 3, 17), names, ("f4", "f8"), ("nchw", "nhwc"), (1, 2)
for c, o, s, dt, layout, t in product(*axes):
    x, w = (rng.standard_normal(v).astype(dt) for v in ((2, c, 9, 7), (o, c, 3, 3)))
    dy = rng.standard_normal((2, o, 9, 7)).astype(dt)
    x, w, dy = (np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (x, w, dy))
    k = dict(layout=layout.upper(), strategy=s, threads=t, padding=1)
    r = dict(layout=layout, padding=1)
    tol = 1e-3 if dt == "f4" else 1e-11
    for ours, theirs, operands in (
        (cyconv.conv_forward, oracle.forward, (x, w)),
        (cyconv.conv_data_backward, oracle.data_backward, (dy, w, x.shape)),
        (cyconv.conv_weight_backward, oracle.weight_backward, (x, dy, w.shape)),
    ):
        got, right = ours(*operands, **k), theirs(*operands, **r)
        assert np.abs(got - right).max() <= tol, (c, o, k, dt)
"""


@pytest.mark.parametrize("perturb", [128, 255])
def test_b34_fresh_memory_is_not_zero(python, perturb):
    """MALLOC_PERTURB_=128 fills fresh memory with 3.4e38, 255 with zeros after freed NaN."""
    python(
        B34.replace("TESTS", repr(os.path.dirname(__file__))),
        env={"MALLOC_PERTURB_": perturb},
        timeout=120,
    )


def test_b34_dilation_never_reads_outside(lab):
    x, w = lab.array(ramp(1, 1, 128, start=1)), lab.array(np.ones((1, 1, 2)))
    dy = lab.array(np.ones((1, 1, 126)))
    keywords = lab.keywords(1, {"dilation": 2})
    right = np.arange(4, 256, 2)
    dx = np.convolve(np.ones(126), [1, 0, 1])
    dw = np.array([np.arange(1, 127).sum(), np.arange(3, 129).sum()])
    for _ in range(1000 // 40):
        exact(cyconv.conv_forward(x, w, **keywords).ravel(), right, lab)
        exact(cyconv.conv_data_backward(dy, w, x.shape, **keywords).ravel(), dx, lab)
        exact(cyconv.conv_weight_backward(x, dy, w.shape, **keywords).ravel(), dw, lab)


@pytest.mark.parametrize("channels", [336, 352])
@pytest.mark.parametrize("strategy_b37", ["auto", "im2col"])
def test_b37_accuracy_does_not_depend_on_the_channel_count(channels, strategy_b37):
    """N(0,1) data, 3024 and 3168 terms: absolute error of the order of 0.007 or less."""
    x = random(4, channels, 64, 64, dtype="float32")
    w = random(channels, channels, 3, 3, dtype="float32")
    y = cyconv.conv2d(x, w, padding=1, strategy=strategy_b37)
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, o, i, j = rng.integers((0, 0, 1, 1), (4, channels, 63, 63))
        window = x[n, :, i - 1 : i + 2, j - 1 : j + 2].astype("float64")
        assert abs(y[n, o, i, j] - (window * w[o]).sum()) <= 0.007


def test_b37_half_and_tiny(any_strategy):
    rng = np.random.default_rng(3)
    for shape in ((1, 4, 4, 8), (2, 20, 21, 16)):
        x = (1000 * rng.choice((-1, 1), shape)).astype("float16")
        w = rng.uniform(-1 / 9, 1 / 9, (8, 3, 3, shape[-1])).astype("float16")
        y = cyconv.conv2d(x, w, padding=1, layout="NHWC", strategy=any_strategy)
        assert y.dtype == "float16"
        assert np.isfinite(y).all()
        near(
            y.astype("float64"),
            oracle.forward(x, w, padding=1, layout="nhwc").astype("float64"),
            1e-2,
        )
    x, w = random(2, 2, 6, 6, dtype="float32"), random(2, 2, 3, 3, dtype="float32")
    truth, size = (oracle.forward(*pair, padding=1) for pair in ((x, w), (abs(x), abs(w))))
    got = cyconv.conv2d(x, w, padding=1, strategy=any_strategy)
    oracle.assert_within(got, truth, oracle.bound(size, 18, "float32"))


# J. Gradients


def test_b38_strided_gradients(lab):
    dx = lab.dx(np.ones((1, 1, 14, 14)), np.ones((1, 1, 5, 5)), (1, 1, 32, 32), stride=2)
    assert dx.shape == (1, 1, 32, 32)
    assert not dx[..., -1, :].any()
    assert not dx[..., -1].any()
    exact(dx.sum(keepdims=True), np.full((1, 1, 1, 1), 4900.0), lab)
    for kernel, out in ((3, 16), (4, 16)):
        x, w = (
            random(32, 3, 32, 32, dtype=lab.dtype),
            random(20, 3, kernel, kernel, dtype=lab.dtype),
        )
        dy = random(32, 20, out, out, dtype=lab.dtype)
        dx = lab.dx(dy, w, x.shape, stride=2, padding=1)
        assert dx.shape == x.shape
        direction = random(32, 3, 32, 32, dtype=lab.dtype, seed=1)
        change = lab.conv(direction, w, stride=2, padding=1).astype("float64")
        scale = np.vdot(abs(dy).astype("float64"), abs(change))
        assert (
            abs(np.vdot(dx.astype("float64"), direction) - np.vdot(dy, change))
            <= lab.tolerance * scale
        )
    dw = lab.dw(ramp(1, 1, 6, 6), np.ones((1, 1, 2, 2)), (1, 1, 3, 3), stride=2)
    exact(dw[0, 0], np.array([[28, 32, 36], [52, 56, 60], [76, 80, 84]]), lab)


def test_b38_gradients_of_a_strided_pointwise_transposed(lab):
    """y = transposed(x, w): its data gradient is conv(dy, w), its weight gradient dw(dy, x)."""
    x, w, dy = [[[[-1.9954, -0.3385]]]], [[[[-0.7767]]]], [[[[1.5, 0, 0.7]]]]
    near(lab.conv(dy, w, stride=2), np.array([[[[-1.16505, -0.54369]]]]), 1e-6)
    near(lab.dw(dy, x, (1, 1, 1, 1), stride=2), np.array([[[[-3.23005]]]]), 1e-6)


def test_b40_padding_above_the_kernel(lab):
    x, dy = np.ones((5, 2, 11, 14)), np.ones((5, 3, 17, 20))
    w = np.ones((3, 2, 3, 3))
    exact(lab.dx(dy, w, x.shape, padding=4), np.full(x.shape, 27.0), lab)
    exact(lab.dw(x, dy, w.shape, padding=4), np.full(w.shape, 770.0), lab)


def test_b40_one_pixel_and_one_column(lab):
    x, w, dy = [[[[1]]], [[[3]]]], ramp(1, 1, 3, 3, start=1), ramp(2, 1, 2, 2)
    more = {"padding": 2, "stride": 2}
    right = np.array([[24, 0, 20], [0, 0, 0], [16, 0, 12]])
    exact(lab.dw(x, dy, w.shape, **more)[0, 0], right, lab)
    exact(lab.dx(dy, w, (2, 1, 1, 1), **more).ravel(), np.array([16, 96]), lab)
    x, w, dy = np.ones((1, 2, 7, 1)), np.ones((3, 2, 2, 1)), np.ones((1, 3, 7, 1))
    more = {"padding": ((0, 1), (0, 0))}
    dw = lab.dw(x, dy, w.shape, **more)
    exact(dw[..., 0], np.broadcast_to([7, 6], (3, 2, 2)), lab)
    dx = lab.dx(dy, w, x.shape, **more)
    exact(dx[..., 0], np.broadcast_to([3, 6, 6, 6, 6, 6, 6], (1, 2, 7)), lab)
