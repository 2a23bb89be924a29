"""Plans: a problem bound to an algorithm, ready to run again and again; and their cache."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from . import isa
from .algorithms import DIRECT, Algorithm
from .algorithms.base import Run, per_channel
from .arguments import Activation
from .kernels._geometry import Geometry
from .operands import RESULT, Array, Strides, contiguous_strides
from .problem import ConvProblem
from .select import choose
from .settings import Config
from .workspace import give, take

# Multiply-adds below which a second thread costs more than it saves.
_PARALLEL_MACS = 65536
_MOST_PLANS = 1024


class Bound(NamedTuple):
    """An algorithm bound to a problem, to strides and to settings: all that a run needs."""

    problem: ConvProblem
    algorithm: Algorithm
    reason: str
    refusals: dict[str, str]
    geometry: Geometry
    workspace_nbytes: int
    limit: int
    threads: int
    flush: bool
    empty: bool

    @property
    def strategy(self) -> str:
        """Name of the algorithm."""
        return self.algorithm.name

    def run(
        self,
        x: Array,
        w: Array,
        y: Array,
        bias: Array | None,
        residual: Array | None = None,
        activation: Activation | None = None,
        packed: Array | None = None,
    ) -> None:
        """Write the result into whichever of x, w and y the operator gives.

        Operands are ready (`operands.is_ready`) and of the bound strides; the result and the
        residual are C-contiguous, and the result overlaps nothing. `packed` is what `pack` gives.
        """
        problem, algorithm, _, _, geometry, nbytes, limit, threads, flush, empty = self
        scratch = take(nbytes if algorithm.uses_scratch else 0)
        call = Run(
            problem, geometry, x, w, y, bias, residual, activation, packed, scratch, limit, threads,
            flush,
        )  # fmt: skip
        if empty:
            self._fill(call)
            return
        try:
            done = algorithm.run(call)
        finally:
            give(scratch)
        if not done:
            DIRECT.run(call)

    def _fill(self, call: Run) -> None:
        """Give the sum over nothing: the bias, or zero."""
        result = {"y": call.y, "x": call.x, "w": call.w}[RESULT[self.problem.op]]
        result[...] = 0 if call.bias is None else per_channel(call.bias, self.problem)
        call.finish()


def natural_strides(problem: ConvProblem) -> Strides:
    """Return the strides of C-contiguous operands."""
    layout = problem.layout
    return (
        contiguous_strides(problem.x_shape, layout),
        contiguous_strides(problem.w_shape, layout),
        contiguous_strides(problem.y_shape, layout),
    )


_cache: dict[tuple[Any, ...], Bound] = {}
_lock = threading.Lock()


def bind(problem: ConvProblem, settings: Config, strides: Strides, prepared: bool = False) -> Bound:
    """Choose an algorithm for a problem with these strides; remembered until `clear`.

    `prepared` says that weights are packed ahead.
    """
    key = (problem, settings, strides, prepared)
    bound = _cache.get(key)
    if bound is None:
        bound = _bind(problem, settings, strides, prepared)
        with _lock:
            if len(_cache) >= _MOST_PLANS:
                _cache.clear()
            _cache[key] = bound
    return bound


def _bind(problem: ConvProblem, settings: Config, strides: Strides, prepared: bool) -> Bound:
    isa.settle()
    # A batch that became part of an axis would be summed in another order than its parts.
    geometry = Geometry(problem, *strides, merge_batch=not settings.reproducible, prepared=prepared)
    choice = choose(problem, geometry, settings)
    limit = settings.workspace_limit
    threads = settings.threads or 1
    if problem.macs < _PARALLEL_MACS:
        threads = 1
    return Bound(
        problem,
        choice.algorithm,
        choice.reason,
        choice.refusals,
        geometry,
        choice.algorithm.workspace(problem, geometry, limit, threads),
        limit,
        threads,
        settings.flush_subnormals,
        problem.macs == 0,
    )


def clear() -> None:
    """Forget every bound plan."""
    with _lock:
        _cache.clear()
