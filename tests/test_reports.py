"""Public bug reports about convolution, one test each, under their number in our list: A to F,
which are about geometry, particular combinations, shapes, arguments and strides.

The `lab` fixture runs a report for every strategy, both layouts, both types, one and two threads.
Expected numbers are those of the reports.
"""

from __future__ import annotations

import warnings
from functools import cache
from itertools import product

import numpy as np
import oracle
import pytest
from lab import exact, near, ramp, random, same

import cyconv

# A. Output geometry


def test_b01_every_axis_has_its_own_parameters(lab):
    x, w = random(1, 1, 50, 50, dtype=lab.dtype), random(1, 3, 3, 5, dtype=lab.dtype)
    a = {"stride": (2, 1), "padding": (4, 2), "dilation": (3, 1)}
    y = lab.transposed(x, w, output_padding=0, **a)
    assert y.shape == (1, 3, 97, 50)
    near(y, oracle.transposed(x, w, **a), lab.tolerance)
    x, w = random(1, 3, 32, 32, dtype=lab.dtype), random(6, 3, 3, 3, dtype=lab.dtype)
    y = lab.conv(x, w, stride=(2, 3))
    assert y.shape == (1, 6, 15, 10)
    near(y, oracle.forward(x, w, stride=(2, 3)), lab.tolerance)
    x, w = random(1, 1, 7, 5, dtype=lab.dtype), random(1, 1, 3, 3, dtype=lab.dtype)
    y = lab.conv(x, w, stride=2, padding=(1, 0))
    assert y.shape == (1, 1, 4, 2)
    near(y, oracle.forward(x, w, stride=2, padding=(1, 0)), lab.tolerance)


def test_b03_output_padding(lab):
    y = lab.transposed(np.ones((1, 1, 2)), [[[1, 2, 3]]], stride=2, padding=1, output_padding=1)
    exact(y, np.array([[[2, 4, 2, 3]]]), lab)
    y = lab.transposed(np.ones((1, 1, 3)), np.ones((1, 1, 16)), stride=8, output_padding=4)
    exact(y[0, 0], np.array([1] * 8 + [2] * 16 + [1] * 8 + [0] * 4), lab)
    x, w = 0.5 * np.ones((1, 1, 8, 8)), np.ones((1, 3, 2, 2))
    y = lab.transposed(x, w, padding=3, dilation=2, output_padding=1)
    exact(y, np.full((1, 3, 5, 5), 2.0), lab)
    x, w = np.ones((1, 16, 7, 7)), np.ones((16, 3, 3, 3))
    assert lab.transposed(x, w, stride=2, padding=1, output_padding=1).shape == (1, 3, 14, 14)
    for batch in (1, 0):
        with pytest.raises(ValueError, match="output_padding"):
            lab.transposed(np.ones((batch, 16, 7, 7)), w, stride=2, output_padding=2)


def test_b05_same_with_a_stride(lab):
    y = lab.conv(np.ones((1, 1, 224, 224)), np.ones((1, 1, 7, 7)), stride=2, padding="same")[0, 0]
    assert y.shape == (112, 112)
    exact(y[[0, -1], [0, -1]], np.array([25, 16]), lab)
    y = lab.conv(ramp(1, 1, 6, 6), np.ones((1, 1, 3, 3)), stride=2, padding="same")
    exact(y[0, 0], np.array([[63, 81, 63], [171, 189, 135], [168, 180, 126]]), lab)


# B. Wrong forward values for particular combinations


def test_b07_transposed_with_stride_and_dilation(lab):
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 1, 1] = 1
    y = lab.transposed(x, ramp(1, 1, 3, 3, start=1), stride=2, padding=2, dilation=2)
    right = np.zeros((5, 5))
    right[::2, ::2] = ramp(3, 3, start=1)
    exact(y[0, 0], right, lab)
    one = np.ones((1, 1, 6)), np.ones((1, 1, 3))
    y = lab.transposed(*one, stride=2, padding=1, output_padding=1, dilation=2)
    exact(y[0, 0], np.array([0, 2, 0, 3, 0, 3, 0, 3, 0, 3, 0, 2, 0, 1]), lab)


