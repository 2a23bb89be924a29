"""`prepare`: packed weights give what the functions give, whoever calls and whenever."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracle
import pytest
from cases import CASES

import cyconv
from cyconv.kernels import _winograd
from cyconv.kernels._geometry import Geometry

# Strategies whose sums do not depend on the packing; winograd may take other tiles.
SAME_BITS = ("direct", "implicit_gemm", "depthwise", "reference")
FORWARD = """
one line_everything plain_bias pointwise pointwise_stride stride_2 dilation_stride asymmetric_all
groups groups_16_out depthwise_multiplier channels_31_33 channels_65 many_pixels many_images
many_terms volume volume_groups one_pixel_padded kernel_reads_padding_only
""".split()  # noqa: SIM905
TRANSPOSED = """
line plain stride_2 stride_per_axis stride_equals_kernel pointwise groups_many channels_31_33
many_pixels volume
""".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("name", "transposed"), [(n, False) for n in FORWARD] + [(n, True) for n in TRANSPOSED]
)
def test_equals_the_function(name, transposed, layout, dtype, any_strategy):
    case = CASES[name]
    x, w, bias, _ = case.operands("dx" if transposed else "fwd", dtype, layout)
    keywords = dict(case.arguments, layout=oracle.layout_name(layout, case.ndim))
    kind = cyconv.conv_transpose if transposed else cyconv.conv_forward
    keywords |= {"activation": "relu", "strategy": any_strategy}
    right = kind(x, w, bias, **keywords)
    layer = cyconv.prepare(w, bias, operator="transposed" if transposed else "forward", **keywords)
    residual = np.random.default_rng(0).standard_normal(right.shape).astype(dtype)
    for threads in (1, 2):
        with cyconv.config(threads=threads):
            for _ in range(2):  # the second call is remembered
                got = layer(x)
                if any_strategy in SAME_BITS:
                    np.testing.assert_array_equal(got, right)
                np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-4)
                added = layer(x, residual)
    right = kind(x, w, bias, residual=residual, **keywords)
    np.testing.assert_allclose(added, right, rtol=1e-3, atol=1e-4)


W = np.random.default_rng(1).standard_normal((40, 24, 3, 3)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(40).astype(np.float32)


def _image(*size, batch=1):
    return np.random.default_rng(sum(size)).standard_normal((batch, 24, *size)).astype(np.float32)


def test_winograd_is_within_its_bound_and_does_not_depend_on_threads():
    for size in (5, 14, 30):
        x = _image(size, size)
        layer = cyconv.prepare(W, B, padding=1, strategy="winograd")
        truth = oracle.forward(x, W, B, padding=1)
        magnitude = oracle.forward(abs(x), abs(W), abs(B), padding=1)
        with cyconv.config(threads=1):
            y = layer(x)
        oracle.assert_within(y, truth, oracle.high_bound(magnitude, 24 * 9 + 1, "float32"))
        with cyconv.config(threads=2):
            np.testing.assert_array_equal(layer(x), y)


def test_sizes_share_what_is_packed():
    layer = cyconv.prepare(W, padding=1, strategy="implicit_gemm")
    own = layer.nbytes
    assert own == W.nbytes
    layer(_image(9, 9))
    once = layer.nbytes
    assert once >= own + W.nbytes
    layer(_image(20, 11))
    layer(_image(7, 7, batch=3))
    assert layer.nbytes == once
    assert set(layer.strategies.values()) == {"implicit_gemm"}
    assert set(layer.strategies) == {(1, 24, 9, 9), (1, 24, 20, 11), (3, 24, 7, 7)}
    assert f"{once:,} bytes" in repr(layer)
    assert "implicit_gemm" in repr(layer)
    tiles = cyconv.prepare(W, padding=1, strategy="winograd")
    for size in (28, 32, 36):
        tiles(_image(size, size))
    # Filters of 6x6 points, channels rounded up to whole vectors.
    assert 4 * W.nbytes <= tiles.nbytes - W.nbytes < 8 * W.nbytes


def test_a_given_shape_is_packed_at_once():
    layer = cyconv.prepare(W, padding=1, strategy="implicit_gemm", input_shape=(1, 24, 9, 9))
    packed = layer.nbytes
    assert packed > W.nbytes
    layer(_image(9, 9))
    assert layer.nbytes == packed
    assert cyconv.prepare(W, strategy="direct", input_shape=(24, 9, 9)).nbytes == W.nbytes


def test_it_owns_its_weights():
    w, bias = W.copy(), B.copy()
    layer = cyconv.prepare(w, bias, padding=1)
    x = _image(16, 16)
    right = layer(x)
    w[...] = bias[...] = np.nan
    np.testing.assert_array_equal(layer(x), right)
    np.testing.assert_array_equal(layer(_image(16, 16, batch=2))[:1].shape, right.shape)


def test_it_can_be_copied_and_pickled():
    layer = cyconv.prepare(W, B, padding=1, activation=("leaky_relu", 0.2), threads=1)
    x = _image(16, 16)
    right = layer(x)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert other.nbytes == W.nbytes + B.nbytes
        np.testing.assert_array_equal(other(x), right)
        assert other.nbytes == layer.nbytes


@pytest.mark.parametrize("packing", ["implicit_gemm", "winograd"])
def test_threads_share_it(packing):
    layer = cyconv.prepare(W, B, padding=1, strategy=packing, threads=1)
    images = [_image(n, n + 1) for n in (5, 9, 16, 23)] * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(layer, images))
    for x, y in zip(images, results, strict=True):
        right = cyconv.conv2d(x, W, B, padding=1, strategy="direct")
        np.testing.assert_allclose(y, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("operator", ["forward", "transposed"])
def test_weights_that_are_not_finite(value, operator, any_strategy):
    w = W.copy()
    w[3, 5, 1, 2] = value
    kind = cyconv.conv2d
    x = _image(9, 8)
    if operator == "transposed":
        kind, x = cyconv.conv_transpose2d, np.ones((1, 40, 9, 8), np.float32)
    layer = cyconv.prepare(w, padding=1, strategy=any_strategy, operator=operator)
    right = kind(x, w, padding=1, strategy="direct")
    got = layer(x)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(got[~finite], right[~finite])
    np.testing.assert_allclose(got[finite], right[finite], rtol=1e-3, atol=1e-3)


def test_half_types_and_promotion():
    w, x = W.astype(np.float16), _image(12, 12).astype(np.float16)
    layer = cyconv.prepare(w, padding=1, activation="gelu", strategy="implicit_gemm")
    for _ in range(2):
        y = layer(x)
        assert y.dtype == np.float16
        right = cyconv.conv2d(x, w, padding=1, activation="gelu", strategy="implicit_gemm")
        np.testing.assert_array_equal(y, right)
    photo = (abs(_image(12, 12)) * 90).astype(np.uint8)
    layer = cyconv.prepare(W, padding=1)
    assert layer(photo).dtype == np.float32
    with pytest.raises(cyconv.DTypeError, match="prepared for float32"):
        layer(_image(12, 12).astype(np.float64))
    with pytest.raises(cyconv.DTypeError, match="prepared for float32"):
        layer(_image(12, 12), np.zeros((1, 40, 12, 12)))


@pytest.mark.parametrize("limit", [2**26, 2**13])
def test_images_that_are_copied_in_parts(limit):
    layer = cyconv.prepare(W, B, padding=1, activation="relu")
    x = _image(16, 16)
    right = cyconv.conv2d(x, W, B, padding=1, activation="relu", strategy="direct")
    with cyconv.config(workspace_limit=limit):
        for given in (x.astype(">f4"), np.asfortranarray(x), x[:, :, ::-1][:, :, ::-1], x[0]):
            got = layer(given)
            np.testing.assert_allclose(got.reshape(right.shape), right, rtol=1e-3, atol=1e-4)


def test_output_over_the_residual():
    layer = cyconv.prepare(W, padding=1, strategy="direct")
    x = _image(8, 8)
    out = np.ones((1, 40, 8, 8), np.float32)
    right = cyconv.conv2d(x, W, padding=1, strategy="direct") + out
    assert layer(x, out, out=out) is out
    np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-5)


def test_gradients_flow_to_the_image():
    layer = cyconv.prepare(W.astype(np.float64), padding=1, activation="silu")
    arrays = _image(5, 5).astype(np.float64), W.astype(np.float64)
    one, two = (cyconv.Tensor(arrays[0], requires_grad=True) for _ in range(2))
    layer(one).sum().backward()
    cyconv.conv2d(two, arrays[1], padding=1, activation="silu").sum().backward()
    np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-10)


def test_explanation_counts_packing_as_free(layout):
    """The strategy is the one that the call takes, for images of any strides."""
    name, shape = (
        oracle.layout_name(layout, 2),
        (1, 256, 8, 8) if layout == "nchw" else (1, 8, 8, 256),
    )
    w = np.ones((256, 256, 3, 3) if layout == "nchw" else (256, 3, 3, 256), np.float32)
    layer = cyconv.prepare(w, padding=1, layout=name)
    told = layer.explain(shape)
    plain = cyconv.explain(shape, w, padding=1, layout=name)
    packed = {c.name: c.estimate for c in told.candidates if c.estimate is not None}
    every_time = {c.name: c.estimate for c in plain.candidates if c.estimate is not None}
    assert packed["implicit_gemm"] < every_time["implicit_gemm"]
    assert packed["winograd"] < every_time["winograd"]
    assert packed["direct"] == every_time["direct"]
    layer(np.ones(shape, np.float32))
    assert layer.strategies == {shape: told.strategy}
    apart = np.ones((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]
    other = cyconv.prepare(w, padding=1, layout=name)
    told = other.explain(apart)
    other(apart)
    assert other.strategies == {shape: told.strategy}
    with pytest.raises(cyconv.ShapeError):
        layer.explain((1, 3, 8, 8))


def test_repr_tells_what_is_not_the_default():
    w = np.ones((4, 2, 3, 3), np.float32)
    assert repr(cyconv.prepare(w)) == "<Prepared f32 (4, 2, 3, 3): not called yet, 288 bytes>"
    assert "), padding=1, activation='relu': " in repr(
        cyconv.prepare(w, padding=1, activation="relu")
    )


def test_reproducible_results_do_not_depend_on_the_batch():
    layer = cyconv.prepare(W, padding=1)
    x = _image(14, 14, batch=5)
    with cyconv.config(reproducible=True):
        np.testing.assert_array_equal(layer(x)[:1], layer(x[:1]))


def test_ready_filters_make_larger_tiles_pay_sooner():
    """At few tiles the transformation of filters decides; prepared, it does not count."""
    problem = cyconv.ConvProblem.parse("fwd f32 nchw n1 g1 ci512 co512 i12x12 k3x3 s1 p1 d1")
    strides = cyconv.binding.natural_strides(problem)
    outputs = [
        _winograd.outputs_of_a_tile(Geometry(problem, *strides, prepared=prepared), "fwd")
        for prepared in (False, True)
    ]
    assert outputs[0] <= outputs[1] == 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cyconv.prepare(W.astype(int)), cyconv.DTypeError, "w"),
        (lambda: cyconv.prepare(W[0, 0]), cyconv.ShapeError, "w must have 3 to 5 axes"),
        (lambda: cyconv.prepare(W, operator="backward"), ValueError, "operator must be one of"),
        (lambda: cyconv.prepare(W, stride=0), ValueError, "stride"),
        (lambda: cyconv.prepare(W, layout="NCW"), ValueError, "layout"),
        (lambda: cyconv.prepare(W, activation="elu"), ValueError, "elu"),
        (lambda: cyconv.prepare(W, strategy="fast"), ValueError, "strategy"),
        (lambda: cyconv.prepare(W, output_padding=1), ValueError, "output_padding"),
        (lambda: cyconv.prepare(W, input_shape=(9, 9)), TypeError, "input_shape"),
        (lambda: cyconv.prepare(W, input_shape=(1, 5, 9, 9)), cyconv.ShapeError, "24"),
        (lambda: cyconv.prepare(W)(np.ones((1, 5, 9, 9), "f4")), cyconv.ShapeError, "channels"),
        (
            lambda: cyconv.prepare(W)(np.ones((24, 9), "f4")),
            cyconv.ShapeError,
            "x must have 4 axes",
        ),
        (lambda: cyconv.prepare(W)(None), TypeError, "x must be an array"),
        (lambda: cyconv.prepare(W, B[:3]), cyconv.ShapeError, "bias"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
