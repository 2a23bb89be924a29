"""From a call to a checked request: arguments become a problem, settings and operands.

One function for each kind of call. Every message names the argument, what it was and what it should
be; nothing is allocated before all checks have passed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import arguments
from .arguments import Activation
from .devices import check_places, on_gpu
from .errors import ShapeError
from .operands import NAMES, Array, as_array, result_dtype
from .problem import ConvProblem
from .settings import Config, check_strategy, check_threads, resolve

# stride, padding, dilation, groups, layout, strategy, threads, activation: as the caller gave them.
Raw = tuple[Any, Any, Any, Any, Any, Any, Any, Any]


class Request(NamedTuple):
    """A checked call: the problem, its settings and operands (batch axis added, result None).

    `dtype` is the result's; `batched` tells whether the caller's operands had a batch axis.
    """

    problem: ConvProblem
    settings: Config
    x: Array | None
    w: Array | None
    y: Array | None
    bias: Array | None
    dtype: np.dtype[Any]
    batched: bool
    residual: Array | None = None
    activation: Activation | None = None


def _spatial(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape[2:] if layout == "nchw" else shape[1:-1]


def _channels(shape: tuple[int, ...], layout: str) -> int:
    return shape[1] if layout == "nchw" else shape[-1]


def spatial_axes(name: str, shape: tuple[int, ...], rank: int | None) -> int:
    """Return the number of spatial axes of a weight of this shape; `rank` is what it must be."""
    if rank is not None and len(shape) != rank + 2:
        raise ShapeError(
            f"{name} must have {rank + 2} axes for {rank} spatial axes, not {len(shape)}: {shape}"
        )
    if not 3 <= len(shape) <= 5:
        raise ShapeError(f"{name} must have 3 to 5 axes, not {len(shape)}: {shape}")
    return len(shape) - 2


def _batched(name: str, array: Array, ndim: int) -> tuple[Array, bool]:
    """Add the batch axis if it is missing."""
    if array.ndim == ndim + 2:
        return array, True
    if array.ndim == ndim + 1:
        return array[np.newaxis], False
    raise ShapeError(
        f"{name} must have {ndim + 2} axes, or {ndim + 1} without a batch, for {ndim} spatial "
        f"axes, not {array.ndim}: {array.shape}"
    )


def check_bias(bias: Any, channels: int) -> Array | None:
    """Return a bias as an array, of as many elements as the result has channels."""
    if bias is None:
        return None
    array = as_array("bias", bias)
    if array.shape != (channels,):
        raise ShapeError(f"bias has shape {array.shape}, should be ({channels},)")
    return array


def _compute_bias(bias: Array | None, problem: ConvProblem) -> Array | None:
    """Bring a bias into the form that kernels take: it is small, so it is simply copied."""
    if bias is None or on_gpu(bias):  # on a GPU it becomes what the other operands become
        return bias
    return np.ascontiguousarray(bias, problem.compute_dtype)


def _check_groups(groups: int, **channels: int) -> None:
    for name, count in channels.items():
        if count % groups:
            raise ShapeError(f"groups={groups} does not divide the {count} {name}")


def _match(name: str, array: Array, expected: tuple[int, ...], why: str) -> None:
    if array.shape != expected:
        raise ShapeError(f"{name} has shape {array.shape}, should be {expected}: {why}")


def _check_residual(residual: Array | None, problem: ConvProblem, batched: bool) -> Array | None:
    """Return the residual with a batch axis; it must be as the result is."""
    if residual is None:
        return None
    shape = problem.result_shape if batched else problem.result_shape[1:]
    _match("residual", residual, shape, "the shape of the result")
    return residual if batched else residual[np.newaxis]


def _settings(op: str, strategy: Any, threads: Any, operand: Array) -> Config:
    return resolve(
        op,
        check_strategy("strategy", strategy),
        check_threads("threads", threads),
        "GPU" if on_gpu(operand) else "CPU",
    )


def forward(x: Any, w: Any, bias: Any, rank: int | None, raw: Raw, residual: Any = None) -> Request:
    """Check a forward call."""
    check_places(x=x, w=w, bias=bias, residual=residual)
    x, w = as_array("x", x), as_array("w", w)
    ndim = spatial_axes("w", w.shape, rank)
    params = arguments.parameters(ndim, *raw[:5])
    layout = params.layout
    x, batched = _batched("x", x, ndim)
    c_in, c_out = _channels(x.shape, layout), w.shape[0]
    _check_groups(params.groups, **{"input channels of x": c_in, "output channels of w": c_out})
    if _channels(w.shape, layout) * params.groups != c_in:
        raise ShapeError(
            f"w of shape {w.shape} has {_channels(w.shape, layout)} input channels a group; with "
            f"groups={params.groups} x must have {_channels(w.shape, layout) * params.groups} "
            f"channels, not {c_in} (shape {x.shape}, layout {raw[4]})"
        )
    bias = check_bias(bias, c_out)
    residual = None if residual is None else as_array("residual", residual)
    activation = arguments.activation_of(raw[7])
    dtype = result_dtype(x=x, w=w, bias=bias, residual=residual)
    in_size, kernel = _spatial(x.shape, layout), _spatial(w.shape, layout)
    problem = ConvProblem(
        "fwd", x.shape[0], c_in, c_out, params.groups, in_size, kernel, params.stride,
        arguments.resolve_padding(params, in_size, kernel), params.dilation,
        bias is not None, layout, NAMES[dtype.name],
    )  # fmt: skip
    return Request(
        problem, _settings("fwd", *raw[5:7], x), x, w, None, _compute_bias(bias, problem), dtype,
        batched, _check_residual(residual, problem, batched), activation,
    )  # fmt: skip


def data_backward(dy: Any, w: Any, input_shape: Any, rank: int | None, raw: Raw) -> Request:
    """Check a data backward call."""
    check_places(dy=dy, w=w)
    dy, w = as_array("dy", dy), as_array("w", w)
    ndim = spatial_axes("w", w.shape, rank)
    params = arguments.parameters(ndim, *raw[:5])
    layout = params.layout
    dy, batched = _batched("dy", dy, ndim)
    shape = arguments.shape_of("input_shape", input_shape, ndim + batched + 1)
    if not batched:
        shape = (1, *shape)
    c_in, c_out = _channels(shape, layout), w.shape[0]
    _check_groups(params.groups, **{"channels of input_shape": c_in, "output channels of w": c_out})
    if _channels(w.shape, layout) * params.groups != c_in:
        raise ShapeError(
            f"input_shape {shape} has {c_in} channels; w of shape {w.shape} with "
            f"groups={params.groups} needs {_channels(w.shape, layout) * params.groups}"
        )
    dtype = result_dtype(dy=dy, w=w)
    in_size, kernel = _spatial(shape, layout), _spatial(w.shape, layout)
    problem = ConvProblem(
        "dx", shape[0], c_in, c_out, params.groups, in_size, kernel, params.stride,
        arguments.resolve_padding(params, in_size, kernel), params.dilation,
        False, layout, NAMES[dtype.name],
    )  # fmt: skip
    _match("dy", dy, problem.y_shape, f"the output of an input of shape {shape}")
    return Request(problem, _settings("dx", *raw[5:7], dy), None, w, dy, None, dtype, batched)


def weight_backward(x: Any, dy: Any, weight_shape: Any, rank: int | None, raw: Raw) -> Request:
    """Check a weight backward call."""
    check_places(x=x, dy=dy)
    x, dy = as_array("x", x), as_array("dy", dy)
    if not hasattr(weight_shape, "__len__") or isinstance(weight_shape, str):
        raise TypeError(f"weight_shape must be a tuple of 3 to 5 integers, not {weight_shape!r}")
    shape = arguments.shape_of("weight_shape", weight_shape, len(weight_shape))
    ndim = spatial_axes("weight_shape", shape, rank)
    params = arguments.parameters(ndim, *raw[:5])
    layout = params.layout
    x, batched = _batched("x", x, ndim)
    dy, dy_batched = _batched("dy", dy, ndim)
    if batched != dy_batched:
        raise ShapeError("x and dy must both have a batch axis, or neither")
    c_in, c_out = _channels(x.shape, layout), shape[0]
    _check_groups(
        params.groups, **{"input channels of x": c_in, "output channels of weight_shape": c_out}
    )
    if _channels(shape, layout) * params.groups != c_in:
        raise ShapeError(
            f"weight_shape {shape} has {_channels(shape, layout)} input channels a group; with "
            f"groups={params.groups} it should have {c_in // params.groups} for x of shape "
            f"{x.shape}"
        )
    dtype = result_dtype(x=x, dy=dy)
    in_size, kernel = _spatial(x.shape, layout), _spatial(shape, layout)
    problem = ConvProblem(
        "dw", x.shape[0], c_in, c_out, params.groups, in_size, kernel, params.stride,
        arguments.resolve_padding(params, in_size, kernel), params.dilation,
        False, layout, NAMES[dtype.name],
    )  # fmt: skip
    _match("dy", dy, problem.y_shape, f"the output for weight_shape {shape}")
    return Request(problem, _settings("dw", *raw[5:7], x), x, None, dy, None, dtype, batched)


def transposed(
    x: Any,
    w: Any,
    bias: Any,
    output_padding: Any,
    output_size: Any,
    rank: int | None,
    raw: Raw,
    residual: Any = None,
) -> Request:
    """Check a transposed call: data backward, whose dy is x."""
    check_places(x=x, w=w, bias=bias, residual=residual)
    x, w = as_array("x", x), as_array("w", w)
    ndim = spatial_axes("w", w.shape, rank)
    params = arguments.parameters(ndim, *raw[:5])
    layout = params.layout
    x, batched = _batched("x", x, ndim)
    channels, result_channels = _channels(x.shape, layout), _channels(w.shape, layout)
    result_channels *= params.groups
    _check_groups(params.groups, **{"input channels of x": channels})
    if w.shape[0] != channels:
        raise ShapeError(
            f"w of shape {w.shape} has {w.shape[0]} input channels (its first axis), x of shape "
            f"{x.shape} has {channels}"
        )
    bias = check_bias(bias, result_channels)
    residual = None if residual is None else as_array("residual", residual)
    activation = arguments.activation_of(raw[7])
    dtype = result_dtype(x=x, w=w, bias=bias, residual=residual)
    size, kernel = _spatial(x.shape, layout), _spatial(w.shape, layout)
    for name, sizes in (("x", size), ("w", kernel)):
        if min(sizes) < 1:
            raise ShapeError(f"{name} has a spatial axis of size 0: {sizes}")
    padding, result_size = arguments.transposed_geometry(
        params, size, kernel, output_padding, output_size
    )
    problem = ConvProblem(
        "dx", x.shape[0], result_channels, channels, params.groups, result_size, kernel,
        params.stride, padding, params.dilation, bias is not None, layout, NAMES[dtype.name], size,
    )  # fmt: skip
    return Request(
        problem, _settings("dx", *raw[5:7], x), None, w, x, _compute_bias(bias, problem), dtype,
        batched, _check_residual(residual, problem, batched), activation,
    )  # fmt: skip