def test_b09_asymmetric_padding_in_3d(lab):
    pad = ((0, 1),) * 3
    y = lab.conv(np.ones((2, 3, 8, 8, 8)), np.ones((2, 3, 3, 3, 3)), stride=2, padding=pad)
    assert y.shape == (2, 2, 4, 4, 4)
    for at, right in (((0, 0, 0), 81), ((3, 3, 3), 24), ((0, 0, 3), 54)):
        exact(y[(..., *at)], np.full((2, 2), right), lab)
    x, w = random(2, 3, 8, 8, 8, dtype=lab.dtype), random(2, 3, 3, 3, 3, dtype=lab.dtype)
    by_hand = np.pad(x, ((0, 0), (0, 0), *pad))
    near(lab.conv(x, w, stride=2, padding=pad), lab.conv(by_hand, w, stride=2), lab.tolerance)


@pytest.mark.parametrize("bias", [None, 7])
@pytest.mark.parametrize("dilation", [1, 3])
def test_b10_pointwise_with_stride_or_padding(lab, bias, dilation):
    x, w = ramp(1, 1, 5, 5), np.ones((1, 1, 1, 1))
    add = bias or 0

    def conv(**more):
        return (
            lab.conv(x, w, None if bias is None else [bias], dilation=dilation, **more)[0, 0] - add
        )

    np.testing.assert_array_equal(conv(stride=2), [[0, 2, 4], [10, 12, 14], [20, 22, 24]])
    y = conv(padding=1)
    assert y.shape == (7, 7)
    assert y.sum() == 300
    assert y[1:-1, 1:-1].sum() == 300
    np.testing.assert_array_equal(
        conv(padding=1, stride=2), [[0, 0, 0, 0], [0, 6, 8, 0], [0, 16, 18, 0], [0, 0, 0, 0]]
    )


def test_b11_large_odd_image(any_strategy):
    x, w = random(1, 80, 73, 73, dtype="float32"), random(192, 80, 3, 3, dtype="float32")
    y = cyconv.conv2d(x, w, strategy=any_strategy)
    assert y.shape == (1, 192, 71, 71)
    for rows in (slice(0, 4), slice(68, 71)):
        strip = x[:, :, rows.start : rows.stop + 2]
        near(y[:, :, rows], oracle.forward(strip, w), 1e-4)


@cache
def _b11(height, width, padding, c_out, dtype):
    x, w = random(1, 3, height, width, dtype=dtype), random(c_out, 3, 3, 3, dtype=dtype)
    return x, w, oracle.forward(x, w, padding=padding)


@cache
def _b11_wide(dtype):
    x, w = random(1, 23, 40, 128, dtype=dtype), random(9, 23, 3, 3, dtype=dtype)
    return x, w, oracle.forward(x, w, padding=1)


def test_b11_preconditions_of_winograd(lab2):
    tolerance = 1e-4 if lab2.dtype == "float32" else 1e-12
    x, w, truth = _b11_wide(lab2.dtype)
    near(lab2.conv(x, w, padding=1), truth, tolerance)
    sizes = (1, 2, 3, 4, 5, 7, 16, 17)
    for height, width, padding, c_out in product(sizes, sizes, (0, 1, 2, 3), (1, 3, 17)):
        if min(height, width) + 2 * padding >= 3:
            x, w, truth = _b11(height, width, padding, c_out, lab2.dtype)
            near(lab2.conv(x, w, padding=padding), truth, tolerance)
    x, w = random(2, 4, 17, 19, dtype=lab2.dtype), random(5, 4, 5, 5, dtype=lab2.dtype)
    more = {"stride": 2, "dilation": 2, "padding": 1}
    near(lab2.conv(x, w, **more), oracle.forward(x, w, **more), tolerance)


B12_IN = (*range(1, 10), 15, 16, 17, 31, 32, 33, 64, 192)


@cache
def _b12(c_in, c_out, size, dtype):
    x, w = random(1, c_in, *size, dtype=dtype), random(c_out, c_in, *(3,) * len(size), dtype=dtype)
    return x, w, oracle.forward(x.astype("float32"), w.astype("float32"), padding=1)


