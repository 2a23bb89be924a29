"""PyTorch as the truth for gradients: a grid of convolutions, both orders, in float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import oracle
import pytest

import cyconv
from cyconv import Tensor
from cyconv.autograd import grad

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

RANKS, KINDS = (1, 2, 3), ("dense", "groups", "depthwise")
GRID = list(product((1, 2, 3), (1, 2), (0, 1, 2)))  # stride, dilation, padding of the first axis
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 3, 1)}
IMAGES = {1: (12,), 2: (8, 9), 3: (6, 5, 4)}
CHANNELS = {"dense": (3, 4, 1), "groups": (4, 6, 2), "depthwise": (3, 3, 3)}
COUNT = len(RANKS) * len(KINDS) * 2 * 2 * len(GRID)


def _parameters(rank, stride, dilation, padding):
    return {
        "stride": tuple((stride - 1 + axis) % 3 + 1 for axis in range(rank)),
        "dilation": tuple((dilation - 1 + axis) % 2 + 1 for axis in range(rank)),
        "padding": tuple((padding + axis) % 3 for axis in range(rank)),
    }


def _fits(rank, parameters):
    return all(
        oracle.forward_size(n, k, s, (p, p), d) > 0
        for n, k, s, d, p in zip(IMAGES[rank], KERNELS[rank], *parameters.values(), strict=True)
    )


def _orders(function, gradient, operands, v, u):
    """First-order gradients, then those of a contraction of them: all that is asked of a row.

    The scalar of second order is ``sum_i <gradient_i, u_i>`` with constants u.
    """
    y = function(*operands)
    first = gradient(y, operands, v)
    scalar = sum(((g * c).sum() for g, c in zip(first, u, strict=True)), 0)
    return [y, *first, *gradient(scalar, [*operands, v], None)]


def _ours(call, arrays, v, u, layout, more):
    def place(a):
        return np.ascontiguousarray(oracle.to_layout(a, layout)) if a.ndim > 1 else a

    operands = [Tensor(place(a), requires_grad=True) for a in arrays]
    seed = Tensor(place(v), requires_grad=True)
    results = _orders(
        lambda *t: call(*t, **more),
        lambda y, inputs, g: grad(y, inputs, g, create_graph=True),
        operands,
        seed,
        [place(a) for a in u],
    )
    return [
        None if r is None else oracle.to_first(r.numpy(), layout) if r.ndim > 1 else r.numpy()
        for r in results
    ]


def _theirs(call, arrays, v, u, more):
    operands = [torch.from_numpy(a).requires_grad_() for a in arrays]
    seed = torch.from_numpy(v).requires_grad_()

    def gradient(y, inputs, g):
        return torch.autograd.grad(y, inputs, g, create_graph=True, allow_unused=True)

    results = _orders(
        lambda *t: call(*t, **more), gradient, operands, seed, [torch.from_numpy(a) for a in u]
    )
    return [None if r is None else r.detach().numpy() for r in results]


def _compare(ours, theirs, name):
    for i, (got, truth) in enumerate(zip(ours, theirs, strict=True)):
        if got is None or truth is None:
            other = truth if got is None else got
            assert other is None or not other.any(), f"{name}: result {i}"
            continue
        scale = max(np.abs(truth).max(initial=0), 1)
        error = np.abs(got - truth).max(initial=0)
        assert error <= 1e-10 * scale, f"{name}: result {i} is off by {error}"


def test_the_grid_is_large_enough():
    assert COUNT >= 500


@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_of_both_orders(rank, kind, transposed, layout):
    rng = np.random.default_rng((rank, transposed))
    c_in, c_out, groups = CHANNELS[kind]
    name = f"conv{'_transpose' * transposed}{rank}d"
    for numbers in GRID:
        parameters = _parameters(rank, *numbers)
        assert _fits(rank, parameters)
        if transposed:  # cut at most what the kernel adds, so that something is left
            parameters["padding"] = tuple(
                min(p, oracle.extent(k, d) - 1)
                for p, k, d in zip(
                    parameters["padding"], KERNELS[rank], parameters["dilation"], strict=True
                )
            )
        more = {**parameters, "groups": groups}
        ends = (c_in, c_out) if transposed else (c_out, c_in)
        if transposed:
            largest = map(max, parameters["stride"], parameters["dilation"])
            more["output_padding"] = tuple(
                (sum(parameters["padding"]) + axis) % n for axis, n in enumerate(largest)
            )
        x = rng.standard_normal((2, c_in, *IMAGES[rank]))
        w = rng.standard_normal((ends[0], ends[1] // groups, *KERNELS[rank]))
        bias = rng.standard_normal(c_out)
        theirs = getattr(torch.nn.functional, name)
        v = rng.standard_normal(theirs(*map(torch.from_numpy, (x, w, bias)), **more).shape)
        u = [rng.standard_normal(a.shape) for a in (x, w, bias)]
        own = {**more, "layout": oracle.layout_name(layout, rank)}
        _compare(
            _ours(getattr(cyconv, name), (x, w, bias), v, u, layout, own),
            _theirs(theirs, (x, w, bias), v, u, more),
            f"{name} {kind} {layout} {more}",
        )


@pytest.mark.parametrize("rank", RANKS)
def test_unbatched(rank, layout):
    rng = np.random.default_rng(rank)
    arrays = [rng.standard_normal(s) for s in ((3, *IMAGES[rank]), (4, 3, *KERNELS[rank]), (4,))]
    theirs = getattr(torch.nn.functional, f"conv{rank}d")
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    y = theirs(*tensors)
    y.sum().backward()
    place = {0: 0, 1: 1}  # channels are axis 0 without a batch, 1 in the weight

    def moved(a, i):
        return np.moveaxis(a, place[i], -1) if layout == "nhwc" and i in place else a

    ours = [
        Tensor(np.ascontiguousarray(moved(a, i)), requires_grad=True) for i, a in enumerate(arrays)
    ]
    got = getattr(cyconv, f"conv{rank}d")(*ours, layout=oracle.layout_name(layout, rank))
    got.sum().backward()
    np.testing.assert_allclose(got.numpy(), moved(y.detach().numpy(), 0), rtol=1e-12)
    for i, (mine, truth) in enumerate(zip(ours, tensors, strict=True)):
        np.testing.assert_allclose(mine.grad.numpy(), moved(truth.grad.numpy(), i), rtol=1e-12)


@pytest.mark.parametrize("padding", ["same", "same_lower", "valid", "full"])
@pytest.mark.parametrize("stride", [1, 2])
def test_named_padding_is_that_padding(padding, stride, layout):
    """Names and the numbers they stand for give the same gradients, of both orders."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 7, 8)), rng.standard_normal((4, 3, 3, 2))
    name = oracle.layout_name(layout, 2)
    how = cyconv.explain(x, w, stride=stride, padding=padding).problem.padding
    v = rng.standard_normal(cyconv.conv2d(x, w, stride=stride, padding=padding).shape)
    u = [rng.standard_normal(a.shape) for a in (x, w)]
    both = [
        _ours(cyconv.conv2d, (x, w), v, u, layout, {"stride": stride, "padding": p, "layout": name})
        for p in (padding, how)
    ]
    _compare(*both, padding)


