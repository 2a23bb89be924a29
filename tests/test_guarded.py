"""No kernel touches memory that is not its own, or lets what it found in scratch reach a result.

Operands, bias, residual, result and scratch lie flush against inaccessible pages, at either end;
operands are in read-only memory; scratch and results hold NaN before every call. The calls run in
processes of their own, since a stray access kills the process; what it last began is part of the
failure.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import product
from pathlib import Path

import guarded
import numpy as np
import oracle
import pytest
from cases import CASES, FUNCTIONS, Case
from strategies import SAME_ON_EVERY_ISA

import cyconv
from cyconv import binding

COMPILED = ("direct", "im2col", "pointwise", "implicit_gemm", "depthwise", "winograd")
# Those whose inner loops are the microkernels, so that the instruction set matters.
OF_EVERY_ISA = tuple(name for name in COMPILED if name not in SAME_ON_EVERY_ISA)
MAY_REFUSE = ("pointwise", "depthwise", "winograd")
NOT_COMPILED = ("auto", "profile", "autotune", "fft", "reference")
PARALLEL_MACS = 65536  # smaller problems run on one thread whatever is asked

NAMED = """
one one_2d one_pixel_padded two line line_everything line_depthwise line_skip line_long_kernel
plain_bias valid seven even_kernel kernel_is_image kernel_above_image kernel_reads_padding_only
pad_above_kernel_stride pointwise pointwise_stride pointwise_pad_stride pointwise_groups
pointwise_3d stride_2_remainder stride_above_kernel dilation_per_axis dilation_stride_coprime
asymmetric_above_kernel asymmetric_all groups_many depthwise depthwise_24 depthwise_multiplier
depthwise_dilated channels_31_33 many_images one_column_square_kernel wide volume_per_axis
volume_groups volume_depthwise
""".split()  # noqa: SIM905 - a list of one name a line is longer, not clearer

# Channels and widths about whole vectors, strides that leave a rest, images of several blocks.
MORE = {
    "tiles_1x3": "n1 g1 ci8 co24 i5x19 k1x3 s1 p0x1 d1",
    "tiles_3x1": "n1 g1 ci9 co5 i19x5 k3x1 s1 p1x0 d1 bias",
    "tiles_kept": "n1 g1 ci16 co9 i34x39 k3x3 s1 p1 d1",
    "tiles_of_planes": "n1 g1 ci8 co17 i3x6x7 k3x3x3 s1 p1 d1",
    "c1_w1": "n1 g1 ci1 co1 i2x1 k1x1 s1 p0 d1",
    "c3_w3": "n2 g1 ci3 co1 i3x3 k2x2 s2 p1 d1 bias",
    "c7_w4": "n1 g1 ci7 co8 i2x4 k3x3 s1 p1 d1",
    "c8_w5": "n1 g1 ci8 co9 i3x5 k1x3 s1x2 p0x1 d1 bias",
    "c9_w6": "n1 g1 ci9 co7 i4x6 k3x3 s3 p1 d1",
    "c15_w7": "n1 g1 ci15 co16 i3x7 k3x3 s2x1 p1 d1",
    "c16_w8": "n2 g1 ci16 co17 i2x8 k2x2 s1 p0 d1 bias",
    "c17_w9": "n1 g1 ci17 co15 i3x9 k3x3 s1x3 p1 d1x2",
    "c31_w15": "n1 g1 ci31 co3 i2x15 k1x1 s1 p0 d1",
    "c33_w16": "n1 g1 ci33 co31 i2x16 k1x1 s1 p0 d1 bias",
    "c40_w4": "n1 g1 ci40 co33 i3x4 k3x3 s1 p1 d1",
    "c9_w17": "n1 g1 ci9 co33 i2x17 k1x3 s1 p0 d1",
    "one_row_of_three": "n1 g1 ci3 co2 i4x3x5 k1x1x1 s1x3x1 p0 d1 bias",
    "w31": "n1 g3 ci3 co3 i3x31 k3x3 s1 p1 d1",
    "w32": "n1 g3 ci3 co6 i3x32 k3x3 s2 p1 d1 bias",
    "w33": "n1 g3 ci9 co3 i3x33 k2x3 s1x3 p0x2 d1x2",
    "groups_of_7": "n1 g3 ci21 co27 i4x5 k3x3 s1 p1 d1 bias",
    "groups_of_17": "n1 g2 ci34 co34 i3x4 k3x3 s2 p1 d1",
    "depthwise_15": "n1 g15 ci15 co15 i5x9 k3x3 s1 p1 d1 bias",
    "depthwise_17": "n2 g17 ci17 co17 i5x6 k3x3 s2 p1 d1",
    "depthwise_33": "n1 g33 ci33 co33 i4x7 k3x3 s3x1 p2 d1x2",
    "depthwise_line": "n1 g8 ci8 co8 i9 k4 s1 p2 d1",
    "blocks_of_rows": "n2 g1 ci3 co9 i25x41 k3x3 s1 p1 d1 bias",
    "blocks_of_columns": "n1 g1 ci2 co3 i3x1037 k3x3 s1 p1 d1",
    "blocks_of_columns_stride": "n1 g4 ci4 co4 i2x1549 k2x5 s1x3 p1x2 d1",
    "blocks_of_channels": "n1 g70 ci70 co70 i6x130 k3x3 s1 p1 d1",
    "folded": "n1 g1 ci2 co2 i67x65 k2x2 s1 p0 d1",
    "folded_depthwise": "n1 g5 ci5 co5 i67x65 k3x3 s1 p1 d1",
}
PROBLEMS = [CASES[name] for name in NAMED] + [Case.parse(n, text) for n, text in MORE.items()]
WHOLE = (("end", "whole", {}), ("start", "whole", {}))
VIEWS = (("end", "stepped", {"step": 2}), ("end", "sliced", {"margin": 8}))


def _guard_scratch():
    """Give every run scratch of exactly the bytes that it asked for, by turns at either end."""
    turns = 0

    def take(nbytes):
        nonlocal turns
        turns += 1
        lines = -(-nbytes // 64) * 64  # kernels may rely on the cache line
        return guarded.empty(lines, np.uint8, guarded.SIDES[turns % 2])

    binding.take, binding.give = take, lambda buffer: None


@cache
def _truth(case, op, dtype):
    a, b, bias, shape = case.operands(op, dtype)
    third = bias if op == "fwd" else shape
    size = None if bias is None else abs(bias)
    run = oracle.OPERATORS[op]
    truth = run(a, b, third, **case.arguments)
    magnitude = run(abs(a), abs(b), size if op == "fwd" else shape, **case.arguments)
    if op == "fwd":
        residual = _residual(case, dtype)
        truth, magnitude = truth + residual, magnitude + abs(residual)
    return truth, magnitude


def _residual(case, dtype, layout="nchw"):
    first = np.random.default_rng(1).standard_normal(case.y_shape()).astype(dtype)
    return np.ascontiguousarray(oracle.to_layout(first, layout))


def _calls(case, forms):
    """Every operator on guarded operands: (name, operator, type, layout, arguments, keywords)."""
    for op, dtype, layout in product(FUNCTIONS, ("float32", "float64"), ("nchw", "nhwc")):
        a, b, bias, shape = case.operands(op, dtype, layout)
        for side, form, view in forms:
            if view and dtype == "float64":
                continue  # views are read by one code for both types
            third = shape
            if op == "fwd":
                third = None if bias is None else guarded.copy(bias, side)
            arguments = guarded.copy(a, side, **view), guarded.copy(b, side, **view), third
            result = {"fwd": case.y_shape(layout), "dx": shape, "dw": shape}[op]
            keywords = {
                "layout": oracle.layout_name(layout, case.ndim),
                "out": guarded.empty(result, dtype, side),
                **case.arguments,
            }
            if op == "fwd":
                # This slope leaves all values as they are.
                keywords["activation"] = ("leaky_relu", 1.0)
                keywords["residual"] = guarded.copy(_residual(case, dtype, layout), side)
            name = f"{case.name} {op} {dtype} {layout} {side} {form}"
            yield name, op, dtype, layout, arguments, keywords


def _threads(case):
    macs = np.prod(case.y_shape()) * np.prod(case.w_shape()[1:])
    return (1, 2) if macs >= PARALLEL_MACS else (1,)


def sweep(strategies, forms, journal):
    """Run in the child: every problem by these strategies, the running one named in `journal`."""
    _guard_scratch()
    served = dict.fromkeys(strategies, 0)
    with cyconv.config(strict=True), open(journal, "wb", buffering=0) as file:
        for case in PROBLEMS:
            for name, op, dtype, layout, arguments, keywords in _calls(case, forms):
                truth, magnitude = _truth(case, op, dtype)
                for strategy, threads in product(strategies, _threads(case)):
                    label = f"{name} {strategy} threads={threads}"
                    os.pwrite(file.fileno(), label.ljust(160).encode(), 0)
                    out = keywords["out"]
                    out[...] = np.nan
                    try:
                        FUNCTIONS[op](*arguments, strategy=strategy, threads=threads, **keywords)
                    except cyconv.UnsupportedError:
                        assert strategy in MAY_REFUSE, label
                        continue
                    served[strategy] += 1
                    terms = case.terms(op) + (op == "fwd")
                    limit = oracle.bound_by(strategy, magnitude, terms, dtype)
                    oracle.assert_within(oracle.to_first(out, layout), truth, limit, label)
    assert all(served.values()), f"a strategy served nothing: {served}"


def test_every_compiled_strategy_takes_part():
    assert set(cyconv.strategies()) - set(NOT_COMPILED) == set(COMPILED)


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is POSIX")
@pytest.mark.parametrize("isa", cyconv.isas())
def test_no_access_beyond_the_arrays(isa, python, tmp_path):
    # Views are read by code that all instruction sets share.
    best = isa == cyconv.isas()[0]
    strategies, forms = (COMPILED, WHOLE + VIEWS) if best else (OF_EVERY_ISA, WHOLE)
    journal = str(tmp_path / "journal")
    code = f"import test_guarded; test_guarded.sweep({strategies!r}, {forms!r}, {journal!r})"
    environment = {"CYCONV_ISA": isa, "PYTHONPATH": Path(__file__).parent}
    try:
        python(code, env=environment, timeout=120, arguments=("-X", "faulthandler"))
    except pytest.fail.Exception as failure:
        pytest.fail(f"in {(tmp_path / 'journal').read_text().strip()}\n{failure}")
