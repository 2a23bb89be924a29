"""Faults that were found by attacking the kernels; each has its right value here."""

import warnings

import numpy as np
import oracle
import pytest

import cyconv


def test_rows_along_the_first_axis_are_as_far_apart_as_the_output_says(strategy):
    """A middle axis with one output hid the distance along the first one from the matrix view."""
    x = np.arange(24.0, dtype=np.float32).reshape(1, 1, 4, 3, 2)
    w = np.ones((1, 1, 1, 1, 1), np.float32)
    y = cyconv.conv3d(x, w, stride=(1, 3, 1), strategy=strategy)
    np.testing.assert_array_equal(y.ravel(), [0, 1, 6, 7, 12, 13, 18, 19])
    dy = np.arange(8.0, dtype=np.float32).reshape(1, 1, 4, 1, 2)
    dx = cyconv.conv_data_backward(dy, w, x.shape, stride=(1, 3, 1), strategy=strategy)
    expected = np.zeros(x.shape)
    expected[:, :, :, :1] = dy
    np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("pixels", [5, 6])
def test_a_slice_of_channels_as_wide_as_a_slab_pixel(strategy, pixels):
    """The fault was a read beyond the slice, which `test_guarded` catches; here, the values."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, pixels, pixels, 48)).astype(np.float32)[..., 8:]
    w = rng.standard_normal((8, 3, 3, 40)).astype(np.float32)
    y = cyconv.conv2d(x, w, padding=1, layout="NHWC", strategy=strategy)
    again = cyconv.conv2d(x.copy(), w, padding=1, layout="NHWC", strategy=strategy)
    np.testing.assert_array_equal(y, again)


@pytest.mark.parametrize("name", ["auto", *cyconv.strategies()])
def test_padding_whose_image_cannot_be_counted(name):
    """The span of each axis is 2**32, and their product is 0 modulo 2**64."""
    p = 2**31 - 2
    x, w = np.ones((2, 4, 4, 4), np.float32), np.ones((4, 4, 3, 3), np.float32)
    y = cyconv.conv2d(x, w, padding=p, dilation=p, strategy=name)
    # Only the middle tap is inside the image.
    np.testing.assert_array_equal(y, np.full((2, 4, 4, 4), 4.0))


def test_halves_of_infinite_sums_do_not_warn(strategy):
    x = np.zeros((4, 1, 8, 8), ">f4")
    x[0, 0, 0, 0], x[3, 0, 0, 0] = np.inf, -np.inf
    dy = np.ones((4, 1, 8, 8), np.float32)
    with warnings.catch_warnings(), cyconv.config(workspace_limit=1000):
        warnings.simplefilter("error")
        dw = cyconv.conv_weight_backward(x, dy, (1, 1, 1, 1), strategy=strategy)
    assert np.isnan(dw).all()


def test_broadcast_infinities_in_every_strategy(strategy):
    w = np.broadcast_to(np.array([[[[np.inf]]]]), (2, 1, 1, 1))
    dy = np.array([[[[3.0]], [[-1.0]]]])
    assert np.isnan(cyconv.conv_data_backward(dy, w, (1, 1, 1, 1), strategy=strategy)).all()


@pytest.mark.timeout(60)
def test_a_limit_of_nothing_ends(strategy):
    x = np.ones((1, 8, 32, 32), np.float16)
    w = np.ones((8, 8, 3, 3), np.float16)
    for limit in (0, 1000):
        with cyconv.config(workspace_limit=limit):
            dx = cyconv.conv_data_backward(x, w, x.shape, padding=1, strategy=strategy)
        truth = oracle.data_backward(x, w, x.shape, padding=((1, 1), (1, 1)))
        np.testing.assert_array_equal(dx, truth)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_result_whose_planes_blas_cannot_step_over(layout):
    """It was computed in the scratch and left there; shapes stand for the 550 GB of arrays."""
    n = 46342  # n * n > 2**31
    shape = (1, 64, n, n) if layout == "NCHW" else (1, n, n, 64)
    kernel = (64, 64, 1, 1) if layout == "NCHW" else (64, 1, 1, 64)
    explanation = cyconv.explain(shape, kernel, layout=layout)
    refusals = {c.name: c.refusal for c in explanation.candidates}
    for name in ("im2col", "pointwise"):
        assert (refusals[name] == "a plane of the result is beyond 2**31 - 1") == (layout == "NCHW")
    gradient = cyconv.explain(shape, kernel, shape, operator="data_backward", layout=layout)
    assert next(c.refusal for c in gradient.candidates if c.name == "pointwise") is None
