"""Every strategy of the GPU x every named problem x three operators x both layouts x four types,
executed on the CPU emulator, against the oracle.

The emulator runs each launch under three schedules, which must agree bit for bit, with arrays
between inaccessible pages; see fakecupy.py.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import CASES, FUNCTIONS, string

import cyconv
from cyconv.gpu.strategies import GPU

LAYOUTS = ("nchw", "nhwc")
TYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
STRATEGIES = tuple(strategy.name for strategy in GPU)


def _nothing(case, op):
    return False


def _phases(case, op):
    return op == "dx" and int(np.prod(case.stride)) > 64


def _depthwise(case, op):
    return case.c_in != case.groups or _phases(case, op)


# What a strategy refuses; named and strict, it must compute all else itself.
REFUSES = {
    "depthwise": _depthwise,
    "direct": _nothing,
    "im2col": _phases,
    "implicit_gemm": _nothing,
}


def test_every_strategy_has_a_row_in_the_table():
    assert set(REFUSES) == set(STRATEGIES)


@cache
def _truth(name, op, dtype):
    """Oracle and sum of |a||b|, both in NCHW."""
    case = CASES[name]
    a, b, bias, shape = case.operands(op, TYPES[dtype])
    run = oracle.OPERATORS[op]
    third = bias if op == "fwd" else shape
    absolute = third if op != "fwd" or bias is None else abs(bias)
    return run(a, b, third, **case.arguments), run(abs(a), abs(b), absolute, **case.arguments)


def _limit(case, op, dtype, strategy, truth, magnitude):
    """The strategy's bound in the type of its sums, and the one rounding of a half type."""
    if dtype in ("f32", "f64"):
        if strategy == "direct":
            return oracle.direct_bound(truth, magnitude, case.terms(op), TYPES[dtype])
        return oracle.bound_by(strategy, magnitude, case.terms(op), TYPES[dtype])
    sums = oracle.bound(magnitude, case.terms(op), np.float32)
    smallest = 2.0**-25 if dtype == "f16" else 0
    return sums + oracle.UNIT[TYPES[dtype].name] * (np.abs(truth) + sums) + smallest


def _call(cupy, case, op, dtype, layout, **keywords):
    a, b, bias, shape = case.operands(op, TYPES[dtype], layout)
    third = shape if op != "fwd" else None if bias is None else cupy.asarray(bias)
    name = oracle.layout_name(layout, case.ndim)
    return FUNCTIONS[op](
        cupy.asarray(a), cupy.asarray(b), third, layout=name, **case.arguments, **keywords
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("gpu_strategy", STRATEGIES)
def test_named(cupy, gpu_strategy, op, name):
    case = CASES[name]
    for dtype in TYPES:
        for layout in LAYOUTS:
            with cyconv.config(strict=True):
                if REFUSES[gpu_strategy](case, op):
                    with pytest.raises(cyconv.UnsupportedError, match=gpu_strategy):
                        _call(cupy, case, op, dtype, layout, strategy=gpu_strategy)
                    continue
                got = _call(cupy, case, op, dtype, layout, strategy=gpu_strategy)
            assert isinstance(got, cupy.ndarray)
            assert got.dtype == TYPES[dtype]
            truth, magnitude = _truth(name, op, dtype)
            limit = _limit(case, op, dtype, gpu_strategy, truth, magnitude)
            values = oracle.to_first(got.get(), layout).astype(truth.dtype)
            oracle.assert_within(values, truth, limit, string(name, op, dtype, layout))
