"""The public functions on CuPy arrays: the same arguments, results and errors as on NumPy's.

Executed on the CPU emulator; what a real GPU alone can show is in test_device.py.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import CASES

import cyconv
from cyconv import execute
from cyconv.gpu import strategies
from cyconv.gpu.params import counts_fit

RNG = np.random.default_rng(0)


def _array(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def _close(got, expected, tolerance=1e-5):
    got = got.get()
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_allclose(
        got.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance
    )


X, W, B = _array(2, 4, 9, 8), _array(6, 2, 3, 3), _array(6)
KEYWORDS = {"stride": (2, 1), "padding": ((0, 1), (2, 1)), "dilation": (1, 2), "groups": 2}


# --- every function -------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_everyday_names(cupy, rank):
    size = (7, 6, 5)[:rank]
    x, w, b = _array(2, 3, *size), _array(4, 3, *(3,) * rank), _array(4)
    for name, weights in (("conv", w), ("conv_transpose", w.swapaxes(0, 1))):
        function = getattr(cyconv, f"{name}{rank}d")
        expected = function(x, weights, b, stride=2, padding=1)
        arrays = map(cupy.asarray, (x, weights, b))
        _close(function(*arrays, stride=2, padding=1), expected)


def test_operators(cupy):
    y = cyconv.conv_forward(X, W, B, **KEYWORDS)
    _close(cyconv.conv_forward(*map(cupy.asarray, (X, W, B)), **KEYWORDS), y)
    dx = cyconv.conv_data_backward(y, W, X.shape, **KEYWORDS)
    _close(cyconv.conv_data_backward(cupy.asarray(y), cupy.asarray(W), X.shape, **KEYWORDS), dx)
    dw = cyconv.conv_weight_backward(X, y, W.shape, **KEYWORDS)
    got = cyconv.conv_weight_backward(cupy.asarray(X), cupy.asarray(y), W.shape, **KEYWORDS)
    _close(got, dw, 1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_bias_backward(cupy, dtype, layout):
    dy = _array(3, 5, 40, 29, dtype=dtype)
    got = cyconv.bias_backward(cupy.asarray(dy), layout=layout)
    expected = cyconv.bias_backward(dy, layout=layout)
    assert got.dtype == dtype
    rtol = 1e-13 if dtype == np.float64 else 0
    np.testing.assert_allclose(got.get().astype(float), expected.astype(float), rtol=rtol)


def test_bias_backward_of_nothing_and_of_odd_strides(cupy):
    np.testing.assert_array_equal(
        cyconv.bias_backward(cupy.zeros((0, 3, 4), np.float32)).get(), np.zeros(3)
    )
    dy = _array(4, 6, 5)
    got = cyconv.bias_backward(cupy.asarray(dy)[::-2, ::2])
    np.testing.assert_allclose(got.get(), dy[::-2, ::2].sum((0, 2)), rtol=1e-6)


@pytest.mark.parametrize("padding", ["valid", "same", "same_lower", "full"])
def test_named_paddings(cupy, padding):
    expected = cyconv.conv2d(X, W, padding=padding, groups=2)
    _close(cyconv.conv2d(cupy.asarray(X), cupy.asarray(W), padding=padding, groups=2), expected)


def test_transposed_with_output_padding_beyond_the_stride(cupy):
    x, w, b = _array(1, 3, 5), _array(3, 2, 3), _array(2)
    keywords = {"stride": 2, "dilation": 3, "output_padding": 2}
    expected = cyconv.conv_transpose1d(x, w, b, **keywords)
    _close(cyconv.conv_transpose1d(*map(cupy.asarray, (x, w, b)), **keywords), expected)


# --- arrays of every kind -------------------------------------------------------------------------


def test_without_a_batch(cupy):
    expected = cyconv.conv2d(X[0], W, B, **KEYWORDS)
    _close(
        cyconv.conv2d(cupy.asarray(X)[0], cupy.asarray(W), cupy.asarray(B), **KEYWORDS), expected
    )


def test_dtypes_promote(cupy):
    image = RNG.integers(0, 256, (1, 4, 9, 8), dtype=np.uint8)
    _close(cyconv.conv2d(cupy.asarray(image), cupy.asarray(W), groups=2),
           cyconv.conv2d(image, W, groups=2), 1e-4)  # fmt: skip
    half = X.astype(np.float16)
    assert cyconv.conv2d(cupy.asarray(half), cupy.asarray(W), groups=2).dtype == np.float32
    wide = cyconv.conv2d(cupy.asarray(X), cupy.asarray(W), cupy.asarray(B.astype(float)), groups=2)
    assert wide.dtype == np.float64


@pytest.mark.parametrize("name", [s.name for s in strategies.GPU])
def test_views_as_they_lie(cupy, name):
    """Steps, reversals, transposes and broadcasts, without a copy."""
    x = cupy.asarray(_array(2, 6, 17, 18))
    w = cupy.asarray(_array(6, 6, 3, 3))
    views = {
        "steps": (x[:, ::2, ::2, 1::3], w[::-1, ::2]),
        "transposed": (x.transpose(0, 1, 3, 2)[:, :6], w.transpose(0, 1, 3, 2)),
        "channels last": (x.transpose(0, 3, 1, 2)[:, :6, :, :9], w[:, :, :, ::-1]),
    }
    for text, (a, b) in views.items():
        got = cyconv.conv2d(a, b, padding=1, strategy=name)
        expected = cyconv.conv2d(a.get(), b.get(), padding=1)
        np.testing.assert_allclose(got.get(), expected, rtol=2e-5, atol=2e-5, err_msg=text)


def test_out(cupy):
    x, w, b = map(cupy.asarray, (X, W, B))
    expected = cyconv.conv2d(X, W, B, **KEYWORDS)
    out = cupy.empty(expected.shape, np.float32)
    assert cyconv.conv2d(x, w, b, out=out, **KEYWORDS) is out
    _close(out, expected)
    strided = cupy.empty((*expected.shape[:3], 2 * expected.shape[3]), np.float32)[..., ::2]
    assert cyconv.conv2d(x, w, b, out=strided, **KEYWORDS) is strided
    _close(strided, expected)


def test_out_may_overlap_an_operand(cupy):
    x, w = cupy.asarray(X), cupy.asarray(_array(4, 4, 1, 1))
    expected = cyconv.conv2d(X, w.get())
    cyconv.conv2d(x, w, out=x)
    _close(x, expected)


def test_nothing_to_compute(cupy):
    w, b = cupy.asarray(W), cupy.asarray(B)
    assert cyconv.conv2d(cupy.zeros((0, 4, 9, 8), np.float32), w, b, groups=2).shape[0] == 0
    no_channels = cyconv.conv2d(
        cupy.zeros((1, 0, 4, 4), np.float32), cupy.zeros((6, 0, 3, 3), np.float32), b
    )
    np.testing.assert_array_equal(
        no_channels.get(), np.broadcast_to(B[:, None, None], (1, 6, 2, 2))
    )
    dw = cyconv.conv_weight_backward(
        cupy.zeros((0, 4, 5, 5), np.float32), cupy.zeros((0, 6, 3, 3), np.float32), (6, 4, 3, 3)
    )
    np.testing.assert_array_equal(dw.get(), np.zeros((6, 4, 3, 3)))


def test_the_operands_are_not_written(cupy):
    x, w = cupy.asarray(X), cupy.asarray(W)
    cyconv.conv2d(x, w, groups=2)
    np.testing.assert_array_equal(x.get(), X)
    np.testing.assert_array_equal(w.get(), W)


# --- values that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("op", ["fwd", "dx", "dw"])
@pytest.mark.parametrize("case", ["asymmetric_all", "stride_2_remainder", "depthwise", "wide"])
@pytest.mark.parametrize("name", ["auto", *(s.name for s in strategies.GPU)])
def test_not_finite_values_go_where_the_definition_puts_them(cupy, name, case, op):
    """Padding is zeros that take part; data backward adds only pairs that exist."""
    case = CASES[case]
    functions = {
        "fwd": cyconv.conv_forward, "dx": cyconv.conv_data_backward,
        "dw": cyconv.conv_weight_backward,
    }  # fmt: skip
    for where in (0, 1):
        for value in (np.nan, -np.inf):
            *operands, _, shape = case.operands(op, np.float32)
            operands[1 - where].flat[::3] = 0
            operands[where].flat[operands[where].size // 2] = value
            truth = oracle.OPERATORS[op](*operands, shape, **case.arguments)
            arrays = map(cupy.asarray, operands)
            got = functions[op](*arrays, shape, strategy=name, **case.arguments)
            text = f"{case.name} {op} {name} {where} {value}"
            operands[where].flat[operands[where].size // 2] = 0  # what it reaches is not finite
            sizes = oracle.OPERATORS[op](*map(abs, operands), shape, **case.arguments)
            limit = oracle.bound(sizes, case.terms(op), np.float32)
            oracle.assert_within(got.get().astype(truth.dtype), truth, limit, text)


# --- policy ---------------------------------------------------------------------------------------


BIG = (8, 64, 28, 28), (64, 64, 3, 3)


def test_small_work_is_direct_and_large_is_not(cupy):
    small = cyconv.explain(cupy.zeros((1, 2, 5, 5)), cupy.zeros((2, 2, 3, 3)))
    assert small.strategy == "direct"
    assert "below the minimum" in small.reason
    large = cyconv.explain(*map(cupy.zeros, BIG))
    assert large.strategy != "direct"
    assert large.reason == "least estimated time"
    assert large.device == "Emulated"
    assert "Emulated" in str(large)


def test_explain_of_shapes(cupy):
    """The same as of arrays, with the variables and strategies of the GPU."""
    for strategy in (None, "im2col"):
        of_shapes = cyconv.explain(*BIG, device="gpu", strategy=strategy)
        assert of_shapes == cyconv.explain(
            *(cupy.zeros(shape, np.float32) for shape in BIG), strategy=strategy
        )
    assert of_shapes.strategy == "im2col"
    assert cyconv.explain(*BIG).device == cyconv.explain(*BIG, device="cpu").device == "cpu"
    text = cyconv.explain(
        (8, 64, 28, 28), (8, 64, 28, 28), (64, 64, 1, 1), operator="weight_backward", device="gpu"
    )
    assert "Emulated" in str(text)
    with pytest.raises(TypeError, match=r"operand 1 is a ndarray, but device='gpu'"):
        cyconv.explain(cupy.asarray(X).shape, W, groups=2, device="gpu")
    with pytest.raises(TypeError, match=r"operand 0 is a cupy.ndarray, but device='cpu'"):
        cyconv.explain(cupy.asarray(X), W.shape, groups=2, device="cpu")
    with pytest.raises(ValueError, match="device"):
        cyconv.explain(*BIG, device="tpu")


def test_explain_lists_every_strategy_of_the_gpu(cupy):
    outlook = cyconv.explain(*map(cupy.zeros, BIG))
    assert [c.name for c in outlook.candidates] == [s.name for s in strategies.GPU]
    refused = {c.name: c.refusal for c in outlook.candidates}
    assert "64 input channels" in refused["depthwise"]
    assert all(c.estimate > 0 for c in outlook.candidates if c.refusal is None)


def test_a_strategy_without_kernels_falls_back_or_is_refused(cupy):
    x, w = cupy.asarray(X), cupy.asarray(W)
    with cyconv.config(strategy="winograd"):
        assert "no kernels for a GPU" in cyconv.explain(x, w, groups=2).reason
        _close(cyconv.conv2d(x, w, groups=2), cyconv.conv2d(X, W, groups=2))
        with cyconv.config(strict=True), pytest.raises(cyconv.UnsupportedError, match="winograd"):
            cyconv.conv2d(x, w, groups=2)


def test_reproducible_excludes_cublas_and_the_batch(cupy):
    with cyconv.config(reproducible=True):
        x = cupy.asarray(_array(5, 16, 20, 20))
        w = cupy.asarray(_array(16, 16, 3, 3))
        assert "reproducible" in cyconv.explain(x, w).candidates[2].refusal
        together = cyconv.conv2d(x, w)[:1]
        np.testing.assert_array_equal(together.get(), cyconv.conv2d(x[:1], w).get())
        with pytest.raises(cyconv.UnsupportedError, match="im2col"):
            cyconv.conv2d(x, w, strategy="im2col")


def test_the_workspace_limit_holds(cupy, monkeypatch):
    """What is allocated beside the result stays within the limit."""
    x, w = cupy.asarray(_array(2, 8, 30, 30)), cupy.asarray(_array(8, 8, 3, 3))
    sizes = []
    empty = cupy.empty
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: sizes.append(
        int(np.prod(shape)) * np.dtype(dtype).itemsize) or empty(shape, dtype))  # fmt: skip
    with cyconv.config(workspace_limit=100_000):
        cyconv.conv2d(x, w, strategy="im2col")
    assert 0 < max(sizes[1:]) <= 100_000
    with cyconv.config(workspace_limit=1000):
        outlook = cyconv.explain(x, w)
        assert "1000" in {c.name: c.refusal for c in outlook.candidates}["im2col"]


ENVIRONMENTS = {
    "CYCONV_GPU_CONV_STRATEGY": ("im2col", "fwd", "im2col"),
    "CYCONV_GPU_CONV_BWD_STRATEGY": ("im2col", "dx", "im2col"),
    "CYCONV_GPU_CONV_MIN_WORK": ("100000000000", "fwd", "direct"),
    "CYCONV_GPU_CONV_BWD_MIN_WORK": ("100000000000", "dw", "direct"),
    "CYCONV_GPU_CONV_BWD_MIN_WORK_GRAD_INPUT": ("100000000000", "dx", "direct"),
}


def test_environment_variables_mirror_the_cpus(under_environments):
    from pathlib import Path

    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fakecupy
sys.modules["cupy"] = fakecupy
text = "f32 nchw n8 ci64 co64 i28x28 k3x3"
answer = {{op: cyconv.plan(op + " " + text, device="gpu").strategy for op in ("fwd", "dx", "dw")}}
"""
    environments = [{name: value} for name, (value, _, _) in ENVIRONMENTS.items()]
    ignored = {"CYCONV_CPU_CONV_STRATEGY": "direct", "CYCONV_CPU_CONV_BWD_STRATEGY": "direct"}
    (plain, _), (same, _), *results = under_environments(code, [{}, ignored, *environments])
    assert same == plain
    assert "direct" not in plain.values()
    for (name, (_, op, strategy)), (answer, warned) in zip(
        ENVIRONMENTS.items(), results, strict=True
    ):
        assert answer[op] == strategy, name
        assert not warned