@pytest.mark.parametrize("shape", [(0, 3, 6, 6), (2, 3, 6, 6)])
def test_empty_batches(shape, layout):
    x = Tensor(np.ascontiguousarray(oracle.to_layout(np.ones(shape), layout)), requires_grad=True)
    w = Tensor(
        np.ascontiguousarray(oracle.to_layout(np.ones((4, 3, 3, 3)), layout)), requires_grad=True
    )
    bias = Tensor(np.ones(4), requires_grad=True)
    y = cyconv.conv2d(x, w, bias, layout=oracle.layout_name(layout, 2))
    y.sum().backward()
    assert x.grad.shape == x.shape
    np.testing.assert_array_equal(bias.grad.numpy(), np.full(4, 16.0 * shape[0]))
    assert w.grad.numpy().sum() == 4 * 3 * 9 * 16 * shape[0]


def test_every_strategy_gives_these_gradients(strategy, layout):
    rng = np.random.default_rng(2)
    arrays = (rng.standard_normal((2, 4, 7, 6)), rng.standard_normal((4, 1, 3, 3)))
    more = {"padding": 1, "groups": 4, "stride": 2}
    v = rng.standard_normal((2, 4, 4, 3))
    u = [rng.standard_normal(a.shape) for a in arrays]
    own = {**more, "layout": oracle.layout_name(layout, 2), "strategy": strategy}
    _compare(
        _ours(cyconv.conv2d, arrays, v, u, layout, own),
        _theirs(torch.nn.functional.conv2d, arrays, v, u, more),
        strategy,
    )


@pytest.mark.parametrize("batched", [True, False])
def test_output_padding_above_the_stride_adds_no_products(layout, batched):
    """Tensors equal arrays where dilation lets output padding reach the stride, non-finite too."""
    rng = np.random.default_rng(int(batched))
    name, seen = oracle.layout_name(layout, 2), 0

    def place(a):
        a = oracle.to_layout(a, layout)
        return np.ascontiguousarray(a if batched or a.ndim < 4 else a[0])

    for _ in range(400):
        stride, dilation, kernel = (tuple(map(int, rng.integers(1, n, 2))) for n in (3, 6, 4))
        size, padding = tuple(rng.integers(1, 4, 2)), rng.integers(0, 7, (2, 2))
        padding[rng.random((2, 2)) < 0.4] = 0
        extra = tuple(
            int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)
        )
        more = {"stride": stride, "dilation": dilation, "output_padding": extra}
        whole = [
            oracle.transposed_size(n, k, s, p, d, e)
            for n, k, s, p, d, e in zip(size, kernel, stride, padding, dilation, extra, strict=True)
        ]
        if min(whole) < 1:
            continue
        more |= {"padding": tuple(map(tuple, padding.tolist())), "layout": name}
        x, w = rng.standard_normal((1, 2, *size)), rng.standard_normal((2, 3, *kernel))
        bias = rng.standard_normal(3)
        for a in (x, w, bias):
            a.flat[rng.integers(a.size)] = rng.choice([1.0, np.inf, np.nan])
        x, w = place(x), np.ascontiguousarray(oracle.to_layout(w, layout))
        truth = cyconv.conv_transpose2d(x, w, bias, **more)
        tensors = [Tensor(a, requires_grad=True) for a in (x, w, bias)]
        y = cyconv.conv_transpose2d(*tensors, **more)
        np.testing.assert_allclose(y.numpy(), truth, rtol=1e-12, atol=1e-12, err_msg=str(more))
        # A cell that a one of x reaches takes part in dw, and no other.
        reached = cyconv.conv_transpose2d(np.ones_like(x), np.ones_like(w), **more) != 0
        tensors = [Tensor(np.ones_like(a), requires_grad=True) for a in (x, w)]
        y = cyconv.conv_transpose2d(*tensors, **more)
        y.backward(np.where(reached, 1.0, np.nan))
        assert all(np.isfinite(t.grad.numpy()).all() for t in tensors), more
        seen += any(e >= s for e, s in zip(extra, stride, strict=True))
    assert seen > 100
