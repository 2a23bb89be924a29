"""Choosing: environment, context and call; automatic thresholds; measuring; fallbacks and
refusals.
"""

from __future__ import annotations

import threading
import warnings

import numpy as np
import oracle
import pytest

import cyconv
from cyconv import calls, tune

RNG = np.random.default_rng(5)
# forward: 2*6*42*2*9 multiply-adds; gradients are counted with the input's size: 2*4*72*3*9
X, W, DY = (RNG.standard_normal(s) for s in ((2, 4, 9, 8), (6, 2, 3, 3), (2, 6, 7, 6)))
FORWARD_WORK, BACKWARD_WORK = 9072, 15552

CHOSEN = """
shapes = x, w, dy = (2, 4, 9, 8), (6, 2, 3, 3), (2, 6, 7, 6)
def chosen(**k):
    explain = cyconv.explain
    return [explain(x, w, groups=2, **k).strategy,
            explain(dy, w, x, groups=2, operator="data_backward", **k).strategy,
            explain(x, dy, w, groups=2, operator="weight_backward", **k).strategy,
            explain(dy, w, groups=2, operator="transposed", **k).strategy]
answer = chosen()
"""


def _chosen(under_environments, *environments, code=CHOSEN):
    results = under_environments(code, environments)
    for _, messages in results:
        assert messages == []
    return [answer for answer, _ in results]


# Environment


def test_environment_names_the_strategy_of_each_direction(under_environments):
    forward, backward, both = _chosen(
        under_environments,
        {"CYCONV_CPU_CONV_STRATEGY": "reference"},
        {"CYCONV_CPU_CONV_BWD_STRATEGY": "reference"},
        {"CYCONV_CPU_CONV_STRATEGY": "im2col", "CYCONV_CPU_CONV_BWD_STRATEGY": "reference"},
    )
    assert forward == ["reference", "direct", "direct", "direct"]
    assert backward == ["direct", "reference", "reference", "reference"]
    assert both == ["im2col", "reference", "reference", "reference"]


@pytest.mark.parametrize("spelling", ["IM2COL", "Im2Col", "im2col", " im2col "])
def test_environment_is_case_insensitive(under_environments, spelling):
    [answer] = _chosen(under_environments, {"CYCONV_CPU_CONV_STRATEGY": spelling})
    assert answer[0] == "im2col"


@pytest.mark.parametrize("name", ["PROFILE", "profile", "Autotune"])
def test_environment_may_ask_to_measure(under_environments, name):
    code = """
x, w = np.ones((2, 4, 9, 8)), np.ones((6, 2, 3, 3))
y = cyconv.conv2d(x, w, groups=2)
forward = len(cyconv.tuned())
cyconv.conv_data_backward(y, w, x.shape, groups=2)
cyconv.conv_weight_backward(x, y, w.shape, groups=2)
answer = [forward, len(cyconv.tuned())]
"""
    one, two = _chosen(
        under_environments,
        {"CYCONV_CPU_CONV_STRATEGY": name},
        {"CYCONV_CPU_CONV_BWD_STRATEGY": name},
        code=code,
    )
    assert one == [1, 1]
    assert two == [0, 2]


def test_least_work_on_both_sides_of_the_threshold(under_environments):
    """work >= MIN_WORK takes the fast families, below it is direct; forward and gradients by their
    own count.
    """
    prefix = "CYCONV_CPU_CONV_"

    def fast(*environments):
        answers = _chosen(under_environments, *environments)
        return [[name != "direct" for name in answer] for answer in answers]

    at, above = fast({prefix + "MIN_WORK": FORWARD_WORK}, {prefix + "MIN_WORK": FORWARD_WORK + 1})
    assert at == [True, False, False, False]
    assert above == [False] * 4
    at, above, dx, dw, wins = fast(
        {prefix + "BWD_MIN_WORK": BACKWARD_WORK},
        {prefix + "BWD_MIN_WORK": BACKWARD_WORK + 1},
        {prefix + "BWD_MIN_WORK_GRAD_INPUT": BACKWARD_WORK},
        {prefix + "BWD_MIN_WORK_GRAD_WEIGHT": BACKWARD_WORK},
        {prefix + "BWD_MIN_WORK": 1, prefix + "BWD_MIN_WORK_GRAD_INPUT": BACKWARD_WORK + 1},
    )
    assert at == [False, True, True, True]
    assert above == [False] * 4
    assert dx == [False, True, False, True]
    assert dw == [False, False, True, False]
    assert wins == [False, False, True, False]


