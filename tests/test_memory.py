"""Memory: workspaces stay within the limit, repeated calls do not grow, interrupts leave nothing
broken.

Resident memory is measured in fresh processes: the high-water mark of /proc/self/status, reset
before the call that is measured.
"""

from __future__ import annotations

import sys
import tracemalloc
from functools import cache

import numpy as np
import oracle
import pytest
from cases import CASES, string
from lab import random

import cyconv

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 2**20

METER = """
import gc, numpy as np, cyconv

def _status(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

def growth(call):
    '''Peak resident bytes above those before the call.'''
    gc.collect()
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    call()
    return _status("VmHWM") - before

# Library start-up, thread stacks and BLAS buffers are not the workspace.
for dtype in ("f4", "f8"):
    warm = np.ones((1, 40, 40, 40), dtype)
    warm[0, 0] @ warm[0, 0]
    for s in ("auto", "im2col", "direct"):
        cyconv.conv2d(warm, np.ones((8, 40, 3, 3), dtype), strategy=s)
cyconv.clear_cache()
MIB = 2**20
"""
SLACK = 24  # MiB: BLAS packing buffers, page tables, the interpreter


def _growth(python, code, timeout=100):
    """MiB that the statement `call` grows by, after the set-up in code."""
    return float(python(METER + code + "\nprint(growth(call) / MIB)", timeout=timeout).split()[-1])


@linux
@pytest.mark.parametrize(
    ("batch", "size", "limit", "threads_here"), [(4, 224, 64, 1), (2, 56, 1, 2)]
)
def test_columns_never_cover_the_batch(python, batch, size, limit, threads_here):
    """x (4,64,224,224), w (3,64,9,9), padding 4, im2col: 4.2 GB of columns, 1 GB an image."""
    code = f"""
x = np.zeros(({batch}, 64, {size}, {size}), "f4")
x[:, :, ::50] = 1
w = np.ones((3, 64, 9, 9), "f4")
def call():
    with cyconv.config(workspace_limit={limit} * MIB):
        y = cyconv.conv2d(x, w, padding=4, strategy="im2col", threads={threads_here})
    assert y.shape == ({batch}, 3, {size}, {size})
    assert y[0, 0, 0, 20] == y[-1, 2, 4, 4] == 64 * 9
"""
    output = batch * 3 * size * size * 4 / MIB
    columns = batch * 64 * 81 * size * size * 4 / MIB
    bound = limit + output + SLACK
    assert bound < columns / 2, "the test could not fail"
    assert _growth(python, code) <= bound


@linux
@pytest.mark.parametrize("operator", ["dx", "dw"])
def test_gradients_keep_the_limit(python, operator):
    code = f"""
x = np.ones((4, 64, 56, 112), "f4")
w = np.ones((8, 64, 7, 7), "f4")
dy = np.ones((4, 8, 56, 112), "f4")
def call():
    with cyconv.config(workspace_limit=16 * MIB, threads=1):
        if {operator!r} == "dx":
            cyconv.conv_data_backward(dy, w, x.shape, padding=3, strategy="im2col")
        else:
            cyconv.conv_weight_backward(x, dy, w.shape, padding=3, strategy="im2col")
"""
    output = 4 * 64 * 56 * 112 * 4 / MIB if operator == "dx" else 0
    assert _growth(python, code) <= 16 + output + SLACK


@linux
@pytest.mark.parametrize("dtype", ["f2", ">f4", ">f8"])
@pytest.mark.parametrize("strategy_of_copy", ["auto", "im2col", "direct", "pointwise"])
def test_conversion_copies_count(python, dtype, strategy_of_copy):
    """An operand of another byte order or a half type, above the limit, is never copied whole."""
    code = f"""
x = np.ones((32, 32, 128, 128), {dtype!r})
w = np.ones((2, 32, 1, 1), {dtype!r})
def call():
    with cyconv.config(workspace_limit=4 * MIB, threads=1):
        y = cyconv.conv2d(x, w, stride=2, strategy={strategy_of_copy!r})
    assert (y == 32).all()
"""
    size = int(dtype[-1])
    output = 32 * 2 * 64 * 64 * size / MIB
    whole = 32 * 32 * 128 * 128 * max(size, 4) / MIB
    bound = 4 + 2 * output + SLACK
    assert bound < whole / 2, "the test could not fail"
    assert _growth(python, code) <= bound


