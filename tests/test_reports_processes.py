"""Public bug reports about convolution, one test each, under their number: L to N, which are about
threads and processes, the tuner's keys and the environment.
"""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import oracle
import pytest
from lab import near, random

import cyconv

# L. Threads, processes

B44 = '''
import multiprocessing, sys, threading
import numpy as np, cyconv

x = np.random.default_rng(0).standard_normal((8, 32, 56, 56), dtype="float32")
w = np.random.default_rng(1).standard_normal((32, 32, 3, 3), dtype="float32")
others = ("profile", "autotune", "reference")
strategies = ("auto", *(s for s in cyconv.strategies() if s not in others))

def work(strategy):
    """The report's shape for auto, two of its images for the others."""
    images, threads = (x, None) if strategy == "auto" else (x[:2], 2)
    more = dict(padding=1, strategy=strategy, threads=threads)
    dy = cyconv.conv2d(images, w, **more)
    dw = cyconv.conv_weight_backward(images, dy, w.shape, **more)
    return float(dy.sum(dtype="f8")), float(abs(dw).sum(dtype="f8"))

def in_children(n):
    with multiprocessing.get_context("fork").Pool(n) as pool:
        return pool.map_async(work, strategies).get(30)

here = [work(s) for s in strategies]
for got, right in zip(in_children(1) + in_children(2), here * 2):
    np.testing.assert_allclose(got, right, rtol=1e-4)
answers = []
thread = threading.Thread(target=lambda: answers.extend(in_children(1)))
thread.start(); thread.join(60)
np.testing.assert_allclose(answers, here, rtol=1e-4)
work("profile")
np.testing.assert_allclose(in_children(1), here, rtol=1e-4)
work("auto")
'''


@pytest.mark.parametrize("threads_b44", [None, 1, 4])
def test_b44_fork_after_a_parallel_region(python, threads_b44):
    python(B44, env={"OMP_NUM_THREADS": threads_b44} if threads_b44 else None, timeout=120)


def test_b45_live_threads(python):
    """After convolutions and products: at most cores + the pools of BLAS, not cores squared."""
    answer = python("""
import os, numpy as np, cyconv
x = np.ones((1, 64 * 16, 28, 28), "float32"); w = np.ones((64 * 16, 16, 3, 3), "float32")
cores = len(os.sched_getaffinity(0))
np.ones((512, 512)) @ np.ones((512, 512))
for strategy in ("im2col", "auto", "direct"):
    cyconv.conv2d(x, w, padding=1, groups=64, threads=cores, strategy=strategy)
print(cores, len(os.listdir("/proc/self/task")))
""")
    cores, live = map(int, answer.split())
    assert live <= 4 * cores, "interpreter, OpenMP, and the BLAS of NumPy and of SciPy"


def test_b45_groups_gain_from_threads():
    """64 groups by im2col: two threads are not more than 10 % slower than one (best of many
    turns).
    """
    x = random(1, 64 * 16, 28, 28, dtype="float32")
    w = random(64 * 16, 16, 3, 3, dtype="float32")
    best = {1: np.inf, 2: np.inf}
    end = time.perf_counter() + 10
    while time.perf_counter() < end:
        for threads in best:
            start = time.perf_counter()
            cyconv.conv2d(x, w, padding=1, groups=64, strategy="im2col", threads=threads)
            best[threads] = min(best[threads], time.perf_counter() - start)
        if best[2] <= 1.1 * best[1]:
            return
    pytest.fail(f"one thread {best[1]:.4f} s, two {best[2]:.4f} s")


def repeats(most, seconds=0.75):
    """Up to `most` turns, and at least three, within some seconds."""
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= 3 and time.perf_counter() > end:
            return
        yield turn