def test_a_misspelt_variable_warns(under_environments):
    code = "answer = cyconv.settings.environment_strategy('fwd', 'GPU')"
    ((answer, warned),) = under_environments(code, [{"CYCONV_GPU_CONV_STRATEGY": "fastest"}])
    assert answer == "auto"
    assert len(warned) == 1
    assert "CYCONV_GPU_CONV_STRATEGY" in warned[0]


# --- profile --------------------------------------------------------------------------------------


def test_profile_measures_once_and_remembers(cupy):
    x, w = cupy.asarray(_array(2, 8, 9, 9)), cupy.asarray(_array(8, 8, 3, 3))
    expected = cyconv.conv2d(x.get(), w.get())
    _close(cyconv.conv2d(x, w, strategy="profile"), expected)
    ((key, winner),) = cyconv.tuned().items()
    assert all(part in key for part in ("gpu Emulated", "sm_90", "cupy 14", "kernels"))
    before = dict(cupy.launched)
    _close(cyconv.conv2d(x, w, strategy="profile"), expected)
    assert sum(cupy.launched.values()) - sum(before.values()) <= 3
    outlook = cyconv.explain(x, w, strategy="profile")
    assert (outlook.strategy, outlook.reason) == (winner, "measured fastest")
    assert sum(c.measured is not None for c in outlook.candidates) >= 3


