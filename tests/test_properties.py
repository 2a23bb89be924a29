"""What must hold for any problem: convolution is bilinear, local to groups and images, and
self-adjoint.

Shapes and parameters come from hypothesis; values are float64 noise.  "Equal" means 1e-12 of the
sum of absolute products, unless a test says bit for bit.
"""

from __future__ import annotations

import numpy as np
import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import named_strategies

import cyconv

EPS = 1e-12
quick = settings(max_examples=60, deadline=None)


@st.composite
def problems(draw, groups=None):
    """Keywords, x and w shapes in NCHW, with at least one output."""
    ndim = draw(st.integers(1, 3))
    top = {1: 24, 2: 9, 3: 6}[ndim]
    g = groups or draw(st.sampled_from((1, 1, 2, 3)))
    axes = []
    for _ in range(ndim):
        kernel, stride, dilation = (
            draw(st.integers(1, 4)),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
        )
        pad = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        least = max(1, oracle.extent(kernel, dilation) - sum(pad))
        axes.append((draw(st.integers(least, max(least, top))), kernel, stride, pad, dilation))
    size, kernel, stride, padding, dilation = zip(*axes, strict=True)
    c_in, c_out = g * draw(st.integers(1, 3)), g * draw(st.integers(1, 4))
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": g}
    return keywords, (draw(st.integers(1, 3)), c_in, *size), (c_out, c_in // g, *kernel)


seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(("nchw", "nhwc"))
strategies = st.sampled_from(("auto", *named_strategies()))


class Noise:
    """Operands of a drawn problem in a layout, and the calls with its keywords."""

    def __init__(self, problem, seed, layout="nchw", strategy="auto"):
        keywords, x_shape, w_shape = problem
        self.rng = np.random.default_rng(seed)
        self.layout, self.ndim = layout, len(w_shape) - 2
        name = oracle.layout_name(layout, self.ndim)
        self.keywords = keywords | {"layout": name, "strategy": strategy}
        self.x, self.w = self.normal(x_shape), self.normal(w_shape)
        self.y = self.conv(self.x, self.w)
        self.dy = self.rng.standard_normal(self.y.shape)

    def normal(self, shape):
        return np.ascontiguousarray(oracle.to_layout(self.rng.standard_normal(shape), self.layout))

    def conv(self, x, w, bias=None):
        return cyconv.conv_forward(x, w, bias, **self.keywords)

    def dx(self, dy, w):
        return cyconv.conv_data_backward(dy, w, self.x.shape, **self.keywords)

    def dw(self, x, dy):
        return cyconv.conv_weight_backward(x, dy, self.w.shape, **self.keywords)

    @property
    def scale(self):
        """Sum of |x||w| per output element, and one more so that it is never zero."""
        return self.conv(abs(self.x), abs(self.w)) + 1


def close(a, b, scale):
    assert a.shape == b.shape
    assert np.all(np.abs(a - b) <= EPS * scale), f"off by {np.max(np.abs(a - b))}"


@quick
@given(problems(), seeds, layouts, strategies)
def test_the_three_operators_are_adjoint(problem, seed, layout, strategy):
    """<dy, conv(x, w)> = <x, dx(dy, w)> = <w, dw(x, dy)>."""
    n = Noise(problem, seed, layout, strategy)
    forward = np.vdot(n.dy, n.y)
    scale = np.vdot(abs(n.dy), n.scale)
    close(np.vdot(n.x, n.dx(n.dy, n.w)), forward, scale)
    close(np.vdot(n.w, n.dw(n.x, n.dy)), forward, scale)


@quick
@given(problems(), seeds, layouts, strategies)
def test_linear_in_each_operand(problem, seed, layout, strategy):
    n = Noise(problem, seed, layout, strategy)
    x2, w2, dy2 = (n.rng.standard_normal(a.shape) for a in (n.x, n.w, n.dy))
    top = max(abs(a).max(initial=0) for a in (n.x, n.w, n.dy, x2, w2, dy2)) ** 2
    scale = 10 * top * max(n.x.size, n.w.size, n.dy.size)
    close(n.conv(2 * n.x + x2, n.w), 2 * n.y + n.conv(x2, n.w), scale)
    close(n.conv(n.x, 2 * n.w + w2), 2 * n.y + n.conv(n.x, w2), scale)
    close(n.dx(2 * n.dy + dy2, n.w), 2 * n.dx(n.dy, n.w) + n.dx(dy2, n.w), scale)
    close(n.dw(2 * n.x + x2, n.dy), 2 * n.dw(n.x, n.dy) + n.dw(x2, n.dy), scale)


@quick
@given(problems(), seeds, strategies)
def test_doubling_is_exact(problem, seed, strategy):
    """Powers of two pass through every rounding: no scaling, no hidden constant."""
    n = Noise(problem, seed, strategy=strategy)
    np.testing.assert_array_equal(n.conv(4 * n.x, n.w), 4 * n.y)
    np.testing.assert_array_equal(n.conv(n.x, 4 * n.w), 4 * n.y)


@quick
@given(problems(), seeds, layouts, strategies)
def test_bias_is_added_to_its_channel(problem, seed, layout, strategy):
    n = Noise(problem, seed, layout, strategy)
    bias = n.rng.standard_normal(n.w.shape[0])
    shaped = oracle.to_layout(bias.reshape(1, -1, *(1,) * n.ndim), layout)
    close(n.conv(n.x, n.w, bias), n.y + shaped, n.scale + abs(shaped))


@quick
@given(problems(groups=3), seeds, strategies)
def test_groups_are_separate_convolutions(problem, seed, strategy):
    n = Noise(problem, seed, strategy=strategy)
    single = n.keywords | {"groups": 1}
    xs, dys = np.split(n.x, 3, axis=1), np.split(n.dy, 3, axis=1)
    ws = np.split(n.w, 3)
    big = 100 * n.x.size
    y = [cyconv.conv_forward(x, w, **single) for x, w in zip(xs, ws, strict=True)]
    close(n.y, np.concatenate(y, axis=1), n.scale)
    shape = xs[0].shape
    dx = [cyconv.conv_data_backward(g, w, shape, **single) for g, w in zip(dys, ws, strict=True)]
    close(n.dx(n.dy, n.w), np.concatenate(dx, axis=1), big)
    shape = ws[0].shape
    dw = [cyconv.conv_weight_backward(x, g, shape, **single) for x, g in zip(xs, dys, strict=True)]
    close(n.dw(n.x, n.dy), np.concatenate(dw), big)


@quick
@given(problems(), seeds, layouts, strategies)
def test_images_are_separate(problem, seed, layout, strategy):
    """Splitting the batch changes nothing; the weight gradient is the sum over the parts."""
    n = Noise(problem, seed, layout, strategy)
    x, dy = np.concatenate([n.x, n.x[::-1]]), np.concatenate([n.dy, n.dy])
    close(n.conv(x, n.w), np.concatenate([n.conv(i[None], n.w) for i in x]), 1e2 * n.w.size)
    whole = cyconv.conv_weight_backward(x, dy, n.w.shape, **n.keywords)
    parts = n.dw(n.x, n.dy) + n.dw(n.x[::-1], n.dy)
    close(whole, parts, 1e2 * dy.size)


@quick
@given(problems(), seeds, strategies)
def test_both_layouts_agree(problem, seed, strategy):
    first = Noise(problem, seed, "nchw", strategy)
    last = Noise(problem, seed, "nhwc", strategy)
    close(oracle.to_first(last.y, "nhwc"), first.y, first.scale)
    dy = np.ascontiguousarray(oracle.to_layout(first.dy, "nhwc"))
    big = 1e2 * first.dy.size
    close(oracle.to_first(last.dx(dy, last.w), "nhwc"), first.dx(first.dy, first.w), big)
    close(oracle.to_first(last.dw(last.x, dy), "nhwc"), first.dw(first.x, first.dy), big)


@quick
@given(problems(), seeds, layouts, strategies, st.data())
def test_transposed_is_data_backward(problem, seed, layout, strategy, data):
    n = Noise(problem, seed, layout, strategy)
    geometry = [n.keywords[key] for key in ("stride", "padding", "dilation")]
    small = n.y.shape[1:-1] if layout == "nhwc" else n.y.shape[2:]
    kernel = n.w.shape[1:-1] if layout == "nhwc" else n.w.shape[2:]
    extra = tuple(
        data.draw(st.integers(0, max(s, d) - 1))
        for s, d in zip(geometry[0], geometry[2], strict=True)
    )
    size = tuple(map(oracle.transposed_size, small, kernel, *geometry, extra))
    if min(size) < 1:
        return
    y = cyconv.conv_transpose(n.dy, n.w, output_padding=extra, **n.keywords)
    channels = n.x.shape[-1 if layout == "nhwc" else 1]
    shape = (len(n.x), *size, channels) if layout == "nhwc" else (len(n.x), channels, *size)
    assert y.shape == shape
    keywords = n.keywords | {"layout": layout}
    del keywords["strategy"]
    truth = oracle.transposed(n.dy, n.w, output_padding=extra, **keywords)
    close(y, truth.astype(float), 1e2 * n.w.size)
    if all(e < s for e, s in zip(extra, geometry[0], strict=True)):
        back = cyconv.conv_data_backward(n.dy, n.w, shape, **n.keywords)
        np.testing.assert_array_equal(y, back)
        sized = cyconv.conv_transpose(n.dy, n.w, output_size=size, **n.keywords)
        np.testing.assert_array_equal(y, sized)


@quick
@given(problems(), seeds, layouts, strategies)
def test_padding_is_zeros_by_hand(problem, seed, layout, strategy):
    n = Noise(problem, seed, layout, strategy)
    none, inner = (0, 0), n.keywords["padding"]
    padded = np.pad(n.x, (none, *inner, none) if layout == "nhwc" else (none, none, *inner))
    bare = n.keywords | {"padding": 0}
    close(n.y, cyconv.conv_forward(padded, n.w, **bare), n.scale)
    dw = cyconv.conv_weight_backward(padded, n.dy, n.w.shape, **bare)
    close(n.dw(n.x, n.dy), dw, 1e2 * n.dy.size)


@quick
@given(problems(), seeds, strategies)
def test_run_to_run(problem, seed, strategy):
    n = Noise(problem, seed, strategy=strategy)
    np.testing.assert_array_equal(n.conv(n.x, n.w), n.y)
    np.testing.assert_array_equal(n.dx(n.dy, n.w), n.dx(n.dy, n.w))
    np.testing.assert_array_equal(n.dw(n.x, n.dy), n.dw(n.x, n.dy))


@quick
@given(problems(), seeds)
def test_bias_gradient_is_the_sum(problem, seed):
    n = Noise(problem, seed)
    db = cyconv.bias_backward(n.dy, layout=n.keywords["layout"])
    axes = (0, *range(2, n.dy.ndim))
    np.testing.assert_allclose(db, n.dy.sum(axis=axes), rtol=EPS, atol=EPS * n.dy.size)
