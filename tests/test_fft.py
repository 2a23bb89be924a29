"""What is particular to transforms: errors, tiles, non-finite values, memory, and the choice."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import oracle
import pytest
import transforming
from cases import FUNCTIONS, Case
from lab import random
from transforming import cancelling, normal, positive, spread

import cyconv
from cyconv.algorithms._fft_rounding import Rounding
from cyconv.algorithms._fft_tiles import plan, sizes_of

# Lines, images and volumes; tiles that leave a rest; axes that are not transformed; steps.
GEOMETRY = {
    "line": "n2 g1 ci3 co4 i3000 k65 s1 p32 d1",
    "line_of_one": "n1 g1 ci1 co1 i5000 k257 s1 p0:256 d1",
    "line_steps": "n1 g2 ci4 co6 i901 k33 s3 p40:5 d2",
    "image": "n1 g1 ci2 co3 i61x50 k15x12 s1 p7x3:8 d1",
    "image_is_kernel": "n2 g1 ci3 co2 i33x33 k33x33 s1 p0 d1",
    "depthwise": "n2 g5 ci5 co5 i40x37 k21x21 s1 p10 d1",
    "rows": "n2 g2 ci4 co6 i9x300 k1x41 s2x1 p1x20 d1",
    "columns": "n1 g1 ci3 co2 i211x7 k31x1 s2x3 p0:3x2 d1",
    "deep": "n1 g1 ci300 co4 i60 k9 s1 p4 d1",
    "one_result": "n1 g1 ci2 co3 i21x23 k21x23 s1 p0 d1",
    "nothing_met": "n1 g1 ci2 co3 i1x9 k1x3 s5x1 p3x1 d1",
    "volume": "n1 g1 ci2 co3 i17x12x14 k7x1x5 s1 p3x0x2 d1",
}
CASES = {name: Case.parse(name, text) for name, text in GEOMETRY.items()}

_call = partial(transforming.call, strategy="fft")
TYPES = {"float32": "f32", "float64": "f64"}
SMALL = 2**18  # bytes: several tiles and passes for most of these


def _spikes(rng, shape):
    """A few ones: no sum has more than a few terms, but all of them share a transform's errors."""
    return (rng.random(shape) < 0.002) * rng.choice([-1.0, 1.0], shape) + 0.0


def _equal(rng, shape):
    """Sums of equal terms drift: each rounding goes the same way."""
    return np.full(shape, 0.1)


def _outliers(rng, shape):
    """Elements far above the others: where they meet nothing large, they only bring errors."""
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.02, 1e7, 1)


def _huge(rng, shape):
    return 1e17 * rng.standard_normal(shape)


def _tiny(rng, shape):
    return 1e-17 * rng.standard_normal(shape)


DATA = {
    "normal": (normal, normal),
    "positive": (positive, positive),
    "cancelling": (cancelling, normal),
    "spread": (spread, spread),
    "spikes": (_spikes, normal),
    "scales": (_huge, _tiny),
    "equal": (_equal, _equal),
    "outliers": (_outliers, _outliers),
}


def _problem(name, op, dtype, layout):
    return cyconv.ConvProblem.parse(f"{op} {TYPES[dtype]} {layout} {GEOMETRY[name]}")


def _limit(problem, magnitude, workspace):
    """8 u log2(n) max sum |x||w|, and products that vanish."""
    n = plan(sizes_of(problem), workspace).transformed
    unit = np.finfo(problem.compute_dtype).eps / 2
    return np.full_like(magnitude, 8 * unit * np.log2(n) * np.max(magnitude)) + 1e-37


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_error_is_within_the_bound_with_and_without_tiles(op, name, data, dtype, layout):
    case = CASES[name]
    operands = transforming.operands(case, op, dtype, layout, DATA[data])
    truth, magnitude = transforming.truth(case, op, layout, operands)
    problem = _problem(name, op, dtype, layout)
    for workspace in (2**26, SMALL):
        with cyconv.config(workspace_limit=workspace, threads=1):
            got = _call(case, op, layout, operands)
        limit = _limit(problem, magnitude, workspace)
        oracle.assert_within(got, truth, limit, f"{op} {name} {data} {workspace}")