def test_profile_under_medium_precision_keeps_tensor_cores(cupy):
    """Products of operands rounded to TF32 are right there; what won is kept apart."""
    x, w = cupy.asarray(_array(2, 9, 9, 64)), cupy.asarray(_array(8, 3, 3, 64))
    with cyconv.config(precision="medium"):
        cyconv.conv2d(x, w, layout="NHWC", strategy="profile")
        outlook = cyconv.explain(x, w, layout="NHWC", strategy="profile")
    assert {c.name: c.measured is not None for c in outlook.candidates}["implicit_gemm"]
    ((key, _),) = cyconv.tuned().items()
    assert key.endswith(" tf32")
    cyconv.conv2d(x, w, layout="NHWC", strategy="profile")
    assert len(cyconv.tuned()) == 2


def test_profile_drops_what_raises_or_is_wrong(cupy, monkeypatch):
    x, w = cupy.asarray(_array(1, 8, 9, 9)), cupy.asarray(_array(8, 8, 3, 3))

    def broken(call):
        raise RuntimeError

    def wrong(call):
        call.y[...] = 1

    monkeypatch.setattr(strategies.GPU[1], "run", broken, raising=True)
    monkeypatch.setattr(strategies.GPU[2], "run", wrong, raising=True)
    _close(cyconv.conv2d(x, w, strategy="profile"), cyconv.conv2d(x.get(), w.get()))
    assert set(cyconv.tuned().values()) == {"direct"}