@pytest.mark.parametrize(("length", "fast"), [(129, True), (128, False)])
def test_default_least_work_is_65536(length, fast):
    found = cyconv.explain((1, 16, length), (16, 16, 2))
    assert found.flop == 2 * 16 * 16 * 2 * (length - 1)
    assert (found.strategy != "direct") == fast


def test_work_counts_groups_and_batch():
    for batch, groups, fast in ((1, 1, True), (1, 2, False), (2, 2, True)):
        shapes = (batch, 16, 129), (16, 16 // groups, 2)
        assert (cyconv.explain(*shapes, groups=groups).strategy != "direct") == fast


def test_a_misspelt_value_warns_once_and_is_the_default(under_environments):
    code = CHOSEN + "answer = chosen()\nanswer = chosen()"
    [(answer, messages)] = under_environments(code, [{"CYCONV_CPU_CONV_STRATEGY": "im2cool"}])
    [message] = messages
    for part in ("CYCONV_CPU_CONV_STRATEGY", "im2cool", "im2col", "direct"):
        assert part in message
    assert answer == ["direct"] * 4, "below the least work"


# Call, context, environment


def test_call_wins_over_context_wins_over_environment(under_environments):
    code = (
        CHOSEN
        + """
with cyconv.config(strategy="im2col"):
    answer = [chosen(strategy="direct"), chosen()]
answer.append(chosen())
"""
    )
    [answer] = _chosen(under_environments, {"CYCONV_CPU_CONV_STRATEGY": "reference"}, code=code)
    assert answer[0] == ["direct"] * 4
    assert answer[1] == ["im2col"] * 4
    assert answer[2] == ["reference", "direct", "direct", "direct"]


def test_auto_in_a_call_or_context_overrides_what_is_outside(under_environments):
    code = (
        CHOSEN
        + """
answer = [chosen(strategy="auto")]
with cyconv.config(strategy="auto"):
    answer.append(chosen())
"""
    )
    [answer] = _chosen(under_environments, {"CYCONV_CPU_CONV_STRATEGY": "reference"}, code=code)
    assert answer == [["direct"] * 4] * 2


def test_nested_settings_merge_and_unwind():
    outside = cyconv.get_config()
    with cyconv.config(strategy="direct", workspace_limit=2**20):
        with cyconv.config(threads=3, strategy="im2col"):
            inner = cyconv.get_config()
            assert (inner.strategy, inner.threads, inner.workspace_limit) == ("im2col", 3, 2**20)
        middle = cyconv.get_config()
        assert (middle.strategy, middle.workspace_limit) == ("direct", 2**20)
        assert middle.threads == outside.threads
        with pytest.raises(KeyError), cyconv.config(strict=True):
            raise KeyError
        assert not cyconv.get_config().strict
    assert cyconv.get_config() == outside


def test_the_value_is_frozen_and_has_the_keys_of_the_contract():
    value = cyconv.get_config()
    for key in (
        "strategy",
        "threads",
        "strict",
        "precision",
        "reproducible",
        "workspace_limit",
        "flush_subnormals",
    ):
        assert hasattr(value, key)
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, key, None)
    assert value.workspace_limit == 64 * 2**20
    assert value.precision == "high"
    assert value.flush_subnormals
    assert not value.strict
    assert not value.reproducible


def test_a_new_thread_starts_from_the_defaults():
    seen = []
    with cyconv.config(strategy="reference"):
        thread = threading.Thread(
            target=lambda: seen.append(cyconv.explain(X, W, groups=2).strategy)
        )
        thread.start()
        thread.join()
        assert cyconv.explain(X, W, groups=2).strategy == "reference"
    assert seen == ["direct"]


def test_the_settings_of_a_generator_do_not_leak():
    with cyconv.config(threads=2):
        before = cyconv.get_config()
        cyconv.conv2d(X, W, groups=2, threads=1, strategy="im2col")
        assert cyconv.get_config() == before


@pytest.mark.parametrize("spelling", ["Direct", "DIRECT"])
def test_names_in_calls_and_contexts(spelling):
    """The contract asks for case-insensitivity of the environment; a call is as lenient or
    refuses.
    """
    np.testing.assert_array_equal(
        cyconv.conv2d(X, W, groups=2, strategy=spelling),
        cyconv.conv2d(X, W, groups=2, strategy="direct"),
    )
    with cyconv.config(strategy=spelling):
        assert cyconv.explain(X, W, groups=2).strategy == "direct"


# Fallback and refusal