@pytest.mark.parametrize("large", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_large_elements_out_of_reach(op, large, dtype, layout):
    """They share tiles with the results, but no result has a product of two of them: at a margin
    that only the filter's small end meets, or between the steps of a stride.
    """
    margin = Case.parse("margin", "n1 g1 ci2 co3 i900 k300 s1 p0 d1")
    between = Case.parse("between", "n1 g1 ci2 co3 i900 k300 s2 p0 d1")
    for case, ours, theirs in (
        (margin, slice(0, 20), slice(20, None)),
        (between, slice(0, None, 2), slice(1, None, 2)),
    ):
        x = random(2, *case.in_size).reshape(case.x_shape()).copy()
        w = random(3, 2, *case.kernel).copy()
        dy = random(3, *case.out_size).reshape(case.y_shape()).copy()
        x[..., ours] *= large
        w[..., theirs] *= large
        a, b = {"fwd": (x, w), "dx": (dy, w), "dw": (x, dy)}[op]
        third = {"fwd": None, "dx": case.x_shape(layout), "dw": case.w_shape(layout)}[op]
        operands = (
            *(np.ascontiguousarray(oracle.to_layout(v.astype(dtype), layout)) for v in (a, b)),
            third,
        )
        truth, magnitude = transforming.truth(case, op, layout, operands)
        problem = cyconv.ConvProblem.parse(
            f"{op} {TYPES[dtype]} {layout} n1 g1 ci2 co3 i900 k300 s{case.stride[0]} p0 d1"
        )
        got = _call(case, op, layout, operands)
        oracle.assert_within(got, truth, _limit(problem, magnitude, 2**26), case.name)


def test_the_bound_is_judged_by_norms():
    """White errors or circular convolutions that are large beside every sum are beyond it."""
    for white, circular, within in ((1, 1, True), (1e3, 1, False), (1, 1e3, False)):
        rounding = Rounding(1024)
        rounding.add_circular(np.full((32, 32, 1, 1, 1), circular), np.full((1, 1, 1), white**2))
        rounding.add_results(np.full((8, 8), 1.0))
        assert rounding.within_bound(1.0) == within
        rounding.white *= np.sqrt(1024)
        assert rounding.within_bound(1e4)


@pytest.mark.parametrize("op", ["fwd", "dx"])
def test_exact_zeros_where_no_tap_reaches(op, layout):
    """Trailing input that a stride leaves over, gaps between steps, padding above the kernel."""
    texts = {
        "fwd": ("n1 g1 ci2 co3 i40 k3 s1 p9 d1", "n1 g1 ci2 co3 i9x8 k3x1 s1 p6x2 d1"),
        "dx": ("n1 g1 ci2 co3 i32 k5 s4 p0 d1", "n1 g1 ci2 co3 i40 k3 s7 p1 d1"),
    }
    for text in texts[op]:
        case = Case.parse("missed", text)
        a, b, third = transforming.operands(case, op, "float64", layout)
        ones = transforming.truth(case, op, layout, (np.ones_like(a), np.ones_like(b), third))[0]
        got = _call(case, op, layout, (a, b, third))
        assert (ones == 0).any()
        np.testing.assert_array_equal(got[ones == 0], 0)


def test_a_small_workspace_makes_tiles():
    """In each way: shorter ones, fewer together, fewer channels, groups and rows."""
    line = sizes_of(cyconv.ConvProblem.parse("fwd f32 nchw n4 g2 ci32 co32 i20000 k200"))
    wide, narrow = plan(line, 2**26), plan(line, 2**18)
    assert narrow.nbytes <= 2**18 < wide.nbytes
    assert narrow.outputs < wide.outputs
    assert narrow.points < (20000,)
    rows = sizes_of(cyconv.ConvProblem.parse("fwd f32 nchw n1 g1 ci8 co8 i500x2000 k1x200"))
    assert plan(rows, 2**20).points[0] < 500


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("length", [3, 16, 100, 2500])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_what_is_not_finite_stays_where_the_definition_puts_it(op, length, value, layout):
    case = Case.parse("poisoned", f"n1 g1 ci2 co3 i{length}x2 k{min(length, 31)}x1 s2x1 p1x0 d1")
    for which in (0, 1):
        for place in (0, 0.5, 1):
            operands = transforming.operands(case, op, "float32", layout)
            victim = operands[which]
            victim.flat[int(place * (victim.size - 1))] = value
            truth, _ = transforming.truth(case, op, layout, operands)
            got = _call(case, op, layout, operands)
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(truth))
            wrong = ~np.isfinite(truth)
            np.testing.assert_array_equal(got[wrong], truth[wrong])


@pytest.mark.parametrize("op", FUNCTIONS)
def test_finite_data_that_overflow_in_a_transform(op, layout):
    """The sum of a tile overflows where no result does."""
    case = CASES["line"]
    a, b, third = transforming.operands(case, op, "float32", layout)
    a = np.where(np.arange(a.size).reshape(a.shape) % 2, 3e38, -3e38).astype("float32")
    operands = a, (b * 1e-30).astype("float32"), third
    truth, magnitude = transforming.truth(case, op, layout, operands)
    assert np.isfinite(truth).all()
    got = _call(case, op, layout, operands)
    oracle.assert_within(got, truth, oracle.bound(magnitude, case.terms(op), "float32"))


