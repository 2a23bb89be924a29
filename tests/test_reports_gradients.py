"""Gradients as users reported them wrong elsewhere, asked of tensors: section J of the reports."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

import cyconv
from cyconv import Tensor
from cyconv.autograd import grad, gradgradcheck


@pytest.fixture
def bench(layout):
    return Bench(layout)


class Bench:
    """Tensors in a layout from NCHW arrays, and back."""

    def __init__(self, layout):
        self.layout = layout

    def tensor(self, array, requires_grad=True):
        moved = oracle.to_layout(np.asarray(array, float), self.layout)
        return Tensor(np.ascontiguousarray(moved), requires_grad=requires_grad)

    def back(self, tensor):
        return oracle.to_first(tensor.numpy(), self.layout)

    def gradients(self, function, x, w, dy=None, **more):
        """Return y, dx and dw of a call."""
        x, w = self.tensor(x), self.tensor(w)
        more["layout"] = oracle.layout_name(self.layout, w.ndim - 2)
        y = function(x, w, **more)
        seed = np.ones(y.shape) if dy is None else self.tensor(dy).numpy()
        y.backward(seed)
        return self.back(y), self.back(x.grad), self.back(w.grad)


def test_b38_strided_gradients(bench):
    _, dx, _ = bench.gradients(
        cyconv.conv2d, np.zeros((1, 1, 32, 32)), np.ones((1, 1, 5, 5)), stride=2
    )
    assert dx.shape == (1, 1, 32, 32)
    assert dx.sum() == 4900
    assert not dx[..., -1, :].any()
    assert not dx[..., -1].any()
    for k in (3, 4):
        _, dx, dw = bench.gradients(
            cyconv.conv2d, np.ones((32, 3, 32, 32)), np.ones((20, 3, k, k)), stride=2, padding=1
        )
        assert (dx.shape, dw.shape) == ((32, 3, 32, 32), (20, 3, k, k))
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    _, _, dw = bench.gradients(cyconv.conv2d, x, np.ones((1, 1, 3, 3)), stride=2)
    np.testing.assert_array_equal(dw[0, 0], [[28, 32, 36], [52, 56, 60], [76, 80, 84]])
    _, dx, dw = bench.gradients(
        cyconv.conv_transpose2d,
        [[[[-1.9954, -0.3385]]]],
        [[[[-0.7767]]]],
        [[[[1.5, 0, 0.7]]]],
        stride=2,
    )
    np.testing.assert_allclose(dx.ravel(), [-1.16505, -0.54369], rtol=1e-6)
    np.testing.assert_allclose(dw.ravel(), [-3.23005], rtol=1e-6)


def test_b40_padding_above_the_kernel_and_single_pixels(bench):
    x = np.ones((5, 2, 11, 14))
    _, dx, dw = bench.gradients(cyconv.conv2d, x, np.ones((3, 2, 3, 3)), padding=4)
    assert (dx == 27).all()
    assert (dw == 770).all()
    _, dx, dw = bench.gradients(
        cyconv.conv2d,
        np.array([1.0, 3.0]).reshape(2, 1, 1, 1),
        np.arange(1.0, 10).reshape(1, 1, 3, 3),
        np.arange(8.0).reshape(2, 1, 2, 2),
        padding=2,
        stride=2,
    )
    np.testing.assert_array_equal(dw[0, 0], [[24, 0, 20], [0, 0, 0], [16, 0, 12]])
    np.testing.assert_array_equal(dx.ravel(), [16, 96])
    _, dx, dw = bench.gradients(
        cyconv.conv2d, np.ones((1, 2, 7, 1)), np.ones((3, 2, 2, 1)), padding=((0, 1), (0, 0))
    )
    np.testing.assert_array_equal(dw[0, 0, :, 0], [7, 6])
    np.testing.assert_array_equal(dx[0, 0, :, 0], [3, 6, 6, 6, 6, 6, 6])


def test_b41_double_backward(bench):
    x = bench.tensor(np.ones((1, 1, 3, 3)))
    name = oracle.layout_name(bench.layout, 2)
    y = cyconv.conv2d(x * x, bench.tensor(np.ones((1, 1, 2, 2))), layout=name)
    (first,) = grad(y.sum(), [x], create_graph=True)
    (second,) = grad(first.sum(), [x])
    np.testing.assert_array_equal(bench.back(second)[0, 0], [[2, 4, 2], [4, 8, 4], [2, 4, 2]])
    rng = np.random.default_rng(0)
    x, w = (
        bench.tensor(rng.standard_normal((2, 4, 6, 6))),
        bench.tensor(rng.standard_normal((4, 2, 3, 3))),
    )
    assert gradgradcheck(lambda x, w: cyconv.conv2d(x, w, groups=2, layout=name), [x, w])


def test_b41_bias_with_the_graph_kept():
    x, bias = np.ones((1, 1, 32, 32)), Tensor(np.zeros(10), requires_grad=True)
    w = Tensor(np.ones((10, 1, 5, 5)), requires_grad=True)
    loss = cyconv.conv2d(x, w, bias).sum()
    loss.backward(create_graph=True)
    np.testing.assert_array_equal(bias.grad.numpy(), np.full(10, 784.0))
    # The gradient of the bias is the same whatever bias and weights are.
    assert not bias.grad.requires_grad
    (again,) = grad(loss, [bias], create_graph=True)
    assert not again.requires_grad


def test_b42_twice_without_a_reset(bench):
    rng = np.random.default_rng(1)
    x = bench.tensor(rng.standard_normal((2, 3, 7, 7)))
    first, second = (bench.tensor(rng.standard_normal((4, 3, 3, 3))) for _ in range(2))
    name = oracle.layout_name(bench.layout, 2)
    loss = sum(cyconv.conv2d(x, w, layout=name).sum() for w in (first, second))
    loss.backward()
    once = [t.grad.numpy().copy() for t in (x, first, second)]
    loss.backward()
    for tensor, before in zip((x, first, second), once, strict=True):
        np.testing.assert_array_equal(tensor.grad.numpy(), 2 * before)
    alone = bench.tensor(bench.back(x))
    cyconv.conv2d(alone, first, layout=name).sum().backward()
    np.testing.assert_array_equal(first.grad.numpy(), 3 * once[1])  # untouched by the second
