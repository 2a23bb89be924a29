"""Arrays as NumPy users have them: types and promotion, strides and byte orders, out=, ranks,
layouts.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import oracle
import pytest

import cyconv

HALVES = ("float16", ml_dtypes.bfloat16)
RNG = np.random.default_rng(7)
X, W, B = (
    RNG.standard_normal((2, 4, 9, 8)),
    RNG.standard_normal((6, 4, 3, 3)),
    RNG.standard_normal(6),
)
DY = RNG.standard_normal((2, 6, 7, 6))
TRUTH = oracle.forward(X, W, B).astype(float)

OPERATORS = {
    "forward": lambda x, w, dy, **k: cyconv.conv_forward(x, w, **k),
    "data_backward": lambda x, w, dy, **k: cyconv.conv_data_backward(dy, w, x.shape, **k),
    "weight_backward": lambda x, w, dy, **k: cyconv.conv_weight_backward(x, dy, w.shape, **k),
}
ORACLES = {
    "forward": lambda x, w, dy: oracle.forward(x, w),
    "data_backward": lambda x, w, dy: oracle.data_backward(dy, w, x.shape),
    "weight_backward": lambda x, w, dy: oracle.weight_backward(x, dy, w.shape),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return request.param


# Types


@pytest.mark.parametrize(
    ("x", "w", "b", "result"),
    [
        ("f4", "f4", None, "f4"),
        ("f8", "f8", None, "f8"),
        ("f4", "f8", None, "f8"),
        ("f8", "f4", None, "f8"),
        ("f4", "f4", "f8", "f8"),
        ("f8", "f8", "f4", "f8"),
        ("f2", "f2", None, "f2"),
        ("f2", "f4", None, "f4"),
        ("f2", "f2", "f4", "f4"),
        ("u1", "f4", None, "f4"),
        ("i1", "f2", None, "f2"),
        ("i2", "f4", None, "f4"),
        ("i4", "f4", None, "f8"),
        ("i8", "f4", None, "f8"),
        ("?", "f4", None, "f4"),
        ("f4", "i1", None, "f4"),
        ("f8", "?", "u1", "f8"),
        ("f4", "f4", "i8", "f8"),
        (">f4", "<f4", None, "f4"),
        (">f8", ">f8", ">f8", "f8"),
        (">f2", "f2", None, "f2"),
    ],
)
def test_result_type_is_numpys(any_strategy, x, w, b, result):
    """np.result_type of the operands, bias included, in native byte order; values in that type."""
    whole = [(4 * X).round().astype(np.dtype(x)), (4 * W).round().astype(np.dtype(w))]
    bias = None if b is None else (4 * B).round().astype(np.dtype(b))
    y = cyconv.conv2d(*whole, bias, strategy=any_strategy)
    assert y.dtype == np.dtype(result)
    assert y.dtype.isnative
    wide = [a.astype("f8") for a in whole]
    truth = oracle.forward(*wide, None if b is None else bias.astype("f8")).astype("f8")
    # Sums of small integers are exact, but for strategies that transform.
    rounding = 64 * np.finfo(result).eps / 2 if any_strategy in oracle.TRANSFORMING else 0
    np.testing.assert_allclose(y, truth.astype(result), rtol=0, atol=rounding * abs(truth).max())


def test_bfloat16_promotes_as_ml_dtypes_says(any_strategy):
    half = X.astype(ml_dtypes.bfloat16)
    assert (
        cyconv.conv2d(half, W.astype(ml_dtypes.bfloat16), strategy=any_strategy).dtype
        == ml_dtypes.bfloat16
    )
    assert cyconv.conv2d(half, W.astype("f4"), strategy=any_strategy).dtype == "f4"
    assert cyconv.conv2d(half, W, strategy=any_strategy).dtype == "f8"


@pytest.mark.parametrize("half", HALVES, ids=("float16", "bfloat16"))
def test_half_types_round_once(operator, half, any_strategy, layout):
    """float32 accumulation, then one rounding: within half a unit of the result plus gamma in
    float32.
    """
    arrays = [np.ascontiguousarray(oracle.to_layout(a.astype(half), layout)) for a in (X, W, DY)]
    got = OPERATORS[operator](*arrays, layout=layout.upper(), strategy=any_strategy)
    assert got.dtype == half
    wide = [a.astype(half).astype("f8") for a in (X, W, DY)]
    truth = ORACLES[operator](*wide).astype("f8")
    magnitude = ORACLES[operator](*map(abs, wide)).astype("f8")
    terms = 84 if operator == "weight_backward" else 54
    unit = oracle.UNIT[np.dtype(half).name]
    limit = unit * abs(truth) + (1 + unit) * oracle.bound(magnitude, terms, "float32") + 2.0**-25
    oracle.assert_within(oracle.to_first(got, layout).astype("f8"), truth, limit, operator)


@pytest.mark.parametrize("half", HALVES, ids=("float16", "bfloat16"))
def test_bias_is_added_before_the_one_rounding(half, any_strategy):
    """1 + unit/2 + unit/4 rounds to 1 + unit; rounded before the bias it would stay 1."""
    unit = 2 * oracle.UNIT[np.dtype(half).name]
    x, w = np.array([[[1.0, 1.0]]]).astype(half), np.array([[[1.0]]]).astype(half)
    x2 = np.array([[[1.0, 1.0], [unit / 2, unit / 2]]]).astype(half)
    w2 = np.array([[[1.0], [1.0]]]).astype(half)
    bias = np.array([unit / 4]).astype(half)
    y = cyconv.conv1d(x2, w2, bias, strategy=any_strategy)
    assert y.astype("f8").ravel().tolist() == [1 + unit] * 2
    assert (
        cyconv.conv1d(x, w, bias, strategy=any_strategy).astype("f8").ravel().tolist() == [1.0] * 2
    )


def test_python_scalars_are_weak():
    """A list is an array to NumPy (float64); inside an array expression a scalar does not widen."""
    assert cyconv.conv2d(X.astype("f4") * 2.0, W.astype("f4")).dtype == "f4"
    assert cyconv.conv1d([[[1.0, 2.0]]], [[[1.0]]]).tolist() == [[[1.0, 2.0]]]


def test_weight_backward_type():
    assert cyconv.conv_weight_backward(X.astype("f4"), DY.astype("f2"), W.shape).dtype == "f4"
    assert cyconv.conv_weight_backward((9 * X).astype("u1"), DY.astype("f4"), W.shape).dtype == "f4"
    assert cyconv.conv_data_backward(DY.astype("f4"), W, X.shape).dtype == "f8"
    assert cyconv.bias_backward(DY.astype("f2")).dtype == "f2"


def test_image_of_bytes():
    image = RNG.integers(0, 256, (1, 20, 30, 3), "uint8")
    w = RNG.standard_normal((4, 5, 5, 3)).astype("f4")
    y = cyconv.conv2d(image, w, padding="same", layout="NHWC")
    assert y.dtype == "f4"
    truth = oracle.forward(image.astype("f4"), w, padding=2, layout="nhwc")
    np.testing.assert_allclose(y, truth, rtol=0, atol=1e-5 * 255 * 75)


# Strides, byte orders, flags


def _misaligned(a):
    raw = np.empty(a.nbytes + 1, "u1")[1:]
    b = raw.view(a.dtype).reshape(a.shape)
    b[...] = a
    assert not b.flags.aligned
    return b


def _with_gaps(a):
    b = np.full([2 * n for n in a.shape], np.nan, a.dtype)[
        tuple(slice(1, None, 2) for _ in a.shape)
    ]
    b[...] = a
    return b


def _reversed(a):
    return a[(slice(None, None, -1),) * a.ndim].copy()[(slice(None, None, -1),) * a.ndim]


DISGUISES = {
    "fortran": np.asfortranarray,
    "misaligned": _misaligned,
    "gaps": _with_gaps,
    "reversed": _reversed,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "transposed": lambda a: a.transpose(3, 1, 0, 2).copy().transpose(2, 1, 3, 0),
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "byte offset": lambda a: np.ndarray(a.shape, a.dtype, b"\0" * 4 + a.tobytes(), 4),
    "subclass": lambda a: a.view(type("Sub", (np.ndarray,), {})),
    "array protocol": lambda a: type(
        "Holder", (), {"__array__": lambda s, dtype=None, copy=None: a, "shape": a.shape}
    )(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_any_memory_gives_the_same(operator, disguise, dtype, layout, any_strategy):
    plain = [np.ascontiguousarray(oracle.to_layout(a.astype(dtype), layout)) for a in (X, W, DY)]
    odd = [DISGUISES[disguise](a) for a in plain]
    keywords = {"layout": layout.upper(), "strategy": any_strategy}
    right = OPERATORS[operator](*plain, **keywords)
    got = OPERATORS[operator](*odd, **keywords)
    assert type(got) is np.ndarray
    assert got.dtype == dtype
    assert got.dtype.isnative
    np.testing.assert_allclose(got, right, rtol=0, atol=(1e-4 if dtype == "float32" else 1e-12))
    for now, before in zip(odd, plain, strict=True):
        np.testing.assert_array_equal(np.asarray(now.__array__()), before)


def test_one_axis_step_on_each_operand(any_strategy, layout):
    """Steps and reversals on every axis, one at a time."""
    for axis in range(4):
        for step in (2, -1, -2):
            take = [slice(None)] * 4
            take[axis] = slice(None, None, step)
            grown = list(X.shape)
            grown[axis] *= abs(step)
            x = RNG.standard_normal(grown)[tuple(take)]
            grown = list(W.shape)
            grown[axis] *= abs(step)
            w = RNG.standard_normal(grown)[tuple(take)]
            views = [oracle.to_layout(a, layout) for a in (x, w)]
            y = cyconv.conv2d(*views, layout=layout.upper(), strategy=any_strategy)
            np.testing.assert_allclose(
                oracle.to_first(y, layout), oracle.forward(x, w).astype(float), atol=1e-12
            )


def test_aliased_operands(any_strategy):
    """x and w may be views of one array, even overlapping."""
    base = RNG.standard_normal(400)
    x, w = base[:200].reshape(1, 2, 10, 10), base[100:118].reshape(1, 2, 3, 3)
    np.testing.assert_allclose(
        cyconv.conv2d(x, w, strategy=any_strategy), oracle.forward(x, w).astype(float), atol=1e-12
    )


def test_zero_sizes(any_strategy, layout, dtype):
    keywords = {"layout": layout.upper(), "strategy": any_strategy}

    def shape(*s):
        return oracle.to_layout(np.empty(s, dtype), layout).shape

    y = cyconv.conv2d(
        np.ones(shape(0, 4, 9, 8), dtype), np.ones(shape(6, 4, 3, 3), dtype), **keywords
    )
    assert y.shape == shape(0, 6, 7, 6)
    bias = np.arange(3).astype(dtype)
    y = cyconv.conv2d(
        np.ones(shape(2, 0, 9, 8), dtype), np.ones(shape(3, 0, 3, 3), dtype), bias, **keywords
    )
    assert y.shape == shape(2, 3, 7, 6)
    np.testing.assert_array_equal(
        oracle.to_first(y, layout), np.broadcast_to(bias[:, None, None], (2, 3, 7, 6))
    )
    dw = cyconv.conv_weight_backward(
        np.ones(shape(0, 4, 9, 8), dtype),
        np.ones(shape(0, 6, 7, 6), dtype),
        shape(6, 4, 3, 3),
        **keywords,
    )
    assert dw.shape == shape(6, 4, 3, 3)
    assert not dw.any()
    y = cyconv.conv2d(
        np.ones(shape(1, 2, 0, 5), dtype),
        np.ones(shape(3, 2, 3, 3), dtype),
        bias,
        padding=2,
        **keywords,
    )
    right = np.broadcast_to(bias[:, None, None], (1, 3, 2, 7))
    np.testing.assert_array_equal(oracle.to_first(y, layout), right)


# out=


@pytest.mark.parametrize(
    "how", ["contiguous", "fortran", "misaligned", "gaps", "reversed", "channels last"]
)
def test_out_is_filled_and_returned(operator, how, any_strategy, dtype):
    plain = [a.astype(dtype) for a in (X, W, DY)]
    right = OPERATORS[operator](*plain, strategy=any_strategy)
    poison = np.full(right.shape, np.nan, dtype)
    out = poison if how == "contiguous" else DISGUISES[how](poison)
    assert OPERATORS[operator](*plain, strategy=any_strategy, out=out) is out
    np.testing.assert_allclose(out, right, rtol=0, atol=(1e-4 if dtype == "float32" else 1e-12))


def test_out_writes_nothing_beside_it(operator, any_strategy, layout):
    arrays = [np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (X, W, DY)]
    right = OPERATORS[operator](*arrays, layout=layout.upper(), strategy=any_strategy)
    frame = np.full([n + 2 for n in right.shape], 77.0)
    out = frame[(slice(1, -1),) * right.ndim]
    OPERATORS[operator](*arrays, layout=layout.upper(), strategy=any_strategy, out=out)
    np.testing.assert_allclose(out, right, atol=1e-12)
    out[...] = 77
    assert (frame == 77).all()


@pytest.mark.parametrize("shift", [0, 1, 8, 64])
def test_out_may_overlap_an_input(any_strategy, shift):
    base = RNG.standard_normal(2000)
    x, w = base[:400].reshape(1, 4, 10, 10), base[300:444].reshape(4, 4, 3, 3)
    right = cyconv.conv2d(x, w, padding=1, strategy=any_strategy)
    out = base[shift : shift + 400].reshape(1, 4, 10, 10)
    assert cyconv.conv2d(x, w, padding=1, strategy=any_strategy, out=out) is out
    np.testing.assert_allclose(out, right, atol=1e-12)


def test_out_may_overlap_the_bias(any_strategy):
    out = RNG.standard_normal((2, 6, 7, 6))
    bias = out.reshape(-1)[50:56]
    right = cyconv.conv2d(X, W, bias.copy(), strategy=any_strategy)
    np.testing.assert_allclose(
        cyconv.conv2d(X, W, bias, strategy=any_strategy, out=out), right, atol=1e-12
    )


def test_out_of_the_half_types(any_strategy):
    for half in HALVES:
        x, w = X.astype(half), W.astype(half)
        right = cyconv.conv2d(x, w, strategy=any_strategy)
        out = np.full((2, 6, 7, 12), 77, half)[..., ::2]
        assert cyconv.conv2d(x, w, strategy=any_strategy, out=out) is out
        np.testing.assert_array_equal(out.astype("f8"), right.astype("f8"))


def test_fresh_results_are_contiguous_in_their_layout_and_own_their_memory(
    operator, layout, any_strategy
):
    arrays = [np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (X, W, DY)]
    got = OPERATORS[operator](*arrays, layout=layout.upper(), strategy=any_strategy)
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert got.flags.aligned
    assert not any(np.shares_memory(got, a) for a in arrays)
    again = OPERATORS[operator](*arrays, layout=layout.upper(), strategy=any_strategy)
    assert not np.shares_memory(got, again)


# Ranks and layouts


def test_unbatched(any_strategy, layout):
    """One axis fewer in, one axis fewer out."""
    x, w, dy = (np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (X, W, DY))
    keywords = {"layout": layout.upper(), "strategy": any_strategy}
    y = cyconv.conv2d(x[0], w, B, **keywords)
    np.testing.assert_allclose(y, cyconv.conv2d(x[:1], w, B, **keywords)[0], atol=1e-12)
    dx = cyconv.conv_data_backward(dy[0], w, x.shape[1:], **keywords)
    assert dx.shape == x.shape[1:]
    np.testing.assert_allclose(
        dx, cyconv.conv_data_backward(dy[:1], w, (1, *x.shape[1:]), **keywords)[0], atol=1e-12
    )
    dw = cyconv.conv_weight_backward(x[0], dy[0], w.shape, **keywords)
    np.testing.assert_allclose(
        dw, cyconv.conv_weight_backward(x[:1], dy[:1], w.shape, **keywords), atol=1e-12
    )
    z = cyconv.conv_transpose2d(dy[0], w, **keywords)
    np.testing.assert_allclose(z, cyconv.conv_transpose2d(dy[:1], w, **keywords)[0], atol=1e-12)
    out = np.empty(y.shape)
    assert cyconv.conv2d(x[0], w, B, out=out, **keywords) is out
    np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_layout_names(ndim):
    x = RNG.standard_normal((2, 3, *(7, 6, 5)[:ndim]))
    w = RNG.standard_normal((4, 3, *(3, 2, 2)[:ndim]))
    right = oracle.forward(x, w).astype(float)
    for name in (oracle.layout_name("nchw", ndim), "channels_first"):
        np.testing.assert_allclose(cyconv.conv_forward(x, w, layout=name), right, atol=1e-12)
    last = [np.moveaxis(a, 1, -1) for a in (x, w)]
    for name in (oracle.layout_name("nhwc", ndim), "channels_last"):
        y = cyconv.conv_forward(*last, layout=name)
        np.testing.assert_allclose(np.moveaxis(y, -1, 1), right, atol=1e-12)
    for wrong in {
        oracle.layout_name(k, n) for k in ("nchw", "nhwc") for n in (1, 2, 3) if n != ndim
    }:
        with pytest.raises(ValueError, match="layout"):
            cyconv.conv_forward(x, w, layout=wrong)


def test_default_layout_of_every_rank():
    for ndim in (1, 2, 3):
        x, w = RNG.standard_normal((1, 2, *(5,) * ndim)), RNG.standard_normal((3, 2, *(2,) * ndim))
        for function in (cyconv.conv_forward, getattr(cyconv, f"conv{ndim}d")):
            np.testing.assert_allclose(
                function(x, w), oracle.forward(x, w).astype(float), atol=1e-12
            )


@pytest.mark.parametrize("text", ["valid", "same", "same_lower", "full"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        (8, 3, 2, 1),
        (9, 3, 2, 1),
        (7, 4, 3, 2),
        (5, 2, 1, 3),
        (6, 1, 2, 1),
        (10, 5, 4, 1),
        (13, 2, 3, 1),
        (12, 3, 5, 2),
    ],
)
def test_padding_by_name_in_every_operator(text, size, kernel, stride, dilation, any_strategy):
    numbers = {
        "valid": (0, 0),
        "same": oracle.same_padding(size, kernel, stride, dilation),
        "same_lower": oracle.same_padding(size, kernel, stride, dilation, lower=True),
        "full": (oracle.extent(kernel, dilation) - 1,) * 2,
    }[text]
    x, w = RNG.standard_normal((2, 3, size)), RNG.standard_normal((4, 3, kernel))
    keywords = {"stride": stride, "dilation": dilation, "strategy": any_strategy}
    y = cyconv.conv1d(x, w, padding=text, **keywords)
    if text.startswith("same"):
        assert y.shape[2] == -(-size // stride)
    by_number = keywords | {"padding": (numbers,)}
    np.testing.assert_array_equal(y, cyconv.conv1d(x, w, **by_number))
    np.testing.assert_array_equal(
        cyconv.conv_data_backward(y, w, x.shape, padding=text, **keywords),
        cyconv.conv_data_backward(y, w, x.shape, **by_number),
    )
    np.testing.assert_array_equal(
        cyconv.conv_weight_backward(x, y, w.shape, padding=text, **keywords),
        cyconv.conv_weight_backward(x, y, w.shape, **by_number),
    )


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        (5, 3, 2, 1),
        (4, 4, 2, 1),
        (6, 3, 1, 2),
        (3, 2, 3, 1),
        (4, 1, 3, 1),
        (5, 5, 3, 1),
        (3, 2, 5, 2),
        (4, 4, 3, 1),
    ],
)
def test_padding_by_name_transposed(size, kernel, stride, dilation, any_strategy):
    """ "same" gives n*s: K - s is cut, smaller half first; where K < s, zeros plus bias follow at
    the end.
    """
    x, w, bias = (
        RNG.standard_normal((2, 4, size)),
        RNG.standard_normal((4, 3, kernel)),
        np.array([1.0, 2, 3]),
    )
    keywords = {"stride": stride, "dilation": dilation, "strategy": any_strategy}
    whole = oracle.transposed(x, w, bias, stride=stride, dilation=dilation).astype(float)
    extent = oracle.extent(kernel, dilation)
    assert whole.shape[2] == (size - 1) * stride + extent
    cut = max(extent - stride, 0)
    tail = np.broadcast_to(bias[:, None], (2, 3, max(stride - extent, 0)))
    for text, low in (("same", cut // 2), ("same_lower", cut - cut // 2)):
        y = cyconv.conv_transpose1d(x, w, bias, padding=text, **keywords)
        assert y.shape[2] == size * stride
        right = np.concatenate([whole[..., low : whole.shape[2] - (cut - low)], tail], axis=2)
        np.testing.assert_allclose(y, right, atol=1e-12)
    np.testing.assert_allclose(
        cyconv.conv_transpose1d(x, w, bias, padding="valid", **keywords), whole, atol=1e-12
    )
    full = extent - 1
    if whole.shape[2] > 2 * full:
        y = cyconv.conv_transpose1d(x, w, bias, padding="full", **keywords)
        np.testing.assert_allclose(y, whole[..., full : whole.shape[2] - full], atol=1e-12)


def test_a_flat_tuple_is_one_padding_an_axis():
    x, w = RNG.standard_normal((1, 1, 6, 6)), np.ones((1, 1, 3, 3))
    assert cyconv.conv2d(x, w, padding=(1, 2)).shape == (1, 1, 6, 8)
    assert cyconv.conv2d(x, w, padding=((1, 2), (0, 0))).shape == (1, 1, 7, 4)
    x, w = x[..., 0], w[..., 0]
    assert cyconv.conv1d(x, w, padding=((1, 2),)).shape == (1, 1, 7)
    with pytest.raises(ValueError, match="padding"):
        cyconv.conv1d(x, w, padding=(1, 2))