def test_a_strategy_that_cannot_falls_back_to_direct_and_says_why():
    problem = cyconv.ConvProblem.parse("fwd f64 nchw n2 g2 ci4 co6 i9x8 k3x3 s1 p0 d1")
    with warnings.catch_warnings(), cyconv.config(strategy="pointwise"):
        warnings.simplefilter("error")
        plan = cyconv.plan(problem)
        y = cyconv.conv2d(X, W, groups=2)
    assert plan.problem == problem
    assert plan.strategy == "direct"
    assert "pointwise" in plan.reason
    assert "kernel" in plan.refusals["pointwise"]
    np.testing.assert_allclose(y, oracle.forward(X, W, groups=2).astype(float), atol=1e-12)
    np.testing.assert_array_equal(plan(X, W), y)
    found = cyconv.explain(X, W, groups=2, strategy="pointwise")
    assert found.strategy == "direct"
    assert "pointwise" in found.reason
    assert plan.refusals["pointwise"] in str(found)


def test_strict_raises_with_the_reason():
    with cyconv.config(strict=True):
        for call in (
            lambda: cyconv.conv2d(X, W, groups=2, strategy="pointwise"),
            lambda: cyconv.conv_data_backward(DY, W, X.shape, groups=2, strategy="pointwise"),
            lambda: cyconv.conv_weight_backward(X, DY, W.shape, groups=2, strategy="pointwise"),
            lambda: cyconv.conv_transpose2d(DY, W, groups=2, strategy="pointwise"),
        ):
            with pytest.raises(cyconv.UnsupportedError, match=r"(?s)pointwise.*kernel"):
                call()
        cyconv.conv2d(X, W, groups=2)
        cyconv.conv2d(X, W, groups=2, strategy="profile")
    padded = {"padding": 1, "strategy": "pointwise"}
    with (
        cyconv.config(strict=True),
        pytest.raises(cyconv.UnsupportedError, match=r"(?s)pointwise.*padding"),
    ):
        cyconv.conv2d(X, np.ones((3, 4, 1, 1)), **padded)


def test_the_automatic_choice_also_states_a_reason():
    for length in (10, 1000):
        found = cyconv.explain((1, 16, length), (16, 16, 3))
        assert found.reason
        assert found.strategy in {c.name for c in found.candidates}
        assert {c.name for c in found.candidates} >= {"direct", "im2col", "pointwise"}


# Measuring


CANDIDATES = ["direct"] + [
    c.name
    for c in cyconv.explain(X, W, groups=2).candidates
    if c.refusal is None and c.name not in ("direct", "reference")
]
TURN = len(CANDIDATES)


class Stopwatch:
    """Stands in for the tuner's clock: scripted seconds, and a mark added to every result.

    The candidates take turns, direct first. The rivals share one time, so that the first of them
    wins where they win; results of direct are marked by 1000, those of the n-th rival by 1000(n+1).
    """

    def __init__(self, direct, rivals):
        self.direct, self.rivals = direct, rivals
        self.calls = 0

    def __call__(self, run):
        at = self.calls % TURN
        self.calls += 1
        return self.rivals if at else self.direct, run() + 1000 * (at + 1)


@pytest.fixture
def measure(monkeypatch):
    """measure(direct=, rivals=) installs a stopwatch; the cache is empty before and after."""
    cyconv.clear_cache()

    def install(**seconds):
        watch = Stopwatch(**seconds)
        monkeypatch.setattr(tune, "_time", watch)
        return watch

    with cyconv.config(strategy="profile", threads=1):
        yield install
    cyconv.clear_cache()


OPERATORS = {
    "fwd": (lambda: cyconv.conv2d(X, W, groups=2), oracle.forward(X, W, groups=2)),
    "dx": (
        lambda: cyconv.conv_data_backward(DY, W, X.shape, groups=2),
        oracle.data_backward(DY, W, X.shape, groups=2),
    ),
    "dw": (
        lambda: cyconv.conv_weight_backward(X, DY, W.shape, groups=2),
        oracle.weight_backward(X, DY, W.shape, groups=2),
    ),
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    ("direct", "rivals", "mark"), [(2.0, 1.0, 2000), (1.0, 2.0, 1000), (1.0, 1.0, 1000)]
)
def test_the_fastest_wins_and_a_tie_goes_to_direct(measure, op, direct, rivals, mark):
    """The winner's own result is returned (the mark shows it) and is not computed again."""
    call, truth = OPERATORS[op]
    watch = measure(direct=direct, rivals=rivals)
    first = call()
    np.testing.assert_allclose(first - mark, truth.astype(float), atol=1e-10)
    assert watch.calls == TURN
    [winner] = cyconv.tuned().values()
    assert (winner == "direct") == (mark == 1000)
    np.testing.assert_allclose(call(), truth.astype(float), atol=1e-10)
    assert watch.calls == TURN, "measured again"


