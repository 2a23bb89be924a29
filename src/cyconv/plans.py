"""A problem with its choice made once, to be called again and again: `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import tune
from .binding import Bound, bind, natural_strides
from .devices import check_places, entered, namespace, on_gpu
from .errors import DTypeError, ShapeError
from .execute import execute
from .operands import NAMES, Array, Operands, as_array, takes_result
from .problem import ConvProblem
from .settings import Config, check_strategy, check_threads, resolve

if TYPE_CHECKING:
    from .gpu import Outlook

# Which operands an operator takes, in the order of its call.
INPUTS = {"fwd": ("x", "w"), "dx": ("dy", "w"), "dw": ("x", "dy")}


class Plan:
    """A problem with its chosen strategy, to be called again and again.

    Made by `plan`. The choice stays what it was when the plan was made.

    Attributes
    ----------
    problem : ConvProblem
    strategy : str
        Name of the chosen strategy.
    reason : str
        Why it was chosen.
    refusals : dict of str to str
        The strategies that do not serve the problem, and why.
    workspace_nbytes : int
        Scratch bytes of a call on contiguous operands.
    device : {"cpu", "gpu"}
        Whose arrays it takes.
    """

    def __init__(
        self, problem: ConvProblem, settings: Config, chosen: Bound | Outlook, device: str
    ) -> None:
        self.problem = problem
        self.strategy = chosen.strategy
        self.reason = chosen.reason
        self.refusals = dict(chosen.refusals)
        self.workspace_nbytes = chosen.workspace_nbytes
        self.device = device
        self._settings = settings._replace(strategy=self.strategy, strict=False)

    def __call__(self, a: Any, b: Any, bias: Any = None, *, out: Array | None = None) -> Array:
        """Run the plan on the operator's two operands: (x, w), (dy, w) or (x, dy).

        Parameters
        ----------
        a, b : array_like
            Of the problem's shapes (batch axis included) and dtype.
        bias : array_like, optional
            Given exactly if the problem has one.
        out : numpy.ndarray, optional
            C-contiguous, of the result's shape and dtype, apart from the operands.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        ShapeError, DTypeError
            If an operand is not what the problem says.
        """
        problem = self.problem
        shapes = {"x": problem.x_shape, "w": problem.w_shape, "dy": problem.y_shape}
        given = {}
        for name, value in zip(INPUTS[problem.op], (a, b), strict=True):
            array = as_array(name, value)
            if on_gpu(array) != (self.device == "gpu"):
                kind = f"{namespace(array).__name__}.ndarray"
                raise TypeError(f"{name} is a {kind}, the plan is for device={self.device!r}")
            if array.shape != shapes[name]:
                raise ShapeError(f"{name} has shape {array.shape}, the plan is for {shapes[name]}")
            if NAMES.get(array.dtype.name) != problem.dtype:
                raise DTypeError(f"{name} has dtype {array.dtype}, the plan is for {problem.dtype}")
            given[name] = array
        dtype, shape = given[INPUTS[problem.op][0]].dtype.newbyteorder("="), problem.result_shape
        if out is not None and (out.shape != shape or out.dtype != dtype):
            raise ShapeError(
                f"out is {out.dtype} of shape {out.shape}, should be {dtype} of {shape}"
            )
        check_places(**given, bias=bias, out=out)
        added = self._bias(bias)
        with entered(next(iter(given.values()))) as xp:
            if out is None or not takes_result(out, shape, dtype, (*given.values(), added)):
                result = xp.empty(shape, dtype)
            else:
                result = out
            x, w, y = (given.get(name, result) for name in ("x", "w", "dy"))
            execute(problem, self._settings, Operands(x, w, y, added))
            if out is None or out is result:
                return result  # type: ignore[no-any-return]
            out[...] = result
        return out

    def _bias(self, bias: Any) -> Array | None:
        problem = self.problem
        if (bias is not None) != problem.has_bias:
            wanted = "needs" if problem.has_bias else "has no"
            raise ValueError(f"bias: the problem {wanted} bias: {problem}")
        if bias is None:
            return None
        channels = problem.c_out if problem.op == "fwd" else problem.c_in
        array = as_array("bias", bias)
        if not on_gpu(array):
            array = np.ascontiguousarray(array, problem.compute_dtype)
        if array.shape != (channels,):
            raise ShapeError(f"bias has shape {array.shape}, should be ({channels},)")
        return array

    def __repr__(self) -> str:
        return f"<Plan {self.problem}: {self.strategy} ({self.reason})>"


def plan(
    problem: ConvProblem | str,
    *,
    strategy: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> Plan:
    """Choose a strategy for a problem, once.

    Parameters
    ----------
    problem : ConvProblem or str
        Or its string form.
    strategy : str, optional
        As in `conv_forward`. ``"profile"`` takes a measured choice if there is one, and ``"auto"``
        otherwise: there is no data to measure with.
    threads : int, optional
    device : {"cpu", "gpu"}
        Whether the plan is for NumPy's arrays, or for CuPy's on its current device.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> p = cyconv.plan("fwd f32 nchw n1 ci1 co1 i8x8 k3x3")
    >>> p.strategy
    'direct'
    >>> p(np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4")).shape
    (1, 1, 6, 6)
    """
    if isinstance(problem, str):
        problem = ConvProblem.parse(problem)
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem must be a ConvProblem or its string form, not {problem!r}")
    settings = resolve(
        problem.op,
        check_strategy("strategy", strategy),
        check_threads("threads", threads),
        check_device("device", device).upper(),
    )
    if device == "gpu":
        return Plan(problem, settings, look_on_gpu(problem, settings), device)
    settings = known_settings(problem, settings)
    return Plan(problem, settings, bind(problem, settings, natural_strides(problem)), device)


def check_device(name: str, value: object) -> str:
    """Check the name of a device."""
    if value not in ("cpu", "gpu"):
        raise ValueError(f"{name} must be 'cpu' or 'gpu', not {value!r}")
    return str(value)


def look_on_gpu(problem: ConvProblem, settings: Config) -> Outlook:
    """Choose for a GPU, without running anything."""
    from .gpu import look

    return look(problem, settings)


def known_settings(problem: ConvProblem, settings: Config) -> Config:
    """Put a measured choice, or else ``auto``, in the place of ``profile``."""
    if settings.strategy != "profile":
        return settings
    known = None if settings.reproducible else tune.lookup(problem, settings)
    if known is None:
        return settings._replace(strategy="auto")
    return settings._replace(strategy=known.strategy, strict=False)
