"""Every strategy x every named problem x three operators x both layouts x both types, against the
oracle.

A named strategy runs under ``config(strict=True)``, so that a fallback cannot hide: it must
compute the result itself, or refuse exactly where `REFUSES` says that it does.
"""

from __future__ import annotations

import warnings
from functools import cache
from itertools import product

import numpy as np
import oracle
import pytest
from cases import CASES, FUNCTIONS, string

import cyconv

LAYOUTS = ("nchw", "nhwc")
TYPES = {"float32": "f32", "float64": "f64"}


def _pointwise(case, op):
    return set(case.kernel) != {1} or any(map(any, case.padding))


def _depthwise(case, op):
    """Groups of over 32 channels, and the data gradient of strides with more than 64 phases."""
    many = max(case.c_in, case.c_out) // case.groups > 32
    return many or (op == "dx" and int(np.prod(case.stride)) > 64)


def _winograd(case, op):
    """Kernels other than 3 along the last axis (or the last but one of kernel 1), and steps."""
    kernel = (1, *case.kernel)
    tiled = kernel[-1] == 3 or kernel[-2:] == (3, 1)
    return not tiled or set(case.stride) != {1}


def _fft(case, op):
    return set(case.kernel) == {1}


def _nothing(case, op):
    return False


REFUSES = {
    "direct": _nothing,
    "fft": _fft,
    "implicit_gemm": _nothing,
    "im2col": _nothing,
    "reference": _nothing,
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "winograd": _winograd,
}


@cache
def _truth(name, op, dtype):
    """Oracle and sum of |a||b|, both in NCHW."""
    case = CASES[name]
    a, b, bias, shape = case.operands(op, dtype)
    magnitude_bias = None if bias is None else np.abs(bias)
    if op == "fwd":
        return (
            oracle.forward(a, b, bias, **case.arguments),
            oracle.forward(abs(a), abs(b), magnitude_bias, **case.arguments),
        )
    run = oracle.OPERATORS[op]
    return run(a, b, shape, **case.arguments), run(abs(a), abs(b), shape, **case.arguments)


def _call(case, op, dtype, layout, **keywords):
    a, b, bias, shape = case.operands(op, dtype, layout)
    third = bias if op == "fwd" else shape
    name = oracle.layout_name(layout, case.ndim)
    return FUNCTIONS[op](a, b, third, layout=name, **case.arguments, **keywords)


def _limit(case, op, dtype, strategy, truth, magnitude):
    if strategy == "direct":
        return oracle.direct_bound(truth, magnitude, case.terms(op), dtype)
    return oracle.bound_by(strategy, magnitude, case.terms(op), dtype)


def test_every_strategy_has_a_row_in_the_table(strategy):
    assert strategy in REFUSES, "say what it refuses"


def test_the_strategies_of_the_contract_exist():
    assert {"direct", "im2col", "pointwise", "reference"} <= set(cyconv.strategies())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_named(op, strategy, layout, name):
    case = CASES[name]
    for dtype in TYPES:
        with cyconv.config(strict=True):
            if REFUSES[strategy](case, op):
                with pytest.raises(cyconv.UnsupportedError, match=strategy):
                    _call(case, op, dtype, layout, strategy=strategy)
                continue
            got = _call(case, op, dtype, layout, strategy=strategy)
        truth, magnitude = _truth(name, op, dtype)
        assert got.dtype == dtype
        limit = _limit(case, op, dtype, strategy, truth, magnitude)
        text = string(name, op, TYPES[dtype], layout)
        oracle.assert_within(oracle.to_first(got, layout), truth, limit, text)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_automatic(op, name):
    """The choice is free; the bound of "highest" holds, with one thread and with two."""
    case = CASES[name]
    for dtype, layout, threads in product(TYPES, LAYOUTS, (1, 2)):
        truth, magnitude = _truth(name, op, dtype)
        limit = oracle.bound(magnitude, case.terms(op), dtype)
        with cyconv.config(precision="highest"):
            got = _call(case, op, dtype, layout, threads=threads)
        assert got.dtype == dtype
        text = f"{string(name, op, TYPES[dtype], layout)}, {threads} threads"
        oracle.assert_within(oracle.to_first(got, layout), truth, limit, text)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_plan_of_the_problem_string(op, name, strategy):
    """plan(problem) falls back to direct where the table says so, records why, and computes the
    same.
    """
    case = CASES[name]
    for layout in LAYOUTS:
        plan = _plan(string(name, op, "f32", layout), strategy)
        if REFUSES[strategy](case, op):
            assert plan.strategy == "direct"
            assert plan.refusals[strategy]
        else:
            assert plan.strategy == strategy
            assert strategy not in plan.refusals
        a, b, bias, _ = case.operands(op, "float32", layout)
        got = plan(a, b, bias) if op == "fwd" else plan(a, b)
        truth, magnitude = _truth(name, op, "float32")
        limit = _limit(case, op, "float32", plan.strategy, truth, magnitude)
        oracle.assert_within(oracle.to_first(got, layout), truth, limit, f"{name} {layout}")


