"""PyTorch as the second truth: a grid of small problems in three operators and transposed.

PyTorch computes in float64 from the same data; the result must lie within the stated bound
(twice that bound for float64, where PyTorch rounds as well).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import oracle
import pytest

import cyconv

torch = pytest.importorskip("torch")
functional = torch.nn.functional
torch.set_num_threads(1)

RANKS, GROUPS = (1, 2, 3), ("dense", "groups", "depthwise")
STRIDES, DILATIONS, PADDINGS = (1, 2, 3), (1, 2), (0, 1, 2)
GRID = list(product(STRIDES, DILATIONS, PADDINGS))
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 3, 1)}
IMAGES = {1: (13,), 2: (9, 10), 3: (7, 6, 5)}
CHANNELS = {"dense": (3, 4, 1), "groups": (4, 6, 2), "depthwise": (5, 5, 5)}


def _turned(value, ndim, modulus):
    """value, value + 1, ... within 1..modulus: other parameters on every axis."""
    return tuple((value - 1 + axis) % modulus + 1 for axis in range(ndim))


def _geometry(rank, stride, dilation, padding):
    return {
        "stride": _turned(stride, rank, 3),
        "dilation": _turned(dilation, rank, 2),
        "padding": tuple(p - 1 for p in _turned(padding + 1, rank, 3)),
    }


def _layout(array, layout):
    return np.ascontiguousarray(oracle.to_layout(array, layout))


def _fits(geometry, rank):
    return all(
        oracle.forward_size(n, k, s, (p, p), d) > 0
        for n, k, s, d, p in zip(IMAGES[rank], KERNELS[rank], *geometry.values(), strict=True)
    )


def _both(call, *arrays):
    """PyTorch's float64 result and the same of the absolute values."""
    tensors = [torch.from_numpy(a.astype("float64")) for a in arrays]
    return call(*tensors).numpy(), call(*(t.abs() for t in tensors)).numpy()


def _problems(rank, kind, layout, dtype):
    """Every operator of every problem of the grid: see `_operators`."""
    rng = np.random.default_rng(rank)
    for numbers in GRID:
        geometry = _geometry(rank, *numbers)
        assert _fits(geometry, rank)
        yield from _operators(rng, rank, kind, layout, dtype, geometry)


