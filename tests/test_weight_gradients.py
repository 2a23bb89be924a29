"""Weight gradients of `implicit_gemm` on threads: how the work is shared, and the same bits."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from cases import Case

import cyconv
from cyconv.binding import natural_strides
from cyconv.kernels import _implicit_gemm
from cyconv.kernels._geometry import Geometry

# Few filters, whose blocks of pixels are cut into segments, and many, which are units enough.
FEW = {
    "pointwise": "n3 g1 ci32 co16 i40x40 k1x1 s1 p0 d1",
    "one_filter": "n2 g1 ci5 co1 i70x33 k1x1 s1 p0 d1",
    "image": "n2 g1 ci3 co19 i61x47 k3x3 s2 p1 d1",
    "ragged": "n1 g1 ci10 co20 i67x41 k3x2 s1 p1x0 d2x1",
    "groups": "n2 g3 ci21 co9 i40x31 k1x1 s1 p0 d1",
    "signal": "n1 g1 ci12 co17 i5000 k3 s1 p1 d1",
    "volume": "n2 g1 ci6 co6 i9x14x12 k1x3x1 s1 p0 d1",
}
MANY = {
    "wide": "n2 g1 ci40 co130 i23x21 k3x3 s1 p1 d1",
    "deep": "n1 g1 ci170 co9 i25x25 k3x3 s1 p1 d1",
    "one_block": "n1 g1 ci8 co8 i9x9 k1x1 s1 p0 d1",
}
CASES = {name: Case.parse(name, text) for name, text in (FEW | MANY).items()}
LIMIT = 2**26


def _tasks(name, layout, threads, limit=LIMIT):
    problem = cyconv.ConvProblem.parse(f"dw f32 {layout} {(FEW | MANY)[name]}")
    return _implicit_gemm.gradient_tasks(
        Geometry(problem, *natural_strides(problem)), limit, threads
    )


def _assert_right(got, name, dtype, layout):
    case = CASES[name]
    x, dy, _, shape = case.operands("dw", dtype, layout)
    truth, magnitude = (
        oracle.weight_backward(*pair, shape, layout=layout, **case.arguments)
        for pair in ((x, dy), (abs(x), abs(dy)))
    )
    count = oracle.terms("dw", x.shape, shape, dy.shape, layout=layout)
    oracle.assert_within(got, truth, oracle.bound(magnitude, count, dtype), name)


def _gradient(name, dtype, layout, threads, limit=LIMIT):
    case = CASES[name]
    x, dy, _, shape = case.operands("dw", dtype, layout)
    keywords = dict(case.arguments, layout=oracle.layout_name(layout, case.ndim), threads=threads)
    with cyconv.config(workspace_limit=limit, strict=True):
        return cyconv.conv_weight_backward(x, dy, shape, strategy="implicit_gemm", **keywords)


@pytest.mark.parametrize("name", FEW)
def test_few_filters_are_cut_into_segments(name, layout):
    one, two = _tasks(name, layout, 1), _tasks(name, layout, 2)
    assert one[0] == two[0] > 1
    assert one[2] == 1
    assert two[2] == 2


@pytest.mark.parametrize("name", MANY)
def test_many_filters_are_shared(name, layout):
    assert _tasks(name, layout, 1) == (1, 1, 1)
    if name != "one_block":
        segments, splits, workers = _tasks(name, layout, 2)
        assert segments == 1
        assert splits > 1
        assert workers == 2


@pytest.mark.parametrize("name", CASES)
def test_right_and_equal_on_any_number_of_threads(name, dtype, layout):
    got = _gradient(name, dtype, layout, 1)
    _assert_right(got, name, dtype, layout)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(got, _gradient(name, dtype, layout, threads))


@pytest.mark.parametrize("name", ["pointwise", "image", "wide", "signal"])
def test_little_memory(name, layout):
    """A limit may take segments away, and with them the bits; never more threads than fit."""
    limit = 100_000
    got = _gradient(name, np.float32, layout, 1, limit)
    _assert_right(got, name, np.float32, layout)
    for threads in (2, 7):
        np.testing.assert_array_equal(got, _gradient(name, np.float32, layout, threads, limit))