def test_nothing_is_measured_under_capture(cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.Stream, "capturing", True)
    x, w = cupy.asarray(_array(1, 8, 9, 9)), cupy.asarray(_array(8, 8, 3, 3))
    cyconv.conv2d(x, w, strategy="profile")
    assert not cyconv.tuned()


# --- plan -----------------------------------------------------------------------------------------


def test_plan(cupy):
    plan = cyconv.plan("fwd f32 nchw n2 ci4 co6 g2 i9x8 k3x3 bias", device="gpu", strategy="im2col")
    assert (plan.strategy, plan.reason, plan.device) == ("im2col", "named", "gpu")
    assert plan.workspace_nbytes > 0
    x, w, b = map(cupy.asarray, (X, W, B))
    expected = cyconv.conv2d(X, W, B, groups=2)
    _close(plan(x, w, b), expected)
    out = cupy.empty(expected.shape, np.float32)
    assert plan(x, w, b, out=out) is out
    with pytest.raises(TypeError, match=r"x is a numpy.ndarray, the plan is for device='gpu'"):
        plan(X, W, B)
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, the plan is for device='cpu'"):
        cyconv.plan("fwd f32 nchw n2 ci4 co6 g2 i9x8 k3x3 bias")(x, w, b)
    with pytest.raises(ValueError, match="device"):
        cyconv.plan("fwd n1 ci1 co1 i4 k2", device="tpu")