@linux
def test_strided_input_is_not_copied_whole(python):
    code = """
x = np.ones((32, 64, 128, 128), "f4")[:, ::2, :, ::-1]
w = np.ones((2, 32, 3, 3), "f4")
def call():
    with cyconv.config(workspace_limit=4 * MIB, threads=1):
        cyconv.conv2d(x, w, stride=2, padding=1)
"""
    assert _growth(python, code) <= 4 + 32 * 2 * 64 * 64 * 4 / MIB + SLACK


@linux
def test_a_tuners_trials_keep_the_limit(python):
    code = """
x = np.ones((8, 64, 64, 64), "f4")
w = np.ones((8, 64, 7, 7), "f4")
def call():
    with cyconv.config(workspace_limit=8 * MIB, strategy="profile", threads=1):
        cyconv.conv2d(x, w, padding=3)
"""
    output = 8 * 8 * 64 * 64 * 4 / MIB
    assert _growth(python, code) <= 8 + 4 * output + SLACK


@linux
def test_repeated_calls_do_not_grow(python):
    """2000 calls of each operator and type, then of ever new shapes; released by clear_cache()."""
    answer = python(
        METER
        + """
x = {d: np.ones((2, 8, 20, 20)).astype(d) for d in ("f4", "f8", "f2", ">f4")}
w = {d: np.ones((8, 8, 3, 3)).astype(d) for d in x}
def calls(n):
    for i in range(n):
        for d in x:
            y = cyconv.conv2d(x[d], w[d])
            cyconv.conv_data_backward(y, w[d], x[d].shape)
            cyconv.conv_weight_backward(x[d], y, w[d].shape)
        try:
            cyconv.conv2d(x["f4"], w["f4"], groups=3)
        except ValueError:
            pass
calls(300)
print(growth(lambda: calls(700)) / MIB)
def shapes():
    for n in range(3000):
        cyconv.conv1d(np.ones((1, 1, 3 + n)), np.ones((1, 1, 3)))
print(growth(shapes) / MIB)
""",
        env={"CYCONV_NUM_THREADS": 1},
    )
    same, changing = map(float, answer.split())
    assert same <= 3
    assert changing <= 16, "the cache of plans has no end"


@linux
def test_clear_cache_releases_the_workspaces(python):
    held = float(
        python(
            METER
            + """
x, w = np.ones((1, 64, 112, 112), "f4"), np.ones((8, 64, 7, 7), "f4")
cyconv.conv2d(x, w, padding=3, strategy="im2col", threads=1)
cyconv.clear_cache()
before = _status("VmRSS")
with cyconv.config(workspace_limit=200 * MIB):
    cyconv.conv2d(x, w, padding=3, strategy="im2col", threads=1)
cyconv.clear_cache()
gc.collect()
print((_status("VmRSS") - before) / MIB)
"""
        )
    )
    assert held <= 8


def _allocated(call):
    """Bytes that a call allocates at most at once, when it is repeated."""
    for _ in range(2):
        call()
    tracemalloc.start()
    try:
        call()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("op", ["fwd", "dx", "dw"])
@pytest.mark.parametrize(
    "name", ["auto", *(s for s in cyconv.strategies() if s not in ("fft", "reference"))]
)
def test_a_repeated_call_with_out_allocates_nothing(op, name, layout):
    """Workspaces are kept, and kernels write where they are told to; of a plan too. But ``fft`` and
    ``reference`` leave memory to NumPy and SciPy.

    NumPy reports its arrays to tracemalloc: that a fresh result is seen shows that the test can
    fail.
    """
    text = f"{op} f32 {layout} n1 g1 ci16 co16 i40x40 k5x5 s1 p2 d1"
    problem = cyconv.ConvProblem.parse(text)
    shapes = {"fwd": (problem.x_shape, problem.w_shape), "dx": (problem.y_shape, problem.w_shape)}
    a, b = (random(*shape, dtype="float32") for shape in shapes.get(op, (problem.x_shape,) * 2))
    shape = () if op == "fwd" else (problem.result_shape,)
    out = np.empty(problem.result_shape, "float32")
    function = {
        "fwd": cyconv.conv_forward,
        "dx": cyconv.conv_data_backward,
        "dw": cyconv.conv_weight_backward,
    }[op]
    options = {"padding": 2, "layout": layout.upper(), "strategy": name, "threads": 2}

    def call(**more):
        return function(a, b, *shape, **options, **more)

    few = 4096  # tuples, views and keys
    assert out.nbytes > 4 * few
    assert _allocated(call) >= out.nbytes
    assert _allocated(lambda: call(out=out)) <= few
    plan = cyconv.plan(problem, strategy=name, threads=2)
    assert _allocated(lambda: plan(a, b)) >= out.nbytes
    assert _allocated(lambda: plan(a, b, out=out)) <= few
    np.testing.assert_array_equal(out, plan(a, b))


