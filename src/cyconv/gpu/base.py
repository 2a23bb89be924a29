"""What a strategy of the GPU is: a name, the problems it serves, its workspace, and how it runs."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..operands import Array, element_strides
from ..problem import ConvProblem
from ..settings import Config
from .module import Device
from .params import Sizes, pack


class Run(NamedTuple):
    """All that a run needs.

    Operands are CuPy arrays of the problem's dtype on the current device, with any strides that are
    whole elements, batch axis included. The result, one of x, w and y, is C-contiguous, holds
    anything and overlaps no operand. `bias` is contiguous, or None. Of the settings, runs heed
    workspace limit, precision and reproducibility.
    `residual`, laid out as the result is, or None, is added to a sum; `activation`, an index into
    `params.ACTIVATIONS` with its `alpha`, is applied to that, before the one rounding of "fwd" and
    "dx".
    """

    problem: ConvProblem
    x: Any
    w: Any
    y: Any
    bias: Any
    device: Device
    settings: Config
    residual: Any = None
    activation: int = 0
    alpha: float = 0.0

    def packed(self, sizes: Sizes, x: Any = None, w: Any = None) -> Array:
        """Describe the problem to a kernel; views of x and w stand in for the arrays."""
        layout = self.problem.layout
        residual = 0
        if self.residual is not None:
            result = self.y if self.problem.op == "fwd" else self.x
            residual = self.residual.data.ptr - result.data.ptr
        return pack(
            sizes,
            element_strides(self.x if x is None else x, layout),
            element_strides(self.w if w is None else w, layout),
            element_strides(self.y, layout),
            layout == "nhwc",
            self.activation,
            self.alpha,
            residual,
        )


class Strategy(Protocol):
    """A strategy for all three operators.

    Attributes
    ----------
    name : str
        What a user calls it.
    reproducible : bool
        Its results do not depend on the batch size (weight gradients: they are sums over it).
    precision : {"highest", "high"}
        As `algorithms.base.Algorithm.precision`.
    bound : str
        The error bound that it keeps to, as text.
    """

    name: str
    reproducible: bool
    precision: str
    bound: str

    def supports(self, problem: ConvProblem, device: Device) -> str | None:
        """Return None if it serves the problem, else the reason why not."""

    def workspace(self, problem: ConvProblem, device: Device, settings: Config) -> int:
        """Scratch bytes for a run; more than the limit where it cannot keep to that."""

    def estimate(self, problem: ConvProblem, device: Device, settings: Config) -> float:
        """Return estimated seconds, good for ranking only."""

    def run(self, call: Run) -> None:
        """Compute ``call.problem.op``: launch what writes y, x or w from the other two."""