def test_a_plan_without_cupy():
    with pytest.raises(cyconv.GpuError, match="import cupy"):
        cyconv.plan("fwd n1 ci1 co1 i4 k2", device="gpu")
    with pytest.raises(cyconv.GpuError, match="import cupy"):
        cyconv.explain((1, 1, 4), (1, 1, 2), device="gpu")


# --- errors ---------------------------------------------------------------------------------------


def test_arrays_do_not_mix(cupy):
    x, w, b = map(cupy.asarray, (X, W, B))
    for arguments in ((X, w, b), (x, W, b), (x, w, B), (x, w.get().tolist(), None)):
        with pytest.raises(TypeError, match=r"is a cupy.ndarray, .* is a"):
            cyconv.conv2d(*arguments, groups=2)
    y = cyconv.conv2d(X, W, groups=2)
    with pytest.raises(TypeError, match=r"dy is a cupy.ndarray, w is a ndarray"):
        cyconv.conv_data_backward(cupy.asarray(y), W, X.shape, groups=2)
    with pytest.raises(TypeError, match=r"dy is a cupy.ndarray, x is a ndarray"):
        cyconv.conv_weight_backward(X, cupy.asarray(y), W.shape, groups=2)
    with pytest.raises(TypeError, match=r"out must be a cupy.ndarray"):
        cyconv.conv2d(x, w, groups=2, out=np.empty_like(y))
    with pytest.raises(TypeError, match=r"out must be a numpy.ndarray"):
        cyconv.conv2d(X, W, groups=2, out=cupy.asarray(y))


def test_two_devices(cupy):
    with cupy.cuda.Device(1):
        w = cupy.asarray(W)
        out = cupy.empty((2, 6, 7, 6), np.float32)
    with pytest.raises(ValueError, match=r"x is on GPU 0, w on GPU 1"):
        cyconv.conv2d(cupy.asarray(X), w, groups=2)
    with pytest.raises(ValueError, match=r"x is on GPU 0, out on GPU 1"):
        cyconv.conv2d(cupy.asarray(X), cupy.asarray(W), groups=2, out=out)