def _plan(text, strategy):
    with cyconv.config(strategy=strategy):
        return cyconv.plan(cyconv.ConvProblem.parse(text))


@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_bound_can_fail(op):
    """One wrong tap, or accumulation in half precision, is far outside the bound."""
    case = CASES["plain"]
    truth, magnitude = _truth("plain", op, "float32")
    limit = oracle.bound(magnitude, case.terms(op), "float32")
    wrong = truth.astype("float32")
    oracle.assert_within(wrong, truth, limit)
    with pytest.raises(AssertionError, match="out of bound"):
        oracle.assert_within(truth.astype("float16").astype("float32"), truth, limit)
    wrong.flat[wrong.size // 2] += 1e-3
    with pytest.raises(AssertionError, match="1 of"):
        oracle.assert_within(wrong, truth, limit)


def _poisoned(name, op, dtype, where, value):
    """One non-finite value in the first or second operand; a third of the other operand is zero."""
    a, b, bias, shape = CASES[name].operands(op, dtype)
    victim, other = (a, b) if where == 0 else (b, a)
    other.flat[::3] = 0
    victim.flat[victim.size // 2] = value
    return a, b, bias, shape


@cache
def _poisoned_truth(name, op, dtype, where, value):
    """Oracle and bound, both in NCHW."""
    case = CASES[name]
    a, b, bias, shape = _poisoned(name, op, dtype, where, value)
    run = oracle.OPERATORS[op]
    truth = run(a, b, bias if op == "fwd" else shape, **case.arguments)
    sizes = (abs(np.nan_to_num(v, posinf=0, neginf=0)) for v in (a, b))
    magnitude = run(*sizes, None if op == "fwd" else shape, **case.arguments) + 4
    return truth, oracle.bound(magnitude, case.terms(op), dtype)


POISONED = (
    "plain_bias",
    "asymmetric_all",
    "pad_above_kernel",
    "pointwise_pad",
    "one_pixel_padded",
    "stride_2_remainder",
    "dilation_stride",
    "depthwise",
    "line_everything",
    "volume_high_pad",
    "pointwise_stride",
    "kernel_reads_padding_only",
    "channels_31_33",
    "one",
    "pointwise",
    "two",
)


@pytest.mark.parametrize("where", [0, 1], ids=("first", "second"))
@pytest.mark.parametrize("name", POISONED)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_non_finite_values_go_where_the_definition_puts_them(op, name, where, any_strategy):
    """Padding is zeros that take part; zeros of the data too; data backward adds only pairs that
    exist.
    """
    case = CASES[name]
    for dtype, layout, value in product(TYPES, LAYOUTS, (np.nan, np.inf, -np.inf)):
        a, b, bias, _ = _poisoned(name, op, dtype, where, value)
        a, b = (np.ascontiguousarray(oracle.to_layout(v, layout)) for v in (a, b))
        third = {"fwd": bias, "dx": case.x_shape(layout), "dw": case.w_shape(layout)}[op]
        keywords = dict(layout=oracle.layout_name(layout, case.ndim), **case.arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = FUNCTIONS[op](a, b, third, strategy=any_strategy, **keywords)
        truth, limit = _poisoned_truth(name, op, dtype, where, value)
        text = f"{name} {dtype} {layout} {value}"
        oracle.assert_within(oracle.to_first(got, layout), truth, limit, text)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ["plain_bias", "groups", "pointwise", "volume", "line_stride"])
def test_subnormal_data(op, name, any_strategy, layout):
    """Fast strategies may flush (error at most K * 2**-126); direct and reference never do."""
    case = CASES[name]
    a, b, _bias, shape = case.operands(op, "float32", layout)
    a *= np.float32(1e-40)
    third = None if op == "fwd" else shape
    keywords = dict(layout=layout, **case.arguments)
    truth = oracle.OPERATORS[op](a, b, third, **keywords)
    magnitude = oracle.OPERATORS[op](abs(a), abs(b), third, **keywords)
    keywords["layout"] = oracle.layout_name(layout, case.ndim)
    limit = oracle.bound(magnitude, case.terms(op), "float32")
    got = FUNCTIONS[op](a, b, third, strategy=any_strategy, **keywords)
    oracle.assert_within(got, truth, limit * np.maximum(1, abs(b).max()), name)
    exact = limit - case.terms(op) * 2.0**-126 + 2.0**-148 * case.terms(op)
    with cyconv.config(flush_subnormals=False):
        kept = FUNCTIONS[op](a, b, third, strategy=any_strategy, **keywords)
        oracle.assert_within(kept, truth, exact, "flush_subnormals=False")
    if any_strategy in ("direct", "reference"):
        oracle.assert_within(got, truth, exact, f"{any_strategy} flushed")
    assert np.float32(1e-42) * np.float32(1) != 0, "the flush mode leaked"
