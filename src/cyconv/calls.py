"""From a call's raw arguments to its result, by way of a memory of calls.

A call whose arguments were seen before (shapes, strides, dtypes, parameters and settings) skips
all checks: `_calls` maps the signature of a call to a bound plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .arguments import Activation
from .binding import Bound, bind
from .devices import check_places, entered, namespace
from .errors import DTypeError, ShapeError
from .execute import execute
from .kernels._signature import signature
from .operands import Array, Operands, is_ready, takes_result
from .packings import Packings
from .request import Raw, Request
from .settings import get_config

_MOST_CALLS = 1024


class Call(NamedTuple):
    """What a call with known arguments needs."""

    bound: Bound
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    batched: bool
    activation: Activation | None
    packed: Array | None


Memory = dict[tuple[Any, ...], Call]
_calls: Memory = {}


def clear() -> None:
    """Forget every remembered call."""
    _calls.clear()


def run(
    kind: str,
    rank: int | None,
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    extra: Any,
    raw: Raw,
    out: Any,
    check: Callable[[], Request],
    memory: Memory = _calls,
    packings: Packings | None = None,
) -> Array:
    """Answer from a remembered call, else check the arguments and remember what they led to.

    A prepared convolution has a memory of its own, and `packings` of its weights.

    An operand whose type has a method ``__cyconv_call__`` answers the call itself, with the
    arguments as they were given.
    """
    key = signature(kind, rank, a, b, bias, residual, extra, raw, get_config())
    if key is None:
        for operand in (a, b, bias, residual):
            answer = getattr(type(operand), "__cyconv_call__", None)
            if answer is not None:
                return answer(kind, rank, a, b, bias, residual, extra, raw, out)  # type: ignore[no-any-return]
    else:
        try:
            call = memory.get(key)
        except TypeError:  # an unhashable parameter
            key = call = None
        if call is not None and (
            out is None or takes_result(out, call.shape, call.dtype, (a, b, bias, residual))
        ):
            return _repeat(call, a, b, bias, residual, out)
    checked = check()
    result = _finish(checked, out, packings)
    if key is not None:
        _remember(memory, packings, key, checked, (bias, residual), result)
    return result


def _repeat(
    call: Call, a: Array, b: Array, bias: Array | None, residual: Array | None, out: Array | None
) -> Array:
    result = np.empty(call.shape, call.dtype) if out is None else out
    view = result
    op = call.bound.problem.op
    if not call.batched:
        a = a[np.newaxis]
        if op == "dw":
            b = b[np.newaxis]
        else:
            view = result[np.newaxis]
    if op == "fwd":
        call.bound.run(a, b, view, bias, residual, call.activation, call.packed)
    elif op == "dx":
        call.bound.run(view, b, a, bias, residual, call.activation, call.packed)
    else:
        call.bound.run(a, view, b, None)
    return result


def _remember(
    memory: Memory,
    packings: Packings | None,
    key: tuple[Any, ...],
    checked: Request,
    added: tuple[Any, Any],
    result: Array,
) -> None:
    """Keep a call that needs no copies and no measuring."""
    problem = checked.problem
    inputs = [a for a in (checked.x, checked.w, checked.y, *added) if a is not None]
    if checked.settings.strategy == "profile" or problem.dtype not in ("f32", "f64"):
        return
    if not all(is_ready(array, problem.compute_dtype) for array in inputs):
        return
    if not result.flags.c_contiguous:
        return
    operands = _operands(checked, _view(checked, result))
    bound = bind(problem, checked.settings, operands.strides(problem.layout), packings is not None)
    packed = None if packings is None else packings.of(bound, operands.w)
    if len(memory) >= _MOST_CALLS:
        memory.clear()
    memory[key] = Call(
        bound, result.shape, result.dtype, checked.batched, checked.activation, packed
    )


def _view(checked: Request, result: Array) -> Array:
    """Add the batch axis to a result that has none; weights have no batch to begin with."""
    return result if checked.batched or checked.problem.op == "dw" else result[np.newaxis]


def _operands(checked: Request, result: Array) -> Operands:
    """Put the result into its place among the operands."""
    x, w, y = (result if a is None else a for a in (checked.x, checked.w, checked.y))
    return Operands(x, w, y, checked.bias, checked.residual, checked.activation)


def _finish(checked: Request, out: Any, packings: Packings | None) -> Array:
    """Run a checked call into `out`, or into a new array beside the operands."""
    problem = checked.problem
    whole = checked.batched or problem.op == "dw"
    shape = problem.result_shape if whole else problem.result_shape[1:]
    given = (checked.x, checked.w, checked.y, checked.bias, checked.residual)
    inputs = [a for a in given if a is not None]
    with entered(inputs[0]) as xp:
        if out is None:
            result = xp.empty(shape, checked.dtype)
        else:
            result = _check_out(out, shape, checked.dtype, inputs[0])
            if any(xp.may_share_memory(result, a) for a in inputs):
                result = xp.empty(shape, checked.dtype)
        operands = _operands(checked, _view(checked, result))
        execute(problem, checked.settings, operands, packings)
        if out is not None and result is not out:
            out[...] = result
            return out  # type: ignore[no-any-return]
    return result  # type: ignore[no-any-return]


def _check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], beside: Array) -> Array:
    xp = namespace(beside)
    if not isinstance(out, xp.ndarray):
        raise TypeError(f"out must be a {xp.__name__}.ndarray, not {type(out).__name__}")
    if out.shape != shape:
        raise ShapeError(f"out has shape {out.shape}, should be {shape}")
    if out.dtype != dtype or not out.dtype.isnative:
        raise DTypeError(f"out has dtype {out.dtype.str}, should be {dtype.str}")
    if xp is np and not out.flags.writeable:
        raise ValueError("out is read-only")
    check_places(x=beside, out=out)
    return out  # type: ignore[no-any-return]
