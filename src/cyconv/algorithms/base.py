"""What an algorithm is: a name, the problems it serves, its scratch memory, and how it runs."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Protocol, runtime_checkable

from ..kernels._geometry import Geometry
from ..kernels._run import Run
from ..operands import Array
from ..problem import ConvProblem

__all__ = ["Algorithm", "Packs", "Run", "beyond_passes", "per_channel"]

# Kernels multiply this by bytes and threads in signed 64 bits.
_MOST_ELEMENTS = 2**50
# Each phase of a strided data gradient has its own taps; this many is beyond any use of it.
_MOST_PHASES = 64


class Algorithm(Protocol):
    """A strategy for all three operators.

    Attributes
    ----------
    name : str
        What a user calls it.
    reproducible : bool
        Its results depend neither on the thread count nor on the batch size.
    precision : {"highest", "high"}
        The strictest ``config(precision=...)`` under which it may run: "highest" if every component
        of a result is within ``gamma_{K+1} sum |x||w|``, "high" if within ``64 u max sum |x||w|``
        or, for transforms of n points, ``8 u log2(n) max sum |x||w|``.
    bound : str
        The error bound that it keeps to, as text.
    uses_scratch : bool
        What `workspace` names is `Run.scratch`; if not, NumPy and SciPy allocate that much.
    """

    name: str
    reproducible: bool
    precision: str
    bound: str
    uses_scratch: bool

    def supports(self, problem: ConvProblem) -> str | None:
        """Return None if it serves the problem, else the reason why not."""

    def workspace(self, problem: ConvProblem, geometry: Geometry, limit: int, threads: int) -> int:
        """Bytes of memory for a run; more than `limit` where it cannot keep to that."""

    def run(self, call: Run) -> bool:
        """Compute ``call.problem.op``: y, x or w is written, from the other two, and finished.

        Finished means that bias and residual are added and the activation is applied.

        Returns False, with the result undefined, for values (not finite, say) that it cannot treat
        as the definition does; ``direct`` then computes the result.
        """


@runtime_checkable
class Packs(Protocol):
    """What an algorithm has besides, if it can use weights that were packed ahead.

    Its `run` finds them in ``call.packed`` where the geometry is `prepared`, or None.
    """

    def packing(self, problem: ConvProblem, geometry: Geometry) -> tuple[Hashable, int]:
        """Return what packed weights depend on, besides the weights, and their bytes."""

    def pack(
        self, problem: ConvProblem, geometry: Geometry, w: Array, packed: Array, threads: int
    ) -> bool:
        """Pack the weights; False if they cannot be, as they are not all finite."""


def beyond_passes(problem: ConvProblem) -> str | None:
    """Refuse what kernels that gather in passes do not serve, however they gather.

    That is data gradients of very large strides, and images that cannot be counted in 64 bits with
    their padding and the kernel's reach.
    """
    phases = prod(problem.stride)
    if problem.op == "dx" and phases > _MOST_PHASES:
        return f"the stride {problem.stride} has {phases} phases, more than {_MOST_PHASES}"
    reach = prod(
        n + lo + hi + k + out
        for n, (lo, hi), k, out in zip(
            problem.in_size,
            problem.padding,
            problem.effective_kernel,
            problem.out_size,
            strict=True,
        )
    )
    if reach * (problem.batch + 1) * (problem.c_in + problem.c_out + 1) < _MOST_ELEMENTS:
        return None
    return "the padded image has too many elements to count"


def per_channel(bias: Array, problem: ConvProblem) -> Array:
    """View a bias so that it broadcasts over a result in the problem's layout."""
    if problem.layout == "nchw":
        return bias.reshape(-1, *(1,) * problem.ndim)
    return bias
