"""Implicit GEMM beyond the named problems: every tile, tensor cores, splits, values not finite."""

from __future__ import annotations

import mmap
from collections import Counter
from functools import cache, partial

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import FUNCTIONS, Case

import cyconv
from cyconv.gpu import families, implicit_gemm, tiles
from cyconv.gpu.base import Run
from cyconv.gpu.module import current_device
from cyconv.gpu.params import SUMS, TYPES
from cyconv.problem import ConvProblem
from cyconv.settings import Config

NUMPY_TYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

MAP_NORESERVE = 0x4000  # of Linux; Python has no name for it

# More than one tile of everything, and a remainder of everything.
RAGGED = {
    "ragged": "n2 g1 ci13 co131 i9x11 k3x2 s1 p1 d1 bias",
    "ragged_groups": "n1 g2 ci270 co134 i5x27 k1x1 s1 p0 d1 bias",
    "ragged_phases": "n1 g1 ci67 co9 i23x14 k3x3 s2x3 p1:2x0:1 d1x2",
    "one_step": "n1 g1 ci3 co2 i12x12 k1x1 s1 p0 d1",
}
# Channels in multiples of 8: copied 16 bytes at a time whatever the type.
ALIGNED = {
    "one_chunk": "n1 g1 ci8 co8 i1x1 k1x1 s1 p0 d1",
    "plain": "n2 g1 ci8 co16 i7x9 k3x3 s1 p1 d1 bias",
    "part_of_a_step": "n1 g1 ci24 co40 i6x5 k1x3 s1 p0:1x1 d1",
    "tiles": "n1 g1 ci72 co136 i10x14 k3x1 s1 p1x0 d1 bias",
    "groups": "n2 g3 ci48 co72 i5x6 k3x3 s1 p1 d1 bias",
    "phases": "n1 g1 ci16 co24 i11x10 k3x3 s2x3 p1:2x0:1 d1x2",
    "phase_without_taps": "n1 g1 ci8 co8 i9x9 k1x1 s2 p0 d1",
    "line": "n3 g1 ci16 co8 i37 k5 s2 p2 d3 bias",
    "volume": "n1 g2 ci32 co16 i4x5x3 k2x3x2 s1x2x1 p1:0x0:1x1 d1x1x2",
}
CASES = {name: Case.parse(name, text) for name, text in (RAGGED | ALIGNED).items()}


@cache
def truth(name, op, dtype, tf32=False):
    """Oracle and sum of |a||b|, both in NCHW."""
    case = CASES[name]
    a, b, bias, shape = case.operands(op, NUMPY_TYPES[dtype])
    if tf32:
        a, b = as_tf32(a), as_tf32(b)
    third = bias if op == "fwd" else shape
    absolute = third if op != "fwd" or bias is None else abs(bias)
    run = oracle.OPERATORS[op]
    return run(a, b, third, **case.arguments), run(abs(a), abs(b), absolute, **case.arguments)


