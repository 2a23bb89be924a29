"""What is particular to minimal filtering: errors, either size of tile, non-finite values."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import oracle
import pytest
import transforming
from cases import FUNCTIONS, Case
from transforming import cancelling, normal, positive, spread

import cyconv
from cyconv.binding import natural_strides
from cyconv.kernels import _winograd
from cyconv.kernels._geometry import Geometry

# Each form of a tile, blocks that end inside of an image, panels of one to four vectors.
GEOMETRY = {
    "4x4": "n1 g1 ci20 co28 i37x30 k3x3 s1 p1 d1",
    "2x2": "n1 g1 ci70 co40 i7x6 k3x3 s1 p1 d1",
    "4_of_a_signal": "n2 g1 ci9 co16 i333 k3 s1 p1 d1",
    "2_of_a_signal": "n1 g1 ci9 co16 i7 k3 s1 p2:0 d1",
    "4_of_columns": "n1 g1 ci8 co3 i40x9 k3x1 s1 p1x0 d1",
    "planes": "n1 g1 ci12 co24 i5x13x14 k3x3x3 s1 p1 d1",
    "rows_summed": "n1 g1 ci5 co9 i4x9x21 k2x3x3 s1 p1x0x1 d1",
    "images": "n9 g1 ci6 co7 i9x8 k3x3 s1 p0:2x2:1 d1",
    "groups": "n2 g2 ci34 co66 i12x13 k3x3 s1 p1 d1",
    "cropped": "n1 g1 ci3 co4 i15x17 k3x3 s1 p4 d1",
    "dilated": "n1 g1 ci20 co28 i37x30 k3x3 s1 p2x3 d2x3",
    "dilated_beyond_a_tile": "n2 g1 ci6 co7 i11x9 k3x3 s1 p9x5 d9x5",
    "dilated_blocks": "n1 g1 ci5 co6 i99x90 k3x3 s1 p7 d7",
    "dilated_signal": "n2 g1 ci9 co16 i777 k3 s1 p64:0 d64",
    "dilated_planes": "n1 g2 ci6 co8 i9x13x14 k3x3x3 s1 p3x2x5 d3x2x5",
    "dilated_rows_summed": "n1 g1 ci5 co9 i4x9x21 k2x2x3 s1 p1x0x1 d3x4x2",
    "chunks": "n1 g1 ci4 co5 i90x100 k3x3 s1 p1 d1",
}
CASES = {name: Case.parse(name, text) for name, text in GEOMETRY.items()}

_call = partial(transforming.call, strategy="winograd")


def _huge(rng, shape):
    return 1e20 * rng.standard_normal(shape)


def _tiny(rng, shape):
    return 1e-20 * rng.standard_normal(shape)


DATA = {
    "normal": (normal, normal),
    "positive": (positive, positive),
    "cancelling": (cancelling, normal),
    "spread": (spread, spread),
    "scales": (_huge, _tiny),
    "scales_turned": (_tiny, _huge),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_error_is_within_the_bound(op, name, data, dtype, layout):
    """A third of it, so that a change of the points or of a transform is seen."""
    case = CASES[name]
    operands = transforming.operands(case, op, dtype, layout, DATA[data])
    truth, magnitude = transforming.truth(case, op, layout, operands)
    got = _call(case, op, layout, operands)
    limit = oracle.high_bound(magnitude, case.terms(op), dtype)
    oracle.assert_within(got, truth, limit / 3, f"{op} {name} {data}")


@pytest.mark.parametrize("op", FUNCTIONS)
def test_error_of_very_many_channels(op, layout):
    case = Case.parse("deep", "n1 g1 ci4096 co8 i9x9 k3x3 s1 p1 d1")
    operands = transforming.operands(case, op, "float32", layout, (positive, normal))
    truth, magnitude = transforming.truth(case, op, layout, operands)
    limit = oracle.high_bound(magnitude, case.terms(op), "float32")
    oracle.assert_within(_call(case, op, layout, operands), truth, limit / 3)


def _tile(text, by_image=False):
    problem = cyconv.ConvProblem.parse(text)
    geometry = Geometry(problem, *natural_strides(problem), merge_batch=not by_image)
    return _winograd.outputs_of_a_tile(geometry, problem.op)


def test_either_size_of_tile_is_reached():
    """By the tiles of a call, or of one image where results must not depend on the batch."""
    text = "fwd f32 nchw n{} g1 ci8 co8 i{} k3x3 s1 p1 d1"
    assert _tile(text.format(1, "56x56")) == 4
    assert _tile(text.format(1, "7x7")) == 2
    assert _tile(text.format(16, "7x7")) == 4
    assert _tile(text.format(16, "7x7"), by_image=True) == 2
    assert _tile("dw f32 nchw n1 g1 ci8 co8 i7x7 k3x3 s1 p1 d1") == 2
    for name, outputs in (("4x4", 4), ("2x2", 2), ("4_of_a_signal", 4), ("2_of_a_signal", 2)):
        assert _tile(f"fwd f32 nchw {GEOMETRY[name]}") == outputs


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 7, 9, 13, 22])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_what_is_not_finite_stays_where_the_definition_puts_it(op, size, value, layout):
    """At each end of either operand and in the middle, in all sizes of ragged tile."""
    case = Case.parse("poisoned", f"n1 g1 ci3 co9 i{size}x{size + 1} k3x3 s1 p1 d1")
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
def test_padding_of_planes_takes_part(op, layout):
    """A plane of padding is never read, but a filter that is not finite makes NaN of it."""
    case = Case.parse("planes", "n1 g1 ci2 co3 i1x6x6 k3x3x3 s1 p1 d1")
    for which in (0, 1):
        operands = transforming.operands(case, op, "float64", layout)
        operands[which].flat[1] = np.inf
        truth, _ = transforming.truth(case, op, layout, operands)
        got = _call(case, op, layout, operands)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(truth))


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ["4x4", "2x2", "4_of_a_signal", "planes"])
def test_finite_data_that_overflow_in_a_transform(op, name, layout):
    """Sums of a tile's elements overflow where the result does not."""
    case = CASES[name]
    a, b, third = transforming.operands(case, op, "float32", layout, (positive, positive))
    a = np.where(a > 0.5, np.float32(3e38), np.float32(-3e38))
    b = (b * 1e-30).astype(np.float32)
    truth, magnitude = transforming.truth(case, op, layout, (a, b, third))
    assert np.isfinite(truth).all()
    got = _call(case, op, layout, (a, b, third))
    oracle.assert_within(got, truth, oracle.high_bound(magnitude, case.terms(op), "float32"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_bits_do_not_depend_on_threads(op, name, layout):
    case = CASES[name]
    operands = transforming.operands(case, op, "float32", layout)
    one = _call(case, op, layout, operands, threads=1)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(_call(case, op, layout, operands, threads=threads), one)


@pytest.mark.parametrize("name", ["images", "2x2", "4x4", "2_of_a_signal"])
@pytest.mark.parametrize("op", ["fwd", "dx"])
def test_reproducible_bits_do_not_depend_on_the_batch(op, name, layout):
    case = CASES[name]
    a, b, third = transforming.operands(case, op, "float32", layout)
    many = np.concatenate([a] * 12)
    with cyconv.config(reproducible=True):
        one = _call(case, op, layout, (a, b, third))
        third = None if third is None else (len(many), *third[1:])
        all_ = _call(case, op, layout, (many, b, third), threads=2)
    np.testing.assert_array_equal(all_[: len(one)], one)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_workspace_limit_is_kept(op, layout):
    """Down to where it refuses; the result is then still the same."""
    text = f"{op} f32 {layout} n1 g1 ci64 co64 i60x60 k3x3 s1 p1 d1"
    case = Case.parse("limits", text.partition(layout)[2].strip())
    operands = transforming.operands(case, op, "float32", layout)
    truth, magnitude = transforming.truth(case, op, layout, operands)
    limit = oracle.high_bound(magnitude, case.terms(op), "float32")
    served = 0
    for most in (2**26, 2**22, 2**21, 2**20, 2**19):
        with cyconv.config(workspace_limit=most, threads=1, strategy="winograd"):
            plan = cyconv.plan(text)
            if plan.strategy != "winograd":
                assert "workspace" in plan.refusals["winograd"]
                continue
            assert plan.workspace_nbytes <= most
            oracle.assert_within(_call(case, op, layout, operands), truth, limit)
            served += 1
    assert served >= 2


def test_the_strictest_precision_excludes_it():
    text = "fwd f32 nchw n1 g1 ci64 co64 i56x56 k3x3 s1 p1 d1"
    assert cyconv.plan(text).strategy == "winograd"
    with cyconv.config(precision="highest"):
        assert cyconv.plan(text).strategy != "winograd"
        named = cyconv.plan(text, strategy="winograd")
        assert named.strategy == "direct"
        assert "precision='highest'" in named.refusals["winograd"]
        x, w = np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3))
        with cyconv.config(strict=True), pytest.raises(cyconv.UnsupportedError, match="highest"):
            cyconv.conv2d(x, w, strategy="winograd")


_EVERY_FORM = """
import cyconv, oracle, test_winograd as t, transforming
for op in t.FUNCTIONS:
    for name, case in t.CASES.items():
        for dtype in ("float32", "float64"):
            for layout in ("nchw", "nhwc"):
                operands = transforming.operands(case, op, dtype, layout)
                truth, magnitude = transforming.truth(case, op, layout, operands)
                limit = oracle.high_bound(magnitude, case.terms(op), dtype)
                got = t._call(case, op, layout, operands)
                oracle.assert_within(got, truth, limit / 3, f"{op} {name} {dtype} {layout}")
print(cyconv.active_isa())
"""


@pytest.mark.parametrize("isa", cyconv.isas())
def test_every_instruction_set(isa, python):
    environment = {"CYCONV_ISA": isa, "PYTHONPATH": Path(__file__).parent}
    assert python(_EVERY_FORM, env=environment, timeout=120).split() == [isa]