def test_each_target_has_its_own_entry(measure):
    watch = measure(direct=1.0, rivals=2.0)
    OPERATORS["fwd"][0]()
    watch.direct = 3.0
    OPERATORS["dx"][0]()
    OPERATORS["dw"][0]()
    by_op = {text.split()[0]: choice for text, choice in cyconv.tuned().items()}
    assert by_op.keys() == {"fwd", "dx", "dw"}
    assert by_op["fwd"] == "direct"
    assert "direct" not in (by_op["dx"], by_op["dw"])


def test_threads_are_part_of_the_key(measure):
    watch = measure(direct=1.0, rivals=2.0)
    for threads, count in ((1, 1), (2, 2), (1, 2)):
        cyconv.conv2d(X, W, groups=2, threads=threads)
        assert watch.calls == count * TURN


def test_clear_cache_forgets_the_measured(measure):
    watch = measure(direct=1.0, rivals=2.0)
    OPERATORS["fwd"][0]()
    assert len(cyconv.tuned()) == 1
    cyconv.clear_cache()
    assert len(cyconv.tuned()) == 0
    OPERATORS["fwd"][0]()
    assert watch.calls == 2 * TURN


def test_tuned_is_a_snapshot_that_cannot_be_written(measure):
    measure(direct=1.0, rivals=2.0)
    OPERATORS["fwd"][0]()
    with pytest.raises(TypeError):
        cyconv.tuned()["fwd"] = "direct"


def test_heuristic_and_named_choices_are_not_stored(measure):
    for strategy in ("auto", "direct", "im2col"):
        cyconv.conv2d(X, W, groups=2, strategy=strategy)
    assert len(cyconv.tuned()) == 0


def test_candidates_take_turns_for_the_iterations_of_the_environment(under_environments):
    code = """
from cyconv import calls, tune
calls = []
def watch(run):
    calls.append(run)
    return 1.0, run()
tune._time = watch
x, w = np.ones((2, 4, 9, 8)), np.ones((6, 4, 3, 3))
y = cyconv.conv2d(x, w, strategy="profile")
answer = [len(calls)]
cyconv.conv_data_backward(y, w, x.shape, strategy="profile")
answer.append(len(calls) - sum(answer))
cyconv.conv_weight_backward(x, y, w.shape, strategy="profile")
answer.append(len(calls) - sum(answer))
first = calls[: answer[0]]
turn = len(set(map(id, first)))
answer = [n / turn for n in answer]
answer.append(all(a is b for a, b in zip(first, first[turn:])))
answer.append(turn > 1)
"""
    prefix = "CYCONV_CPU_CONV_"
    environments = [
        {},
        {prefix + "PROFILE_ITERS": 3},
        {prefix + "PROFILE_ITERS": 0},
        {prefix + "BWD_PROFILE_ITERS": 4},
        {prefix + "BWD_PROFILE_ITERS": 4, prefix + "BWD_PROFILE_ITERS_GRAD_INPUT": 2},
        {prefix + "BWD_PROFILE_ITERS_GRAD_WEIGHT": 5},
    ]
    rounds = [[1, 1, 1], [3, 1, 1], [1, 1, 1], [1, 4, 4], [1, 2, 4], [1, 1, 5]]
    results = under_environments(code, environments)
    for environment, (answer, _), right in zip(environments, results, rounds, strict=True):
        assert answer == [*right, True, True], environment


def test_one_measurement_at_a_time(monkeypatch):
    """Eight callers of one new problem: measured once, all get the right answer."""
    cyconv.clear_cache()
    calls, inside, overlaps = [], [], []
    clock = tune._time

    def watch(run):
        inside.append(1)
        overlaps.append(len(inside))
        calls.append(run)
        try:
            return clock(run)
        finally:
            inside.pop()

    monkeypatch.setattr(tune, "_time", watch)
    answers = []
    barrier = threading.Barrier(8)

    def caller():
        barrier.wait()
        answers.append(cyconv.conv2d(X, W, groups=2, strategy="profile", threads=1))

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == TURN
    assert max(overlaps) == 1
    truth = oracle.forward(X, W, groups=2).astype(float)
    for answer in answers:
        np.testing.assert_allclose(answer, truth, atol=1e-12)
    cyconv.clear_cache()


def _break(monkeypatch, fault):
    """Replace the run of every candidate but direct by the fault."""
    from cyconv.algorithms import CPU

    for algorithm in CPU:
        if algorithm.name in CANDIDATES[1:]:
            monkeypatch.setattr(type(algorithm), "run", fault)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, cyconv.UnsupportedError, ValueError])
