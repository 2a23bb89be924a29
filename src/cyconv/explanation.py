"""What a user can ask of the choice: a reusable plan, and an explanation of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import request, tune
from .algorithms import CPU
from .binding import Bound, bind, natural_strides
from .costs import estimate
from .devices import check_places, entered, namespace, on_gpu
from .errors import DTypeError, ShapeError
from .execute import execute
from .kernels._geometry import Geometry
from .operands import NAMES, Array, Operands, Strides, as_array, element_strides, takes_result
from .problem import ConvProblem
from .request import Request
from .select import refusal
from .settings import Config, check_strategy, check_threads, resolve

if TYPE_CHECKING:
    from .gpu import Outlook

# Which operands an operator takes, in the order of its call.
_INPUTS = {"fwd": ("x", "w"), "dx": ("dy", "w"), "dw": ("x", "dy")}


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
        for name, value in zip(_INPUTS[problem.op], (a, b), strict=True):
            array = as_array(name, value)
            if on_gpu(array) != (self.device == "gpu"):
                kind = f"{namespace(array).__name__}.ndarray"
                raise TypeError(f"{name} is a {kind}, the plan is for device={self.device!r}")
            if array.shape != shapes[name]:
                raise ShapeError(f"{name} has shape {array.shape}, the plan is for {shapes[name]}")
            if NAMES.get(array.dtype.name) != problem.dtype:
                raise DTypeError(f"{name} has dtype {array.dtype}, the plan is for {problem.dtype}")
            given[name] = array
        dtype, shape = given[_INPUTS[problem.op][0]].dtype.newbyteorder("="), problem.result_shape
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
        _device("device", device).upper(),
    )
    if device == "gpu":
        return Plan(problem, settings, _look(problem, settings), device)
    settings = _known_settings(problem, settings)
    return Plan(problem, settings, bind(problem, settings, natural_strides(problem)), device)


def _device(name: str, value: object) -> str:
    if value not in ("cpu", "gpu"):
        raise ValueError(f"{name} must be 'cpu' or 'gpu', not {value!r}")
    return str(value)


def _look(problem: ConvProblem, settings: Config) -> Outlook:
    from .gpu import look

    return look(problem, settings)


def _known_settings(problem: ConvProblem, settings: Config) -> Config:
    """Put a measured choice, or else ``auto``, in the place of ``profile``."""
    if settings.strategy != "profile":
        return settings
    known = None if settings.reproducible else tune.lookup(problem, settings)
    if known is None:
        return settings._replace(strategy="auto")
    return settings._replace(strategy=known.strategy, strict=False)


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
    _check_device(device, operands[:2])
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
    settings = _known_settings(problem, checked.settings)
    bound = bind(problem, settings, strides)
    reason = bound.reason
    known = tune.lookup(problem, checked.settings)
    if known is not None and checked.settings.strategy == "profile":
        reason = "measured fastest"
    geometry = Geometry(problem, *strides)
    candidates = []
    for algorithm in CPU:
        refused = refusal(algorithm, problem, geometry, settings)
        candidates.append(
            Candidate(
                algorithm.name,
                refused,
                None if refused else estimate(algorithm.name, problem),
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


def _check_device(device: str | None, operands: tuple[Any, ...]) -> None:
    """Check that arrays, if there are any, lie where `device` says."""
    if device is None:
        return
    _device("device", device)
    for i, value in enumerate(operands):
        if not _is_shape(value) and on_gpu(value) != (device == "gpu"):
            kind = "a cupy.ndarray" if on_gpu(value) else f"a {type(value).__name__}"
            raise TypeError(f"operand {i} is {kind}, but device={device!r}")


def _explained_on_gpu(problem: ConvProblem, settings: Config) -> Explanation:
    outlook = _look(problem, settings)
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
    given = dict(
        zip([name.replace("dy", "y") for name in _INPUTS[problem.op]], shapes, strict=True)
    )
    return tuple(  # type: ignore[return-value]
        natural[i] if array is None or given[role] else element_strides(array, problem.layout)
        for i, (role, array) in enumerate(arrays.items())
    )
