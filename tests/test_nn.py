"""Layers, optimisers and files: PyTorch's names, shapes, numbers; both layouts alike."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import oracle
import pytest

import cyconv
from cyconv import Tensor, autograd, nn
from cyconv.training._digits import digits_network

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SIZES = {1: (11,), 2: (8, 9), 3: (5, 6, 7)}


def _place(array, layout):
    return np.ascontiguousarray(oracle.to_layout(array, layout))


def _run_both(ours, theirs, x, layout):
    """Values, input gradients and parameter gradients of two modules agree."""
    own = Tensor(_place(x, layout), requires_grad=True)
    t = torch.from_numpy(x).requires_grad_()
    y, truth = ours(own), theirs(t)
    g = np.random.default_rng(9).standard_normal(tuple(truth.shape))
    truth.backward(torch.from_numpy(g))
    image = truth.ndim > 2
    y.backward(_place(g, layout) if image else g)
    got = oracle.to_first(y.numpy(), layout) if image else y.numpy()
    np.testing.assert_allclose(got, truth.detach().numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        oracle.to_first(own.grad.numpy(), layout), t.grad.numpy(), rtol=1e-10, atol=1e-10
    )
    right = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        gradient = parameter.grad.numpy()
        if parameter.channels_last:
            gradient = np.moveaxis(gradient, -1, 1)
        np.testing.assert_allclose(
            gradient, right[name].grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=name
        )


CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1, "groups": 2},
    {"dilation": 2, "padding": "same", "bias": False},
    {"padding": 2, "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "replicate", "stride": 2},
    {"padding": 2, "padding_mode": "circular"},
    {"padding": "same", "padding_mode": "reflect", "dilation": 2},
]


@pytest.mark.parametrize("more", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(rank, more, layout):
    name = oracle.layout_name(layout, rank)
    theirs = getattr(torch.nn, f"Conv{rank}d")(4, 6, 3, **more).double()
    ours = getattr(nn, f"Conv{rank}d")(4, 6, 3, layout=name, dtype=np.float64, **more)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(rank).standard_normal((2, 4, *SIZES[rank]))
    _run_both(ours, theirs, x, layout)


@pytest.mark.parametrize(
    "more", [{}, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}], ids=str
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(rank, more, layout):
    name = oracle.layout_name(layout, rank)
    theirs = getattr(torch.nn, f"ConvTranspose{rank}d")(4, 6, 3, **more).double()
    ours = getattr(nn, f"ConvTranspose{rank}d")(4, 6, 3, layout=name, dtype=np.float64, **more)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(rank).standard_normal((2, 4, *SIZES[rank]))
    _run_both(ours, theirs, x, layout)
    if more:
        size = tuple(2 * n for n in SIZES[rank])
        placed = ours(_place(x, layout), output_size=size)
        right = theirs(torch.from_numpy(x), output_size=size).detach().numpy()
        np.testing.assert_allclose(
            oracle.to_first(placed.numpy(), layout), right, rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "sigmoid", "tanh"])
def test_an_activation_is_fused_or_follows(activation):
    layer = nn.Conv2d(2, 3, 3, activation=activation, rng=0, dtype=np.float64)
    plain = nn.Conv2d(2, 3, 3, rng=0, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal((2, 2, 6, 6))
    one, two = layer(x), autograd.ACTIVATIONS[activation](plain(x))
    np.testing.assert_array_equal(one.numpy(), two.numpy())
    one.sum().backward()
    two.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy(), plain.weight.grad.numpy())


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_batch_norm_follows_its_batches(rank, momentum, layout):
    name = oracle.layout_name(layout, rank)
    theirs = getattr(torch.nn, f"BatchNorm{rank}d")(4, momentum=momentum).double()
    ours = getattr(nn, f"BatchNorm{rank}d")(4, momentum=momentum, layout=name, dtype=np.float64)
    rng = np.random.default_rng(rank)
    ours.load_state_dict(theirs.state_dict())
    for _ in range(3):
        for parameter in (*theirs.parameters(), *ours.parameters()):
            parameter.grad = None
        _run_both(ours, theirs, rng.standard_normal((3, 4, *SIZES[rank])) * 2 + 1, layout)
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key], value.numpy(), rtol=1e-12, err_msg=key)
    ours.eval()
    theirs.eval()
    for parameter in (*theirs.parameters(), *ours.parameters()):
        parameter.grad = None
    _run_both(ours, theirs, rng.standard_normal((3, 4, *SIZES[rank])), layout)


def test_batch_norm_of_vectors_and_without_statistics():
    x = np.random.default_rng(0).standard_normal((5, 4))
    for more in ({}, {"affine": False}, {"track_running_stats": False}):
        theirs = torch.nn.BatchNorm1d(4, **more).double()
        ours = nn.BatchNorm1d(4, dtype=np.float64, **more)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        _run_both(ours, theirs, x, "nchw")
        ours.eval()
        theirs.eval()
        np.testing.assert_allclose(
            autograd.raw(ours(x)), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-12
        )


@pytest.mark.parametrize("channel", [1, -1])
def test_moments_of_half_types(channel):
    """Numbers whose squares exceed the range of float16, while their mean does not."""
    x = (100 * np.random.default_rng(0).standard_normal((4, 3, 8, 3)) + 500).astype(np.float16)
    mean, variance = autograd.moments(x, channel)
    axes = (0, 2, 3) if channel == 1 else (0, 1, 2)
    assert abs(x - x.mean(axes, np.float64, keepdims=True)).max() > 256
    np.testing.assert_allclose(mean, x.mean(axes, np.float64), rtol=1e-3)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axes), rtol=1e-3)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("MaxPool", {"stride": 2, "padding": 1, "dilation": 2}),
        ("MaxPool", {"ceil_mode": True}),
        ("AvgPool", {"stride": 2, "padding": 1, "ceil_mode": True}),
        ("AvgPool", {"padding": 1, "count_include_pad": False}),
    ],
)
def test_pooling(kind, more, rank, layout):
    name = oracle.layout_name(layout, rank)
    ours = getattr(nn, f"{kind}{rank}d")(3, layout=name, **more)
    theirs = getattr(torch.nn, f"{kind}{rank}d")(3, **more)
    _run_both(
        ours, theirs, np.random.default_rng(rank).standard_normal((2, 5, *SIZES[rank])), layout
    )


def test_vectors(layout):
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 6))
    name = oracle.layout_name(layout, 2)
    theirs = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(90, 7)).double()
    ours = nn.Sequential(nn.Flatten(layout=name), nn.Linear(90, 7, dtype=np.float64))
    ours.load_state_dict(theirs.state_dict())
    _run_both(ours, theirs, x, layout)
    theirs = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    _run_both(nn.GlobalAvgPool(layout=name), theirs, x, layout)


@pytest.mark.parametrize("kind", ["ReLU", "SiLU", "GELU", "Sigmoid", "Tanh"])
def test_activations(kind):
    x = np.random.default_rng(0).standard_normal((4, 3, 5))
    _run_both(getattr(nn, kind)(), getattr(torch.nn, kind)(), x, "nchw")


# --- optimisers -----------------------------------------------------------------------------------

OPTIMISERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("kind", "more"), OPTIMISERS, ids=str)
def test_optimisers(kind, more):
    rng = np.random.default_rng(0)
    start = rng.standard_normal((3, 4))
    ours, unused = nn.Parameter(start.copy()), nn.Parameter(np.ones(2))
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    own = getattr(nn, kind)([ours, unused], **more)
    right = getattr(torch.optim, kind)([theirs], **more)
    for _ in range(20):
        gradient = rng.standard_normal((3, 4))
        own.zero_grad()
        (ours * gradient).sum().backward()
        theirs.grad = torch.from_numpy(gradient)
        own.step()
        right.step()
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(unused.numpy(), [1, 1])


@pytest.mark.parametrize(("kind", "more"), OPTIMISERS, ids=str)
def test_training_goes_on_bit_for_bit(kind, more, layout, tmp_path):
    """Five steps, saved and loaded into new objects, and five more equal ten."""
    name = oracle.layout_name(layout, 2)
    rng = np.random.default_rng(0)
    batches = rng.standard_normal((10, 8, 1, 8, 8)).astype(np.float32)
    target = rng.integers(0, 10, (10, 8))

    def started(seed, **other):
        model = digits_network(name, np.random.default_rng(seed))
        return model, getattr(nn, kind)(model.parameters(), **other)

    def steps(model, optimiser, numbers):
        for i in numbers:
            optimiser.zero_grad()
            loss = autograd.cross_entropy(model(_place(batches[i], layout)), target[i])
            loss.backward()
            optimiser.step()

    model, optimiser = started(0, **more)
    steps(model, optimiser, range(5))
    path = tmp_path / "training.npz"
    nn.save(path, {"model": model.state_dict(), "optimiser": optimiser.state_dict()})
    steps(model, optimiser, range(5, 10))
    again, other = started(1, lr=7.0)  # all comes from the file
    state = nn.load(path)
    again.load_state_dict(state["model"])
    other.load_state_dict(state["optimiser"])
    steps(again, other, range(5, 10))
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[key], value, err_msg=key)
    assert other.state_dict().keys() == optimiser.state_dict().keys()
    for key, value in optimiser.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[key], value, err_msg=key)


@pytest.mark.parametrize(("kind", "more"), OPTIMISERS, ids=str)
def test_state_of_an_optimiser_as_pytorch_keeps_it(kind, more):
    rng = np.random.default_rng(0)
    start, gradient = rng.standard_normal((2, 4, 3, 2, 2))
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    ours = nn.Parameter(np.moveaxis(start, 1, -1).copy(), channels_last=True)
    own = getattr(nn, kind)([ours], **more)
    right = getattr(torch.optim, kind)([theirs], **more)
    theirs.grad = torch.from_numpy(gradient)
    ours.grad = Tensor(np.moveaxis(gradient, 1, -1))
    for _ in range(3):
        own.step()
        right.step()
    kept = right.state_dict()
    state = own.state_dict()
    assert ("0.momentum_buffer" in state) == bool(more.get("momentum"))
    for key, value in kept["state"].get(0, {}).items():
        if value is not None:
            np.testing.assert_allclose(state[f"0.{key}"], value.numpy(), rtol=1e-12, err_msg=key)
    for key in own.options:
        np.testing.assert_array_equal(state[key], kept["param_groups"][0][key])


def test_state_of_an_optimiser_is_checked():
    parameters = [nn.Parameter(np.ones(3)), nn.Parameter(np.ones(2))]
    optimiser = nn.Adam(parameters, lr=0.5)
    parameters[0].grad = Tensor(np.ones(3))
    optimiser.step()
    state = optimiser.state_dict()
    assert sorted(state) == [
        "0.exp_avg", "0.exp_avg_sq", "0.step", "betas", "eps", "lr", "weight_decay",
    ]  # fmt: skip
    fresh = nn.Adam(parameters)
    with pytest.raises(cyconv.ShapeError, match=r"'0\.exp_avg'\] has shape \(4,\)"):
        fresh.load_state_dict({**state, "0.exp_avg": np.ones(4)})
    rest = {name: value for name, value in state.items() if name not in ("0.step", "lr")}
    with pytest.raises(KeyError, match=r"missing \['0.step', 'lr'\], unexpected \['2.step'\]"):
        fresh.load_state_dict({**rest, "2.step": 1})
    assert fresh.lr == 1e-3
    assert list(fresh.state_dict()) == ["lr", "betas", "eps", "weight_decay"]
    fresh.load_state_dict(state)
    assert (fresh.lr, fresh.betas) == (0.5, (0.9, 0.999))
    state["0.exp_avg"][...] = 9
    assert not (fresh.state_dict()["0.exp_avg"] == 9).any()


def test_optimisers_write_where_the_parameter_lies():
    parameter = nn.Parameter(np.ones(3))
    array = parameter.numpy()
    loss = (parameter * parameter).sum()
    loss.backward()
    nn.SGD([parameter], lr=0.5).step()
    np.testing.assert_array_equal(array, np.zeros(3))
    with pytest.raises(cyconv.CyconvError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SGD([]), "empty"),
        (lambda: nn.SGD([nn.Parameter(np.ones(1))], lr=-1), "lr"),
        (lambda: nn.SGD([nn.Parameter(np.ones(1))], nesterov=True), "nesterov"),
        (lambda: nn.Adam([nn.Parameter(np.ones(1))], betas=(1, 0)), r"betas\[0\]"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "groups=2 does not divide in_channels=3"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "padding_mode"),
        (lambda: nn.Conv2d(3, 4, 3, activation="elu"), "activation"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size"),
        (lambda: nn.Conv2d(3, 4, 3, layout="NWC"), "layout"),
        (lambda: nn.Linear(2, 3)(np.ones((1, 3), np.float32)), "last axis should be 2"),
        (lambda: nn.BatchNorm2d(3)(np.ones((2, 3, 4), np.float32)), "4 axes and 3 channels"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- state ----------------------------------------------------------------------------------------


class Block(nn.Module):
    """The residual block of a ResNet, as `torchvision` names its parts."""

    def __init__(self, channels, out, stride, layout):
        more = {"bias": False, "layout": layout, "dtype": np.float64}
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, **more)
        self.bn1 = nn.BatchNorm2d(out, layout=layout, dtype=np.float64)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, **more)
        self.bn2 = nn.BatchNorm2d(out, layout=layout, dtype=np.float64)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, **more),
                nn.BatchNorm2d(out, layout=layout, dtype=np.float64),
            )

    def forward(self, x):
        y = autograd.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return autograd.relu(y + (x if self.downsample is None else self.downsample(x)))


class TorchBlock(torch.nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(out)
        self.conv2 = torch.nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(out)
        self.downsample = None
        if stride > 1:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(channels, out, 1, stride=stride, bias=False),
                torch.nn.BatchNorm2d(out),
            )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


def _resnet(layout):
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False, layout=layout, dtype=np.float64),
        nn.BatchNorm2d(8, layout=layout, dtype=np.float64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1, layout=layout),
        Block(8, 8, 1, layout),
        Block(8, 16, 2, layout),
        nn.GlobalAvgPool(layout=layout),
        nn.Linear(16, 10, dtype=np.float64),
    )


def _torch_resnet():
    t = torch.nn
    body = t.Sequential(
        t.Conv2d(3, 8, 7, stride=2, padding=3, bias=False),
        t.BatchNorm2d(8),
        t.ReLU(),
        t.MaxPool2d(3, stride=2, padding=1),
        TorchBlock(8, 8, 1),
        TorchBlock(8, 16, 2),
        t.Sequential(t.AdaptiveAvgPool2d(1), t.Flatten()),
        t.Linear(16, 10),
    )
    return body.double()


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_resnet_of_pytorch_loads_and_agrees(layout, tmp_path, kind):
    torch.manual_seed(0)
    theirs = _torch_resnet()
    x = np.random.default_rng(0).standard_normal((2, 3, 40, 36))
    theirs(torch.from_numpy(x))  # statistics that are not those of the start
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(theirs.state_dict(), path)
    else:
        nn.save(path, {name: value.numpy() for name, value in theirs.state_dict().items()})
    ours = _resnet(oracle.layout_name(layout, 2))
    ours.load_state_dict(nn.load(path))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], value.numpy())
    _run_both(ours, theirs, x, layout)
    with torch.no_grad():
        truth = theirs.eval()(torch.from_numpy(x)).numpy()
    with cyconv.no_grad():
        got = ours.eval()(_place(x, layout)).numpy()
    np.testing.assert_allclose(got, truth, rtol=1e-10, atol=1e-12)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})


def test_state_is_copied_and_checked(tmp_path):
    model = nn.Sequential({"first": nn.Linear(2, 3, rng=0), "last": nn.BatchNorm1d(3)})
    state = model.state_dict()
    state["first.weight"][...] = 5
    assert not (model.state_dict()["first.weight"] == 5).any()
    before = model.state_dict()
    with pytest.raises(cyconv.ShapeError, match=r"last\.bias"):
        model.load_state_dict({**state, "last.bias": np.ones(4)})
    rest = {name: value for name, value in state.items() if name != "first.bias"}
    with pytest.raises(KeyError, match=r"missing \['first.bias'\], unexpected \['other'\]"):
        model.load_state_dict({**rest, "other": np.ones(1)})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    model.load_state_dict({"first.bias": [1, 2, 3]}, strict=False)
    np.testing.assert_array_equal(model.state_dict()["first.bias"], [1, 2, 3])
    for name in ("weights.pt", "weights.npy"):
        with pytest.raises(ValueError, match=r"\.npz"):
            nn.load(tmp_path / name)
        with pytest.raises(ValueError, match=r"\.npz"):
            nn.save(tmp_path / name, state)


def test_modules_are_copied_printed_and_walked():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, layout="NHWC", rng=0), nn.Sequential(nn.ReLU()))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other[0].weight.assign(0)
        assert other[0].weight.channels_last
    assert model[0].weight.numpy().any()
    assert repr(model).splitlines()[2:] == ["  (1): Sequential(", "    (0): ReLU()", "  )", ")"]
    assert len(model) == 2
    shared = nn.Sequential(model[0], model[0])
    assert len(list(shared.parameters())) == 2
    assert not any(module.training for module in model.eval().modules())
    model[0].bias.requires_grad = False
    model(np.ones((1, 5, 5, 1), np.float32)).sum().backward()
    assert model[0].bias.grad is None
    model.zero_grad()
    assert model[0].weight.grad is None
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)
    with pytest.raises(TypeError, match="must be a Module"):
        nn.Sequential(3)


def test_initial_weights():
    """A seed gives the same layer in both layouts; numbers fill PyTorch's range."""
    one, two = (nn.Conv2d(6, 40, 3, groups=2, layout=x, rng=3) for x in ("NCHW", "NHWC"))
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, two.state_dict()[name])
    bound = 1 / np.sqrt(3 * 9)
    assert 0.95 * bound < np.abs(one.weight.numpy()).max() <= bound
    rng = np.random.default_rng(0)
    assert not np.array_equal(
        nn.Linear(3, 3, rng=rng).weight.data, nn.Linear(3, 3, rng=rng).weight.data
    )
    drawn = nn.kaiming_uniform((500, 200), rng=0, slope=0)
    np.testing.assert_allclose(drawn.std(), np.sqrt(2 / 200), rtol=0.02)
    transposed, right = nn.ConvTranspose2d(6, 40, 3), torch.nn.ConvTranspose2d(6, 40, 3)
    assert np.abs(transposed.weight.data).max() <= 1 / np.sqrt(40 * 9)
    assert right.weight.abs().max() <= 1 / np.sqrt(40 * 9)


