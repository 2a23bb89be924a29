"""Pooling of CuPy arrays, executed on the CPU emulator, beside that of NumPy's."""

from __future__ import annotations

import fakecupy
import ml_dtypes
import numpy as np
import pytest

import cyconv
from cyconv import autograd
from cyconv.autograd import avg_pool, max_pool
from cyconv.gpu import module

RNG = np.random.default_rng(0)
TYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
UNITS = {
    "float32": (2.0**-24, 2.0**-24), "float64": (2.0**-53, 2.0**-53),
    "float16": (2.0**-11, 2.0**-24), "bfloat16": (2.0**-8, 2.0**-24),
}  # fmt: skip
# Shape with a batch, channels first, and the arguments; some windows meet nothing but padding.
CALLS = {
    "plain": ((2, 3, 9, 8), 2, {}),
    "overlapping": ((2, 3, 9, 8), 3, {"stride": 2, "padding": 1}),
    "asymmetric": ((1, 2, 9, 8), (3, 2), {"stride": (2, 3), "padding": ((0, 1), (1, 0))}),
    "dilated": ((1, 2, 11, 12), 3, {"stride": 1, "padding": 2, "dilation": (2, 3)}),
    "ceil": ((2, 3, 10, 8), 3, {"stride": 2, "ceil_mode": True}),
    "steps over cells": ((2, 3, 9, 8), 2, {"stride": 4, "padding": 1}),
    "nothing but padding": ((1, 1, 1, 2), (1, 2), {"dilation": (1, 4), "padding": (0, 2)}),
    "whole image": ((2, 5, 7, 6), (7, 6), {}),
    "line": ((2, 3, 13), 4, {"stride": 3, "padding": "same"}),
    "volume": ((1, 2, 5, 6, 4), (2, 3, 2), {"stride": (2, 1, 2), "padding": (1, 1, 0)}),
}


def _layout(array, layout):
    return array if layout == "channels_first" else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _arguments(name, layout, dtype, pool):
    shape, kernel, keywords = CALLS[name]
    # Few different values: some of a window are equal.
    x = _layout(RNG.integers(-4, 5, shape).astype(dtype), layout)
    keywords = {k: v for k, v in keywords.items() if pool is max_pool or k != "dilation"}
    if pool is avg_pool and "dilation" in CALLS[name][2]:
        keywords["padding"] = (0, 1)  # at most half of a window that is not dilated
    return len(shape) - 2, x, kernel, {**keywords, "layout": layout}


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("pool", [max_pool, avg_pool])
def test_values_and_gradients(cupy, pool, name, layout):
    """Of small integers, whose sums are exact in any order."""
    for dtype in TYPES:
        rank, x, kernel, keywords = _arguments(name, layout, dtype, pool)
        results = []
        for asarray in (np.array, cupy.asarray):
            tensor = cyconv.Tensor(asarray(x), requires_grad=True)
            y = pool(rank, tensor, kernel, **keywords)
            slopes = (np.arange(y.size) % 7 - 3).astype(dtype).reshape(y.shape)
            y.backward(asarray(slopes))
            results.append((y.numpy(), tensor.grad.numpy()))
        for got, expected in zip(results[1], results[0], strict=True):
            assert isinstance(got, cupy.ndarray)
            assert got.dtype == dtype
            got = got.get()
            if pool is max_pool:
                np.testing.assert_array_equal(got, expected)
                continue
            # Of numbers up to 4: weights, sum and mean are rounded in the type, products summed in
            # that of sums, on either side.
            unit, of_sums = UNITS[np.dtype(dtype).name]
            limit = 2 * 4 * (3 * unit + np.prod(kernel) * of_sums)
            np.testing.assert_allclose(
                got.astype(float), expected.astype(float), rtol=0, atol=limit, err_msg=name
            )


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_nan_wins_and_the_first_of_equals_gets_the_gradient(cupy, layout):
    x = np.array([[[1, 5, 5, 2], [np.nan, 5, -np.inf, np.nan]]], np.float32)
    x = np.moveaxis(x, 1, -1).copy() if layout == "channels_last" else x
    expected = []
    for asarray in (np.array, cupy.asarray):
        tensor = cyconv.Tensor(asarray(x), requires_grad=True)
        y = max_pool(1, tensor, 3, stride=1, padding=1, layout=layout)
        y.backward(asarray(np.arange(1, 9, dtype=np.float32).reshape(y.shape)))
        expected.append([np.asarray(a.get() if asarray is not np.array else a)
                         for a in (y.numpy(), tensor.grad.numpy())])  # fmt: skip
    for got, right in zip(expected[1], expected[0], strict=True):
        np.testing.assert_array_equal(got, right)