def test_b12_channels_around_the_vector_width(lab2):
    unit = 1e-5 if lab2.dtype == "float32" else 1e-13
    sizes = [(n,) for n in (*range(1, 10), 15, 16, 17)] + [(2, 1), (3, 8), (2, 17)]
    for c_in, c_out, size in product(B12_IN, (1, 4, 17, 64), sizes):
        x, w, truth = _b12(c_in, c_out, size, "float32")
        limit = unit * np.sqrt(c_in * w[0, 0].size) * np.max(abs(x)) * np.max(abs(w))
        worst = np.max(np.abs(lab2.conv(x, w, padding=1) - truth))
        assert worst <= limit, f"{c_in} -> {c_out} channels, {size}: {worst}"


# C. Groups and depthwise


def test_b13_few_channels_a_group(lab):
    x = np.zeros((1, 4, 1, 1))
    x[0, 3] = 1
    y = lab.conv(x, np.ones((16, 2, 1, 1)), groups=2)
    np.testing.assert_array_equal(y.ravel(), [0] * 8 + [1] * 8)
    x, w = random(2, 4, 6, 6, dtype=lab.dtype), random(16, 2, 3, 3, dtype=lab.dtype)
    halves = [(x[:, :2], w[:8]), (x[:, 2:], w[8:])]
    y = lab.conv(x, w, groups=2)
    near(y, np.concatenate([lab.conv(*half) for half in halves], 1), lab.tolerance)
    dy = random(2, 16, 4, 4, dtype=lab.dtype)
    parts = [(dy[:, :8], w[:8]), (dy[:, 8:], w[8:])]
    dx = np.concatenate([lab.dx(*part, (2, 2, 6, 6)) for part in parts], 1)
    near(lab.dx(dy, w, x.shape, groups=2), dx, lab.tolerance)
    parts = [(x[:, :2], dy[:, :8]), (x[:, 2:], dy[:, 8:])]
    dw = np.concatenate([lab.dw(*part, (8, 2, 3, 3)) for part in parts])
    near(lab.dw(x, dy, w.shape, groups=2), dw, lab.tolerance)
    y = lab.transposed(np.ones((9, 42, 1, 5)), np.ones((42, 1, 1, 1)), dilation=(4, 3), groups=2)
    np.testing.assert_array_equal(y, np.full((9, 2, 1, 5), 21.0))


# D. Empty and degenerate shapes


def test_b15_empty_batch(lab):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lab.conv(np.ones((0, 3, 3, 3)), np.ones((3, 3, 3, 3))).shape == (0, 3, 1, 1)
        x, w, b = np.ones((0, 5, 6, 8)), np.ones((3, 5, 5, 6)), np.ones(3)
        y = lab.conv(x, w, b)
        assert y.shape == (0, 3, 2, 3)
        assert lab.dx(y, w, x.shape).shape == (0, 5, 6, 8)
        assert lab.conv(np.ones((0, 3, 100, 50)), np.ones((16, 3, 3, 3))).shape == (0, 16, 98, 48)
        assert lab.transposed(np.ones((0, 4, 5)), np.ones((4, 2, 3)), stride=2).shape == (0, 2, 11)
        for batch in (4, 0):
            x, dy = np.ones((batch, 5, 6, 8)), np.ones((batch, 3, 2, 3))
            dw, db = lab.dw(x, dy, w.shape), lab.db(dy)
        np.testing.assert_array_equal(dw, np.zeros((3, 5, 5, 6)))
        np.testing.assert_array_equal(db, np.zeros(3))
        assert db.dtype == lab.dtype


