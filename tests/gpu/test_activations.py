"""What follows a sum inside the kernels: bias, residual and activation, rounded once."""

from __future__ import annotations

from math import erf

import ml_dtypes
import numpy as np
import oracle
import pytest

from cyconv import ConvProblem
from cyconv.gpu.base import Run
from cyconv.gpu.module import current_device
from cyconv.gpu.params import ACTIVATIONS
from cyconv.gpu.strategies import GPU
from cyconv.settings import Config

# One problem that each strategy serves, in each of its kernels for results.
PROBLEMS = {
    "direct": ["n2 g1 ci3 co4 i5x7 k3x3 p1"],
    "depthwise": ["n2 g5 ci5 co5 i9x14 k3x3 p1", "n2 g8 ci8 co8 i4x5 k3x3 p1"],
    "im2col": ["n2 g1 ci3 co4 i5x7 k3x3 p1"],
    "implicit_gemm": ["n2 g1 ci3 co4 i5x7 k3x3 p1", "n2 g1 ci16 co16 i5x7 k3x3 p1"],
}
TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ALPHA = 0.3

FORMULAS = {
    "none": lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "relu6": lambda v: np.clip(v, 0, 6),
    "leaky_relu": lambda v: np.where(v < 0, ALPHA * v, v),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "hardswish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
    "hardsigmoid": lambda v: np.clip(ALPHA * v + 0.5, 0, 1),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "gelu": lambda v: 0.5 * v * (1 + np.vectorize(erf, [float])(v / np.sqrt(2))),
}


def test_every_activation_has_a_formula():
    assert tuple(FORMULAS) == ACTIVATIONS


def _run(cupy, strategy, problem, values, residual, activation):
    """The operator `fwd` or `dx` on NumPy arrays, as one run of a strategy."""
    first, w, bias = (cupy.asarray(value) for value in values)
    result = cupy.empty(problem.result_shape, first.dtype)
    x, y = (first, result) if problem.op == "fwd" else (result, first)
    added = None if residual is None else cupy.asarray(residual)
    number = ACTIVATIONS.index(activation)
    device = current_device()
    assert strategy.supports(problem, device) is None
    strategy.run(Run(problem, x, w, y, bias, device, Config(), added, number, ALPHA))
    return result.get()


def _values(problem):
    rng = np.random.default_rng(1)
    first = problem.x_shape if problem.op == "fwd" else problem.y_shape
    channels = problem.c_out if problem.op == "fwd" else problem.c_in
    shapes = (first, problem.w_shape, (channels,), problem.result_shape)
    return [rng.standard_normal(shape).astype(TYPES[problem.dtype]) for shape in shapes]


def _truth(problem, values, residual):
    first, w, bias = (np.asarray(value, np.float64) for value in values)
    padding = {"padding": problem.padding, "groups": problem.groups, "layout": problem.layout}
    if problem.op == "fwd":
        y = oracle.forward(first, w, **padding)
    else:
        y = oracle.data_backward(first, w, problem.x_shape, **padding)
    y = y + oracle.to_layout(bias.reshape(1, -1, 1, 1), problem.layout)
    return y + residual.astype(np.float64)


CASES = [
    pytest.param(strategy, text, id=f"{strategy.name}-{i}")
    for strategy in GPU
    for i, text in enumerate(PROBLEMS[strategy.name])
]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", ["fwd", "dx"])
@pytest.mark.parametrize(("gpu_strategy", "text"), CASES)
def test_bias_residual_activation(cupy, gpu_strategy, text, op, layout):
    """In every type: the value before the activation is as exact as the sum, and rounded once."""
    for dtype in TYPES:
        problem = ConvProblem.parse(f"{op} {dtype} {layout} {text} bias")
        *values, residual = _values(problem)
        got = _run(cupy, gpu_strategy, problem, values, residual, "leaky_relu")
        truth = FORMULAS["leaky_relu"](_truth(problem, values, residual))
        unit = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
        error = np.abs(got.astype(np.float64) - truth)
        magnitude = _truth(problem, [abs(value) for value in values], abs(residual))
        sums = oracle.bound(
            magnitude, problem.terms + 2, "float64" if dtype == "f64" else "float32"
        )
        assert (error <= unit * np.abs(truth) + sums).all(), (dtype, error.max())


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_activations(cupy, activation, dtype):
    """A sum of one product, so that the result is the activation of a known value."""
    problem = ConvProblem.parse(f"fwd {dtype} nchw n1 ci1 co1 i400 k1 bias")
    x = np.linspace(-9, 9, 400).astype(TYPES[dtype]).reshape(problem.x_shape)
    x.flat[:3] = np.nan, np.inf, -np.inf
    one, nothing = np.ones(problem.w_shape, x.dtype), np.zeros(1, x.dtype)
    got = _run(cupy, GPU[-1], problem, (x, one, nothing), None, activation)
    with np.errstate(invalid="ignore"):
        truth = FORMULAS[activation](x.astype(np.float64))
    tolerance = 1e-6 if dtype == "f32" else 1e-14
    np.testing.assert_allclose(got, truth, rtol=tolerance, atol=tolerance)
