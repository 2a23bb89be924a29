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
    "transposed, beyond the stride": (
        lambda x, w, b: cyconv.conv_transpose1d(
            x, w, b, stride=2, dilation=3, output_padding=2
        ), X[:, :, 0], W[0, :, :2].copy(), B[:2],
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
    "indexing": (lambda x: x[[0, 1, 1], :, ::-1, 2], X),
    "matmul, vectors": (lambda a, b: (a @ b) @ b, X[:1, 0, :6], X[0, 0, 0]),
    "matmul": (lambda a, b: a @ b, X[0], RNG.standard_normal((6, 5))),
    "linear": (autograd.linear, X[0], RNG.standard_normal((5, 6)), RNG.standard_normal(5)),
    **{name: (partial(_activate, name), X) for name in autograd.activations.ACTIVATIONS},
    "batch norm": (partial(_batch_norm, 1), X, B[:3], B[1:]),
    "batch norm, channels last": (partial(_batch_norm, -1), X, X[0, 0, 0], X[1, 1, 1]),
    "batch norm of constants": (_constant_norm, X, B[:3], B[1:]),
    **{
        f"{mode} padding": (
            partial(autograd.pad, widths=((0, 0), (0, 0), (2, 1), (0, 2)), mode=mode), X,
        )
        for mode in autograd.padding.MODES
    },
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
    with pytest.raises(TypeError, match=r"logits is a cupy.ndarray, target is a ndarray"):
        autograd.cross_entropy(x, np.zeros((2, 7, 6), int))
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, weight is a ndarray"):
        autograd.batch_norm(x, B[:3])


# --- state ----------------------------------------------------------------------------------------


def _network(asarray, layout="channels_first"):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False, rng=0, layout=layout),
        nn.BatchNorm2d(4, layout=layout),
        nn.ReLU(),
        nn.MaxPool2d(2, layout=layout),
        nn.AvgPool2d(2, layout=layout),
        nn.GlobalAvgPool(layout=layout),
        nn.Linear(4, 3, rng=1),
    )
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = asarray(tensor.data)
    return model


OPTIMISERS = {
    "sgd": lambda p: nn.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: nn.Adam(p, lr=0.01),
}


def _steps(asarray, model, optimiser, count):
    rng = np.random.default_rng(4)
    shape = (4, 2, 8, 8) if model[0].layout == "channels_first" else (4, 8, 8, 2)
    images, labels = asarray(rng.standard_normal(shape).astype("f4")), asarray(np.arange(4) % 3)
    for _ in range(count):
        optimiser.zero_grad()
        autograd.cross_entropy(model(images), labels).backward()
        optimiser.step()


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_that_is_saved_goes_on(cupy, tmp_path, name, layout):
    """On a GPU bit for bit, and on the processor from the same file."""
    model = _network(cupy.asarray, layout)
    optimiser = OPTIMISERS[name](model.parameters())
    _steps(cupy.asarray, model, optimiser, 2)
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    for part in state.values():
        assert all(type(array) is np.ndarray for array in part.values())
    nn.save(tmp_path / "state.npz", state)
    _steps(cupy.asarray, model, optimiser, 1)
    for asarray in (cupy.asarray, np.array):
        again = _network(asarray, layout)
        following = OPTIMISERS[name](again.parameters())
        known = nn.load(tmp_path / "state.npz")
        again.load_state_dict(known["model"])
        following.load_state_dict(known["optimiser"])
        _steps(asarray, again, following, 1)
        assert all(type(p.data) is type(asarray(np.ones(1))) for p in again.parameters())
        tolerance = 0 if asarray is cupy.asarray else 1e-5
        for key, value in again.state_dict().items():
            np.testing.assert_allclose(
                value, model.state_dict()[key], tolerance, tolerance, True, key
            )


def test_loaded_state_lies_on_the_device_of_the_parameters(cupy):
    with cupy.cuda.Device(1):
        model = _network(cupy.asarray)
        optimiser = nn.Adam(model.parameters())
        _steps(cupy.asarray, model, optimiser, 1)
    state = optimiser.state_dict()
    model.load_state_dict(_network(np.array).state_dict())
    optimiser.load_state_dict(state)
    assert {p.data.device.id for p in model.parameters()} == {1}
    assert optimiser._state[0]["exp_avg"].device.id == 1


def test_state_of_a_gpu_is_taken_as_it_is(cupy, tmp_path):
    """Mappings of CuPy arrays and of tensors, as `state_dict` of another library may give."""
    model = _network(np.array)
    state = {name: cupy.asarray(value) for name, value in model.state_dict().items()}
    nn.save(tmp_path / "state.npz", {**state, "tensor": cyconv.Tensor(cupy.asarray(B))})
    np.testing.assert_array_equal(nn.load(tmp_path / "state.npz")["tensor"], B)
    _network(cupy.asarray).load_state_dict(state)
    model.load_state_dict(state)
    with pytest.raises(cyconv.ShapeError, match=r"6.bias"):
        model.load_state_dict({**state, "6.bias": cupy.asarray(B)})


def test_gradients_are_checked_there_too(cupy):
    def function(x, w):
        return cyconv.conv1d(x, w, padding=1) ** 2

    x, w = (
        cyconv.Tensor(cupy.asarray(RNG.standard_normal(shape)), requires_grad=True)
        for shape in ((1, 2, 4), (1, 2, 3))
    )
    assert autograd.gradcheck(function, [x, w])
    assert autograd.gradgradcheck(function, [x, w])