def as_tf32(array):
    """Round to 10 bits of mantissa, ties away from zero."""
    return ((array.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def limit(case, op, dtype, right, magnitude):
    if dtype in ("f32", "f64"):
        return oracle.bound(magnitude, case.terms(op), NUMPY_TYPES[dtype])
    sums = oracle.bound(magnitude, case.terms(op), np.float32)
    smallest = 2.0**-25 if dtype == "f16" else 0
    return sums + oracle.UNIT[NUMPY_TYPES[dtype].name] * (np.abs(right) + sums) + smallest


def compute(cupy, case, op, dtype, layout, place=None):
    """The operator on the emulated GPU, as a NumPy array in NCHW; `place` makes device arrays."""
    place = place or cupy.asarray
    a, b, bias, shape = case.operands(op, NUMPY_TYPES[dtype], layout)
    third = shape if op != "fwd" else None if bias is None else cupy.asarray(bias)
    got = FUNCTIONS[op](
        place(a), place(b), third, **case.arguments,
        layout=oracle.layout_name(layout, case.ndim), strategy="implicit_gemm",
    )  # fmt: skip
    return oracle.to_first(got.get(), layout)


def check(cupy, name, op, dtype, layout, **keywords):
    got = compute(cupy, CASES[name], op, dtype, layout, **keywords)
    right, magnitude = truth(name, op, dtype)
    within = limit(CASES[name], op, dtype, right, magnitude)
    oracle.assert_within(got.astype(right.dtype), right, within, f"{name} {op} {dtype} {layout}")


@pytest.fixture
def launches(cupy, monkeypatch):
    """Names of the kernels that a test has launched so far."""
    monkeypatch.setattr(cupy, "launched", Counter())
    return cupy.launched


@pytest.fixture(params=(0, -1), ids=("small", "large"))
def tile(request, monkeypatch):
    """Leave each family one tile; its size."""
    for kind in (families.IGEMM, families.TENSOR):
        for dtype, family in kind.items():
            only = family._replace(tiles=(family.tiles[request.param],))
            monkeypatch.setitem(kind, dtype, only)
    return request.param


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", RAGGED)
def test_tiles(cupy, launches, tile, name, op, layout):
    for dtype in TYPES:
        check(cupy, name, op, dtype, layout)
        size = families.IGEMM[dtype].tiles[0].size
        assert any(f"igemm_{op}<{TYPES[dtype]}, {size}," in kernel for kernel in launches)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ALIGNED)
def test_tensor_cores(cupy, launches, tile, name, op):
    for dtype in ("f16", "bf16", "f64"):
        check(cupy, name, op, dtype, "nhwc")
        size = families.TENSOR[dtype].tiles[0].size
        assert any(f"tensor_{op}<{TYPES[dtype]}, {size}," in kernel for kernel in launches)
    assert not any(kernel.startswith("igemm") for kernel in launches)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ALIGNED)
def test_tf32_on_request(cupy, launches, tile, name, op):
    with cyconv.config(precision="medium"):
        got = compute(cupy, CASES[name], op, "f32", "nhwc")
    assert any(f"tensor_{op}<float," in kernel for kernel in launches)
    right, magnitude = truth(name, op, "f32", tf32=True)
    oracle.assert_within(got, right, limit(CASES[name], op, "f32", right, magnitude), name)
    launches.clear()
    check(cupy, name, op, "f32", "nhwc")
    assert not any(kernel.startswith("tensor") for kernel in launches)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["plain", "line", "ragged"])
def test_weight_gradient_in_splits(cupy, launches, monkeypatch, name, dtype, layout):
    """As many splits as there are 8 pixels, and one where memory allows no more."""
    monkeypatch.setattr(implicit_gemm, "_FEWEST_PIXELS", 8)
    check(cupy, name, "dw", dtype, layout)
    assert any(kernel.startswith("fold<") for kernel in launches)
    launches.clear()
    one_part = int(np.prod(CASES[name].w_shape())) * SUMS[dtype].itemsize
    with cyconv.config(workspace_limit=one_part, strict=True):
        check(cupy, name, "dw", dtype, layout)
    # A single part of a half type is folded too: that rounds it.
    assert any(kernel.startswith("fold<") for kernel in launches) == (dtype in ("f16", "bf16"))


@pytest.fixture
def split(monkeypatch):
    """Split sums of 16 terms and more, as if folds cost nothing."""
    monkeypatch.setattr(implicit_gemm, "_FEWEST_TERMS", 8)
    monkeypatch.setattr(tiles, "fold_seconds", lambda *_: 0.0)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", ["fwd", "dx"])
@pytest.mark.parametrize("name", ["plain", "groups", "volume", "ragged", "ragged_phases"])
def test_splits(cupy, launches, tile, split, name, op, layout):
    for dtype in TYPES:
        launches.clear()
        check(cupy, name, op, dtype, layout)
        operator = "FORWARD" if op == "fwd" else "DATA"
        assert launches[f"fold_pixels<{operator}, {TYPES[dtype]}>"]


