"""Running a problem on arrays: copies where kernels need them, tuning where asked, the plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import tune
from .binding import bind
from .devices import namespace, on_gpu
from .kernels._run import finish_array
from .operands import RESULT, Array, Operands, is_ready
from .packings import Packings
from .problem import ConvProblem
from .settings import Config
from .split import Part, halves, part_of

# Copies below this are made whatever the limit: cutting them further takes time without end.
_FEWEST_BYTES = 16384


def execute(
    problem: ConvProblem,
    settings: Config,
    operands: Operands,
    packings: Packings | None = None,
) -> None:
    """Write the result into its place among the operands, whatever they look like.

    The result must not overlap an operand; `settings` are resolved. Copies of operands and scratch
    together keep to the workspace limit: where they cannot, the problem is halved; so is one that
    is too large to be counted on a GPU. `packings` are those of the weights; halves do without.
    """
    copies = _copies(problem, operands)
    limit = settings.workspace_limit
    if sum(copies.values()) > max(limit // 2, _FEWEST_BYTES) or not _countable(problem, operands):
        parts = halves(problem, _to_shrink(problem, copies, limit))
        if parts is not None:
            _execute_halves(parts, settings, operands)
            return
    if copies:
        rest = max(limit - sum(copies.values()), 0)
        copied = settings._replace(workspace_limit=rest)
        _execute_copied(problem, copied, operands, copies, packings)
    else:
        run_ready(problem, settings, operands, packings)


def run_ready(
    problem: ConvProblem, settings: Config, operands: Operands, packings: Packings | None = None
) -> None:
    """Run on operands that kernels can use where they lie."""
    if on_gpu(operands.x):
        from . import gpu

        gpu.run(problem, settings, operands)
        return
    if settings.strategy == "profile" and problem.macs and not settings.reproducible:
        bare = operands._replace(residual=None, activation=None)
        settings, done = tune.choose(problem, settings, bare)
        if done:
            result = operands.result(problem.op)
            finish_array(result, operands.activation, operands.residual, settings.threads or 1)
            return
    if settings.strategy == "profile":
        settings = settings._replace(strategy="auto")
    bound = bind(problem, settings, operands.strides(problem.layout), packings is not None)
    bound.run(*operands, None if packings is None else packings.of(bound, operands.w))


def _copies(problem: ConvProblem, operands: Operands) -> dict[str, int]:
    """Bytes of the copy that each operand needs, the result's included."""
    dtype = _kernel_dtype(problem, operands)
    compact = (RESULT[problem.op], "residual")
    return {
        role: array.size * dtype.itemsize
        for role, array in _arrays(operands)
        if not is_ready(array, dtype) or (role in compact and not array.flags.c_contiguous)
    }


def _arrays(operands: Operands) -> list[tuple[str, Array]]:
    """List the arrays that a kernel may not be able to use where they lie, by role."""
    given = (operands.x, operands.w, operands.y, operands.residual)
    return [
        (role, array)
        for role, array in zip(("x", "w", "y", "residual"), given, strict=True)
        if array is not None
    ]


def _kernel_dtype(problem: ConvProblem, operands: Operands) -> np.dtype[Any]:
    """Return what kernels read and write: on a GPU the half types too."""
    result = operands.result(problem.op)
    return result.dtype if on_gpu(result) else problem.compute_dtype


def _countable(problem: ConvProblem, operands: Operands) -> bool:
    """Whether the kernels of a GPU can count a problem; those of a CPU always can."""
    if not on_gpu(operands.x):
        return True
    from . import gpu

    return gpu.counts_fit(problem)


def _to_shrink(problem: ConvProblem, copies: dict[str, int], limit: int) -> str:
    """Name the operand to halve: the largest copy, but a sum of halves needs room for dw twice."""
    weights = problem.elements["w"] * problem.compute_dtype.itemsize
    if problem.op == "dw" and 2 * weights > limit // 2:
        return "w"
    sizes = copies or problem.elements
    largest = max(sizes, key=lambda role: sizes[role])
    return RESULT[problem.op] if largest == "residual" else largest


def _execute_copied(
    problem: ConvProblem,
    settings: Config,
    operands: Operands,
    copies: dict[str, int],
    packings: Packings | None,
) -> None:
    dtype = _kernel_dtype(problem, operands)
    result = RESULT[problem.op]
    xp = namespace(operands.x)
    ready = {
        role: xp.empty(array.shape, dtype) if role == result else xp.array(array, dtype, order="C")
        for role, array in _arrays(operands)
        if role in copies
    }
    run_ready(problem, settings, operands.with_arrays(ready), packings)
    if result in ready:
        with np.errstate(all="ignore"):
            operands.result(problem.op)[...] = ready[result]


def _execute_halves(parts: tuple[Part, Part], settings: Config, operands: Operands) -> None:
    first, second = (part_of(operands, part) for part in parts)
    if not parts[0].adds:
        execute(parts[0].problem, settings, first)
        execute(parts[1].problem, settings, second)
        return
    # Halves are summed in the compute dtype and rounded once.
    sums: list[Array] = []
    for part, views in zip(parts, (first, second), strict=True):
        total = namespace(views.x).empty(part.problem.w_shape, part.problem.compute_dtype)
        execute(part.problem, settings, views.with_result("dw", total))
        sums.append(total)
    with np.errstate(all="ignore"):
        operands.w[...] = np.add(sums[0], sums[1], out=sums[0])