def test_b17_no_valid_output(lab):
    with pytest.raises(ValueError, match=r"(?s)(?=.*3)(?=.*5)(?=.*padding)(?=.*kernel)"):
        lab.conv(np.ones((1, 1, 3, 3)), np.ones((1, 1, 5, 3)))
    with pytest.raises(ValueError, match=r"(?s)(?=.*padding)(?=.*kernel)"):
        lab.conv(np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 3)))
    with pytest.raises(ValueError, match="padding"):
        lab.transposed(np.ones((1, 1, 2, 2)), np.ones((1, 1, 4, 4)), padding=3)
    with pytest.raises(ValueError, match="kernel"):
        lab.conv(np.ones((1, 1, 5)), np.ones((64, 1, 0)))
    with pytest.raises(ValueError, match=r"(?s)(?=.*5)(?=.*7)(?=.*kernel)"):
        lab.conv(np.ones((1, 1, 5)), np.ones((1, 1, 3)), dilation=3)
    try:
        y = lab.conv(np.ones((1, 3, 8, 8)), np.ones((0, 3, 3, 3)))
    except ValueError:
        pass
    else:
        assert y.shape == (1, 0, 6, 6)


# E. Bad arguments (test_bad_input.py has the long table)


def _entry_points(lab, x, w, y, more):
    yield lambda: lab.conv(x, w, **more)
    yield lambda: lab.dx(y, w, x.shape, **more)
    yield lambda: lab.dw(x, y, w.shape, **more)
    yield lambda: lab.transposed(y, w, **more)


def test_b18_numbers_out_of_range(lab):
    x, w = np.ones((1, 1, 1)), np.ones((1, 1, 1))
    for groups in (0, -1, -(2**63), 3):
        for call in _entry_points(lab, x, w, x, {"groups": groups}):
            with pytest.raises(ValueError, match=rf"(?s)(?=.*groups)(?=.*{groups})"):
                call()
    x, w, y = np.ones((1, 1, 3, 80)), np.ones((64, 1, 3, 3)), np.ones((1, 64, 1, 78))
    wrong = [
        (ValueError, "dilation", 0),
        (ValueError, "dilation", -1),
        (ValueError, "padding", -1),
        (ValueError, "stride", 0),
        (TypeError, "dilation", True),
        (TypeError, "stride", 1.5),
        (ValueError, "padding", (1, 1, 1)),
        (TypeError, "groups", None),
    ]
    for kind, name, value in wrong:
        for call in _entry_points(lab, x, w, y, {name: value}):
            with pytest.raises(kind, match=name):
                call()
    one = np.int64(1)
    right = lab.conv(x, w, stride=one, padding=np.int32(1), dilation=(one, np.uint8(1)), groups=one)
    np.testing.assert_array_equal(right, lab.conv(x, w, padding=1))


def test_b20_wrong_shapes_are_caught(lab):
    x, w = np.ones((1, 3, 8, 8)), np.ones((64, 3, 3, 3))
    for bias in (np.ones(1), np.ones(63), np.ones((64, 1)), np.ones(())):
        with pytest.raises(ValueError, match="bias"):
            lab.conv(x, w, bias)
    dy = np.ones((1, 32, 6, 6))
    with pytest.raises(ValueError, match="dy"):
        lab.dw(x, dy, (32, 3, 5, 5))
    with pytest.raises(ValueError, match="dy"):
        lab.dx(dy, np.ones((32, 3, 3, 3)), (1, 3, 9, 8))
    with pytest.raises(ValueError, match="x"):
        lab.conv(np.ones((1, 3, 8)), np.ones((4, 3, 3, 3)))
    with pytest.raises(ValueError, match=r"(?i)channels"):
        lab.conv(np.ones((1, 6, 8, 8)), np.ones((4, 6, 3, 3)), groups=2)


# F. Array layouts, strides, flags


