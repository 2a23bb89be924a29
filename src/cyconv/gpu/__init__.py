"""Convolution of CuPy arrays, by kernels that are compiled when they are first used.

Nothing here imports CuPy: its arrays come from a program that has. `run` takes what `execute` has
made ready; `select` chooses among the strategies of `strategies`, `tune` measures them, `module`
compiles and launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import devices
from ..arguments import Activation
from ..errors import GpuError
from ..operands import NAMES, Operands
from ..problem import ConvProblem
from ..settings import Config
from . import select, tune
from .activations import activate
from .base import Run
from .module import Device, current_device
from .params import ACTIVATIONS, counts_fit
from .pooling import largest, put_back
from .strategies import GPU
from .sums import bias_gradient

__all__ = [
    "Outlook",
    "activated",
    "bias_gradient",
    "counts_fit",
    "largest",
    "look",
    "put_back",
    "run",
]


def run(problem: ConvProblem, settings: Config, operands: Operands) -> None:
    """Write the result into its place among the operands, on the current device and stream.

    Operands are CuPy arrays that kernels can use where they lie, all of the result's dtype; the
    problem can be counted (`counts_fit`).
    """
    result: Any = operands.result(problem.op)
    bias: Any = operands.bias
    if bias is not None:
        bias = bias.astype(result.dtype, order="C", copy=False)
    device = current_device()
    call = Run(
        # Halves of a weight gradient are summed in float32, whatever the operands were.
        replace(problem, dtype=NAMES[result.dtype.name]),
        operands.x,
        operands.w,
        operands.y,
        bias,
        device,
        settings,
        operands.residual,
        *_numbered(operands.activation),
    )
    if settings.strategy == "profile":
        settings = _known(call.problem, settings, device)
        if settings.strategy == "auto" and tune.measures(call.problem, settings):
            name, done = tune.choose(settings, call)
            if done and call.residual is None and call.activation == 0:
                return
            settings = settings._replace(strategy=name)
    select.choose(call.problem, device, settings).strategy.run(call)


def _numbered(activation: Activation | None) -> tuple[int, float]:
    """Return what kernels know an activation by, and its parameter."""
    if activation is None:
        return 0, 0.0
    return ACTIVATIONS.index(activation.name), activation.alpha


def activated(x: Any, activation: Activation) -> Any:
    """Apply an activation to a CuPy array, half types in float32; others become float64."""
    dtype = x.dtype if x.dtype.name in NAMES else np.dtype(float)
    return activate(x.astype(dtype, order="C", copy=False), *_numbered(activation))


def _known(problem: ConvProblem, settings: Config, device: Device) -> Config:
    """Put a measured choice, or else ``auto``, in the place of ``profile``."""
    known = None if settings.reproducible else tune.lookup(problem, device, settings)
    name = "auto" if known is None else known.strategy
    return settings._replace(strategy=name, strict=False)


class Outlook(NamedTuple):
    """What a call would do on the current device.

    `candidates` has, for each strategy, its name, refusal or None, estimated seconds or None,
    measured seconds or None, and error bound.
    """

    strategy: str
    reason: str
    refusals: dict[str, str]
    workspace_nbytes: int
    device: str
    candidates: list[tuple[str, str | None, float | None, float | None, str]]


def look(problem: ConvProblem, settings: Config) -> Outlook:
    """Choose a strategy for a problem on the current device, and tell why.

    Raises
    ------
    GpuError
        If CuPy has not been imported, or its device is too old.
    """
    if devices.cupy() is None:
        raise GpuError("device='gpu' needs CuPy, which has not been imported: import cupy first")
    device = current_device()
    known = tune.lookup(problem, device, settings)
    measured = settings.strategy == "profile" and known is not None and not settings.reproducible
    if settings.strategy == "profile":
        settings = _known(problem, settings, device)
    choice = select.choose(problem, device, settings)
    candidates = []
    for strategy in GPU:
        refused = choice.refusals.get(strategy.name)
        seconds = (
            None if refused or not problem.macs else strategy.estimate(problem, device, settings)
        )
        timed = None if known is None else known.seconds.get(strategy.name)
        candidates.append((strategy.name, refused, seconds, timed, strategy.bound))
    return Outlook(
        choice.strategy.name,
        "measured fastest" if measured else choice.reason,
        choice.refusals,
        choice.strategy.workspace(problem, device, settings),
        device.name,
        candidates,
    )