@cache
def _truth(name, op, dtype):
    """Oracle, and the sum of absolute values that bounds are made of, both in NCHW."""
    case = CASES[name]
    a, b, bias, shape = case.operands(op, dtype)
    run = oracle.OPERATORS[op]
    truth = run(a, b, bias if op == "fwd" else shape, **case.arguments)
    size = run(abs(a), abs(b), None if op == "fwd" else shape, **case.arguments)
    if bias is not None:
        size = size + np.max(abs(bias))
    return truth, size


@pytest.mark.parametrize("limit", [64 * 1024, 256 * 1024, MIB])
@pytest.mark.parametrize(
    "name",
    [
        "seven",
        "many_pixels",
        "channels_65",
        "many_images",
        "volume",
        "groups",
        "pointwise_wide",
        "asymmetric_all",
        "line_long",
    ],
)
def test_a_small_limit_is_honoured(name, limit, strategy, layout):
    """plan.workspace_nbytes stays below it, and the results are right."""
    case = CASES[name]
    for op in ("fwd", "dx", "dw"):
        for short, dtype in (("f32", "float32"), ("f64", "float64")):
            with cyconv.config(workspace_limit=limit, strategy=strategy):
                plan = cyconv.plan(cyconv.ConvProblem.parse(string(name, op, short, layout)))
                a, b, bias, _ = case.operands(op, dtype, layout)
                got = plan(a, b, bias) if op == "fwd" else plan(a, b)
            assert plan.workspace_nbytes <= limit
            got = oracle.to_first(got, layout)
            truth, size = _truth(name, op, dtype)
            most = oracle.bound_by(plan.strategy, size, case.terms(op), dtype)
            oracle.assert_within(got, truth, most, f"{op} {short}")


@pytest.mark.parametrize("limit", [0, 1, 1000])
def test_an_absurd_limit_still_computes(limit, any_strategy):
    """Nothing fits: another strategy, at last direct, which needs no workspace."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 16, 20, 20)), rng.standard_normal((8, 16, 3, 3))
    with cyconv.config(workspace_limit=limit):
        y = cyconv.conv2d(x, w, strategy=any_strategy)
        assert cyconv.explain(x, w).workspace_nbytes <= limit
    np.testing.assert_allclose(y, oracle.forward(x, w).astype(float), atol=1e-11)


def test_explain_says_the_workspace():
    """For a named strategy that needs one, below the limit; direct needs none."""
    shapes = (1, 64, 56, 56), (64, 64, 3, 3)
    for limit in (MIB, 64 * MIB):
        with cyconv.config(workspace_limit=limit):
            assert 0 < cyconv.explain(*shapes, strategy="im2col").workspace_nbytes <= limit
    assert cyconv.explain(*shapes, strategy="direct").workspace_nbytes == 0


@linux
@pytest.mark.parametrize("strategy_of_loop", ["im2col", "direct", "auto"])
def test_ctrl_c_leaves_the_library_usable(python, strategy_of_loop):
    """An interrupt in the middle of a loop of calls ends it; the next call is right."""
    python(f"""
import os, signal, threading, time
import numpy as np, cyconv
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
x, w = np.ones((4, 16, 64, 64)), np.ones((16, 16, 3, 3))
for turn in range(3):
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            cyconv.conv2d(x, w, strategy={strategy_of_loop!r}, threads=2)
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("not interrupted")
    timer.join()
    y = cyconv.conv2d(x, w, strategy={strategy_of_loop!r}, threads=2)
    assert abs(y - 144).max() < 1e-11
    cyconv.clear_cache()
""")


def test_memory_error_leaves_the_library_usable(python):
    """Address space runs out inside a call: MemoryError, then smaller calls still work."""
    python(
        """
import resource
import numpy as np, cyconv
x, w = np.ones((1, 4, 600, 600)), np.ones((64, 4, 3, 3))
small = np.ones((1, 4, 10, 10))
assert (cyconv.conv2d(small, w, strategy="im2col") == 36).all()
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20, most))
for strategy in ("im2col", "direct", "auto"):
    try:
        cyconv.conv2d(x, w, strategy=strategy)
    except MemoryError:
        pass
    else:
        raise SystemExit("170 MB in 60 MB")
    assert (cyconv.conv2d(small, w, strategy=strategy) == 36).all()
""",
        env={"OPENBLAS_NUM_THREADS": 1},
    )
