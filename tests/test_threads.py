"""Threads: the count's sources, results that do not depend on it, callers in parallel, fork and
spawn.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracle
import pytest

import cyconv

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
RNG = np.random.default_rng(11)
BITWISE = ("direct", "fft", "implicit_gemm", "depthwise", "winograd")

X, W = RNG.standard_normal((3, 12, 31, 29)), RNG.standard_normal((18, 12, 3, 3))
DY = RNG.standard_normal((3, 18, 31, 29))


def three(x, w, dy, **keywords):
    keywords = {"padding": 1} | keywords
    yield cyconv.conv_forward(x, w, **keywords)
    yield cyconv.conv_data_backward(dy, w, x.shape, **keywords)
    yield cyconv.conv_weight_backward(x, dy, w.shape, **keywords)


def _operands(dtype, layout):
    return [np.ascontiguousarray(oracle.to_layout(a.astype(dtype), layout)) for a in (X, W, DY)]


def test_bitwise_equal_for_every_thread_count(strategy, dtype, layout):
    operands = _operands(dtype, layout)
    one = list(three(*operands, layout=layout.upper(), strategy=strategy, threads=1))
    for threads in (2, 3, 8):
        more = three(*operands, layout=layout.upper(), strategy=strategy, threads=threads)
        for got, right in zip(more, one, strict=True):
            if strategy in BITWISE:
                np.testing.assert_array_equal(got, right)
            else:
                np.testing.assert_allclose(
                    got, right, rtol=0, atol=1e-3 if dtype == "float32" else 1e-11
                )


@pytest.mark.parametrize("threads_here", [1, 2, 3, 8])
def test_bitwise_equal_from_run_to_run(any_strategy, dtype, layout, threads_here):
    operands = _operands(dtype, layout)
    keywords = {"layout": layout.upper(), "strategy": any_strategy, "threads": threads_here}
    first = list(three(*operands, **keywords))
    for _ in range(3):
        for got, right in zip(three(*operands, **keywords), first, strict=True):
            np.testing.assert_array_equal(got, right)


def test_reproducible_means_bitwise_over_threads_and_batch(dtype, layout):
    x, w, dy = _operands(dtype, layout)
    name = layout.upper()
    with cyconv.config(reproducible=True):
        whole = list(three(x, w, dy, layout=name, threads=1))
        for threads in (2, 8):
            for got, right in zip(
                three(x, w, dy, layout=name, threads=threads), whole, strict=True
            ):
                np.testing.assert_array_equal(got, right)
        single = list(three(x[:1], w, dy[:1], layout=name))
        for got, right in zip(single[:2], whole[:2], strict=True):
            np.testing.assert_array_equal(got, right[:1])


def test_reproducible_refuses_what_cannot(strategy, dtype):
    """A named strategy either keeps its bits over threads and batch, or is refused: never less."""
    x, w, dy = _operands(dtype, "nchw")
    for kernel, padding in ((3, 1), (1, 0)):
        w = w[:, :, :kernel, :kernel]
        keywords = {"strategy": strategy, "padding": padding}
        with cyconv.config(reproducible=True, strict=True):
            try:
                one = list(three(x, w, dy, threads=1, **keywords))
            except cyconv.UnsupportedError:
                continue
            for got, right in zip(three(x, w, dy, threads=8, **keywords), one, strict=True):
                np.testing.assert_array_equal(got, right)
            for got, right in zip(three(x[:1], w, dy[:1], **keywords), one[:2], strict=False):
                np.testing.assert_array_equal(got, right[:1])


def test_eight_callers_at_once(any_strategy):
    """Every caller gets its own right answer, whatever the others do with the workspaces."""
    problems = [
        (RNG.standard_normal((2, c, 14, 15)), RNG.standard_normal((o, c, 3, 3)))
        for c, o in ((1, 3), (4, 8), (9, 5), (16, 17))
    ]
    truth = [oracle.forward(x, w).astype(float) for x, w in problems]
    dws = [
        oracle.weight_backward(x, y, w.shape).astype(float)
        for (x, w), y in zip(problems, truth, strict=True)
    ]

    def caller(seed):
        for turn in range(40):
            at = (seed + turn) % len(problems)
            (x, w), y, dw = problems[at], truth[at], dws[at]
            threads = 1 + (seed + turn) % 3
            np.testing.assert_allclose(
                cyconv.conv2d(x, w, strategy=any_strategy, threads=threads), y, atol=1e-11
            )
            got = cyconv.conv_weight_backward(x, y, w.shape, strategy=any_strategy, threads=threads)
            np.testing.assert_allclose(got, dw, rtol=1e-10, atol=1e-9)
            if turn == 20:
                cyconv.clear_cache()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(caller, range(8)))


@pytest.mark.parametrize("strategy_of_loop", ["im2col", "direct"])
def test_the_gil_is_released(strategy_of_loop):
    """Python code counts on while a long convolution runs in another thread."""
    x, w = np.ones((4, 32, 160, 160)), np.ones((32, 32, 3, 3))
    spans = []

    def convolve():
        start = time.perf_counter()
        cyconv.conv2d(x, w, strategy=strategy_of_loop, threads=1)
        spans.append((start, time.perf_counter()))

    ticks = []
    worker = threading.Thread(target=convolve)
    worker.start()
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    [(start, end)] = spans
    assert end - start > 0.05, "too short to tell"
    inside = [start, *(t for t in ticks if start < t < end), end]
    assert max(b - a for a, b in itertools.pairwise(inside)) < 0.5 * (end - start)


# How many threads run: each parallel region leaves its workers alive, and /proc counts them.

COUNT = """
import os
x, w = np.ones((64, 16, 40, 40), "f4"), np.ones((16, 16, 3, 3), "f4")
def workers(**keywords):
    before = len(os.listdir("/proc/self/task"))
    cyconv.conv2d(x, w, strategy="direct", **keywords)
    return len(os.listdir("/proc/self/task")) - before + 1