def test_b21_stride_zero(lab):
    keywords = lab.keywords(2, {})
    x = np.ones((1, 1, 1, 1), lab.dtype)
    w = np.broadcast_to(np.ones((1, 1, 1, 1), lab.dtype), (2, 1, 1, 1))
    y = cyconv.conv_forward(lab.view(x), lab.view(w), **keywords)
    np.testing.assert_array_equal(y.ravel(), [1, 1])
    sobel = 0.125 * np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], lab.dtype)
    x = np.broadcast_to(np.arange(5, dtype=lab.dtype), (1, 8, 5, 5))
    w = np.broadcast_to(sobel, (8, 1, 3, 3))
    y = cyconv.conv_forward(lab.view(x), lab.view(w), groups=8, **keywords)
    exact(y, np.ones(lab.shape((1, 8, 3, 3))), lab)
    x = np.broadcast_to(random(1, 3, 7, 6, dtype=lab.dtype), (4, 3, 7, 6))
    w = np.broadcast_to(random(5, 1, 3, 3, dtype=lab.dtype), (5, 3, 3, 3))
    dy = np.broadcast_to(np.asarray(1, lab.dtype), (4, 5, 5, 4))
    views = [lab.view(a) for a in (x, w, dy)]
    copies = [np.ascontiguousarray(a) for a in views]
    for run in (_forward, _data_backward, _weight_backward):
        same(run(*views, keywords), run(*copies, keywords), lab)


def _forward(x, w, dy, keywords):
    return cyconv.conv_forward(x, w, **keywords)


def _data_backward(x, w, dy, keywords):
    return cyconv.conv_data_backward(dy, w, x.shape, **keywords)


def _weight_backward(x, w, dy, keywords):
    return cyconv.conv_weight_backward(x, dy, w.shape, **keywords)


def test_b22_transposed_weights_and_their_gradients(lab):
    x = ramp(1, 2, 3, 3, start=1).astype(lab.dtype)
    base = ramp(2, 2, 2, 2, start=1).astype(lab.dtype)
    w, keywords = lab.view(base.transpose(1, 0, 2, 3)), lab.keywords(2, {})
    y = cyconv.conv_forward(lab.view(x), w, **keywords)
    first = oracle.to_first(y, lab.layout)
    np.testing.assert_array_equal(first.ravel(), [548, 600, 704, 756, 788, 872, 1040, 1124])
    assert (y.astype("float64") ** 2).sum() == 5453760
    dx = cyconv.conv_data_backward(2 * y, w, lab.shape(x.shape), **keywords)
    np.testing.assert_array_equal(
        oracle.to_first(dx, lab.layout).ravel(),
        [
            8976,
            21568,
            12864,
            26128,
            60848,
            35264,
            18784,
            42544,
            24032,
            30352,
            66496,
            36416,
            75408,
            163760,
            88896,
            46688,
            100528,
            54112,
        ],
    )
    dw = cyconv.conv_weight_backward(lab.view(x), 2 * y, w.shape, **keywords)
    np.testing.assert_array_equal(
        oracle.to_first(dw, lab.layout).transpose(1, 0, 2, 3).ravel(),
        [
            16688,
            21904,
            32336,
            37552,
            24624,
            32272,
            47568,
            55216,
            63632,
            68848,
            79280,
            84496,
            93456,
            101104,
            116400,
            124048,
        ],
    )


def _strided(dtype):
    """(x, w, dy, keywords) with every kind of stride, in NCHW."""
    big = random(6, 8, 1, 1, dtype=dtype)
    yield random(2, 2, 4, 5, dtype=dtype), big[:, 3:5], random(2, 6, 4, 5, dtype=dtype), {}
    x = random(4, 6, 5, dtype=dtype).transpose(0, 2, 1)
    yield x, random(10, 5, 2, dtype=dtype), random(4, 10, 5, dtype=dtype), {}
    fortran = (
        np.asfortranarray(random(*s, dtype=dtype))
        for s in ((2, 3, 7, 6), (4, 3, 3, 3), (2, 4, 5, 4))
    )
    yield *fortran, {}
    wide = random(2, 6, 7, 6, dtype=dtype)
    yield wide[:, ::2], random(4, 3, 3, 3, dtype=dtype), random(4, 4, 5, 4, dtype=dtype)[::2], {}
    yield (
        wide[::-1, 2::-1, ::-1, ::-1],
        random(4, 3, 3, 3, dtype=dtype)[::-1, :, ::-1],
        random(2, 4, 5, 4, dtype=dtype)[..., ::-1],
        {},
    )


