"""For tests of strategies that transform: data that is hard to sum, calls, and the truth."""

from __future__ import annotations

import numpy as np
import oracle
from cases import FUNCTIONS

import cyconv


def normal(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    return rng.random(shape)


def cancelling(rng, shape):
    """Signs that alternate from pixel to pixel over a large mean: results are small."""
    return 100 + np.where(np.indices(shape).sum(axis=0) % 2, -1, 1) * rng.random(shape)


def spread(rng, shape):
    """Magnitudes over six decades."""
    return rng.choice([-1.0, 1.0], shape) * 10 ** rng.uniform(-3, 3, shape)


def operands(case, op, dtype, layout, makers=(normal, normal)):
    """The two operands, each from its maker, and the third argument of the operator."""
    rng = np.random.default_rng(len(case.name))
    shapes = {"x": case.x_shape(), "w": case.w_shape(), "y": case.y_shape()}
    names = {"fwd": "xw", "dx": "yw", "dw": "xy"}[op]
    a, b = (
        np.ascontiguousarray(oracle.to_layout(make(rng, shapes[name]).astype(dtype), layout))
        for make, name in zip(makers, names, strict=True)
    )
    return a, b, {"fwd": None, "dx": case.x_shape(layout), "dw": case.w_shape(layout)}[op]


def call(case, op, layout, operands, strategy, **keywords):
    """By that strategy or not at all."""
    keywords = {"strategy": strategy, **case.arguments, **keywords}
    with cyconv.config(strict=True):
        return FUNCTIONS[op](*operands, layout=oracle.layout_name(layout, case.ndim), **keywords)


def truth(case, op, layout, operands):
    """In float64: the result, and the sum of absolute values of each element of it."""
    a, b, third = operands
    run = oracle.OPERATORS[op]
    keywords = {"layout": layout, **case.arguments}
    return run(a, b, third, **keywords), run(abs(a), abs(b), third, **keywords)