@pytest.mark.parametrize("threads", [2, 8], ids=str)
def test_b47_weight_gradient_has_no_race(any_strategy, threads, layout):
    x, dy = random(100, 3, 28, 28, dtype="float32"), random(100, 1, 26, 26, dtype="float32")
    x, dy = (np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (x, dy))
    shape = oracle.to_layout(np.empty((1, 3, 3, 3)), layout).shape
    keywords = {"layout": oracle.layout_name(layout, 2), "strategy": any_strategy}
    one = cyconv.conv_weight_backward(x, dy, shape, threads=1, **keywords)
    first = cyconv.conv_weight_backward(x, dy, shape, threads=threads, **keywords)
    near(first, one, 1e-6)
    for _ in repeats(200):
        again = cyconv.conv_weight_backward(x, dy, shape, threads=threads, **keywords)
        np.testing.assert_array_equal(again, first)
    db = cyconv.bias_backward(dy, layout=keywords["layout"])
    for _ in range(20):
        np.testing.assert_array_equal(cyconv.bias_backward(dy, layout=keywords["layout"]), db)


@pytest.mark.parametrize("threads", [2, 8], ids=str)
def test_b47_overlapping_transposed_has_no_race(any_strategy, threads, layout):
    x, w = random(1, 8, 16, 16, dtype="float32"), random(8, 4, 4, 4, dtype="float32")
    x, w = (np.ascontiguousarray(oracle.to_layout(a, layout)) for a in (x, w))
    keywords = {"stride": 2, "layout": oracle.layout_name(layout, 2), "strategy": any_strategy}
    one = cyconv.conv_transpose2d(x, w, threads=1, **keywords)
    first = cyconv.conv_transpose2d(x, w, threads=threads, **keywords)
    near(first, one, 1e-6)
    for _ in repeats(200):
        np.testing.assert_array_equal(
            cyconv.conv_transpose2d(x, w, threads=threads, **keywords), first
        )


def test_b47_same_choice_everywhere(python):
    code = "import cyconv; print(cyconv.explain((8, 64, 64), (64, 64, 1)).strategy)"
    here = cyconv.explain((8, 64, 64), (64, 64, 1)).strategy
    in_thread = []
    thread = threading.Thread(
        target=lambda: in_thread.append(cyconv.explain((8, 64, 64), (64, 64, 1)).strategy)
    )
    thread.start()
    thread.join()
    assert [here] == in_thread == [python(code).strip()]


# M. Autotune: keys too narrow or too wide


@pytest.fixture
def tuner():
    cyconv.clear_cache()
    with cyconv.config(strategy="profile"):
        yield
    cyconv.clear_cache()


@pytest.mark.parametrize("kind", ["float64", "float16"])
def test_b49_type_is_part_of_the_key(tuner, kind):
    """Tune in float32, then call in another type: its own entry, and the right result."""
    for name in ("float32", kind):
        x, w = random(2, 3, 5, 5).astype(name), random(2, 3, 40, 4).astype(name)
        y = cyconv.conv2d(x, w, padding=(39, 3))
        assert y.dtype == name
        assert y.shape == (2, 2, 44, 8)
        magnitude = oracle.forward(abs(x), abs(w), padding=(39, 3))
        truth = oracle.forward(x, w, padding=(39, 3))
        limit = oracle.bound(magnitude, 480, name if name != "float16" else "float32")
        if name == "float16":
            limit = limit * 1.01 + 2.0**-11 * abs(truth) + 2.0**-25
        oracle.assert_within(y, truth, limit, name)
    assert len(cyconv.tuned()) == 2


B49_BASE = {"stride": 1, "padding": 2, "dilation": 1, "groups": 1}
B49_VARIED = {
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "padding": {"padding": 1},
    "asymmetric": {"padding": ((2, 1), (1, 2))},
    "stride": {"stride": 2},
    "layout": {"layout": "NHWC"},
    "bias": {"bias": True},
}