def test_the_device_of_the_operands_is_entered(cupy):
    with cupy.cuda.Device(1):
        x, w = cupy.asarray(X), cupy.asarray(W)
    y = cyconv.conv2d(x, w, groups=2)
    assert y.device.id == 1
    assert cupy.cuda.Device().id == 0


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"groups": 0}, ValueError),
        ({"groups": 3}, cyconv.ShapeError),
        ({"stride": True}, TypeError),
        ({"padding": -1}, ValueError),
        ({"strategy": "fastest"}, ValueError),
        ({"layout": "NCDHW"}, ValueError),
        ({"out": 3}, TypeError),
    ],
)
def test_bad_arguments_are_refused_as_on_the_cpu(cupy, keywords, error):
    keywords = {"groups": 2, **keywords}
    messages = []
    for arrays in ((X, W), (cupy.asarray(X), cupy.asarray(W))):
        with pytest.raises(error) as caught:
            cyconv.conv2d(*arrays, **keywords)
        messages.append(str(caught.value).replace("cupy.", "numpy."))
    assert messages[0] == messages[1]


def test_dtypes_are_refused_as_on_the_cpu(cupy):
    x = cupy.asarray(X)
    for dtype in (np.int32, np.complex64):
        with pytest.raises(cyconv.DTypeError):
            cyconv.conv2d(x.astype(dtype), cupy.asarray(W).astype(dtype), groups=2)


def test_an_old_device(cupy, monkeypatch):
    from cyconv.gpu import module

    module._describe.cache_clear()
    monkeypatch.setattr(cupy.cuda.Device, "capability", "61")
    with pytest.raises(cyconv.GpuError, match=r"compute capability 6.1; kernels need 7.5"):
        cyconv.conv2d(cupy.asarray(X), cupy.asarray(W), groups=2)
    module._describe.cache_clear()


def test_a_kernel_that_does_not_compile(cupy, monkeypatch):
    from cyconv.gpu import module

    monkeypatch.setattr(module, "source", lambda files: "this is no C++")
    module._function.cache_clear()
    with pytest.raises(cyconv.GpuError, match=r"(?s)direct_fwd<float>.*sm_90.*error"):
        cyconv.conv2d(cupy.asarray(X), cupy.asarray(W), groups=2, strategy="direct")
    module._function.cache_clear()


def test_too_little_memory(cupy, monkeypatch):
    x, w = cupy.asarray(X), cupy.asarray(W)
    monkeypatch.setattr(cupy, "memory_limit", 100)
    with pytest.raises(cyconv.GpuMemoryError, match=r"GPU 0 has too little memory: .*bytes"):
        cyconv.conv2d(x, w, groups=2)
    with pytest.raises(MemoryError):
        cyconv.conv2d(x, w, groups=2)