def test_views_and_images_without_a_batch(cupy):
    x = RNG.standard_normal((3, 2, 18, 8)).astype(np.float32)
    for view in (
        lambda a: a[::-1, ::-1, ::2, 1:],
        lambda a: a.transpose(0, 1, 3, 2),
        lambda a: a[1],
        lambda a: a[:0],
    ):
        for pool in (max_pool, avg_pool):
            got = pool(2, view(cupy.asarray(x)), 3, stride=2, padding=1)
            expected = pool(2, view(x), 3, stride=2, padding=1)
            np.testing.assert_allclose(got.get(), expected, rtol=2e-6, atol=2e-6)


def test_second_derivatives(cupy):
    """The square of what max pooling picks: its gradient depends on the input again."""

    def second(asarray):
        x = cyconv.Tensor(asarray(np.linspace(-2, 3, 48).reshape(1, 2, 6, 4)), requires_grad=True)
        y = (max_pool(2, x, 3, stride=2, padding=1) ** 3).sum()
        (dx,) = autograd.grad(y, [x], create_graph=True)
        (ddx,) = autograd.grad((dx * dx).sum(), [x])
        return ddx.numpy()

    np.testing.assert_allclose(second(cupy.asarray).get(), second(np.array), rtol=1e-12)


def test_more_pixels_than_a_kernel_counts(cupy, monkeypatch):
    """As if kernels could count to 100 only: some images at a time."""
    from cyconv.gpu import pooling

    monkeypatch.setattr(pooling, "MOST", 100)
    x = RNG.standard_normal((5, 2, 6, 8)).astype(np.float32)
    launches = sum(cupy.launched.values())
    got = max_pool(2, cupy.asarray(x), 2)
    assert sum(cupy.launched.values()) - launches == 3
    np.testing.assert_array_equal(got.get(), max_pool(2, x, 2))


def test_coordinates_beyond_31_bits_are_refused(cupy):
    x = cupy.zeros((1, 1, 1), np.float32)
    with pytest.raises(cyconv.UnsupportedError, match=r"2\*\*31"):
        max_pool(1, x, 2, dilation=2**31, padding=2**30)


def test_bad_arguments_are_refused_as_on_the_cpu(cupy):
    for error, kernel, keywords in (
        (ValueError, 3, {"padding": 2}), (cyconv.ShapeError, 30, {}), (TypeError, 1.5, {}),
    ):  # fmt: skip
        messages = []
        for x in (np.ones((1, 1, 5, 5)), cupy.asarray(np.ones((1, 1, 5, 5)))):
            with pytest.raises(error) as caught:
                max_pool(2, x, kernel, **keywords)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    with pytest.raises(cyconv.DTypeError):
        max_pool(1, cupy.zeros((1, 1, 4), np.int32), 2)


FAULTS = {
    "last axis unchecked": ("if (!inside(i2, p.in[2])) continue;", ""),
    "the last of equals": ("value > best", "value >= best"),
    "NaN does not win": (" && value == value", ""),
    "whatever the place": ("places[offset] == place", "places[offset] >= 0"),
    "stride of a place": ("+ i1) * p.in[2] + i2", "+ i1) * p.in[1] + i2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(cupy, monkeypatch, fault):
    """As in test_planted_faults.py, whose calls are convolutions."""
    text, instead = FAULTS[fault]
    original = module.source

    def source(files):
        assert original(files).count(text) == 1 or "pooling" not in files
        return original(files).replace(text, instead)

    monkeypatch.setattr(module, "source", source)
    module._function.cache_clear()
    with pytest.raises((AssertionError, fakecupy.EmulatedCudaError)):
        _overlapping_and_nan(cupy)
    module._function.cache_clear()


def _overlapping_and_nan(cupy):
    test_values_and_gradients(cupy, max_pool, "overlapping", "channels_first")
    test_nan_wins_and_the_first_of_equals_gets_the_gradient(cupy, "channels_first")
