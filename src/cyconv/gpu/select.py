"""The policy on a GPU: which strategy serves a problem under given settings, and why.

The rules are those of the CPU's `select`: a named strategy is taken if it serves the problem, else
``direct``, or an error when strict; ``auto`` takes ``direct`` below the minimum work and else the
least estimated time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..errors import UnsupportedError
from ..problem import ConvProblem
from ..settings import Config, min_work
from .base import Strategy
from .module import Device
from .params import beyond_reach
from .strategies import DIRECT, GPU

_BY_NAME = {strategy.name: strategy for strategy in GPU}


class Choice(NamedTuple):
    """A strategy, the reason for it, and the reasons against others (by name)."""

    strategy: Strategy
    reason: str
    refusals: dict[str, str]


def refusal(
    strategy: Strategy, problem: ConvProblem, device: Device, settings: Config
) -> str | None:
    """Return None if the strategy serves the problem under these settings, else the reason."""
    reason = strategy.supports(problem, device)
    if reason is not None:
        return reason
    if settings.precision == "highest" and strategy.precision != "highest":
        return f"its error bound, {strategy.bound}, is too wide for precision='highest'"
    if settings.reproducible and not strategy.reproducible:
        return "its sums depend on the batch size (reproducible=True)"
    nbytes = strategy.workspace(problem, device, settings)
    if nbytes > settings.workspace_limit:
        return f"it needs {nbytes} bytes of workspace, the limit is {settings.workspace_limit}"
    return None


def servants(
    problem: ConvProblem, device: Device, settings: Config
) -> tuple[list[Strategy], dict[str, str]]:
    """Split the strategies into those that serve the problem and the others' refusals."""
    refusals = {
        strategy.name: reason
        for strategy in GPU
        if (reason := refusal(strategy, problem, device, settings)) is not None
    }
    return [strategy for strategy in GPU if strategy.name not in refusals], refusals


@lru_cache(maxsize=1024)
def choose(problem: ConvProblem, device: Device, settings: Config) -> Choice:
    """Choose by the settings' strategy, which is a name or ``"auto"``.

    Raises
    ------
    UnsupportedError
        If no kernel can serve the problem; if the named strategy refuses it and the settings are
        strict, or if it cannot be reproducible and the settings ask for that.
    """
    beyond = beyond_reach(problem)
    if beyond is not None:
        raise UnsupportedError(f"no kernel of the GPU serves {problem}: {beyond}")
    if problem.macs == 0:
        return Choice(DIRECT, "there is nothing to multiply", {})
    name = settings.strategy
    assert name is not None
    serving, refusals = servants(problem, device, settings)
    if name == "auto":
        # Reproducible choices must not depend on the batch, which work and estimates count.
        judged = replace(problem, batch=min(problem.batch, 1)) if settings.reproducible else problem
        return _automatic(judged, device, settings, serving, refusals)
    named = _BY_NAME.get(name)
    if named is None:
        refusals = {**refusals, name: "it has no kernels for a GPU"}
    if name not in refusals and named is not None:
        return Choice(named, "named", refusals)
    irreproducible = named is not None and not named.reproducible
    if settings.strict or (settings.reproducible and irreproducible):
        raise UnsupportedError(f"strategy {name!r} does not serve {problem}: {refusals[name]}")
    return Choice(DIRECT, f"{name} does not serve this problem: {refusals[name]}", refusals)


def _automatic(
    problem: ConvProblem,
    device: Device,
    settings: Config,
    serving: list[Strategy],
    refusals: dict[str, str],
) -> Choice:
    threshold = min_work(problem.op, "GPU")
    if problem.work < threshold:
        return Choice(DIRECT, f"work {problem.work} is below the minimum {threshold}", refusals)
    best = min(serving, key=lambda strategy: strategy.estimate(problem, device, settings))
    return Choice(best, "least estimated time", refusals)
