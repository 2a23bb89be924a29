"""The tester tested: each fault, planted in a kernel source, is caught by a small problem.

A fault replaces a piece of the source text by another. What it must cause is either a wrong number
or an error of the emulator: a race, a divergent barrier, a wild access, undefined behaviour.
"""

from __future__ import annotations

from typing import NamedTuple

import fakecupy
import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import FUNCTIONS, Case

from cyconv.gpu import families, implicit_gemm, module, tiles

TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

SMALL = "n2 g1 ci5 co6 i9x8 k3x3 s1 p1:2x0:1 d1 bias"
STRIDED = "n1 g1 ci3 co4 i9x10 k3x3 s2x3 p1 d1 bias"
# More than one tile; more steps of depth than stages.
DEEP = "n1 g1 ci40 co72 i9x8 k3x3 s1 p1:2x0:1 d1 bias"
DEPTHWISE = "n1 g5 ci5 co5 i9x8 k3x3 s1 p1:2x0:1 d1 bias"
# With an infinite first weight.
INFINITE = SMALL + " infinite"


class Planted(NamedTuple):
    """A fault, and the call that meets it: strategy, operator, type, layout and problem."""

    what: str
    file: str
    text: str
    instead: str
    call: tuple[str, str, str, str, str]


def _igemm(op, text=SMALL, dtype="f32", layout="nchw"):
    return "implicit_gemm", op, dtype, layout, text


def _tensor(op, dtype="f16", text=DEEP):
    return "implicit_gemm", op, dtype, "nhwc", text


SPLIT = _igemm("dw")
ROWS = ("depthwise", "fwd", "f32", "nchw", "n1 g2 ci2 co2 i20x40 k3x3 s1 p1 d1 bias")

