"""The signature of a call: calls that differ in more than elements never share one."""

from __future__ import annotations

import numpy as np
import pytest

import cyconv
from cyconv.kernels._signature import signature

X, W = np.ones((1, 2, 8, 8), np.float32), np.ones((4, 2, 3, 3), np.float32)
BIAS, RESIDUAL = np.ones(4, np.float32), np.ones((1, 4, 6, 6), np.float32)
RAW = (1, 0, 1, 1, "channels_first", None, None, None)


def _raw(**changes):
    names = ("stride", "padding", "dilation", "groups", "layout", "strategy", "threads")
    values = dict(zip((*names, "activation"), RAW, strict=True)) | changes
    return tuple(values.values())


def _of(kind="forward", rank=2, x=X, w=W, bias=None, residual=None, extra=(), raw=RAW, **settings):
    with cyconv.config(**settings):
        return signature(kind, rank, x, w, bias, residual, extra, raw, cyconv.get_config())


DIFFERENT = {
    "kind": {"kind": "transposed"},
    "rank": {"rank": None},
    "shape of x": {"x": np.ones((1, 2, 9, 8), np.float32)},
    "strides of x": {"x": np.ones((1, 2, 8, 16), np.float32)[..., ::2]},
    "dtype of x": {"x": X.astype(np.float64)},
    "byte order": {"x": X.astype(X.dtype.newbyteorder())},
    "shape of w": {"w": np.ones((4, 2, 3, 1), np.float32)},
    "strides of w": {"w": np.ones((4, 2, 3, 3), np.float32)[..., ::-1]},
    "dtype of w": {"w": W.astype(np.float16)},
    "bias": {"bias": BIAS},
    "dtype of bias": {"bias": BIAS.astype(np.float64)},
    "residual": {"residual": RESIDUAL},
    "residual for bias": {"residual": BIAS},
    "extra": {"extra": ((1, 2, 8, 8),)},
    "stride": {"raw": _raw(stride=2)},
    "stride a pair": {"raw": _raw(stride=(1, 1))},
    "True": {"raw": _raw(groups=True)},
    "1.0": {"raw": _raw(stride=1.0)},
    "NumPy's 1": {"raw": _raw(stride=np.int64(1))},
    "activation": {"raw": _raw(activation="relu")},
    "slope": {"raw": _raw(activation=("leaky_relu", 0.1))},
    "another slope": {"raw": _raw(activation=("leaky_relu", 0.2))},
    "settings": {"strict": True},
}


def test_all_differ():
    keys = [_of(), *(_of(**changes) for changes in DIFFERENT.values())]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_elements_are_not_looked_at():
    assert _of() == _of(x=X * 2, w=W + 1)
    assert _of(bias=BIAS) == _of(bias=BIAS * 2)


def test_lists_are_tuples():
    assert _of(raw=_raw(stride=[1, 1])) == _of(raw=_raw(stride=(1, 1)))
    assert _of(raw=_raw(padding=[[1, 0], (0, 1)])) == _of(raw=_raw(padding=((1, 0), (0, 1))))
    assert _of(extra=([1, 2, 8, 8],)) == _of(extra=((1, 2, 8, 8),))


CLOSER_LOOK = {
    "a list": {"x": X.tolist()},
    "a subclass": {"w": np.ma.array(W)},
    "misaligned": {"x": np.zeros(513, np.uint8)[1:].view(np.float32).reshape(1, 2, 8, 8)},
    "bias with strides": {"bias": np.ones(8, np.float32)[::2]},
    "residual of another order": {"residual": np.asfortranarray(RESIDUAL)},
    "a pair with True": {"raw": _raw(stride=(True, 1))},
    "a pair with 1.0": {"raw": _raw(stride=(1.0, 1))},
    "slope an int": {"raw": _raw(activation=("leaky_relu", 1))},
    "an extra float": {"extra": (1.0,)},
}


@pytest.mark.parametrize("name", CLOSER_LOOK)
def test_a_closer_look(name):
    assert _of(**CLOSER_LOOK[name]) is None