# --- whole training runs --------------------------------------------------------------------------


def _torch_digits():
    t = torch.nn
    return t.Sequential(
        t.Sequential(t.Conv2d(1, 32, 3, padding=1), t.ReLU()),
        t.Conv2d(32, 64, 3, padding=1, bias=False),
        t.BatchNorm2d(64),
        t.ReLU(),
        t.MaxPool2d(2),
        t.Flatten(),
        t.Linear(1024, 10),
    ).double()


def _losses(layout, optimiser, steps=50):
    """Train the network of the digits for some steps on the first digits."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images, target = digits.images[:, np.newaxis] / 16, digits.target
    model = digits_network(layout, np.random.default_rng(0), np.float64)
    start = model.state_dict()
    moves = optimiser(nn, model.parameters())
    losses = []
    x = images if layout == "NCHW" else np.moveaxis(images, 1, -1)
    for step in range(steps):
        chosen = np.arange(step * 32, step * 32 + 32) % len(x)
        moves.zero_grad()
        loss = autograd.cross_entropy(model(x[chosen]), target[chosen])
        loss.backward()
        moves.step()
        losses.append(float(loss))
    return losses, start, images, target


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda room, parameters: room.SGD(parameters, lr=0.05, momentum=0.9),
        lambda room, parameters: room.Adam(parameters, lr=1e-3),
    ],
    ids=["SGD", "Adam"],
)
def test_the_loss_curve_of_digits_is_pytorchs(optimiser):
    losses, start, images, target = _losses("NCHW", optimiser)
    theirs = _torch_digits()
    names = {f"0.{part}": f"0.0.{part}" for part in ("weight", "bias")}
    theirs.load_state_dict({names.get(k, k): torch.from_numpy(v) for k, v in start.items()})
    moves = optimiser(torch.optim, theirs.parameters())
    for step, loss in enumerate(losses):
        chosen = np.arange(step * 32, step * 32 + 32) % len(images)
        moves.zero_grad()
        right = torch.nn.functional.cross_entropy(
            theirs(torch.from_numpy(images[chosen])), torch.from_numpy(target[chosen])
        )
        right.backward()
        moves.step()
        assert abs(loss - right.item()) <= 1e-4, f"step {step}: {loss} and {right.item()}"
    assert losses[-1] < losses[0] / 2


def test_both_layouts_learn_alike():
    def optimiser(room, parameters):
        return room.SGD(parameters, lr=0.05, momentum=0.9)

    first, last = (_losses(layout, optimiser, 20)[0] for layout in ("NCHW", "NHWC"))
    np.testing.assert_allclose(first, last, rtol=1e-8)
