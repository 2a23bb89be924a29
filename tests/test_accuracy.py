"""The error bound of every strategy on data that is hard to sum: cancellation, scales far apart,
thousands of terms of one sign.

The bound of each element is that of `test_algorithms`: gamma_{K+1} times its own sum of |a||b|, so
that small elements beside large ones must be as right as these.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import oracle
import pytest
from cases import FUNCTIONS, Case
from test_algorithms import LAYOUTS, REFUSES, TYPES, _limit

import cyconv

PROBLEMS = {
    "dense": "n2 g1 ci32 co16 i12x13 k3x3 s1 p1 d1",
    "strided": "n2 g1 ci16 co24 i11x10 k3x3 s2 p1 d1",
    "pointwise": "n2 g1 ci64 co32 i6x7 k1x1 s1 p0 d1",
    "grouped": "n2 g4 ci32 co16 i9x9 k3x3 s1 p1 d1",
    "depthwise": "n2 g16 ci16 co16 i14x15 k3x3 s1 p1 d1",
    "line": "n2 g1 ci4 co6 i200 k64 s1 p32 d1",
    "volume": "n2 g1 ci6 co8 i5x6x7 k3x3x3 s1 p1 d1",
    # thousands of terms: 36,864 forward, as many in the data gradient, 8,192 in the weight gradient
    "in_4096": "n1 g1 ci4096 co4 i4x4 k3x3 s1 p1 d1",
    "out_4096": "n1 g1 ci4 co4096 i4x4 k3x3 s1 p1 d1",
    "pixels_8192": "n2 g1 ci2 co4 i64x64 k3x3 s1 p1 d1",
}
CASES = {name: Case.parse(name, text) for name, text in PROBLEMS.items()}


def _positive(case, op, a, b, rng):
    """No cancellation, so that roundings of one direction add up."""
    return abs(a), abs(b)


def _cancelling(case, op, a, b, rng):
    """Every product beside its negative, but for a thousandth."""
    a, b = a.copy(), b.copy()
    if op == "dw":  # summed over images: the second has dy negated
        a[1:], b[1:] = a[:1], -b[:1]
    elif op == "dx" and case.c_out > case.groups:  # over output channels
        half = case.c_out // case.groups // 2
        first, second = _halves(case.c_out, case.groups, half)
        a[:, second], b[second] = a[:, first], -b[first]
    elif op == "fwd" and case.c_in > case.groups:  # over input channels
        half = case.c_in // case.groups // 2
        first, second = _halves(case.c_in, case.groups, half)
        a[:, second] = a[:, first]
        b[:, half : 2 * half] = -b[:, :half]
    else:  # depthwise: over taps that see a constant row
        a[...] = a[..., :1]
        b -= b[..., ::-1]
    return a + 1e-3 * rng.standard_normal(a.shape), b


def _halves(channels, groups, half):
    """Indices of the first and the second half of every group's channels."""
    inner = np.arange(channels).reshape(groups, -1)
    return inner[:, :half].ravel(), inner[:, half : 2 * half].ravel()


def _mixed(case, op, a, b, rng):
    """Each value by itself 1e-17, 1 or 1e17 times what it was."""
    scales = np.array([1e-17, 1.0, 1e17])
    return a * rng.choice(scales, a.shape), b * rng.choice(scales, b.shape)


DATA = {
    "positive": _positive,
    "cancelling": _cancelling,
    "mixed": _mixed,
    "huge by tiny": lambda case, op, a, b, rng: (a * 1e20, b * 1e-20),
    "tiny by huge": lambda case, op, a, b, rng: (a * 1e-20, b * 1e20),
}


@cache
def _operands(name, op, data, dtype):
    """Both operands in NCHW, the shape of a gradient, the oracle and the sum of |a||b|."""
    case = CASES[name]
    if data == "cancelling" and op == "dw" and case.batch == 1:
        return None
    a, b, _, shape = case.operands(op, "float64")
    hard = DATA[data](case, op, a, b, np.random.default_rng(0))
    a, b = (v.astype(dtype) for v in hard)
    run = oracle.OPERATORS[op]
    return a, b, run(a, b, shape, **case.arguments), run(abs(a), abs(b), shape, **case.arguments)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_hard_sums_are_within_the_bound(op, name, data, any_strategy):
    case = CASES[name]
    if any_strategy != "auto" and REFUSES[any_strategy](case, op):
        return
    for dtype, layout in product(TYPES, LAYOUTS):
        given = _operands(name, op, data, dtype)
        if given is None:
            continue
        a, b, truth, magnitude = given
        a, b = (np.ascontiguousarray(oracle.to_layout(v, layout)) for v in (a, b))
        third = {"fwd": None, "dx": case.x_shape(layout), "dw": case.w_shape(layout)}[op]
        keywords = {"layout": oracle.layout_name(layout, case.ndim), "strategy": any_strategy}
        # A named strategy is judged by its own bound, so it must be the one that runs.
        precision = "highest" if any_strategy == "auto" else "high"
        with cyconv.config(precision=precision, strict=True):
            got = FUNCTIONS[op](a, b, third, **case.arguments, **keywords)
        limit = _limit(case, op, dtype, any_strategy, truth, magnitude)
        text = f"{op} {dtype} {layout} {PROBLEMS[name]}, {data}"
        oracle.assert_within(oracle.to_first(got, layout), truth, limit, text)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_the_cancelling_data_cancels(name, op):
    """The sums are a small part of what is summed, so that a bound of the largest would not do."""
    given = _operands(name, op, "cancelling", "float64")
    if given is not None:
        _, _, truth, magnitude = given
        assert np.median(abs(truth) / magnitude) < 0.02
