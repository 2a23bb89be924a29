"""Convolution of CuPy arrays, by kernels that are compiled when they are first used.

Nothing here imports CuPy: its arrays come from a program that has. `run` takes what `execute` has
made ready; `select` chooses among the strategies of `strategies`, `tune` measures them, `module`
compiles and launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..operands import NAMES, Operands
from ..problem import ConvProblem
from ..settings import Config
from . import select, tune
from .base import Run
from .module import current_device
from .params import counts_fit
from .sums import bias_gradient

__all__ = ["bias_gradient", "counts_fit", "run"]


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
        settings.workspace_limit,
        settings.precision,
    )
    if settings.strategy == "profile":
        name = "auto"
        if problem.macs and not settings.reproducible:
            known = tune.lookup(call.problem, device)
            if known is not None:
                name = known.strategy
            elif not tune.capturing():
                name, done = tune.choose(settings, call)
                if done:
                    return
        settings = settings._replace(strategy=name, strict=False)
    select.choose(call.problem, device, settings).strategy.run(call)