@pytest.mark.parametrize("op", ["fwd", "dx"])
@pytest.mark.parametrize("settings", [{"workspace_limit": 1000}, {"reproducible": True}])
def test_where_sums_are_whole(cupy, launches, split, settings, op):
    for layout in ("nchw", "nhwc"):
        with cyconv.config(**settings):
            check(cupy, "plain", op, "f16", layout)
    assert launches
    assert not any(kernel.startswith("fold") for kernel in launches)


def test_split_sums_are_the_same_from_run_to_run(cupy, launches, split):
    case = CASES["tiles"]
    first, second = (compute(cupy, case, "fwd", "f32", "nchw") for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert any(kernel.startswith("fold") for kernel in launches)


@pytest.mark.parametrize("op", ["fwd", "dx"])
@pytest.mark.parametrize("name", ["plain", "phases", "ragged_phases"])
def test_values_not_finite_in_splits(cupy, split, name, op):
    """An infinity in one part and its opposite in another too."""
    for value in (np.inf, np.nan):
        test_values_not_finite(cupy, name, op, value)


def test_after_split_sums(cupy, launches, split):
    """The residual and the activation are applied to the whole sum, once."""
    rng = np.random.default_rng(5)
    shapes = (2, 16, 6, 5), (16, 16, 3, 3), (16,), (2, 16, 6, 5)
    x, w, b, residual = (rng.standard_normal(shape) for shape in shapes)
    keywords = {"padding": 1, "activation": ("leaky_relu", 0.3)}
    for function in (cyconv.conv2d, cyconv.conv_transpose2d):
        launches.clear()
        expected = function(x, w, b, residual=residual, **keywords)
        a, c, d, e = map(cupy.asarray, (x, w, b, residual))
        got = function(a, c, d, residual=e, strategy="implicit_gemm", **keywords)
        assert any(kernel.startswith("fold_pixels") for kernel in launches)
        np.testing.assert_allclose(got.get(), expected, rtol=1e-12, atol=1e-12)


def test_without_memory_for_parts_sums_are_whole(cupy, launches, split, monkeypatch):
    case = CASES["plain"]
    nbytes = int(np.prod(truth("plain", "fwd", "f32")[0].shape)) * 4
    monkeypatch.setattr(cupy, "memory_limit", 2 * nbytes + 4)
    compute(cupy, case, "fwd", "f32", "nchw")
    assert any(kernel.startswith("fold") for kernel in launches)
    launches.clear()
    monkeypatch.setattr(cupy, "memory_limit", nbytes)
    check(cupy, "plain", "fwd", "f32", "nchw")
    assert not any(kernel.startswith("fold") for kernel in launches)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ["plain", "phases", "ragged_phases"])
def test_values_not_finite(cupy, name, op, value):
    """They spread as the definition says: over the padding, but to no pair that does not exist."""
    case = CASES[name]
    for dtype in ("f32", "f64", "f16"):
        for layout in ("nchw", "nhwc"):

            def place(array, layout=layout):
                first = oracle.to_first(array, layout)
                first[(-1, 1, *(0,) * (first.ndim - 2))] = value
                return cupy.asarray(array)

            a, b, bias, shape = case.operands(op, NUMPY_TYPES[dtype])
            for array in (a, b):
                array[(-1, 1, *(0,) * (array.ndim - 2))] = value
            third = bias if op == "fwd" else shape
            right = oracle.OPERATORS[op](a, b, third, **case.arguments)
            _, magnitude = truth(name, op, dtype)
            within = limit(case, op, dtype, np.where(np.isfinite(right), right, 0), magnitude)
            got = compute(cupy, case, op, dtype, layout, place)
            oracle.assert_within(got.astype(right.dtype), right, within, f"{dtype} {layout}")


def _inside(cupy, array, before, after):
    """A device array with this many other channels before and after its own."""
    shape = (*array.shape[:-1], before + array.shape[-1] + after)
    whole = cupy.empty(shape, array.dtype)
    part = whole[..., before : before + array.shape[-1]]
    part[...] = cupy.asarray(array)
    return part