@pytest.mark.parametrize("name", ["line_steps", "rows", "depthwise"])
@pytest.mark.parametrize("op", ["fwd", "dx"])
def test_bias_and_strides(op, name, layout):
    """Operands that are not contiguous, with a bias: all there is where no tap reaches."""
    case = CASES[name]
    a, b, third = transforming.operands(case, op, "float64", layout)
    truth, _ = transforming.truth(case, op, layout, (a, b, third))
    bias = random(case.c_out if op == "fwd" else case.c_in)
    spread = (slice(None, None, -1), slice(None, None, 2), slice(None, None, -1))
    apart = np.zeros((a.shape[0], 2 * a.shape[1], *a.shape[2:]))[spread]
    apart[...] = a
    function = cyconv.conv_forward if op == "fwd" else cyconv.conv_transpose
    more = {}
    if op == "dx":
        size = third[1:-1] if layout == "nhwc" else third[2:]
        more = {"output_size": size}
    got = function(
        apart,
        b,
        bias,
        strategy="fft",
        layout=oracle.layout_name(layout, case.ndim),
        **case.arguments,
        **more,
    )
    shape = (-1,) if layout == "nhwc" else (-1, *(1,) * case.ndim)
    np.testing.assert_allclose(got, truth + bias.reshape(shape), rtol=0, atol=1e-11)


def test_long_kernels_and_kernels_of_the_image():
    """64 filters of 1024 taps over 64 channels are taken to transforms; kernels as large as the
    image give one number, by any strategy.
    """
    text = "{} f32 nchw n1 g1 ci64 co64 i64000 k1024 s1 p0 d1"
    for op in FUNCTIONS:
        assert cyconv.plan(text.format(op)).strategy == "fft"
    for width in range(20, 40):
        x, w = random(1, 3, width, width), random(2, 3, width, width)
        truth = np.einsum("nchw,ochw->no", x, w)[..., None, None]
        for strategy in ("auto", "fft"):
            got = cyconv.conv2d(x, w, strategy=strategy)
            np.testing.assert_allclose(got, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("g1 ci16 co16 i64000 k7", "g1 ci16 co16 i64000 k1024"),
        ("g1 ci1 co1 i1024x1024 k5x5", "g1 ci1 co1 i1024x1024 k63x63"),
        ("g1 ci64 co64 i56x56 k3x3 p1", "g1 ci64 co64 i256x256 k31x31 p15"),
        ("g64 ci64 co64 i56x56 k31x31 p15", "g64 ci64 co64 i512x512 k63x63 p31"),
        ("g1 ci3 co64 i224x224 k7x7 s2 p3", "g1 ci1 co1 i512x512 k64x64"),
    ],
)
def test_auto_takes_it_for_large_kernels_only(op, small, large, layout, dtype):
    for text, taken in ((small, False), (large, True)):
        plan = cyconv.plan(f"{op} {TYPES[dtype]} {layout} n1 {text}", threads=1)
        assert (plan.strategy == "fft") == taken, str(plan.problem)


def test_the_strictest_precision_and_reproducible_bits_exclude_it():
    text = "fwd f32 nchw n1 g1 ci16 co16 i64000 k1024 s1 p0 d1"
    for settings in ({"precision": "highest"}, {"reproducible": True}):
        with cyconv.config(**settings):
            found = cyconv.plan(text)
            assert found.strategy != "fft"
            assert "fft" in found.refusals


@pytest.mark.parametrize("name", ["line", "image", "depthwise", "rows", "volume"])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_workspace_limit_is_kept(op, name, layout):
    """The peak of what NumPy allocates, which includes SciPy's results, is below what was named;
    below that strategy's least it is refused.
    """
    case = CASES[name]
    operands = transforming.operands(case, op, "float32", layout)
    problem = _problem(name, op, "float32", layout)
    out = np.empty(problem.result_shape, "float32")
    served = 0
    for most in (2**26, 2**20, 2**18, 2**17):
        with cyconv.config(workspace_limit=most, threads=1, strategy="fft"):
            found = cyconv.plan(problem)
            if found.strategy != "fft":
                assert "workspace" in found.refusals["fft"]
                continue
            assert found.workspace_nbytes <= most
            _call(case, op, layout, operands, out=out)
            tracemalloc.start()
            try:
                _call(case, op, layout, operands, out=out)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert out.size < 200 or peak > 1000, "nothing was seen"
            assert peak <= found.workspace_nbytes
            served += 1
    assert served >= 2
