"""ConvProblem: the string and back, validation, sizes and counts."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import oracle
import pytest
from cases import CASES, GEOMETRY, string
from hypothesis import given, settings
from hypothesis import strategies as st

import cyconv
from cyconv import ConvProblem

OPERATORS, TYPES, LAYOUTS = ("fwd", "dx", "dw"), ("f32", "f64", "f16", "bf16"), ("nchw", "nhwc")


@st.composite
def texts(draw):
    """Problem strings in canonical form: equal values on all axes are written once."""
    ndim = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))
    channels = groups * draw(st.integers(1, 9)), groups * draw(st.integers(1, 9))
    axes = []
    for _ in range(ndim):
        kernel, stride, dilation = (draw(st.integers(1, n)) for n in (5, 4, 3))
        pad = draw(st.integers(0, 6)), draw(st.integers(0, 6))
        least = max(1, oracle.extent(kernel, dilation) - sum(pad))
        axes.append((draw(st.integers(least, least + 40)), kernel, stride, pad, dilation))
    size, kernel, stride, padding, dilation = zip(*axes, strict=True)
    op = draw(st.sampled_from(OPERATORS))

    def once(values):
        return "x".join(values if len(set(values)) > 1 else values[:1])

    pads = tuple(str(lo) if lo == hi else f"{lo}:{hi}" for lo, hi in padding)
    tokens = [
        op,
        draw(st.sampled_from(TYPES)),
        draw(st.sampled_from(LAYOUTS)),
        f"n{draw(st.integers(1, 70))}",
        f"g{groups}",
        f"ci{channels[0]}",
        f"co{channels[1]}",
        "i" + "x".join(map(str, size)),
        "k" + "x".join(map(str, kernel)),
        "s" + once(tuple(map(str, stride))),
        "p" + once(pads),
        "d" + once(tuple(map(str, dilation))),
    ]
    return " ".join(tokens + (["bias"] if op == "fwd" and draw(st.booleans()) else []))


@settings(max_examples=300, deadline=None)
@given(texts())
def test_round_trip(text):
    problem = ConvProblem.parse(text)
    assert str(problem) == text
    again = ConvProblem.parse(str(problem))
    assert again == problem
    assert hash(again) == hash(problem)
    assert pickle.loads(pickle.dumps(problem)) == problem


@settings(max_examples=200, deadline=None)
@given(texts(), st.randoms())
def test_any_difference_is_a_difference(text, random):
    """Changing one token changes equality: nothing of the string is ignored."""
    tokens = text.split()
    at = random.randrange(3, 7)
    tokens[at] = tokens[at].rstrip("0123456789") + str(int(tokens[at].lstrip("ngcio")) * 2)
    try:
        other = ConvProblem.parse(" ".join(tokens))
    except ValueError:
        return
    assert other != ConvProblem.parse(text)
    assert str(other) != text


def test_the_example_of_the_contract():
    problem = ConvProblem.parse("fwd f32 nchw n8 g1 ci64 co96 i56x56 k3x3 s1 p1 d1")
    assert (problem.op, problem.batch, problem.groups, problem.c_in, problem.c_out) == (
        "fwd",
        8,
        1,
        64,
        96,
    )
    assert (problem.layout, problem.dtype, problem.ndim, problem.has_bias) == (
        "nchw",
        "f32",
        2,
        False,
    )
    assert tuple(problem.out_size)[-2:] == (56, 56)
    assert problem.x_shape == (8, 64, 56, 56)
    assert problem.w_shape == (96, 64, 3, 3)
    assert problem.y_shape == (8, 96, 56, 56)
    assert problem.macs == 8 * 96 * 64 * 9 * 56 * 56
    assert problem.flop == 2 * problem.macs


@pytest.mark.parametrize("name", CASES)
def test_named_problems(name):
    """Shapes, sizes and counts of every named problem, in both layouts; the bench files' strings
    parse.
    """
    case = CASES[name]
    for op in OPERATORS:
        for layout in LAYOUTS:
            problem = ConvProblem.parse(string(name, op, "f64", layout))
            assert problem.x_shape == case.x_shape(layout)
            assert problem.w_shape == case.w_shape(layout)
            assert problem.y_shape == case.y_shape(layout)
            assert problem.ndim == case.ndim
            assert tuple(problem.out_size)[-case.ndim :] == case.out_size
            assert problem.has_bias == (case.has_bias and op == "fwd")
            taps = math.prod(case.kernel) * case.c_in // case.groups * case.c_out
            assert problem.macs == case.batch * taps * math.prod(case.out_size)


def test_the_named_problems_differ():
    assert len(set(GEOMETRY.values())) == len(GEOMETRY)
    assert 60 <= len(GEOMETRY) <= 100


def test_one_number_stands_for_all_axes():
    short = ConvProblem.parse("dw f16 nhwc n1 g1 ci2 co3 i9x9x9 k3x3x3 s2 p1 d1")
    long = ConvProblem.parse("dw f16 nhwc n1 g1 ci2 co3 i9x9x9 k3x3x3 s2x2x2 p1:1x1:1x1:1 d1x1x1")
    assert short == long
    assert str(long) == str(short)


def test_frozen_and_compared_by_value():
    problem = ConvProblem.parse(string("plain"))
    with pytest.raises((AttributeError, TypeError)):
        problem.batch = 3
    assert problem == ConvProblem.parse(string("plain"))
    assert problem != ConvProblem.parse(string("plain", layout="nhwc"))
    assert problem != ConvProblem.parse(string("plain", dtype="f64"))
    assert problem != ConvProblem.parse(string("plain", op="dx"))
    assert len({problem, ConvProblem.parse(string("plain"))}) == 1


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("op", "bwd", ValueError),
        ("groups", 0, ValueError),
        ("groups", 3, ValueError),
        ("batch", -1, ValueError),
        ("layout", "chwn", ValueError),
        ("dtype", "i32", ValueError),
    ],
)
def test_validated_on_construction(field, value, kind):
    problem = ConvProblem.parse("fwd f32 nchw n2 g2 ci4 co6 i7x6 k3x3 s1 p1 d1")
    assert dataclasses.replace(problem) == problem
    with pytest.raises(kind, match=field):
        dataclasses.replace(problem, **{field: value})


def test_an_impossible_geometry_is_a_shape_error():
    for text in ("i2x2 k3x3 s1 p0 d1", "i5x5 k3x3 s1 p0 d3", "i5x0 k3x3 s1 p1 d1"):
        with pytest.raises(cyconv.ShapeError):
            ConvProblem.parse("fwd f32 nchw n1 g1 ci1 co1 " + text)
    rescued = ConvProblem.parse("fwd f32 nchw n1 g1 ci1 co1 i5x0 k3x3 s1 p2 d1")
    assert tuple(rescued.out_size)[-2:] == (7, 2)


def test_sizes_do_not_overflow():
    """Counts are Python integers; sizes beyond 64 bits are refused, not wrapped."""
    problem = ConvProblem.parse("fwd f32 nchw n1000000 g1 ci1000000 co1000000 i1000000 k1 s1 p0 d1")
    assert problem.macs == 10**24
    with pytest.raises((ValueError, OverflowError, MemoryError)):
        ConvProblem.parse(f"fwd f32 nchw n1 g1 ci1 co1 i{2**70} k1 s1 p0 d1")


def test_explain_takes_arrays_or_shapes():
    x, w = np.ones((2, 3, 9, 8), "f4"), np.ones((4, 3, 3, 3), "f4")
    given_arrays, given_shapes = (
        cyconv.explain(x, w, padding=1),
        cyconv.explain(x.shape, w.shape, padding=1),
    )
    assert given_arrays.flop == given_shapes.flop == 2 * 2 * 4 * 72 * 27
    assert given_arrays.strategy in cyconv.strategies()
    assert given_arrays.reason
    table = str(given_arrays)
    assert len(table.splitlines()) > len(given_arrays.candidates)
    for name in cyconv.strategies():
        assert name in table
    y = (2, 4, 9, 8)
    assert (
        cyconv.explain(y, w.shape, x.shape, operator="data_backward", padding=1).flop
        == given_arrays.flop
    )
    assert (
        cyconv.explain(x.shape, y, w.shape, operator="weight_backward", padding=1).flop
        == given_arrays.flop
    )
    assert cyconv.explain(y, w.shape, operator="transposed", padding=1).flop > 0