FAULTS = (
    # what all share
    Planted(
        "bias of a neighbour", "gather",
        "bias[channel]",
        "bias[channel % p.co]",
        _igemm("fwd", "n1 g2 ci4 co4 i5 k3 s1 p1 d1 bias"),
    ),
    Planted(
        "bfloat16 cut off", "prims",
        "const unsigned rounded = bits + 0x7fffu + (bits >> 16 & 1u);",
        "const unsigned rounded = bits;",
        ("direct", "fwd", "bf16", "nchw", SMALL),
    ),
    Planted("division", "prims", ">> by.shift", ">> (by.shift + 1)", _igemm("fwd")),
    # direct, sums, depthwise, im2col
    Planted(
        "direct: no remainder", "direct",
        "return rest == 0 && u < p.out[axis] ? u : -1;",
        "return u < p.out[axis] ? u : -1;",
        ("direct", "dx", "f32", "nchw", STRIDED),
    ),
    Planted(
        "direct: no padding", "prims",
        "tap * p.dil[axis] - p.pad[axis];",
        "tap * p.dil[axis];",
        ("direct", "fwd", "f32", "nchw", SMALL),
    ),
    Planted("fold: a part is left out", "sums", "split = 1; split <", "split = 2; split <", SPLIT),
    Planted("fold: step of parts", "sums", "parts[split * n + i]", "parts[split + i]", SPLIT),
    Planted(
        "depthwise: tile read before it is written", "depthwise",
        "exists);\n    __syncthreads();",
        "exists);",
        ROWS,
    ),
    Planted(
        "depthwise: tile too small", "depthwise",
        "copy_tile(tile, height, width,",
        "copy_tile(tile, height - 1, width,",
        ROWS,
    ),
    Planted(
        "depthwise: sums added without a barrier", "depthwise",
        "half /= 2) {\n    __syncthreads();",
        "half /= 2) {",
        ("depthwise", "dw", "f32", "nchw", DEPTHWISE),
    ),
    Planted(
        "depthwise: pairs that do not exist", "depthwise",
        "if (!inside(q2, p.out[2])) continue;",
        "",
        ("depthwise", "dx", "f32", "nhwc", DEPTHWISE),
    ),
    Planted(
        "im2col: another pixel", "columns",
        "i - row * count",
        "i - row * count + 1",
        ("im2col", "fwd", "f32", "nchw", SMALL),
    ),
    # indices of implicit GEMM
    Planted(
        "sign of the padding", "gather",
        "i * p.stride[a] - p.pad[a]",
        "i * p.stride[a] + p.pad[a]",
        _igemm("fwd"),
    ),
    Planted(
        "sign of a phase's dilation", "gather",
        "OP == DATA ? -r * p.dil[a]",
        "OP == DATA ? r * p.dil[a]",
        _igemm("dx", STRIDED),
    ),
    Planted(
        "last axis unchecked", "gather",
        "for (int i = 0; i < 3; i++) {\n    all",
        "for (int i = 0; i < 2; i++) {\n    all",
        _igemm("fwd"),
    ),
    Planted(
        "splits without an end", "gather",
        "depth - part.depth < each ? depth : part.depth + each",
        "depth",
        SPLIT,
    ),
    Planted(
        "parts of another group", "gather",
        "(long long)part.split * p.groups + part.group",
        "(long long)part.split + part.group",
        _igemm("dw", "n2 g2 ci4 co4 i30 k3 s1 p1 d1"),
    ),
    Planted(
        "pairs that do not exist", "gather",
        "OP == DATA && !is_finite(sum)",
        "false",
        _igemm("dx", INFINITE),
    ),
    Planted(
        "fold of pixels: a part is left out", "gather",
        "split = 1; split < splits",
        "split = 2; split < splits",
        _igemm("fwd", DEEP),
    ),
    Planted(
        "fold of pixels: pairs that do not exist", "gather",
        "OP == DATA && !is_finite(sum)",
        "false",
        _tensor("dx", "f16", DEEP + " infinite"),
    ),
    # the ordinary units
    Planted(
        "depth without an end", "igemm",
        "lane < part.lanes && k + b_depth(i) < part.depth_end",
        "lane < part.lanes",
        _igemm("fwd", INFINITE),
    ),
    Planted(
        "lanes without an end", "igemm",
        "lane < part.lanes && k + b_depth(i) < part.depth_end",
        "k + b_depth(i) < part.depth_end",
        _igemm("fwd"),
    ),
    Planted(
        "no barrier before the next buffer", "igemm",
        "keep(buffer ^ 1);\n      __syncthreads();",
        "keep(buffer ^ 1);",
        _igemm("fwd"),
    ),
    Planted(
        "no barrier after the first buffer", "igemm",
        "keep(0);\n  }\n  __syncthreads();",
        "keep(0);\n  }",
        _igemm("fwd"),
    ),
    Planted("stale buffer", "igemm", "keep(buffer ^ 1);", "keep(buffer);", _igemm("fwd")),
    Planted(
        "misaligned vector", "igemm",
        "A a[2][BK][BM + 4];",
        "A a[2][BK][BM + 1];",
        _igemm("fwd"),
    ),
    Planted(
        "sums staged over buffers in use", "igemm",
        "first += 4) {\n    __syncthreads();",
        "first += 4) {",
        _igemm("fwd"),
    ),
    Planted(
        "sums stored before they are staged", "igemm",
        "= four;\n    }\n    __syncthreads();",
        "= four;\n    }",
        _igemm("fwd"),
    ),
    # tensor cores
    Planted(
        "copies not waited for", "tensor",
        "wait_for_copies<STAGES - 2>();",
        "",
        _tensor("fwd"),
    ),
    Planted(
        "the last copies not waited for", "tensor",
        "wait_for_copies<STAGES - 2>();",
        "wait_for_copies<STAGES - 1>();",
        _tensor("fwd"),
    ),
    Planted(
        "no barrier in the loop", "tensor",
        "stage before this one.\n    __syncthreads();",
        "stage before this one.",
        _tensor("fwd"),
    ),
    Planted(
        "copy to the stage in use", "tensor",
        "load((stage + STAGES - 1) % STAGES,",
        "load(stage,",
        _tensor("fwd"),
    ),
    Planted(
        "chunks on top of each other", "tensor",
        "chunk ^ (line >> 1 & 3)",
        "chunk & (line >> 1 & 3)",
        _tensor("fwd"),
    ),
    Planted(
        "fragment of B", "tensor",
        "first + lane % 8 + lane / 16 * 8",
        "first + lane % 16",
        _tensor("fwd", "bf16"),
    ),
    Planted(
        "fragment of A, crossed", "tensor",
        "step * 16 + lane % 8 + lane / 16 * 8",
        "step * 16 + lane % 8 + lane / 8 % 2 * 8",
        _tensor("dw"),
    ),
    Planted(
        "fragment of B, crossed", "tensor",
        "step * 16 + lane % 16",
        "step * 16 + lane % 8 + lane / 16 * 8",
        _tensor("dx"),
    ),
    Planted(
        "fragment of float64", "tensor",
        "a[i] = two.of[0];",
        "a[i] = two.of[1];",
        _tensor("fwd", "f64"),
    ),
    Planted(
        "chunks beyond depth", "tensor",
        "lane < part.lanes && at < part.depth_end",
        "lane < part.lanes",
        _tensor("fwd", "f16", DEEP + " infinite"),
    ),
    Planted(
        "rows of two warps", "tensor",
        "r / ROWS * WM + first + r % ROWS",
        "r",
        _tensor("fwd"),
    ),
)  # fmt: skip