"""


@linux
def test_sources_of_the_thread_count(under_environments):
    """threads= > config > CYCONV_NUM_THREADS > OMP_NUM_THREADS > min(affinity, cgroup)."""
    call = COUNT + "with cyconv.config(threads=3):\n    answer = workers(threads=5)"
    context = COUNT + "with cyconv.config(threads=3):\n    answer = workers()"
    plain = COUNT + "answer = workers()"
    both = {"CYCONV_NUM_THREADS": 4, "OMP_NUM_THREADS": 6}
    assert under_environments(call, [both])[0][0] == 5
    assert under_environments(context, [both])[0][0] == 3
    own, openmp, listed, wrong, one = under_environments(
        plain,
        [
            both,
            {"OMP_NUM_THREADS": 6},
            {"OMP_NUM_THREADS": "5,3,2"},
            {"CYCONV_NUM_THREADS": "many", "OMP_NUM_THREADS": 3},
            {"OMP_NUM_THREADS": 1},
        ],
    )
    assert own == (4, [])
    assert openmp == (6, [])
    assert listed == (5, [])
    assert wrong[0] == 3
    assert len(wrong[1]) == 1
    assert one == (1, [])


@linux
def test_default_thread_count_is_the_affinity(under_environments):
    affinity = "import os\nos.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
    plain = COUNT + "answer = workers()"
    [(free, _)] = under_environments(plain, [{}])
    assert 1 <= free <= len(os.sched_getaffinity(0))
    assert under_environments(affinity + plain, [{}])[0][0] == 1


def test_settings_stay_in_their_thread_and_follow_a_copied_context():
    with cyconv.config(threads=3, strategy="direct"):
        fresh, copied = [], []
        context = contextvars.copy_context()
        for target in (
            lambda: fresh.append(cyconv.get_config()),
            lambda: copied.append(context.run(cyconv.get_config)),
        ):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert cyconv.get_config().threads == 3
    assert fresh[0].threads == cyconv.get_config().threads != 3
    assert fresh[0].strategy != "direct"
    assert (copied[0].threads, copied[0].strategy) == (3, "direct")


# Peace with others


def test_spin_count_is_restored_after_the_import(python):
    names = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
    code = f"import os, cyconv; print(*map(os.environ.get, {names}))"
    assert python(code).split() == ["None", "None"]
    assert python(code, env={"GOMP_SPINCOUNT": 123}).split() == ["123", "None"]
    assert python(code, env={"OMP_WAIT_POLICY": "passive"}).split() == ["None", "passive"]


def test_blas_and_openmp_settings_are_restored_after_a_call(any_strategy):
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def settings():
        return {pool["filepath"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}

    for limit in (1, 2):
        with threadpoolctl.threadpool_limits(limit):
            before = settings()
            for threads in (1, 2, 3):
                list(three(X, W, DY, strategy=any_strategy, threads=threads))
                with pytest.raises(ValueError, match="groups"):
                    cyconv.conv2d(X, W, strategy=any_strategy, threads=threads, groups=5)
            assert settings() == before


@linux
def test_fork_and_spawn_from_a_caller(python, tmp_path):
    """Children of both kinds compute what the parent does, while the parent goes on."""
    script = tmp_path / "children.py"
    script.write_text("""
import multiprocessing
import numpy as np, cyconv

def work(threads):
    x = np.arange(4 * 16 * 30 * 30, dtype="f8").reshape(4, 16, 30, 30) % 17
    w = np.arange(16 * 16 * 9, dtype="f8").reshape(16, 16, 3, 3) % 7
    return float(cyconv.conv2d(x, w, strategy="direct", threads=threads).sum())

if __name__ == "__main__":
    right = work(2)
    for method in ("fork", "spawn", "fork"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            answers = pool.map_async(work, (1, 2, 4)).get(40)
        assert answers == [right] * 3, (method, answers)
        assert work(2) == right
""")
    run_it = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(script)!r}]))"
    python(run_it, timeout=90)


@linux
def test_floating_point_environment_is_untouched(python):
    """Rounding and subnormals are as before in the caller, also after an exception in the call."""
    python("""
import numpy as np, cyconv
tiny = np.float32(1e-42)
x, w = np.full((4, 16, 30, 30), 1e-42, "f4"), np.full((16, 16, 3, 3), 1e-3, "f4")
for strategy in ("auto", "im2col", "direct", "pointwise"):
    for threads in (1, 4):
        cyconv.conv2d(x, w, strategy=strategy, threads=threads)
        assert tiny * np.float32(1) == tiny != 0
        assert np.float32(1) / np.float32(3) == np.float32(0.33333334)
        assert (np.full(10000, tiny) * np.float32(1)).all()
""")