def _operators(rng, rank, kind, layout, dtype, geometry):
    """Yield (name, our result, PyTorch's, sum of |a||b|, terms) for the four operators."""
    c_in, c_out, groups = CHANNELS[kind]
    taps = int(np.prod(KERNELS[rank]))
    keywords = geometry | {"groups": groups}
    own = keywords | {"layout": oracle.layout_name(layout, rank)}
    text = f"{rank}d {kind} {layout} {dtype} {keywords}"
    conv = getattr(functional, f"conv{rank}d")
    turn = getattr(functional, f"conv_transpose{rank}d")

    def noise(*shape):
        return rng.standard_normal(shape).astype(dtype)

    def gradient(x, w, dy, wanted):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        return torch.autograd.grad(conv(x, w, **keywords), {"x": x, "w": w}[wanted], dy)[0]

    x, w = noise(2, c_in, *IMAGES[rank]), noise(c_out, c_in // groups, *KERNELS[rank])
    bias, bias_in = noise(c_out), noise(c_in)
    y, size = _both(lambda x, w, b: conv(x, w, b, **keywords), x, w, bias)
    dy = noise(*y.shape)
    lx, lw, ldy = (_layout(a, layout) for a in (x, w, dy))
    got = getattr(cyconv, f"conv{rank}d")(lx, lw, bias, **own)
    yield f"forward {text}", got, y, size, c_in // groups * taps + 1

    zero_x, zero_w = torch.zeros(x.shape).double(), torch.zeros(w.shape).double()
    dx, size = _both(lambda dy, w: gradient(zero_x, w, dy, "x"), dy, w)
    got = cyconv.conv_data_backward(ldy, lw, lx.shape, **own)
    yield f"data backward {text}", got, dx, size, c_out // groups * taps

    dw, size = _both(lambda x, dy: gradient(x, zero_w, dy, "w"), x, dy)
    got = cyconv.conv_weight_backward(lx, ldy, lw.shape, **own)
    yield f"weight backward {text}", got, dw, size, 2 * int(np.prod(dy.shape[2:]))

    largest = map(max, geometry["stride"], geometry["dilation"])
    extra = tuple((sum(geometry["padding"]) + axis) % n for axis, n in enumerate(largest))
    more = {"output_padding": extra}
    z, size = _both(lambda x, w, b: turn(x, w, b, **more, **keywords), dy, w, bias_in)
    got = getattr(cyconv, f"conv_transpose{rank}d")(ldy, lw, bias_in, **more, **own)
    yield f"transposed +{extra} {text}", got, z, size, c_out // groups * taps + 1


COUNT = len(RANKS) * len(GROUPS) * 2 * 2 * len(GRID) * 4


def test_the_grid_is_large_enough():
    assert COUNT >= 2000


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("rank", RANKS)
def test_grid(rank, kind, layout, dtype):
    slack = 2 if dtype == "float64" else 1
    count, failures = 0, []
    with cyconv.config(precision="highest"):
        for name, got, truth, magnitude, terms in _problems(rank, kind, layout, dtype):
            count += 1
            try:
                assert got.dtype == dtype
                limit = slack * oracle.bound(magnitude, terms, dtype)
                oracle.assert_within(oracle.to_first(got, layout), truth, limit, name)
            except AssertionError as wrong:
                failures.append(str(wrong))
    assert count == len(GRID) * 4
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [5, 6, 7, 8, 9])
def test_down_then_up(size, stride, layout):
    """Transposed convolution, told the size, undoes the geometry of a strided one as in PyTorch."""
    rng = np.random.default_rng(size)
    x, w = rng.standard_normal((1, 3, size, size)), rng.standard_normal((4, 3, 3, 3))
    lx, lw = _layout(x, layout), _layout(w, layout)
    keywords = {"stride": stride, "padding": 1}
    name = oracle.layout_name(layout, 2)
    down = cyconv.conv2d(lx, lw, layout=name, **keywords)
    up = cyconv.conv_transpose2d(down, lw, output_size=(size, size), layout=name, **keywords)
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    tdown = functional.conv2d(tx, tw, **keywords)
    module = torch.nn.ConvTranspose2d(4, 3, 3, bias=False, **keywords).double()
    with torch.no_grad():
        module.weight.copy_(tw)
        tup = module(tdown, output_size=(size, size))
    np.testing.assert_allclose(oracle.to_first(up, layout), tup.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_equals_pytorch_at_stride_1(kernel, dilation, layout):
    rng = np.random.default_rng(kernel)
    x, w = rng.standard_normal((2, 3, 11, 8)), rng.standard_normal((4, 3, kernel, kernel))
    got = cyconv.conv2d(
        _layout(x, layout),
        _layout(w, layout),
        padding="same",
        dilation=dilation,
        layout=oracle.layout_name(layout, 2),
    )
    truth = functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(w), padding="same", dilation=dilation
    )
    np.testing.assert_allclose(oracle.to_first(got, layout), truth.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [23, 24, 25, 48])
def test_depthwise_channel_counts(channels, layout, dtype, strategy):
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((2, channels, 7, 6)).astype(dtype)
    w = rng.standard_normal((channels, 1, 3, 3)).astype(dtype)
    got = cyconv.conv2d(
        _layout(x, layout),
        _layout(w, layout),
        padding=1,
        groups=channels,
        layout=oracle.layout_name(layout, 2),
        strategy=strategy,
    )
    truth, size = _both(lambda x, w: functional.conv2d(x, w, padding=1, groups=channels), x, w)
    limit = 2 * oracle.bound_by(strategy, size, 9, dtype)
    oracle.assert_within(oracle.to_first(got, layout), truth, limit, f"{channels}")


@pytest.mark.parametrize("view", ["slice", "transpose", "expand", "step"])
def test_discontiguous_operands_as_pytorch_sees_them(view, strategy):
    """NumPy and PyTorch share the memory, strides included."""
    rng = np.random.default_rng(1)
    x = {
        "slice": rng.standard_normal((2, 9, 8, 9))[:, 2:5, 1:, 2:],
        "transpose": rng.standard_normal((7, 2, 7, 3)).transpose(1, 3, 2, 0),
        "expand": np.broadcast_to(rng.standard_normal((1, 3, 1, 7)), (2, 3, 7, 7)),
        "step": rng.standard_normal((4, 6, 14, 7))[::2, ::2, ::2],
    }[view]
    w = rng.standard_normal((5, 3, 3, 4))[..., 1:]
    tensor = torch.from_numpy(x if x.flags.writeable else x.copy())
    truth = functional.conv2d(tensor, torch.from_numpy(w))
    got = cyconv.conv2d(x, w, strategy=strategy)
    np.testing.assert_allclose(got, truth.numpy(), rtol=1e-12, atol=1e-12)