PLACES = {
    "aligned part": ("tensor", lambda cupy, array: _inside(cupy, array, 8, 16)),
    "part of odd strides": ("igemm", lambda cupy, array: _inside(cupy, array, 8, 3)),
    "part that begins odd": ("igemm", lambda cupy, array: _inside(cupy, array, 1, 7)),
    "backwards": (
        "tensor",
        lambda cupy, array: cupy.asarray(array[:, ::-1])[:, ::-1],
    ),
    "channels backwards": (
        "igemm",
        lambda cupy, array: cupy.asarray(array[..., ::-1])[..., ::-1],
    ),
    "turned": (
        "igemm",
        lambda cupy, array: cupy.asarray(array.swapaxes(1, -1).copy()).swapaxes(1, -1),
    ),
}


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("where", PLACES)
def test_views_are_read_where_they_lie(cupy, launches, where, op):
    family, place = PLACES[where]
    case = CASES["plain"]
    for dtype in ("f16", "f64"):
        launches.clear()
        got = compute(cupy, case, op, dtype, "nhwc", lambda array: place(cupy, array))
        assert any(kernel.startswith(family) for kernel in launches), launches
        right, magnitude = truth("plain", op, dtype)
        within = limit(case, op, dtype, right, magnitude)
        oracle.assert_within(got.astype(right.dtype), right, within, f"{where} {op} {dtype}")


def test_an_image_alone_is_computed_as_in_its_batch(cupy, launches):
    """Images an odd number of elements apart are not copied by chunks, nor is the first alone."""
    case = CASES["plain"]
    x, w, _, _ = case.operands("fwd", np.float16, "nhwc")
    images = cupy.empty((case.batch, x[0].size + 1), np.float16)[:, :-1].reshape(x.shape)
    images[...] = cupy.asarray(x)
    run = partial(cyconv.conv_forward, **case.arguments, layout="NHWC", strategy="implicit_gemm")
    with cyconv.config(reproducible=True):
        together, alone = run(images, cupy.asarray(w)), run(images[:1], cupy.asarray(w))
    assert all(kernel.startswith("igemm_fwd") for kernel in launches), launches
    np.testing.assert_array_equal(alone.get(), together.get()[:1])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_offsets_beyond_32_bits(cupy, launches, op, layout):
    """Images and weights more than 2**31 elements apart, in memory that is only spoken for."""
    nbytes = 2 * 2 * (2**31 + 2**16)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE

    def place(array):
        whole = np.frombuffer(mmap.mmap(-1, nbytes, flags), array.dtype)
        inner = np.cumprod((1, *array.shape[:0:-1]))[-2::-1] * array.itemsize
        strides = ((2**31 + 64) * array.itemsize, *inner)
        far = np.ndarray(array.shape, array.dtype, whole, 0, tuple(map(int, strides)))
        far[...] = array
        return cupy.ndarray(far)

    text = "n2 g1 ci8 co2 i5x4 k3x3 s1 p1 d1" if op == "fwd" else "n2 g1 ci8 co8 i5x4 k1x1 s1 p0 d1"
    case = Case.parse("far", text)
    a, b, bias, shape = case.operands(op, NUMPY_TYPES["f16"], layout)
    far = (place(a), place(b) if op == "fwd" else cupy.asarray(b))
    problem = ConvProblem.parse(f"{op} f16 {layout} {text}")
    result = cupy.empty(problem.result_shape, np.float16)
    x, w, y = {
        "fwd": (*far, result), "dx": (result, far[1], far[0]), "dw": (far[0], result, far[1]),
    }[op]  # fmt: skip
    implicit_gemm.ImplicitGemm().run(Run(problem, x, w, y, None, current_device(), Config()))
    family = "tensor" if layout == "nhwc" else "igemm"
    assert any(kernel.startswith(family) for kernel in launches)
    third = bias if op == "fwd" else shape
    right = oracle.OPERATORS[op](a, b, third, **case.arguments, layout=layout)
    magnitude = oracle.OPERATORS[op](abs(a), abs(b), third, **case.arguments, layout=layout)
    within = limit(case, op, "f16", right, magnitude)
    oracle.assert_within(result.get().astype(right.dtype), right, within, op)
