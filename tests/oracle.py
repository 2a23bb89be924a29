"""The truth that the tests compare with: convolution from its definition, one kernel tap at a time.

Written from the formulas alone and importing nothing of the package.  Everything is computed in a
type wider than the data (float64 for float32 and the half types, long double for float64), so
that the oracle's own rounding is far below the bound of any strategy.  Padding is zeros that take
part: a NaN weight over padding gives NaN.  Shapes and keywords are those of the package's own
functions, with the layout spelt ``"nchw"`` or ``"nhwc"`` for every rank, and padding as an
integer or (low, high) pairs.
"""

from __future__ import annotations

import numpy as np

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def to_first(array, layout):
    """View with the channels on axis 1 (for a weight: the input channels)."""
    return np.moveaxis(array, -1, 1) if layout == "nhwc" else array


def to_layout(array, layout):
    """Inverse of `to_first`."""
    return np.moveaxis(array, 1, -1) if layout == "nhwc" else array


def layout_name(layout, ndim):
    """The package's name of a layout for a rank: NCW, NHWC, ..."""
    axes = "DHW"[3 - ndim :]
    return f"N{axes}C" if layout == "nhwc" else f"NC{axes}"


def per_axis(value, ndim):
    return (value,) * ndim if np.ndim(value) == 0 else tuple(value)


def pairs(padding, ndim):
    return tuple((p, p) if np.ndim(p) == 0 else tuple(p) for p in per_axis(padding, ndim))


def extent(kernel, dilation):
    """Cells that a dilated kernel covers: K = d(k-1) + 1."""
    return dilation * (kernel - 1) + 1


def forward_size(n, kernel, stride, pad, dilation):
    return (n + sum(pad) - extent(kernel, dilation)) // stride + 1


def transposed_size(n, kernel, stride, pad, dilation, output_padding):
    return (n - 1) * stride + extent(kernel, dilation) + output_padding - sum(pad)


def same_padding(n, kernel, stride, dilation, *, lower=False):
    """(low, high) such that the output size is ceil(n / stride)."""
    out = -(-n // stride)
    total = max((out - 1) * stride + extent(kernel, dilation) - n, 0)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def _wide(*arrays):
    kinds = {a.dtype.name for a in arrays}
    return np.longdouble if kinds & {"float64", "longdouble", "float128"} else np.float64


def _taps(kernel, stride, dilation, out):
    """For every tap its index and the slices of the padded image that it meets."""
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, s, d, o in zip(tap, stride, dilation, out, strict=True)
            ),
        )


def _product(a, b):
    """a @ b with every product taken: a BLAS may skip the zeros that meet an infinity."""
    if np.isfinite(a).all() and np.isfinite(b).all():
        return a @ b
    return (a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2)


def _grouped(array, groups):
    """(N, C, ...) to (N, groups, C / groups, pixels)."""
    return array.reshape(array.shape[0], groups, array.shape[1] // groups, -1)


def forward(x, w, bias=None, *, stride=1, padding=0, dilation=1, groups=1, layout="nchw"):
    """y[n,o,p] = sum of x[n,c,p*stride + r*dilation - pad] * w[o,c,r], plus bias[o]."""
    wide = _wide(x, w)
    x, w = to_first(x, layout).astype(wide), to_first(w, layout).astype(wide)
    ndim, kernel = w.ndim - 2, w.shape[2:]
    stride, dilation, padding = (
        per_axis(stride, ndim),
        per_axis(dilation, ndim),
        pairs(padding, ndim),
    )
    out = tuple(map(forward_size, x.shape[2:], kernel, stride, padding, dilation))
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, int(np.prod(out))), wide)
    with np.errstate(invalid="ignore", over="ignore"):
        for tap, window in _taps(kernel, stride, dilation, out):
            weight = w[(..., *tap)].reshape(groups, -1, w.shape[1])
            y += _product(weight, _grouped(x[(..., *window)], groups))
    y = y.reshape(x.shape[0], w.shape[0], *out)
    if bias is not None:
        y += bias.astype(wide).reshape(-1, *(1,) * ndim)
    return to_layout(y, layout)


def data_backward(dy, w, input_shape, *, stride=1, padding=0, dilation=1, groups=1, layout="nchw"):
    """Scatter every pair (output, tap) that exists into the input; what no tap reads stays zero."""
    wide = _wide(dy, w)
    dy, w = to_first(dy, layout).astype(wide), to_first(w, layout).astype(wide)
    ndim, kernel, out = w.ndim - 2, w.shape[2:], dy.shape[2:]
    size = input_shape[1:-1] if layout == "nhwc" else input_shape[2:]
    stride, dilation, padding = (
        per_axis(stride, ndim),
        per_axis(dilation, ndim),
        pairs(padding, ndim),
    )
    padded = [n + lo + hi for n, (lo, hi) in zip(size, padding, strict=True)]
    dx = np.zeros((dy.shape[0], groups * w.shape[1], *padded), wide)
    with np.errstate(invalid="ignore", over="ignore"):
        for tap, window in _taps(kernel, stride, dilation, out):
            weight = w[(..., *tap)].reshape(groups, -1, w.shape[1]).swapaxes(1, 2)
            part = _product(weight, _grouped(dy, groups))
            dx[(..., *window)] += part.reshape(*dx.shape[:2], *out)
    inside = tuple(slice(lo, lo + n) for n, (lo, _) in zip(size, padding, strict=True))
    return to_layout(dx[(..., *inside)], layout)


