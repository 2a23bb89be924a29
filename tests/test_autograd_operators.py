"""Each operator of the table: both derivatives against differences, and PyTorch's values."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import cyconv
from cyconv import Tensor, autograd
from cyconv.autograd import gradcheck, gradgradcheck

NHWC = {"layout": "NHWC"}


def leaf(*shape, seed=0, positive=False):
    values = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return Tensor(np.abs(values) + 0.5 if positive else values, requires_grad=True)


LABELS = np.array([2, 0])
X = (2, 3, 6, 5)
MARGINS = ((0, 0), (0, 0), (2, 1), (1, 3))

# name -> (function, operands)
CASES = {
    "add": (lambda a, b: a + b, [leaf(2, 1, 3), leaf(4, 1)]),
    "subtract": (lambda a, b: a - b, [leaf(3), leaf(2, 3)]),
    "multiply": (lambda a, b: a * b, [leaf(2, 1, 3), leaf(4, 1)]),
    "divide": (lambda a, b: a / b, [leaf(2, 3), leaf(3, positive=True)]),
    "negative": (lambda a: -a, [leaf(3)]),
    "square": (lambda a: a**2, [leaf(3)]),
    "power": (lambda a, b: a**b, [leaf(2, 3, positive=True), leaf(3)]),
    "power of a number": (lambda b: 2.0**b, [leaf(3)]),
    "exp": (autograd.exp, [leaf(3)]),
    "log": (autograd.log, [leaf(3, positive=True)]),
    "erf": (autograd.erf, [leaf(3)]),
    "matmul": (lambda a, b: a @ b, [leaf(2, 3), leaf(3, 4)]),
    "matmul, stacks": (lambda a, b: a @ b, [leaf(5, 1, 2, 3), leaf(4, 3, 2)]),
    "matmul, vectors": (lambda a, b: a @ b, [leaf(3), leaf(3, seed=1)]),
    "matmul, vector left": (lambda a, b: a @ b, [leaf(3), leaf(2, 3, 4)]),
    "matmul, vector right": (lambda a, b: a @ b, [leaf(2, 4, 3), leaf(3)]),
    "linear": (autograd.linear, [leaf(2, 5, 3), leaf(4, 3), leaf(4)]),
    "reshape": (lambda a: a.reshape(3, -1), [leaf(2, 6)]),
    "transpose": (lambda a: a.transpose(2, 0, 1), [leaf(2, 3, 4)]),
    "sum": (lambda a: a.sum(axis=(0, -1)), [leaf(2, 3, 4)]),
    "sum, all": (lambda a: a.sum(), [leaf(2, 3)]),
    "mean": (lambda a: a.mean(axis=1, keepdims=True), [leaf(2, 3, 4)]),
    "mean, all": (lambda a: a.mean(), [leaf(2, 3)]),
    "index": (lambda a: a[1, ::2, None], [leaf(2, 5, 3)]),
    "index, twice": (lambda a: a[[0, 1, 0]], [leaf(2, 3)]),
    "relu": (autograd.relu, [leaf(20)]),
    "silu": (autograd.silu, [leaf(20)]),
    "gelu": (autograd.gelu, [leaf(20)]),
    "sigmoid": (autograd.sigmoid, [leaf(20)]),
    "tanh": (autograd.tanh, [leaf(20)]),
    "log softmax": (lambda a: autograd.log_softmax(a, axis=1), [leaf(2, 4, 3)]),
    "cross-entropy": (lambda a: autograd.cross_entropy(a, LABELS), [leaf(2, 4)]),
    "cross-entropy, sum": (
        lambda a: autograd.cross_entropy(a, LABELS[:, None], axis=-1, reduction="sum"),
        [leaf(2, 1, 4)],
    ),
    "cross-entropy, none": (
        lambda a: autograd.cross_entropy(a, LABELS, reduction="none"),
        [leaf(2, 4)],
    ),
    "squared error": (autograd.mse_loss, [leaf(2, 3), leaf(2, 3, seed=1)]),
    "squared error, none": (
        lambda a, b: autograd.mse_loss(a, b, reduction="none"),
        [leaf(2, 3), leaf(2, 3, seed=1)],
    ),
    "batch norm": (autograd.batch_norm, [leaf(4, 3, 2), leaf(3), leaf(3, seed=1)]),
    "batch norm, NHWC": (lambda x: autograd.batch_norm(x, channel=-1), [leaf(4, 2, 3)]),
    "batch norm, given": (
        lambda x, w: autograd.batch_norm(
            x, w, given=autograd.Moments(np.arange(3.0), np.ones(3)), channel=1
        ),
        [leaf(4, 3), leaf(3)],
    ),
    "max pool": (lambda x: autograd.max_pool(2, x, 2), [leaf(*X)]),
    "max pool, all words": (
        lambda x: autograd.max_pool(
            2, x, 3, stride=(2, 1), padding=1, dilation=(1, 2), ceil_mode=True, **NHWC
        ),
        [leaf(2, 6, 7, 3)],
    ),
    "average pool": (lambda x: autograd.avg_pool(2, x, 2), [leaf(*X)]),
    "average pool, uneven": (
        lambda x: autograd.avg_pool(2, x, 3, stride=2, padding=1, count_include_pad=False, **NHWC),
        [leaf(2, 6, 5, 3)],
    ),
    "average pool, ceil": (
        lambda x: autograd.avg_pool(1, x, 3, stride=2, ceil_mode=True),
        [leaf(2, 3, 6)],
    ),
    **{
        f"pad {mode}": (lambda x, mode=mode: autograd.pad(x, MARGINS, mode), [leaf(1, 2, 4, 5)])
        for mode in ("reflect", "replicate", "circular")
    },
    "conv, gelu": (
        lambda x, w, b: cyconv.conv_forward(x, w, b, activation="gelu"),
        [leaf(2, 3, 6), leaf(4, 3, 3), leaf(4)],
    ),
    "conv, relu in place": (
        lambda x, w, b: cyconv.conv_forward(x, w, b, activation="relu"),
        [leaf(2, 3, 6), leaf(4, 3, 3), leaf(4)],
    ),
    "conv transposed, tanh in place": (
        lambda x, w, b: cyconv.conv_transpose(x, w, b, activation="tanh", stride=2),
        [leaf(2, 4, 3), leaf(4, 3, 3), leaf(3)],
    ),
    "weight backward": (
        lambda x, dy: cyconv.conv_weight_backward(x, dy, (4, 3, 3), stride=2),
        [leaf(2, 3, 8), leaf(2, 4, 3)],
    ),
    "bias backward": (lambda dy: cyconv.bias_backward(dy, layout="NWC"), [leaf(2, 5, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    function, operands = CASES[name]
    assert gradcheck(function, operands)
    assert gradgradcheck(function, operands)


@pytest.mark.parametrize("name", CASES)
def test_arrays_stay_arrays(name):
    function, operands = CASES[name]
    with cyconv.no_grad():
        expected = function(*operands).numpy()
    got = function(*(t.numpy() for t in operands))
    assert not isinstance(got, Tensor)
    np.testing.assert_array_equal(got, expected)


def test_gradcheck_finds_what_is_wrong():
    wrong = autograd.Operator("wrong", np.sin, [lambda g, y, x: g * x])
    x = leaf(3)
    with pytest.raises(autograd.GradientError, match=r"gradient of input 0 at \(\d,\)"):
        gradcheck(wrong, [x])
    nan = autograd.Operator("nan", np.sin, [lambda g, y, x: g * np.nan])
    with pytest.raises(autograd.GradientError, match="nan"):
        gradcheck(nan, [x])
    first = autograd.Operator("first", np.sin, [lambda g, y, x: g * np.cos(autograd.raw(x))])
    assert gradcheck(first, [x])
    with pytest.raises(autograd.GradientError):
        gradgradcheck(first, [x])
    with pytest.raises(TypeError, match="float64"):
        gradcheck(wrong, [Tensor(np.ones(2, np.float32), requires_grad=True)])
    with pytest.raises(ValueError, match="no tensor"):
        gradcheck(wrong, [np.ones(2)])


def test_powers_at_zero():
    x = Tensor(np.array([0.0, 2.0]), requires_grad=True)
    for exponent, expected in ((0, [0, 0]), (1, [1, 1]), (2, [0, 4]), (0.0, [0, 0])):
        x.grad = None
        (x**exponent).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), expected)
    b = Tensor(np.array([2.0, 3.0]), requires_grad=True)
    (np.array([0.0, 1.0]) ** b).sum().backward()
    np.testing.assert_array_equal(b.grad.numpy(), [0, 0])


def test_relu_passes_zero_where_it_is_flat():
    x = Tensor(np.array([-1.0, 0.0, 1.0, np.nan]), requires_grad=True)
    autograd.relu(x).backward(np.array([np.inf, np.nan, np.inf, 1.0]))
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, np.inf, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: autograd.max_pool(2, x, 0), ValueError, "kernel_size"),
        (lambda x: autograd.max_pool(2, x, 9), cyconv.ShapeError, "extent 9"),
        (lambda x: autograd.max_pool(2, x, 2, padding=2), ValueError, "more than half"),
        (lambda x: autograd.max_pool(3, x, 4), cyconv.ShapeError, "no output"),
        (lambda x: autograd.max_pool(1, x, 2), cyconv.ShapeError, "must have 3 axes"),
        (lambda x: autograd.avg_pool(2, x, 2, layout="NWC"), ValueError, "layout"),
        (lambda x: autograd.avg_pool(2, x.astype(int), 2), cyconv.DTypeError, "integer"),
        (lambda x: autograd.cross_entropy(x, LABELS), cyconv.ShapeError, "target"),
        (lambda x: autograd.cross_entropy(x[0], np.ones((3, 5)) + 9), TypeError, "integer"),
        (lambda x: autograd.cross_entropy(x[:, :, 0, 0], [0, 7]), ValueError, "there are 3"),
        (lambda x: autograd.cross_entropy(x[:, :, 0, 0], [0, -1]), ValueError, "from -1"),
        (lambda x: autograd.mse_loss(x, x[0]), cyconv.ShapeError, "target"),
        (lambda x: autograd.mse_loss(x, x, reduction="max"), ValueError, "reduction"),
        (lambda x: autograd.pad(x, MARGINS, "mirror"), ValueError, "mode"),
        (lambda x: autograd.pad(x[:, :, :0], MARGINS, "reflect"), ValueError, "axis 2"),
        (lambda x: autograd.batch_norm(x, np.ones(2)), cyconv.ShapeError, "weight"),
        (lambda x: autograd.batch_norm(x[:1, :, 0, 0]), cyconv.ShapeError, "at least 2"),
        (lambda x: cyconv.conv_forward(x, x, activation="elu"), ValueError, "elu"),
        (lambda x: cyconv.conv1d(Tensor(x), x), cyconv.ShapeError, "w must have 3 axes"),
        (lambda x: cyconv.conv2d(Tensor(x), x, out=x), TypeError, "out= is for arrays"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones(X))


# --- PyTorch --------------------------------------------------------------------------------------


def _torch_pairs():
    """Name, our function, PyTorch's: of one array (2, 3, 6, 5)."""
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    labels = np.arange(60).reshape(2, 6, 5) % 3
    return {
        "relu": (autograd.relu, f.relu),
        "silu": (autograd.silu, f.silu),
        "gelu": (autograd.gelu, f.gelu),
        "log_softmax": (
            lambda x: autograd.log_softmax(x, axis=1), lambda x: f.log_softmax(x, dim=1)
        ),
        "cross_entropy": (
            lambda x: autograd.cross_entropy(x, labels),
            lambda x: f.cross_entropy(x, torch.from_numpy(labels)),
        ),
        "mse": (
            lambda x: autograd.mse_loss(x, np.ones(X, x.dtype)),
            lambda x: f.mse_loss(x, torch.ones(X, dtype=torch.float64)),
        ),
        "batch_norm": (
            autograd.batch_norm, lambda x: f.batch_norm(x, None, None, training=True)
        ),
        "avg_pool": (
            lambda x: autograd.avg_pool(2, x, 3, stride=2, padding=1, ceil_mode=True),
            lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        ),
        "avg_pool without padding": (
            lambda x: autograd.avg_pool(2, x, 3, padding=1, count_include_pad=False),
            lambda x: f.avg_pool2d(x, 3, padding=1, count_include_pad=False),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for name, (ours, theirs) in _torch_pairs().items():
        values = rng.standard_normal(X)
        x = Tensor(values.astype(dtype), requires_grad=True)
        t = torch.from_numpy(values).requires_grad_()
        y, truth = ours(x), theirs(t)
        g = rng.standard_normal(y.shape)
        y.backward(g)
        truth.backward(torch.from_numpy(np.asarray(g)))
        assert y.dtype == x.grad.dtype == dtype, name
        limit = 1e-12 if dtype == "float64" else 2e-6
        for got, right in ((y, truth.detach()), (x.grad, t.grad)):
            scale = max(float(right.abs().max()), 1)
            assert np.abs(got.numpy() - right.numpy()).max() <= limit * scale, name


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool_as_pytorch(rank, layout):
    """Values and gradients, bit for bit: ties, NaN, infinities and windows over padding."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(rank)
    theirs = getattr(torch.nn.functional, f"max_pool{rank}d")
    for trial in range(40):
        kernel, stride = (tuple(map(int, rng.integers(1, 4, rank))) for _ in range(2))
        dilation = tuple(map(int, rng.integers(1, 3, rank)))
        padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
        size = tuple(map(int, rng.integers(6, 40 if rank < 3 else 12, rank)))
        ceil_mode = bool(rng.integers(2))
        x = rng.integers(-3, 3, (2, int(rng.integers(1, 20)), *size)).astype(float)
        x.flat[rng.integers(0, x.size, trial % 3 * 3)] = np.nan
        x.flat[rng.integers(0, x.size, trial % 5 * x.size // 8)] = -np.inf
        t = torch.from_numpy(x).requires_grad_()
        truth = theirs(t, kernel, stride, padding, dilation, ceil_mode)
        g = rng.integers(-4, 4, truth.shape).astype(float)
        truth.backward(torch.from_numpy(g))
        last = layout == "channels_last"
        place = (lambda a: np.ascontiguousarray(np.moveaxis(a, 1, -1))) if last else np.asarray
        own = Tensor(place(x), requires_grad=True)
        y = autograd.max_pool(
            rank, own, kernel, stride=stride, padding=padding, dilation=dilation,
            ceil_mode=ceil_mode, layout=layout,
        )  # fmt: skip
        y.backward(place(g))
        np.testing.assert_array_equal(y.numpy(), place(truth.detach().numpy()))
        np.testing.assert_array_equal(own.grad.numpy(), place(t.grad.numpy()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_sums_do_not_stick(dtype):
    """Narrow sums stop where one more is lost: 2048 in float16, 256 in bfloat16."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    ones = Tensor(np.ones((64, 64), dtype), requires_grad=True)
    assert float(ones.sum()) == 4096
    assert float(ones.mean()) == 1
    scale = Tensor(np.ones((), dtype), requires_grad=True)
    (scale * ones.detach()).sum().backward()
    assert float(scale.grad) == 4096
    assert scale.grad.dtype == dtype
    images = np.ones((4, 2, 32, 32), dtype)
    images[::2] = 3
    mean, variance = autograd.moments(images, 1)
    np.testing.assert_array_equal(mean.astype(float), [2, 2])
    np.testing.assert_array_equal(variance.astype(float), [1, 1])
    assert Tensor(np.full(9, 30000, np.int16)).sum().item() == 270000
    assert Tensor(np.array([1, 2], np.int16)).mean().item() == 1.5
    flat = autograd.log_softmax(np.zeros((1, 4096), dtype), axis=1).astype(float)
    np.testing.assert_allclose(flat, -np.log(4096), rtol=4e-3)


def guarded_pooling():
    """Run in the child: both kernels on arrays that end or begin where memory does."""
    import guarded

    from cyconv.kernels import _pooling

    rng = np.random.default_rng(0)
    count = 0
    for side, (depth, height, width), lanes in product(
        guarded.SIDES, ((1, 1, 37), (1, 9, 5), (3, 4, 19)), (1, 2, 15, 16, 33)
    ):
        for kernel, stride, dilation, pad in (
            ((1, 1, 2), (1, 1, 2), (1, 1, 1), (0, 0, 0)),
            ((1, 1, 3), (1, 1, 1), (1, 1, 2), (0, 0, 2)),
            ((1, 3, 3), (1, 2, 1), (1, 1, 1), (0, 1, 1)),
            ((2, 2, 2), (1, 1, 3), (1, 2, 1), (1, 1, 1)),
        ):
            size = (depth, height, width)
            room = [
                n + 2 * p - d * (k - 1) - 1
                for n, k, d, p in zip(size, kernel, dilation, pad, strict=True)
            ]
            if min(room) < 0:
                continue
            out = tuple(r // s + 1 for r, s in zip(room, stride, strict=True))
            x = guarded.copy(rng.standard_normal((2, *size, lanes)), side)
            y = guarded.empty((2, *out, lanes), x.dtype, side)
            place = guarded.empty(y.shape, np.intp, side)
            _pooling.forward(x, kernel, stride, dilation, pad, -np.inf, y, place, 2)
            flat = x.reshape(2, -1, lanes)
            picked = np.take_along_axis(flat, place.reshape(2, -1, lanes).clip(0), 1)
            seen = place.reshape(2, -1, lanes) >= 0
            assert (picked[seen] == y.reshape(2, -1, lanes)[seen]).all()
            dx = guarded.empty(flat.shape, x.dtype, side)
            dx[...] = 0
            ones = guarded.copy(np.ones((2, int(np.prod(out)), lanes)), side)
            where = guarded.copy(place.reshape(ones.shape), side)
            _pooling.scatter(ones, where, dx, 2)
            assert dx.sum() == seen.sum()
            count += 1
    assert count > 60


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is POSIX")
def test_pooling_stays_within_its_arrays(python):
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import {__name__} as t; t.guarded_pooling()"
    python(code, arguments=("-X", "faulthandler"))


def test_max_pool_of_half_types_and_views():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        narrow = x.astype(dtype)
        y = autograd.max_pool(2, narrow, 2)
        assert y.dtype == dtype
        blocks = narrow.astype(float).reshape(2, 3, 4, 2, 4, 2).max(axis=(3, 5))
        np.testing.assert_array_equal(y.astype(float), blocks)
    view = x[:, ::2, ::-1].transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(
        autograd.max_pool(2, view, 3), autograd.max_pool(2, view.copy(), 3)
    )
    big = np.random.default_rng(1).standard_normal((4, 16, 64, 64))
    with cyconv.config(threads=1):
        one = autograd.max_pool(2, big, 3, stride=1)
    with cyconv.config(threads=2):
        np.testing.assert_array_equal(one, autograd.max_pool(2, big, 3, stride=1))
