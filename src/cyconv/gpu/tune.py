"""``profile`` on a GPU: measure the candidates by events, once a kind of problem and device.

The rules are those of the CPU's `tune`. Each candidate runs once to be compiled and compared with
``direct``, then in turns; the median of at least seven timings counts, a tie goes to ``direct``.
Nothing is measured while a stream is captured.
"""

from __future__ import annotations

import logging
from statistics import median
from typing import Any

import numpy as np

from .. import devices, tune
from ..operands import RESULT, Operands
from ..problem import ConvProblem
from ..settings import Config, profile_iterations
from .base import Run, Strategy
from .module import Device, fingerprint
from .params import SUMS
from .select import servants
from .strategies import DIRECT

_log = logging.getLogger("cyconv")

_FEWEST_TIMINGS = 7
# A trial of ``direct`` should end within about half a second.
_MOST_TRIAL_MACS = 10**11


def key_of(problem: ConvProblem, device: Device, settings: Config) -> str:
    """Return the key under which a problem's measured choice is kept."""
    precision = " tf32" if _rounds(problem, settings) else ""
    return (
        f"{problem.tune_key()} gpu {device.name.replace(' ', '_')} sm_{device.capability} "
        f"cupy {devices.cupy().__version__} kernels {fingerprint()}{precision}"
    )


def _rounds(problem: ConvProblem, settings: Config) -> bool:
    """Whether a strategy may round operands to TF32."""
    return problem.dtype == "f32" and settings.precision == "medium"


def lookup(problem: ConvProblem, device: Device, settings: Config) -> tune.Measured | None:
    """Return the measured choice for a problem, if there is one."""
    return tune.recall(key_of(problem, device, settings))


def measures(problem: ConvProblem, settings: Config) -> bool:
    """Whether to measure: there is something to do, and the stream is not captured in a graph."""
    if problem.macs == 0 or settings.reproducible:
        return False
    return not devices.cupy().cuda.get_current_stream().is_capturing()


def choose(settings: Config, call: Run) -> tuple[str, bool]:
    """Return the name of the measured winner, and whether its result is already there."""
    key = key_of(call.problem, call.device, settings)
    known, done = tune.settle(key, lambda: _measure(settings, call))
    return known.strategy, done


def _measure(settings: Config, call: Run) -> tuple[tune.Measured, bool]:
    serving, _ = servants(call.problem, call.device, settings)
    candidates = [DIRECT, *(strategy for strategy in serving if strategy is not DIRECT)]
    whole = Operands(call.x, call.w, call.y, call.bias)
    problem, views = tune.part_to_try(
        call.problem, whole, len(candidates), settings.workspace_limit, _MOST_TRIAL_MACS
    )
    bare = call._replace(residual=None, activation=0)
    trial = bare._replace(problem=problem, x=views.x, w=views.w, y=views.y, bias=views.bias)
    seconds, results = _race(trial, candidates)
    winner = min(seconds, key=lambda name: (seconds[name], name != DIRECT.name))
    if problem is call.problem:
        _result(call)[...] = results[winner]
    return tune.Measured(winner, seconds), problem is call.problem


def _result(call: Run) -> Any:
    return getattr(call, RESULT[call.problem.op])


def _race(call: Run, candidates: list[Strategy]) -> tuple[dict[str, float], dict[str, Any]]:
    """Time the candidates in turn; return the seconds and results of those that are right."""
    runs = {strategy.name: _own_result(call) for strategy in candidates}
    DIRECT.run(runs[DIRECT.name])
    expected = _result(runs[DIRECT.name])
    tolerances = _tolerances(call)
    right: list[Strategy] = [DIRECT]
    for strategy in candidates[1:]:
        try:
            strategy.run(runs[strategy.name])
        except Exception:
            _log.debug(
                "%s raised on %s, and is dropped", strategy.name, call.problem, exc_info=True
            )
            continue
        if _agree(_result(runs[strategy.name]), expected, tolerances[strategy.precision]):
            right.append(strategy)
    timings: dict[str, list[float]] = {strategy.name: [] for strategy in right}
    for _ in range(max(_FEWEST_TIMINGS, profile_iterations(call.problem.op, "GPU"))):
        for strategy in right:
            timings[strategy.name].append(_time(strategy, runs[strategy.name]))
    seconds = {name: median(values) for name, values in timings.items()}
    return seconds, {name: _result(runs[name]) for name in seconds}


def _own_result(call: Run) -> Run:
    """Give a run a result of its own."""
    result: Any = devices.cupy().empty(call.problem.result_shape, _result(call).dtype)
    role = RESULT[call.problem.op]
    return call._replace(**{role: result})


def _time(strategy: Strategy, call: Run) -> float:
    cuda = devices.cupy().cuda
    start, end = cuda.Event(), cuda.Event()
    start.record()
    strategy.run(call)
    end.record()
    end.synchronize()
    return float(cuda.get_elapsed_time(start, end)) / 1e3


def _tolerances(call: Run) -> dict[str, Any]:
    """Return how far two right results may lie apart, by precision: twice the bound, and rounding.

    Compared are float64 numbers: NumPy's functions act on CuPy arrays.
    """
    x, w, y, bias = (
        None if array is None else abs(array) for array in (call.x, call.w, call.y, call.bias)
    )
    own = _own_result(call._replace(x=x, w=w, y=y, bias=bias))
    DIRECT.run(own)
    magnitude = _result(own).astype(np.float64)
    unit = np.finfo(SUMS[call.problem.dtype]).eps / 2
    n = (call.problem.terms + 1) * unit
    # Each of two factors is rounded to TF32, half a unit of 10 bits.
    operands = 2.0**-10 * (1 + 2.0**-11) if _rounds(call.problem, call.settings) else 0.0
    strict = magnitude * (2 * n / max(1 - n, unit) + 2 * _unit_of_result(call) + operands)
    return {"highest": strict, "high": strict + 64 * unit * magnitude.max()}


def _unit_of_result(call: Run) -> float:
    """Return the unit roundoff of a half type, whose results are rounded once more."""
    return {"f16": 2.0**-11, "bf16": 2.0**-8}.get(call.problem.dtype, 0.0)


def _agree(result: Any, expected: Any, tolerance: Any) -> bool:
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.abs(result - expected) <= tolerance
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    return bool((close | same).all())