def weight_backward(
    x, dy, weight_shape, *, stride=1, padding=0, dilation=1, groups=1, layout="nchw"
):
    """dw[o,c,r] = sum over batch and pixels of dy[n,o,p] * x[n,c,p*stride + r*dilation - pad]."""
    wide = _wide(x, dy)
    x, dy = to_first(x, layout).astype(wide), to_first(dy, layout).astype(wide)
    ndim, out = dy.ndim - 2, dy.shape[2:]
    kernel = weight_shape[1:-1] if layout == "nhwc" else weight_shape[2:]
    stride, dilation, padding = (
        per_axis(stride, ndim),
        per_axis(dilation, ndim),
        pairs(padding, ndim),
    )
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    dw = np.zeros((dy.shape[1], x.shape[1] // groups, *kernel), wide)
    with np.errstate(invalid="ignore", over="ignore"):
        for tap, window in _taps(kernel, stride, dilation, out):
            image = _grouped(x[(..., *window)], groups).swapaxes(2, 3)
            part = _product(_grouped(dy, groups), image)
            dw[(..., *tap)] = part.sum(axis=0).reshape(dw.shape[:2])
    return to_layout(dw, layout)


def transposed(
    x, w, bias=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1, layout="nchw"
):
    """Data backward with x for dy, w as (C_in, C_out/groups, k...), the size from the formula."""
    ndim = w.ndim - 2
    first_x, first_w = to_first(x, layout), to_first(w, layout)
    geometry = per_axis(stride, ndim), pairs(padding, ndim), per_axis(dilation, ndim)
    size = tuple(
        map(
            transposed_size,
            first_x.shape[2:],
            first_w.shape[2:],
            *geometry,
            per_axis(output_padding, ndim),
        )
    )
    channels = first_w.shape[1] * groups
    shape = (x.shape[0], *size, channels) if layout == "nhwc" else (x.shape[0], channels, *size)
    keywords = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "layout": layout,
    }
    y = data_backward(x, w, shape, **keywords)
    if bias is not None:
        y = y + to_layout(bias.reshape(1, -1, *(1,) * ndim), layout)
    return y


OPERATORS = {"fwd": forward, "dx": data_backward, "dw": weight_backward}


def terms(op, x_shape, w_shape, y_shape, *, layout="nchw", bias=False):
    """K: products summed per element of the result, one more for a bias (shapes in the layout)."""
    spatial = slice(1, -1) if layout == "nhwc" else slice(2, None)
    channel = -1 if layout == "nhwc" else 1
    taps = int(np.prod(w_shape[spatial]))
    if op == "fwd":
        return w_shape[channel] * taps + bias
    if op == "dx":
        return w_shape[0] * w_shape[channel] // max(x_shape[channel], 1) * taps + bias
    return x_shape[0] * int(np.prod(y_shape[spatial]))


# Strategies that round in transforms: their bound is relative to the largest sum of a call.
TRANSFORMING = ("fft", "winograd")


def gamma(count, unit):
    return count * unit / (1 - count * unit)


def bound(magnitude, count, dtype):
    """gamma_{K+1} * sum |x||w|, with the error of flushed subnormals (at most K * 2**-126)."""
    tiny = 2.0**-126 if np.dtype(dtype).name == "float32" else 2.0**-1022
    return gamma(count + 1, UNIT[np.dtype(dtype).name]) * magnitude + count * tiny


def high_bound(magnitude, count, dtype):
    """64 u max sum |x||w|, with the error of flushed subnormals: what precision "high" permits."""
    tiny = 2.0**-126 if np.dtype(dtype).name == "float32" else 2.0**-1022
    unit = UNIT[np.dtype(dtype).name]
    return 64 * unit * np.full_like(magnitude, np.max(magnitude, initial=0)) + count * tiny


def bound_by(strategy, magnitude, count, dtype):
    """The bound of a strategy; `direct_bound` is narrower still."""
    return (high_bound if strategy in TRANSFORMING else bound)(magnitude, count, dtype)


def direct_bound(truth, magnitude, count, dtype):
    """float32 data accumulated in float64 and rounded once."""
    name = np.dtype(dtype).name
    if name == "float64":
        return bound(magnitude, count, dtype)
    return UNIT[name] * np.abs(truth) + gamma(count + 1, 2.0**-52) * magnitude + 2.0**-149


def assert_within(got, truth, limit, what=""):
    """Equal NaN and infinity pattern, and every other element within its own limit."""
    assert got.shape == truth.shape, f"{what}: shape {got.shape}, should be {truth.shape}"
    finite = np.isfinite(truth)
    if not finite.all():
        np.testing.assert_array_equal(got[~finite], truth[~finite], err_msg=f"{what}: not finite")
    error = np.abs(np.where(finite, got, 0).astype(truth.dtype) - np.where(finite, truth, 0))
    limit = np.broadcast_to(limit, truth.shape)
    worse = finite & ~(error <= limit)
    if worse.any():
        where = tuple(int(i) for i in np.argwhere(worse)[0])
        raise AssertionError(
            f"{what}: {int(worse.sum())} of {worse.size} elements out of bound, first at {where}: "
            f"got {got[where]!r}, should be {truth[where]!r} +- {float(limit[where]):.3g}"
        )
