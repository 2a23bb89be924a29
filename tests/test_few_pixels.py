"""`implicit_gemm` turned round: filters as rows and few pixels as lanes give the same bits."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from cases import Case

import cyconv
from cyconv.binding import natural_strides
from cyconv.kernels import _implicit_gemm
from cyconv.kernels._geometry import Geometry

# Panels of one and two vectors, tasks that end within a tile, more depth than a block, slabs.
GEOMETRY = {
    "one_pixel": "n1 g1 ci9 co70 i1x1 k1x1 s1 p0 d1",
    "in_place": "n1 g1 ci470 co200 i7x7 k1x1 s1 p0 d1",
    "padded": "n1 g1 ci53 co197 i7x7 k3x3 s1 p1 d1",
    "strided": "n3 g1 ci12 co130 i7x5 k3x3 s2 p1:0 d1",
    "dilated": "n1 g1 ci12 co96 i6x4 k3x2 s1 p2x1 d2x3",
    "images": "n4 g1 ci20 co260 i4x4 k1x1 s1 p0 d1",
    "groups": "n2 g2 ci8 co144 i3x3 k3x3 s1 p1 d1",
    "signal": "n2 g1 ci7 co96 i12 k3 s1 p1 d1",
    "plane_of_a_volume": "n1 g1 ci4 co80 i3x4x4 k3x3x3 s1 p0x1x1 d1",
}
CASES = {name: Case.parse(name, text) for name, text in GEOMETRY.items()}


def _turned(case, layout, limit=2**30):
    problem = cyconv.ConvProblem.parse(f"fwd f32 {layout} {GEOMETRY[case.name]}")
    return _implicit_gemm.is_turned(Geometry(problem, *natural_strides(problem)), limit, 1)


@pytest.mark.parametrize("name", CASES)
def test_equals_packed_filters(name, dtype, layout):
    case = CASES[name]
    assert _turned(case, layout)
    x, w, bias, _ = case.operands("fwd", dtype, layout)
    bias = np.linspace(-1, 1, case.w_shape()[0], dtype=x.dtype)
    keywords = dict(
        case.arguments, layout=oracle.layout_name(layout, case.ndim), strategy="implicit_gemm"
    )
    got = cyconv.conv_forward(x, w, bias, **keywords)
    packed = cyconv.prepare(w, bias, **keywords)(x)
    np.testing.assert_array_equal(got, packed)
    residual = np.random.default_rng(0).standard_normal(got.shape).astype(x.dtype)
    finished = cyconv.conv_forward(
        x, w, bias, residual=residual, activation="relu", threads=2, **keywords
    )
    np.testing.assert_array_equal(finished, np.maximum(got + residual, 0))


def test_little_memory_packs_filters():
    """Panels of filters can be packed a few at a time, patches cannot."""
    case = CASES["padded"]
    limit = 120_000
    assert not _turned(case, "nchw", limit)
    x, w, _, _ = case.operands("fwd", np.float32, "nchw")
    keywords = dict(case.arguments, strategy="implicit_gemm")
    with cyconv.config(workspace_limit=limit, strict=True):
        got = cyconv.conv_forward(x, w, **keywords)
    np.testing.assert_array_equal(got, cyconv.conv_forward(x, w, **keywords))


@pytest.mark.parametrize(
    "text", ["n1 g1 ci3 co8 i8x8 k1x1 s1 p0", "n2 g1 ci3 co640 i8x8 k1x1 s1 p0"]
)
def test_many_pixels_are_rows(text):
    problem = cyconv.ConvProblem.parse(f"fwd f32 nchw {text} d1")
    geometry = Geometry(problem, *natural_strides(problem))
    assert not _implicit_gemm.is_turned(geometry, 2**30, 1)
