"""``profile``: measure the candidates on the caller's data, once a kind of problem.

Candidates run in turn, each once to warm up and then a number of rounds; the least total wins and
a tie goes to ``direct``. A candidate that raises, or whose result differs from that of ``direct``
by more than its bound, is dropped. Measured choices live in memory, under the problem's tune key
and the thread count; one lock lets one measurement run at a time. Where the trials' results would
not fit the workspace, or take long, a part of the problem is measured instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from .algorithms import DIRECT
from .binding import bind
from .kernels._geometry import Geometry
from .operands import RESULT, Array, Operands
from .problem import ConvProblem
from .select import by_name, servants
from .settings import Config, profile_iterations
from .split import halves, part_of

_log = logging.getLogger("cyconv")

# A trial of ``direct`` should end within about half a second.
_MOST_TRIAL_MACS = 5 * 10**8


class Measured(NamedTuple):
    """A measured choice: the winner, and the seconds of each candidate."""

    strategy: str
    seconds: dict[str, float]


_choices: dict[str, Measured] = {}
_lock = threading.RLock()


def tuned() -> MappingProxyType[str, str]:
    """Return the measured choices: problem key (with thread count) to the strategy that won.

    A key is a problem's string with the batch rounded up to a power of two and spatial sizes above
    16 rounded up to three significant bits, then ``t`` and the thread count, or ``gpu`` and what
    the measurement depends on there.
    """
    with _lock:
        return MappingProxyType({key: choice.strategy for key, choice in _choices.items()})


def clear() -> None:
    """Forget every measured choice."""
    with _lock:
        _choices.clear()


def key_of(problem: ConvProblem, settings: Config) -> str:
    """Return the key under which a problem's measured choice is kept."""
    return f"{problem.tune_key()} t{settings.threads}"


def lookup(problem: ConvProblem, settings: Config) -> Measured | None:
    """Return the measured choice for a problem, if there is one."""
    return recall(key_of(problem, settings))


def recall(key: str) -> Measured | None:
    """Return what is kept under a key."""
    return _choices.get(key)


def settle(key: str, measure: Callable[[], tuple[Measured, bool]]) -> tuple[Measured, bool]:
    """Return what is kept under a key, or measure and keep that; and what `measure` tells."""
    with _lock:
        known = recall(key)
        done = False
        if known is None:
            known, done = measure()
            _choices[key] = known
    return known, done


def choose(problem: ConvProblem, settings: Config, operands: Operands) -> tuple[Config, bool]:
    """Return settings that name the measured winner, and whether the result is already there.

    Measures if the problem's key is new; the winner's result is then copied, not computed again.
    """
    known, done = settle(key_of(problem, settings), lambda: _measure(problem, settings, operands))
    return settings._replace(strategy=known.strategy, strict=False), done


def _measure(problem: ConvProblem, settings: Config, operands: Operands) -> tuple[Measured, bool]:
    names = _candidates(problem, settings, operands)
    trial, views = part_to_try(
        problem, operands, len(names), settings.workspace_limit, _MOST_TRIAL_MACS
    )
    seconds, results = _race(trial, settings, views, names)
    winner = min(seconds, key=lambda name: (seconds[name], name != DIRECT.name))
    whole = trial is problem
    if whole:
        operands.result(problem.op)[...] = results[winner]
    return Measured(winner, seconds), whole


def part_to_try(
    problem: ConvProblem, operands: Operands, candidates: int, limit: int, most_macs: int
) -> tuple[ConvProblem, Operands]:
    """Return the problem, or a part of it whose trials fit the workspace and end soon."""
    while _trial_nbytes(problem, candidates) > limit or problem.macs > most_macs:
        elements = problem.elements
        parts = halves(problem, max(elements, key=lambda role: elements[role]))
        if parts is None:
            break
        problem, operands = parts[0].problem, part_of(operands, parts[0])
    return problem, operands


def _candidates(problem: ConvProblem, settings: Config, operands: Operands) -> list[str]:
    """List every algorithm that serves, ``direct`` first, but not the reference."""
    geometry = Geometry(problem, *operands.strides(problem.layout))
    serving, _ = servants(problem, geometry, settings)
    others = [a.name for a in serving if a.name not in (DIRECT.name, "reference")]
    return [DIRECT.name, *others]


def _trial_nbytes(problem: ConvProblem, candidates: int) -> int:
    """Memory of the trials: a result for each, the bound, and absolute values of the operands."""
    elements = problem.elements
    total = sum(elements.values()) + (candidates + 1) * elements[RESULT[problem.op]]
    return total * problem.compute_dtype.itemsize


def _race(
    problem: ConvProblem, settings: Config, operands: Operands, names: list[str]
) -> tuple[dict[str, float], dict[str, Array]]:
    """Time the candidates in turn; return the seconds and results of those that are right."""
    runs: dict[str, Callable[[], Array]] = {
        name: _runner(problem, settings, operands, name) for name in names
    }
    results = {DIRECT.name: runs[DIRECT.name]()}
    tolerances = _tolerances(problem, settings, operands)
    for name in names[1:]:
        try:
            results[name] = runs[name]()
        except Exception:
            _log.debug("%s raised on %s and is dropped", name, problem, exc_info=True)
            continue
        tolerance = tolerances[by_name(name).precision]
        if not _agree(results[name], results[DIRECT.name], tolerance):
            del results[name]
    seconds = dict.fromkeys(results, 0.0)
    for _ in range(profile_iterations(problem.op)):
        for name in seconds:
            elapsed, results[name] = _time(runs[name])
            seconds[name] += elapsed
    return seconds, results


def _time(run: Callable[[], Array]) -> tuple[float, Array]:
    start = perf_counter()
    result = run()
    return perf_counter() - start, result


def _runner(
    problem: ConvProblem, settings: Config, operands: Operands, name: str
) -> Callable[[], Array]:
    """Bind a candidate to an output of its own."""
    result = np.empty(problem.result_shape, problem.compute_dtype)
    own = operands.with_result(problem.op, result)
    bound = bind(
        problem,
        settings._replace(strategy=name, strict=True),
        own.strides(problem.layout),
    )

    def run() -> Array:
        bound.run(*own)
        return result

    return run


def _tolerances(problem: ConvProblem, settings: Config, operands: Operands) -> dict[str, Array]:
    """Return how far two right results may lie apart, by `Algorithm.precision`: twice the bound."""
    absolute = Operands(*(None if a is None else np.abs(a) for a in operands))  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        magnitude = _runner(problem, settings, absolute, DIRECT.name)()
        unit = np.finfo(problem.compute_dtype).eps / 2
        n = (problem.terms + 1) * unit
        strict = magnitude * (2 * n / max(1 - n, unit))
        return {"highest": strict, "high": strict + 64 * unit * magnitude.max()}


def _agree(result: Array, expected: Array, tolerance: Array) -> bool:
    with np.errstate(all="ignore"):
        close = np.abs(result - expected) <= tolerance
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    return bool(np.all(close | same))