def test_a_candidate_that_raises_is_dropped(monkeypatch, error):
    def fault(self, *arguments, **keywords):
        raise error("broken on purpose")

    _only_direct_survives(monkeypatch, fault)


def test_a_candidate_that_is_wrong_is_dropped(monkeypatch):
    def fault(self, problem, geometry, x, w, y, *rest):
        y[...] = oracle.forward(x, w, groups=2)
        y.flat[-1] += 1e-9

    _only_direct_survives(monkeypatch, fault)


def _only_direct_survives(monkeypatch, fault):
    cyconv.clear_cache()
    _break(monkeypatch, fault)
    monkeypatch.setattr(tune, "_time", lambda run: (1.0, run()))
    y = cyconv.conv2d(X, W, groups=2, strategy="profile")
    np.testing.assert_allclose(y, oracle.forward(X, W, groups=2).astype(float), atol=1e-12)
    assert list(cyconv.tuned().values()) == ["direct"]
    monkeypatch.undo()
    cyconv.clear_cache()


def test_non_finite_data_does_not_disqualify(monkeypatch):
    """NaN equals NaN: the right candidates stay in the race."""
    cyconv.clear_cache()
    calls = []
    monkeypatch.setattr(tune, "_time", lambda run: (1.0, run(), calls.append(1))[:2])
    x = X.copy()
    x[0, 0, 4, 4], x[1, 1, 2, 2] = np.nan, np.inf
    y = cyconv.conv2d(x, W, groups=2, strategy="profile")
    np.testing.assert_array_equal(
        np.isnan(y), np.isnan(oracle.forward(x, W, groups=2).astype(float))
    )
    assert len(calls) == TURN
    cyconv.clear_cache()


def test_reproducible_does_not_measure():
    cyconv.clear_cache()
    with cyconv.config(reproducible=True):
        cyconv.conv2d(X, W, groups=2, strategy="profile")
    assert len(cyconv.tuned()) == 0


def test_explain_shows_what_was_measured():
    cyconv.clear_cache()
    shapes = (2, 4, 40, 40), (6, 4, 3, 3)
    x, w = (np.ones(s) for s in shapes)
    with cyconv.config(strategy="profile"):
        cyconv.conv2d(x, w)
        found = cyconv.explain(x, w)
    [choice] = cyconv.tuned().values()
    assert found.strategy == choice
    assert "measure" in found.reason.lower()
    cyconv.clear_cache()


def test_measuring_writes_only_the_result(measure):
    """The caller's operands, out's surroundings and dtype are as after any call."""
    measure(direct=2.0, rivals=1.0)
    x, w = X.copy(), W.copy()
    frame = np.full((2, 6, 7, 8), 77.0)
    out = frame[..., 1:7]
    assert cyconv.conv2d(x, w, groups=2, out=out) is out
    np.testing.assert_allclose(out - 2000, oracle.forward(X, W, groups=2).astype(float), atol=1e-10)
    assert (frame[..., 0] == 77).all()
    assert (frame[..., 7] == 77).all()
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(w, W)


def test_lists_are_remembered_as_tuples_are():
    """A call with lists takes the short way too, and no wrong type takes it with them."""
    calls.clear()
    arguments = {"stride": [1, 1], "padding": [[1, 1], [0, 2]], "groups": 2}
    first = cyconv.conv2d(X, W, **arguments)
    assert len(calls._calls) == 1
    np.testing.assert_array_equal(cyconv.conv2d(X, W, **arguments), first)
    cyconv.conv_data_backward(DY, W, list(X.shape), groups=2)
    cyconv.conv_data_backward(DY, W, list(X.shape), groups=2)
    assert len(calls._calls) == 2
    for wrong in ([True, 1], [1.0, 1], [None, 1]):
        with pytest.raises(TypeError, match="stride"):
            cyconv.conv2d(X, W, stride=wrong, groups=2)
    with pytest.raises(TypeError, match="input_shape"):
        cyconv.conv_data_backward(DY, W, [2, 4, 9.0, 8], groups=2)


def test_a_read_only_bias_is_remembered():
    """Weights that were loaded from a file are often read-only; kernels only read them."""
    calls.clear()
    bias = np.arange(6.0)
    bias.setflags(write=False)
    first = cyconv.conv2d(X, W, bias, groups=2)
    assert len(calls._calls) == 1
    np.testing.assert_array_equal(cyconv.conv2d(X, W, bias, groups=2), first)
    np.testing.assert_allclose(first, cyconv.conv2d(X, W, groups=2) + bias[:, None, None])