def _wrong(cupy, strategy, op, dtype, layout, text):
    """Run a call; an AssertionError if its result is wrong."""
    infinite = text.endswith(" infinite")
    case = Case.parse("fault", text.removesuffix(" infinite"))
    a, b, bias, shape = case.operands(op, TYPES[dtype], layout)
    if infinite:
        b.flat[0] = np.inf
    third = bias if op == "fwd" else shape
    right = oracle.OPERATORS[op](a, b, third, **case.arguments, layout=layout)
    size = np.abs(right[np.isfinite(right)]).max()
    given = third if op != "fwd" or third is None else cupy.asarray(third)
    got = FUNCTIONS[op](
        cupy.asarray(a), cupy.asarray(b), given, **case.arguments, strategy=strategy,
        layout=oracle.layout_name(layout, case.ndim),
    )  # fmt: skip
    # Coarse: a fault is no matter of rounding, but for that of bfloat16.
    unit = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-3, "bf16": 2.0**-8}[dtype]
    oracle.assert_within(got.get().astype(right.dtype), right, unit * size, text)


@pytest.fixture
def planted(cupy, monkeypatch):
    """Plant a fault: (file, text, instead)."""
    monkeypatch.setattr(implicit_gemm, "_FEWEST_PIXELS", 8)
    # Sums of "deep" problems are split, as if folds cost nothing.
    monkeypatch.setattr(tiles, "fold_seconds", lambda *_: 0.0)
    # One large tile, whose rows are of two warps each, for the half types.
    large = families.TENSOR["f16"]
    monkeypatch.setitem(families.TENSOR, "f16", large._replace(tiles=large.tiles[1:]))
    original = module.source

    def plant(file, text, instead):
        def source(files):
            whole = original(files)
            if file not in files:
                return whole
            assert text in whole, f"{file}.cuh has no such text"
            return whole.replace(text, instead)

        monkeypatch.setattr(module, "source", source)
        module._function.cache_clear()

    yield plant
    module._function.cache_clear()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_caught(cupy, planted, fault):
    planted(fault.file, fault.text, fault.instead)
    with pytest.raises((AssertionError, fakecupy.EmulatedCudaError)) as caught:
        _wrong(cupy, *fault.call)
    assert "no such text" not in str(caught.value)


@pytest.mark.parametrize("call", sorted({fault.call for fault in FAULTS}), ids=" ".join)
def test_without_a_fault(cupy, planted, call):
    _wrong(cupy, *call)