def test_b22_any_strides(lab):
    for x, w, dy, more in _strided(lab.dtype):
        keywords = lab.keywords(w.ndim - 2, more)
        vx, vw, vy = (lab.view(a) for a in (x, w, dy))
        same(
            oracle.to_first(cyconv.conv_forward(vx, vw, **keywords), lab.layout),
            lab.conv(x, w, **more),
            lab,
        )
        dx = cyconv.conv_data_backward(vy, vw, vx.shape, **keywords)
        same(oracle.to_first(dx, lab.layout), lab.dx(dy, w, x.shape, **more), lab)
        dw = cyconv.conv_weight_backward(vx, vy, vw.shape, **keywords)
        same(oracle.to_first(dw, lab.layout), lab.dw(x, dy, w.shape, **more), lab)


def test_b22_out_is_a_view_or_overlaps(lab):
    x, w = lab.array(random(1, 3, 6, 6)).copy(), lab.array(random(3, 3, 3, 3))
    keywords = lab.keywords(2, {"padding": 1})
    right = cyconv.conv_forward(x, w, **keywords)
    buffer = np.full((*right.shape[:-1], right.shape[-1] + 1), 77, lab.dtype)
    out = buffer[..., 1:]
    assert cyconv.conv_forward(x, w, out=out, **keywords) is out
    same(out, right, lab)
    assert (buffer[..., 0] == 77).all()
    cyconv.conv_forward(x, w, out=x, **keywords)
    same(x, right, lab)


def test_b24_read_only_inputs(lab, tmp_path):
    arrays = [lab.array(random(*s)) for s in ((2, 3, 6, 5), (4, 3, 3, 3), (2, 4, 4, 3))]
    right = [f(*arrays) for f in _three(lab)]

    def memmap(a, i):
        a.tofile(tmp_path / str(i))
        return np.memmap(tmp_path / str(i), a.dtype, "r", shape=a.shape)

    def locked(a, i):
        a = a.copy()
        a.flags.writeable = False
        return a

    frozen = {
        "flag": locked,
        "bytes": lambda a, i: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
        "broadcast": lambda a, i: np.broadcast_to(a, a.shape),
        "memmap": memmap,
    }
    for how, freeze in frozen.items():
        inputs = [freeze(a, i) for i, a in enumerate(arrays)]
        assert not any(a.flags.writeable for a in inputs)
        for f, truth in zip(_three(lab), right, strict=True):
            got = f(*inputs)
            np.testing.assert_array_equal(got, truth, err_msg=how)
            assert got.flags.writeable
            assert type(got) is np.ndarray
        for now, before in zip(inputs, arrays, strict=True):
            np.testing.assert_array_equal(now, before)


def _three(lab):
    keywords = lab.keywords(2, {})
    bias = np.ones(4, lab.dtype)
    bias.flags.writeable = False
    yield lambda x, w, dy: cyconv.conv_forward(x, w, bias, **keywords)
    yield lambda x, w, dy: cyconv.conv_data_backward(dy, w, x.shape, **keywords)
    yield lambda x, w, dy: cyconv.conv_weight_backward(x, dy, w.shape, **keywords)


def test_b26_axes_of_length_1(lab):
    x = random(1, 1, 30, 31, dtype=lab.dtype)
    w = np.ascontiguousarray(random(64, 1, 3, 3, dtype=lab.dtype).transpose(0, 2, 3, 1)).transpose(
        0, 3, 1, 2
    )
    odd = np.lib.stride_tricks.as_strided(x, x.shape, (-8, 12345, *x.strides[2:]))
    right = oracle.forward(x, w, padding=1)
    for view in (x, odd):
        y = cyconv.conv_forward(lab.view(view), lab.view(w), **lab.keywords(2, {"padding": 1}))
        near(oracle.to_first(y, lab.layout), right, lab.tolerance)
    line = random(1, 1, 1024, dtype=lab.dtype).transpose(0, 2, 1)
    w = random(1, 1024, 1, dtype=lab.dtype)
    y = cyconv.conv_forward(lab.view(line), lab.view(w), **lab.keywords(1, {}))
    near(oracle.to_first(y, lab.layout), oracle.forward(line, w), 10 * lab.tolerance)
