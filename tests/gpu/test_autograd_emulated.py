"""Tensors and layers of CuPy arrays, executed on the CPU emulator, beside those of NumPy's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import cyconv
from cyconv import autograd, nn
from cyconv.arguments import Activation

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 7, 6))
W = RNG.standard_normal((4, 3, 3, 3))
B = RNG.standard_normal(4)


def _gradients(asarray, function, *arrays):
    """The value of a function of tensors, and the gradients of its sum of squares."""
    tensors = [cyconv.Tensor(asarray(array), requires_grad=True) for array in arrays]
    y = function(*tensors)
    (y * y).sum().backward()
    return [y.numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def _activate(name, x):
    return autograd.activations.activate(x, Activation(name, 0.3))


def _batch_norm(channel, x, w, b):
    return autograd.batch_norm(x, w, b, channel=channel)


def _constant_norm(x, w, b):
    seen = autograd.moments(x.numpy()[:1], 1)
    return autograd.batch_norm(x, w, b, given=seen)


FUNCTIONS = {
    "conv": (lambda x, w, b: cyconv.conv2d(x, w, b, stride=2, padding=1), X, W, B),
    "transposed": (
        lambda x, w, b: cyconv.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        X, W.swapaxes(0, 1).copy(), B,
    ),
    "data backward": (
        lambda dy, w: cyconv.conv_data_backward(dy, w, (2, 3, 7, 6)),
        RNG.standard_normal((2, 4, 5, 4)), W,
    ),
    "weight backward": (
        lambda x, dy: cyconv.conv_weight_backward(x, dy, (4, 3, 3, 3)),
        X, RNG.standard_normal((2, 4, 5, 4)),
    ),
    "bias backward": (lambda dy: cyconv.bias_backward(dy), X),
    "arithmetic": (lambda x: (x * 2 + 1) / (x * x + 3) - x**2, X),
    "broadcasting": (lambda x, b: x + b, X, RNG.standard_normal((3, 1, 1))),
    "shapes": (lambda x: x.reshape(6, 42).transpose()[1:, ::2].mean(axis=0), X),
    "matmul": (lambda a, b: a @ b, X[0], RNG.standard_normal((6, 5))),
    "linear": (autograd.linear, X[0], RNG.standard_normal((5, 6)), RNG.standard_normal(5)),
    **{name: (partial(_activate, name), X) for name in autograd.activations.ACTIVATIONS},
    "batch norm": (partial(_batch_norm, 1), X, B[:3], B[1:]),
    "batch norm, channels last": (partial(_batch_norm, -1), X, X[0, 0, 0], X[1, 1, 1]),
    "batch norm of constants": (_constant_norm, X, B[:3], B[1:]),
    "softmax": (lambda x: autograd.log_softmax(x, axis=1), X),
    "mse": (lambda a, b: autograd.mse_loss(a, b), X, X[::-1].copy()),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_numpy(cupy, name):
    function, *arrays = FUNCTIONS[name]
    expected = _gradients(np.array, function, *arrays)
    got = _gradients(cupy.asarray, function, *arrays)
    for ours, theirs in zip(got, expected, strict=True):
        assert isinstance(ours, cupy.ndarray)
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_batch_norm_layer(cupy, dtype):
    """In training, where it follows its batches, and after it; of half types to a rounding."""
    results = []
    for asarray in (np.array, cupy.asarray):
        layer = nn.BatchNorm2d(3, dtype=dtype)
        for tensor in (*layer.parameters(), *layer.buffers()):
            tensor.data = asarray(tensor.data)
        x = cyconv.Tensor(asarray((100 * X + 50).astype(dtype)), requires_grad=True)
        y = layer(x)
        (y * y * y).sum().backward()
        after = layer.eval()(x.detach())
        results.append([y, after, x.grad, layer.weight.grad, *layer.buffers()])
    within = 20 * np.finfo(dtype).eps
    for theirs, ours in zip(*results, strict=True):
        assert isinstance(ours.numpy(), cupy.ndarray)
        expected = theirs.numpy().astype(float)
        atol = within * (abs(expected).max() + 1)
        np.testing.assert_allclose(ours.numpy().get().astype(float), expected, within, atol)


def test_second_order(cupy):
    def second(asarray):
        x, w = (cyconv.Tensor(asarray(a), requires_grad=True) for a in (X, W))
        y = (cyconv.conv2d(x, w) ** 3).sum()
        (dx,) = autograd.grad(y, [x], create_graph=True)
        (mixed,) = autograd.grad((dx * dx).sum(), [w])
        return mixed.numpy()

    np.testing.assert_allclose(second(cupy.asarray).get(), second(np.array), rtol=1e-9)


def test_cross_entropy(cupy):
    labels = RNG.integers(0, 3, (2, 7, 6))
    results = []
    for asarray in (np.array, cupy.asarray):
        x = cyconv.Tensor(asarray(X), requires_grad=True)
        autograd.cross_entropy(x, asarray(labels)).backward()
        results.append(x.grad.numpy())
    np.testing.assert_allclose(results[1].get(), results[0], rtol=1e-12)


def _trained(asarray, optimiser):
    """The weights of a small network after some steps, and its losses."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, activation="relu", rng=0),
        nn.Conv2d(4, 4, 3, stride=2, activation="silu", rng=1),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 3, rng=2),
    )
    for parameter in model.parameters():
        parameter.data = asarray(parameter.data)
    steps = optimiser(model.parameters())
    images = asarray(np.random.default_rng(3).standard_normal((5, 1, 8, 8)).astype("f4"))
    labels = asarray(np.arange(5) % 3)
    losses = []
    for _ in range(3):
        steps.zero_grad()
        loss = autograd.cross_entropy(model(images), labels)
        loss.backward()
        steps.step()
        losses.append(float(loss))
    return losses, [parameter.numpy() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "optimiser",
    [lambda p: nn.SGD(p, lr=0.1, momentum=0.9), lambda p: nn.Adam(p, lr=0.01)],
    ids=("sgd", "adam"),
)
def test_training(cupy, optimiser):
    losses, weights = _trained(cupy.asarray, optimiser)
    expected_losses, expected = _trained(np.array, optimiser)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert losses[-1] < losses[0]
    for ours, theirs in zip(weights, expected, strict=True):
        assert isinstance(ours, cupy.ndarray)
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-3, atol=1e-4)


def test_a_tensor_shows_itself_and_its_graph(cupy):
    x = cyconv.Tensor(cupy.asarray(np.ones(3)), requires_grad=True)
    assert repr(x) == "Tensor([1., 1., 1.], dtype=float64, requires_grad=True)"
    assert "leaf (3,)" in str((x * 2).node)


def test_places_do_not_mix(cupy):
    x = cyconv.Tensor(cupy.asarray(X), requires_grad=True)
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, w is a ndarray"):
        cyconv.conv2d(x, W)
    with pytest.raises(TypeError, match=r"tensor is a cupy.ndarray, gradient is a ndarray"):
        (x * 2).backward(np.ones(X.shape))
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, running_mean is a ndarray"):
        nn.BatchNorm2d(3)(x)
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, weight is a ndarray"):
        autograd.batch_norm(x, B[:3])