@pytest.mark.parametrize("name", ["direct", "depthwise", "implicit_gemm"])
def test_fewer_splits_where_memory_is_short(cupy, monkeypatch, name):
    """Partial sums shrink to what there is room for."""
    x, dy = cupy.asarray(_array(8, 4, 32, 32)), cupy.asarray(_array(8, 4, 32, 32))
    groups = 4 if name == "depthwise" else 1
    shape = (4, 4 // groups, 1, 1)
    expected = cyconv.conv_weight_backward(x.get(), dy.get(), shape, groups=groups)
    monkeypatch.setattr(cupy, "memory_limit", expected.nbytes * 3)
    got = cyconv.conv_weight_backward(x, dy, shape, groups=groups, strategy=name)
    np.testing.assert_allclose(got.get(), expected, rtol=1e-4, atol=1e-4)


def test_beyond_all_counting(cupy):
    """A dilation of 2**31 cells is legal, and cannot be counted by a kernel."""
    x, w = cupy.zeros((1, 1, 1), np.float32), cupy.zeros((1, 1, 2), np.float32)
    with pytest.raises(cyconv.UnsupportedError, match=r"2\*\*31"):
        cyconv.conv1d(x, w, dilation=2**31, padding=((2**31, 0),))


def test_problems_too_large_to_count_are_halved(cupy, monkeypatch):
    """As if kernels could count to 100 only; parts are put together again, or added."""
    from cyconv.gpu import params

    monkeypatch.setattr(params, "MOST", 100)
    assert not counts_fit(cyconv.ConvProblem.parse("fwd n2 ci4 co6 g2 i9x8 k3x3"))
    launches = sum(cupy.launched.values())
    test_operators(cupy)
    assert sum(cupy.launched.values()) - launches > 6
    half = X.astype(np.float16)
    y = cyconv.conv2d(half, W.astype(np.float16), groups=2)
    got = cyconv.conv_weight_backward(cupy.asarray(half), cupy.asarray(y), W.shape, groups=2)
    truth = oracle.weight_backward(half.astype(float), y.astype(float), W.shape, groups=2)
    np.testing.assert_array_equal(got.get(), truth.astype(np.float16))


def test_only_shipped_kernels_are_launched(cupy):
    """Of all that this session has launched; what is shipped is compiled in test_nvrtc.py."""
    assert cupy.launched
    assert set(cupy.launched) <= {kernel.expression for kernel in strategies.KERNELS}


def test_execute_is_one_for_both():
    assert "gpu" not in vars(execute), "loaded by the first call with a CuPy array"


# --- what follows a convolution -------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "hardswish", ("leaky_relu", 0.2), "gelu", None])
@pytest.mark.parametrize("name", ["auto", "profile", *(s.name for s in strategies.GPU)])
def test_activation_and_residual(cupy, name, activation):
    """The public keywords: the activation of the sum of convolution, bias and residual."""
    x, w, b = _array(2, 4, 9, 8), _array(4, 1, 3, 3), _array(4)
    residual = _array(2, 4, 9, 8)
    keywords = {"padding": 1, "groups": 4, "activation": activation}
    expected = cyconv.conv2d(x, w, b, residual=residual, **keywords)
    arrays = map(cupy.asarray, (x, w, b))
    for added in (cupy.asarray(residual), cupy.asarray(residual[..., ::-1].copy())[..., ::-1]):
        arrays = map(cupy.asarray, (x, w, b))
        _close(cyconv.conv2d(*arrays, residual=added, strategy=name, **keywords), expected)
    arrays = map(cupy.asarray, (x, w, b))
    turned = cyconv.conv_transpose2d(
        *arrays, residual=cupy.asarray(residual), strategy=name, **keywords
    )
    _close(turned, cyconv.conv_transpose2d(x, w, b, residual=residual, **keywords))


def test_a_residual_may_be_the_result(cupy):
    x, w, residual = _array(1, 3, 6, 6), _array(3, 3, 1, 1), _array(1, 3, 6, 6)
    expected = cyconv.conv2d(x, w, residual=residual)
    out = cupy.asarray(residual)
    cyconv.conv2d(cupy.asarray(x), cupy.asarray(w), residual=out, out=out)
    _close(out, expected)
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, residual is a ndarray"):
        cyconv.conv2d(cupy.asarray(x), cupy.asarray(w), residual=residual)


def test_an_activation_where_there_is_nothing_to_multiply(cupy):
    """sigmoid(bias), also in the phases of a data gradient that no tap reaches."""
    x, w, b = _array(1, 2, 4), _array(2, 1, 1), _array(1)
    expected = cyconv.conv_transpose1d(x, w, b, stride=3, activation="sigmoid")
    for name in ("direct", "implicit_gemm", "im2col"):
        arrays = map(cupy.asarray, (x, w, b))
        got = cyconv.conv_transpose1d(*arrays, stride=3, activation="sigmoid", strategy=name)
        _close(got, expected)


def test_prepare_is_for_the_processor(cupy):
    w, b = _array(3, 2, 3, 3), _array(3)
    with pytest.raises(cyconv.UnsupportedError, match=r"w is a cupy.ndarray; prepare"):
        cyconv.prepare(cupy.asarray(w))
    with pytest.raises(cyconv.UnsupportedError, match=r"bias is a cupy.ndarray; prepare"):
        cyconv.prepare(w, cupy.asarray(b))
    with pytest.raises(TypeError, match=r"x is a cupy.ndarray, w is a ndarray"):
        cyconv.prepare(w)(cupy.asarray(_array(1, 2, 5, 5)))
