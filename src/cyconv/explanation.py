"""What a user can ask of a choice: `explain` tells which strategy a call takes, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import request, tune
from .algorithms import CPU
from .binding import bind, natural_strides
from .costs import estimate
from .devices import entered, on_gpu
from .kernels._geometry import Geometry
from .operands import Strides, element_strides
from .plans import INPUTS, check_device, known_settings, look_on_gpu
from .problem import ConvProblem
from .request import Request
from .select import refusal
from .settings import Config, check_strategy, resolve


class Candidate(NamedTuple):
    """A strategy as `explain` sees it.

    Attributes
    ----------
    name : str
    refusal : str or None
        Why it does not serve the problem; None if it does.
    estimate : float or None
        Estimated seconds, good for ranking only.
    measured : float or None
        Seconds measured by ``profile``, if it was.
    bound : str
        The error bound it keeps to.
    """

    name: str
    refusal: str | None
    estimate: float | None
    measured: float | None
    bound: str


class Explanation(NamedTuple):
    """Why a call takes the strategy it takes; its text is a table.

    Attributes
    ----------
    problem : ConvProblem
    strategy, reason : str
    candidates : tuple of Candidate
    workspace_nbytes : int
        Scratch bytes of the call.
    flop : int
        Floating-point operations of the call.
    threads : int
    device : str
        ``"cpu"``, or the GPU's name.
    """

    problem: ConvProblem
    strategy: str
    reason: str
    candidates: tuple[Candidate, ...]
    workspace_nbytes: int
    flop: int
    threads: int
    device: str = "cpu"

    def __str__(self) -> str:
        where = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if self.device != "cpu":
            where = self.device
        lines = [
            f"{self.problem}",
            f"strategy   {self.strategy}: {self.reason}",
            f"work       {self.flop:,} FLOP, {self.workspace_nbytes:,} bytes of workspace, {where}",
            f"{'candidate':<14}{'estimate':>12}{'measured':>12}  note",
        ]
        for c in self.candidates:
            note = c.refusal if c.refusal is not None else f"error within {c.bound}"
            mark = "*" if c.name == self.strategy else " "
            lines.append(
                f"{mark}{c.name:<13}{_seconds(c.estimate):>12}{_seconds(c.measured):>12}  {note}"
            )
        return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g} ms"


def _operand(value: Any) -> Any:
    """Let a shape stand for a float32 array of that shape, which takes no memory."""
    if isinstance(value, tuple) and all(isinstance(n, int | np.integer) for n in value):
        return np.broadcast_to(np.zeros((), np.float32), value)
    return value


def _checked(operator: str, operands: tuple[Any, ...], keywords: dict[str, Any]) -> Request:
    sizes = (keywords.pop("output_padding", 0), keywords.pop("output_size", None))
    bias = _operand(keywords.pop("bias", None))
    residual = _operand(keywords.pop("residual", None))
    defaults: dict[str, Any] = {
        "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "channels_first",
        "strategy": None, "threads": None, "activation": None,
    }  # fmt: skip
    for name in keywords:
        if name not in defaults:
            raise TypeError(f"explain() got an unexpected keyword argument {name!r}")
    raw: request.Raw = tuple({**defaults, **keywords}.values())
    first, second = (_operand(value) for value in operands[:2])
    if operator in ("forward", "transposed"):
        if len(operands) == 3 and bias is None:
            bias = _operand(operands[2])
        if operator == "forward":
            return request.forward(first, second, bias, None, raw, residual)
        return request.transposed(first, second, bias, *sizes, None, raw, residual)
    if len(operands) != 3:
        needed = "input_shape" if operator == "data_backward" else "weight_shape"
        raise TypeError(f"explain() of {operator} needs {needed} as third argument")
    if operator == "data_backward":
        return request.data_backward(first, second, operands[2], None, raw)
    return request.weight_backward(first, second, operands[2], None, raw)


_OPERATORS = ("forward", "data_backward", "weight_backward", "transposed")


def explain(
    *operands: Any, operator: str = "forward", device: str | None = None, **keywords: Any
) -> Explanation:
    """Tell which strategy a call would take, and why.

    Parameters
    ----------
    *operands
        What the call takes, arrays or shapes (a shape stands for a contiguous float32 array):
        ``x, w[, bias]`` forward and transposed, ``dy, w, input_shape`` for data backward,
        ``x, dy, weight_shape`` for weight backward.
    operator : {"forward", "data_backward", "weight_backward", "transposed"}
    device : {"cpu", "gpu"}, optional
        What shapes are to be taken for: NumPy's arrays, or CuPy's on its current device. By default
        where the arrays are, for shapes alone the CPU.
    **keywords
        Those of the call.

    Returns
    -------
    Explanation

    Raises
    ------
    TypeError
        If an array lies elsewhere than `device` says.
    GpuError
        If `device` is ``"gpu"`` and CuPy has not been imported, or its device is too old.

    Examples
    --------
    >>> import cyconv
    >>> e = cyconv.explain((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    >>> e.reason, e.flop
    ('least estimated time', 231211008)
    """
    if operator not in _OPERATORS:
        raise ValueError(f"operator must be one of {', '.join(_OPERATORS)}, not {operator!r}")
    if not 2 <= len(operands) <= 3:
        raise TypeError(f"explain() takes two or three operands, not {len(operands)}")
    _checkcheck_device(device, operands[:2])
    checked = _checked(operator, operands, dict(keywords))
    problem = checked.problem
    arrays = [a for a in (checked.x, checked.w, checked.y) if a is not None]
    if on_gpu(arrays[0]):
        with entered(arrays[0]):
            return _explained_on_gpu(problem, checked.settings)
    if device == "gpu":
        strategy, threads = keywords.get("strategy"), keywords.get("threads")
        settings = resolve(problem.op, check_strategy("strategy", strategy), threads, "GPU")
        return _explained_on_gpu(problem, settings)
    strides = _strides(checked, [_is_shape(value) for value in operands[:2]])
    return explained(problem, checked.settings, strides)


def explained(
    problem: ConvProblem, asked: Config, strides: Strides, prepared: bool = False
) -> Explanation:
    """Explain a call by its problem, settings and strides; `prepared` weights cost no packing."""
    settings = known_settings(problem, asked)
    bound = bind(problem, settings, strides, prepared)
    reason = bound.reason
    known = tune.lookup(problem, asked)
    if known is not None and asked.strategy == "profile":
        reason = "measured fastest"
    geometry = Geometry(problem, *strides)
    candidates = []
    for algorithm in CPU:
        refused = refusal(algorithm, problem, geometry, settings)
        candidates.append(
            Candidate(
                algorithm.name,
                refused,
                None if refused else estimate(algorithm.name, problem, prepared),
                None if known is None else known.seconds.get(algorithm.name),
                algorithm.bound,
            )
        )
    return Explanation(
        problem,
        bound.algorithm.name,
        reason,
        tuple(candidates),
        bound.workspace_nbytes,
        problem.flop,
        bound.threads,
    )


def _checkcheck_device(device: str | None, operands: tuple[Any, ...]) -> None:
    """Check that arrays, if there are any, lie where `device` says."""
    if device is None:
        return
    check_device("device", device)
    for i, value in enumerate(operands):
        if not _is_shape(value) and on_gpu(value) != (device == "gpu"):
            kind = "a cupy.ndarray" if on_gpu(value) else f"a {type(value).__name__}"
            raise TypeError(f"operand {i} is {kind}, but device={device!r}")


def _explained_on_gpu(problem: ConvProblem, settings: Config) -> Explanation:
    outlook = look_on_gpu(problem, settings)
    return Explanation(
        problem,
        outlook.strategy,
        outlook.reason,
        tuple(Candidate(*fields) for fields in outlook.candidates),
        outlook.workspace_nbytes,
        problem.flop,
        1,
        outlook.device,
    )


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple)


def _strides(checked: Request, shapes: list[bool]) -> Strides:
    """Strides of the operands: natural for the result and for whatever was given as a shape."""
    problem = checked.problem
    natural = natural_strides(problem)
    arrays = {"x": checked.x, "w": checked.w, "y": checked.y}
    given = dict(zip([name.replace("dy", "y") for name in INPUTS[problem.op]], shapes, strict=True))
    return tuple(  # type: ignore[return-value]
        natural[i] if array is None or given[role] else element_strides(array, problem.layout)
        for i, (role, array) in enumerate(arrays.items())
    )
