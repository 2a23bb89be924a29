"""Arrays of odd strides: every strategy of the GPU reads them right, wherever they lie."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from cases import FUNCTIONS, Case

import cyconv
from cyconv.gpu.strategies import GPU

# Every strategy serves a depthwise problem.
CASE = Case.parse("views", "n2 g8 ci8 co8 i9x36 k3x2 s1x2 p1:0x0:2 d1 bias")


def _within(cupy, array, margins):
    """Part of an array that is larger by (before, after) along each axis, and NaN around it."""
    shape = [n + before + after for n, (before, after) in zip(array.shape, margins, strict=True)]
    whole = cupy.empty(tuple(shape), array.dtype)
    part = whole[tuple(slice(b, b + n) for n, (b, _) in zip(array.shape, margins, strict=True))]
    part[...] = cupy.asarray(array)
    return part


def _backwards(axis):
    def place(cupy, array):
        index = tuple(slice(None, None, -1 if a == axis else 1) for a in range(array.ndim))
        return cupy.asarray(array[index])[index]

    return place


def _every_second(cupy, array):
    whole = cupy.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    whole[..., ::2] = cupy.asarray(array)
    return whole[..., ::2]


PLACES = {
    "backwards, batch": _backwards(0),
    "backwards, axis": _backwards(2),
    "backwards, last": _backwards(3),
    "every second": _every_second,
    "fortran order": lambda cupy, array: cupy.asarray(array.T.copy()).transpose(),
    "margins": lambda cupy, array: _within(cupy, array, [(1, 1), (0, 2), (3, 0), (1, 2)]),
    "margin before": lambda cupy, array: _within(cupy, array, [(0, 0), (0, 0), (0, 0), (1, 0)]),
    "margin of 8": lambda cupy, array: _within(cupy, array, [(0, 0), (0, 0), (0, 0), (8, 8)]),
}


def _check(cupy, strategy, op, dtype, layout, place, change=lambda array: array):
    a, b, bias, shape = CASE.operands(op, dtype, layout)
    a, b = change(a), change(b)
    third = bias if op == "fwd" else shape
    absolute = abs(bias) if op == "fwd" else shape
    keywords = {**CASE.arguments, "layout": layout}
    right = oracle.OPERATORS[op](a, b, third, **keywords)
    magnitude = oracle.OPERATORS[op](abs(a), abs(b), absolute, **keywords)
    keywords["layout"] = oracle.layout_name(layout, CASE.ndim)
    given = cupy.asarray(third) if op == "fwd" else third
    with cyconv.config(strict=True):
        got = FUNCTIONS[op](place(a), place(b), given, strategy=strategy, **keywords)
    limit = oracle.bound(magnitude, CASE.terms(op), dtype)
    oracle.assert_within(got.get().astype(right.dtype), right, limit, f"{strategy} {op} {layout}")


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("gpu_strategy", [strategy.name for strategy in GPU])
def test_views(cupy, gpu_strategy, where, op):
    for layout in ("nchw", "nhwc"):
        for dtype in (np.dtype(np.float32), np.dtype(np.float16)):
            _check(cupy, gpu_strategy, op, dtype, layout, lambda a: PLACES[where](cupy, a))


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("gpu_strategy", [strategy.name for strategy in GPU])
def test_one_image_for_a_whole_batch(cupy, gpu_strategy, op):
    """Broadcast: a stride of zero."""

    def all_alike(array):
        return np.ascontiguousarray(np.broadcast_to(array[:1], array.shape))

    def broadcast(array):
        one = cupy.asarray(array[:1])
        alike = np.lib.stride_tricks.as_strided(one._host, array.shape, (0, *array.strides[1:]))
        return cupy.ndarray(alike)

    for layout in ("nchw", "nhwc"):
        _check(cupy, gpu_strategy, op, np.dtype(np.float32), layout, broadcast, all_alike)
