"""The same comparisons on a real GPU, with CuPy itself; skipped where there is none.

``python bench/gpu.py`` runs these first. Nothing here is emulated.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import CASES, FUNCTIONS, string

import cyconv
from cyconv import autograd
from cyconv.gpu.strategies import GPU, KERNELS

TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
try:
    cupy.cuda.Device().compute_capability  # noqa: B018 - raises where there is no device
except Exception as error:
    pytest.skip(f"no GPU: {error}", allow_module_level=True)


@pytest.fixture
def device():
    return cupy


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("gpu_strategy", [s.name for s in GPU])
def test_named(device, gpu_strategy, op, name):
    case = CASES[name]
    for dtype, layout in ((d, la) for d in TYPES for la in ("nchw", "nhwc")):
        a, b, bias, shape = case.operands(op, TYPES[dtype], layout)
        third = shape if op != "fwd" or bias is None else device.asarray(bias)
        keywords = dict(layout=oracle.layout_name(layout, case.ndim), **case.arguments)
        try:
            with cyconv.config(strict=True):
                got = FUNCTIONS[op](
                    device.asarray(a), device.asarray(b), third, strategy=gpu_strategy, **keywords
                )
        except cyconv.UnsupportedError:
            continue
        third = shape if op != "fwd" else bias
        keywords["layout"] = layout
        truth = oracle.OPERATORS[op](a, b, third, **keywords)
        absolute = third if op != "fwd" or bias is None else abs(bias)
        magnitude = oracle.OPERATORS[op](abs(a), abs(b), absolute, **keywords)
        sums = np.float64 if dtype == "f64" else np.float32
        limit = oracle.bound(magnitude, case.terms(op), sums)
        unit = oracle.UNIT[np.dtype(TYPES[dtype]).name]
        limit = limit + unit * (abs(truth) + limit) + (2.0**-25 if dtype == "f16" else 0)
        values = got.get().astype(truth.dtype)
        oracle.assert_within(values, truth, limit, string(name, op, dtype, layout))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.expression)
def test_every_kernel_loads(device, kernel):
    from cyconv.gpu import module

    current = module.current_device()
    if kernel.capability > current.capability:
        pytest.skip(f"needs sm_{kernel.capability}")
    assert module._function(kernel, current).num_regs > 0


def test_results_are_the_same_from_run_to_run(device):
    x = device.random.standard_normal((8, 64, 28, 28), dtype=np.float32)
    dy = device.random.standard_normal((8, 64, 26, 26), dtype=np.float32)
    for strategy in ("direct", "implicit_gemm"):
        first, second = (
            cyconv.conv_weight_backward(x, dy, (64, 64, 3, 3), strategy=strategy) for _ in range(2)
        )
        assert (first == second).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_split_sums_are_the_same_from_run_to_run(device, layout):
    """A small image of many channels: few tiles, so sums are split."""
    shape = (1, 512, 7, 7) if layout == "NCHW" else (1, 7, 7, 512)
    weights = (512, 512, 3, 3) if layout == "NCHW" else (512, 3, 3, 512)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weights))
    keywords = {"padding": 1, "layout": layout, "strategy": "implicit_gemm"}
    first, second = (
        cyconv.conv2d(device.asarray(x), device.asarray(w), **keywords) for _ in range(2)
    )
    assert cyconv.explain(shape, weights, device="gpu", **keywords).workspace_nbytes > 0
    assert (first == second).all()
    truth = oracle.forward(x, w, padding=1, layout=layout.lower())
    magnitude = oracle.forward(abs(x), abs(w), padding=1, layout=layout.lower())
    limit = oracle.bound(magnitude, 512 * 9, np.float32)
    oracle.assert_within(first.get().astype(truth.dtype), truth, limit, layout)


def test_pooling(device):
    x = np.random.default_rng(0).standard_normal((2, 5, 17, 16)).astype(np.float32)
    results = []
    for asarray in (np.array, device.asarray):
        tensor = cyconv.Tensor(asarray(x), requires_grad=True)
        y = autograd.max_pool(2, tensor, 3, stride=2, padding=1)
        y.sum().backward()
        results.append((y.numpy(), tensor.grad.numpy()))
    for got, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(got.get(), expected)


def test_another_stream_and_a_captured_graph(device):
    x, w = device.ones((1, 8, 9, 9), np.float32), device.ones((8, 8, 3, 3), np.float32)
    expected = cyconv.conv2d(x, w)
    stream = device.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        y = cyconv.conv2d(x, w, strategy="profile")
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert (y == expected).all()


def test_more_than_2_31_elements(device):
    """Offsets beyond 31 bits; needs 13 GB."""
    if device.cuda.Device().mem_info[0] < 14 * 2**30:
        pytest.skip("needs 14 GB of free memory")
    x = device.ones((2**21 + 8, 1024), np.float16).reshape(1, -1, 1, 1024)
    x = x.transpose(0, 3, 1, 2)
    w = device.ones((1, 1024, 1, 1), np.float16)
    y = cyconv.conv2d(x, w)
    assert float(y[0, 0, -1, 0]) == 1024
