"""The policy: which algorithm serves a problem under given settings, and why.

A named strategy is taken if it serves the problem, else ``direct`` (or an error, when strict).
``auto`` takes ``direct`` below the minimum work and else the cheapest algorithm by estimate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .algorithms import CPU, DIRECT, Algorithm
from .costs import estimate
from .errors import UnsupportedError
from .kernels._geometry import Geometry
from .problem import ConvProblem
from .settings import Config, min_work

_BY_NAME = {algorithm.name: algorithm for algorithm in CPU}


def by_name(name: str) -> Algorithm:
    """Return the algorithm of a name that exists."""
    return _BY_NAME[name]


class Choice(NamedTuple):
    """An algorithm, the reason for it, and the reasons against others (by name)."""

    algorithm: Algorithm
    reason: str
    refusals: dict[str, str]


def refusal(
    algorithm: Algorithm, problem: ConvProblem, geometry: Geometry, settings: Config
) -> str | None:
    """Return None if the algorithm serves the problem under these settings, else the reason."""
    reason = algorithm.supports(problem)
    if reason is not None:
        return reason
    if settings.precision == "highest" and algorithm.precision != "highest":
        return f"its error bound, {algorithm.bound}, is too wide for precision='highest'"
    if settings.reproducible and not algorithm.reproducible:
        return "its sums depend on the thread count or the batch size (reproducible=True)"
    nbytes = algorithm.workspace(problem, geometry, settings.workspace_limit, settings.threads or 1)
    if nbytes > settings.workspace_limit:
        return f"it needs {nbytes} bytes of workspace, the limit is {settings.workspace_limit}"
    return None


def servants(
    problem: ConvProblem, geometry: Geometry, settings: Config
) -> tuple[list[Algorithm], dict[str, str]]:
    """Split the algorithms into those that serve the problem and the others' refusals."""
    refusals = {
        algorithm.name: reason
        for algorithm in CPU
        if (reason := refusal(algorithm, problem, geometry, settings)) is not None
    }
    return [algorithm for algorithm in CPU if algorithm.name not in refusals], refusals


def choose(problem: ConvProblem, geometry: Geometry, settings: Config) -> Choice:
    """Choose by the settings' strategy, which is a name or ``"auto"``.

    Raises
    ------
    UnsupportedError
        If the named strategy refuses the problem and the settings are strict, or if it cannot be
        reproducible and the settings ask for that.
    """
    name = settings.strategy
    assert name is not None
    serving, refusals = servants(problem, geometry, settings)
    if name == "auto":
        # Reproducible choices must not depend on the batch, which work and estimates count.
        judged = replace(problem, batch=min(problem.batch, 1)) if settings.reproducible else problem
        return _automatic(judged, serving, refusals, geometry.prepared)
    named = _BY_NAME[name]
    if problem.macs == 0:
        return Choice(named, "there is nothing to multiply", {})
    if name not in refusals:
        return Choice(named, "named", refusals)
    if settings.strict or (settings.reproducible and not named.reproducible):
        raise UnsupportedError(f"strategy {name!r} does not serve {problem}: {refusals[name]}")
    return Choice(DIRECT, f"{name} does not serve this problem: {refusals[name]}", refusals)


def _automatic(
    problem: ConvProblem, serving: list[Algorithm], refusals: dict[str, str], prepared: bool
) -> Choice:
    threshold = min_work(problem.op)
    if problem.work < threshold:
        return Choice(DIRECT, f"work {problem.work} is below the minimum {threshold}", refusals)
    best = min(serving, key=lambda algorithm: estimate(algorithm.name, problem, prepared))
    return Choice(best, "least estimated time", refusals)