def _tuned_forward(layout="NCHW", bias=False, **more):
    plain = layout.lower()
    keywords = B49_BASE | more
    x = random(2, 4, 9, 9)
    w = random(6, 4 // keywords["groups"], 3, 3)
    b = np.arange(6.0) if bias else None
    lx, lw = (np.ascontiguousarray(oracle.to_layout(a, plain)) for a in (x, w))
    y = cyconv.conv2d(lx, lw, b, layout=layout, **keywords)
    near(oracle.to_first(y, plain), oracle.forward(x, w, b, **keywords), 1e-12)
    return x, w, y


@pytest.mark.parametrize("what", B49_VARIED)
def test_b49_every_parameter_is_part_of_the_key(tuner, what):
    _tuned_forward()
    before = set(cyconv.tuned())
    assert len(before) == 1
    _tuned_forward(**B49_VARIED[what])
    assert len(set(cyconv.tuned()) - before) == 1, "no entry of its own"
    _tuned_forward()
    assert len(cyconv.tuned()) == 2, "the first entry was lost"


def test_b49_every_direction_is_part_of_the_key(tuner):
    x, w, y = _tuned_forward()
    dx = cyconv.conv_data_backward(y, w, x.shape, padding=2)
    near(dx, oracle.data_backward(y, w, x.shape, padding=2), 1e-12)
    assert len(cyconv.tuned()) == 2
    dw = cyconv.conv_weight_backward(x, y, w.shape, padding=2)
    near(dw, oracle.weight_backward(x, y, w.shape, padding=2), 1e-12)
    assert len(cyconv.tuned()) == 3
    keywords = {"stride": 2, "padding": 2}
    small = y[:, :, :5, :5]  # sizes up to 16 are not bucketed
    for extra in (0, 1):
        z = cyconv.conv_transpose2d(small, w, output_padding=extra, **keywords)
        near(z, oracle.transposed(small, w, output_padding=extra, **keywords), 1e-12)
    assert len(cyconv.tuned()) == 5, "output_padding makes another problem"
    assert {text.split()[0] for text in cyconv.tuned()} == {"fwd", "dx", "dw"}
    for key in cyconv.tuned():
        text, _, threads = key.rpartition(" t")
        assert int(threads) >= 1
        assert cyconv.ConvProblem.parse(text).ndim == 2


# N. Environment variables

POLICY_VARIABLES = (
    "CYCONV_CPU_CONV_STRATEGY",
    "CYCONV_CPU_CONV_MIN_WORK",
    "CYCONV_CPU_CONV_PROFILE_ITERS",
    "CYCONV_CPU_CONV_BWD_STRATEGY",
    "CYCONV_CPU_CONV_BWD_MIN_WORK",
    "CYCONV_CPU_CONV_BWD_MIN_WORK_GRAD_INPUT",
    "CYCONV_CPU_CONV_BWD_MIN_WORK_GRAD_WEIGHT",
    "CYCONV_CPU_CONV_BWD_PROFILE_ITERS",
    "CYCONV_CPU_CONV_BWD_PROFILE_ITERS_GRAD_INPUT",
    "CYCONV_CPU_CONV_BWD_PROFILE_ITERS_GRAD_WEIGHT",
)
VARIABLES = (*POLICY_VARIABLES, "CYCONV_NUM_THREADS", "OMP_NUM_THREADS")

B54 = """
for _ in range(2):
    for strategy in (None, "profile"):
        x, w = np.arange(512.0).reshape(2, 4, 8, 8), np.ones((3, 4, 3, 3))
        y = cyconv.conv2d(x, w, strategy=strategy)
        dx = cyconv.conv_data_backward(y, w, x.shape, strategy=strategy)
        dw = cyconv.conv_weight_backward(x, y, w.shape, strategy=strategy)
answer = [y.sum(), dx.sum(), dw.sum()]
"""

WRONG_COUNT = ("-1", "abc", "1e3", "1.5", "0x10")
RIGHT_COUNT = ("", " 4 ", "unset")


def _right_sums():
    x, w = np.arange(512.0).reshape(2, 4, 8, 8), np.ones((3, 4, 3, 3))
    y = oracle.forward(x, w)
    gradients = oracle.data_backward(y, w, x.shape), oracle.weight_backward(x, y, w.shape)
    return [float(a.sum()) for a in (y, *gradients)]


def test_b54_junk_in_every_variable(under_environments):
    """One warning for each bad variable, naming it and its value; the default; right results."""
    values = [v for v in (*WRONG_COUNT, *RIGHT_COUNT) if v != "unset"]
    environments = [dict.fromkeys(VARIABLES, v) for v in values] + [{}]
    results = under_environments(B54, environments)
    for value, (answer, messages) in zip((*values, "unset"), results, strict=True):
        np.testing.assert_allclose(answer, _right_sums(), rtol=1e-12)
        counts = {v: sum(_names(m, v) for m in messages) for v in VARIABLES}
        wrong = set()
        if value in WRONG_COUNT:
            wrong = set(VARIABLES)
        elif value not in ("", "unset"):
            wrong = {v for v in VARIABLES if v.endswith("STRATEGY")}
        assert {v for v, n in counts.items() if n} == wrong, f"{value!r}: {messages}"
        assert all(n <= 1 for n in counts.values()), f"{value!r} warned twice: {messages}"
        assert all(value.strip() in m for m in messages)


def _names(message, variable):
    """Whether the message names this variable and not a longer one."""
    return re.search(rf"{variable}(?![A-Z_])", message) is not None


def test_b54_zero(under_environments):
    """0 is no strategy and no thread count, but it is a valid least work."""
    results = under_environments(B54, [{v: "0"} for v in VARIABLES])
    for variable, (answer, messages) in zip(VARIABLES, results, strict=True):
        np.testing.assert_allclose(answer, _right_sums(), rtol=1e-12)
        if "PROFILE_ITERS" not in variable:  # raised to 1, with or without a warning
            assert len(messages) == ("MIN_WORK" not in variable), (variable, messages)


def test_b54_absurdly_many(under_environments):
    """Accepted, cut or refused with one warning; the results are right and the process lives."""
    code = B54.replace("512.0", "51200.0").replace("(2, 4, 8, 8)", "(200, 4, 8, 8)")
    variables = [v for v in VARIABLES if "PROFILE_ITERS" not in v]  # those would just take long
    results = under_environments(code, [{v: "999999"} for v in variables])
    first = results[0][0]
    for variable, (answer, messages) in zip(variables, results, strict=True):
        np.testing.assert_allclose(answer, first, rtol=1e-12)
        assert len(messages) <= 1, (variable, messages)


def test_b54_lists_and_unknown_names(under_environments):
    environments = [
        {"OMP_NUM_THREADS": "4,3,2"},
        {"CYCONV_NUM_THREADS": "4,3,2"},
        {"CYCONV_CPU_CONV_STRATEGY": "IM2COL", "CYCONV_CPU_CONV_BWD_STRATEGY": " Direct "},
        {"CYCONV_CPU_CONV_STRATEGY": "im2cool"},
    ]
    plain, listed, case, misspelt = under_environments(B54, environments)
    for answer, _ in (plain, listed, case, misspelt):
        np.testing.assert_allclose(answer, _right_sums(), rtol=1e-12)
    assert plain[1] == []
    assert len(listed[1]) == 1
    assert "CYCONV_NUM_THREADS" in listed[1][0]
    assert case[1] == []
    assert len(misspelt[1]) == 1
    for part in ("CYCONV_CPU_CONV_STRATEGY", "im2cool", "direct", "im2col", "auto"):
        assert part in misspelt[1][0]


def test_b54_import_never_warns_and_never_fails(python):
    junk = dict.fromkeys((*VARIABLES, "CYCONV_ISA", "CYCONV_CACHE_DIR"), "junk")
    python("import cyconv", env=junk, arguments=("-W", "error"))


def test_b54_read_at_first_use(under_environments):
    """Set after the import but before the first call counts; later changes do not."""
    code = """
import os
first = cyconv.explain((1, 1, 4), (1, 1, 1)).strategy
os.environ["CYCONV_CPU_CONV_STRATEGY"] = "direct"
answer = [first, cyconv.explain((1, 1, 5), (1, 1, 1)).strategy]
"""
    [(answer, messages)] = under_environments(code, [{"CYCONV_CPU_CONV_STRATEGY": "reference"}])
    assert answer == ["reference", "reference"]
    assert messages == []
