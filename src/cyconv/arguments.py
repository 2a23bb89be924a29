"""From the arguments of a call to a problem: parameters of any accepted form, checked and spread.

Every message names the argument, what it was and what it should be. Sizes are Python integers, so
nothing wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from .errors import ShapeError

Pairs = tuple[tuple[int, int], ...]

_CHANNELS_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_GENERIC = {"channels_first": "nchw", "channels_last": "nhwc"}
_LAYOUTS = {
    ndim: {**_GENERIC, _CHANNELS_FIRST[ndim]: "nchw", _CHANNELS_LAST[ndim]: "nhwc"}
    for ndim in (1, 2, 3)
}
_PADDINGS = ("valid", "same", "same_lower", "full")

# Activations, and the default of the number that two of them take.
ACTIVATIONS = {
    "relu": None,
    "relu6": None,
    "leaky_relu": 0.01,
    "hardsigmoid": 1 / 6,
    "hardswish": None,
    "sigmoid": None,
    "silu": None,
    "tanh": None,
    "gelu": None,
}


class Activation(NamedTuple):
    """An activation by name; `alpha` is the slope of leaky_relu below 0 and of hardsigmoid."""

    name: str
    alpha: float


class Parameters(NamedTuple):
    """The parameters of a call, one entry per spatial axis; padding may still be a name."""

    stride: tuple[int, ...]
    padding: Pairs | str
    dilation: tuple[int, ...]
    groups: int
    layout: str


def parameters(
    ndim: int, stride: Any, padding: Any, dilation: Any, groups: Any, layout: Any
) -> Parameters:
    """Check and spread the parameters that all operators share."""
    return Parameters(
        per_axis("stride", stride, ndim, 1),
        _padding(padding, ndim),
        per_axis("dilation", dilation, ndim, 1),
        integer("groups", groups, 1),
        layout_of(layout, ndim),
    )


def activation_of(value: Any) -> Activation | None:
    """Check an activation: a name, or (name, alpha)."""
    if value is None:
        return None
    name, given = value if _is_pair(value) else (value, None)
    if not isinstance(name, str):
        raise TypeError(f"activation must be a name or a pair (name, alpha), not {value!r}")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; it may be {', '.join(ACTIVATIONS)}")
    alpha = ACTIVATIONS[name]
    if given is None:
        return Activation(name, alpha or 0.0)
    if alpha is None:
        raise ValueError(f"activation {name!r} takes no alpha, {given!r} was given")
    if isinstance(given, bool | np.bool_) or not isinstance(given, int | float | np.number):
        raise TypeError(f"alpha of activation {name!r} must be a number, not {given!r}")
    if not isfinite(given):
        raise ValueError(f"alpha of activation {name!r} must be finite, not {given!r}")
    return Activation(name, float(given))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def integer(name: str, value: Any, minimum: int) -> int:
    """Return an integer of at least `minimum`; NumPy's integers count, bool and float do not."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    try:
        number = int(value.__index__())
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {number}")
    return number


def _is_sequence(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str | bytes)) or (
        isinstance(value, np.ndarray) and value.ndim > 0
    )


def per_axis(name: str, value: Any, ndim: int, minimum: int) -> tuple[int, ...]:
    """Spread one integer over the axes, or check one integer per axis."""
    if not _is_sequence(value):
        return (integer(name, value, minimum),) * ndim
    if len(value) != ndim:
        raise ValueError(
            f"{name} must be one integer or {ndim} of them, one per spatial axis, not {value!r}"
        )
    return tuple(integer(name, item, minimum) for item in value)


def _padding(value: Any, ndim: int) -> Pairs | str:
    if isinstance(value, str):
        if value.lower() not in _PADDINGS:
            raise ValueError(
                f"padding {value!r} is unknown; as a string it is one of {', '.join(_PADDINGS)}"
            )
        return value.lower()
    if not _is_sequence(value):
        return ((integer("padding", value, 0),) * 2,) * ndim
    if len(value) != ndim:
        raise ValueError(
            f"padding must be one integer, {ndim} of them or {ndim} pairs (before, after), "
            f"one per spatial axis, not {value!r}"
        )
    pairs = []
    for item in value:
        if _is_sequence(item):
            if len(item) != 2:
                raise ValueError(
                    f"padding of an axis must be an integer or a pair (before, after), not {item!r}"
                )
            pairs.append((integer("padding", item[0], 0), integer("padding", item[1], 0)))
        else:
            pairs.append((integer("padding", item, 0),) * 2)
    return tuple(pairs)


def layout_of(value: Any, ndim: int) -> str:
    """Return "nchw" or "nhwc" for any accepted name of a layout of this rank."""
    if not isinstance(value, str):
        raise TypeError(f"layout must be a string, not {value!r}")
    names = _LAYOUTS[ndim]
    for name, layout in names.items():
        if value.lower() == name.lower():
            return layout
    raise ValueError(f"layout {value!r} is not one of {', '.join(names)} for {ndim} spatial axes")


def resolve_padding(params: Parameters, in_size: Sequence[int], kernel: Sequence[int]) -> Pairs:
    """Turn a named padding into numbers for a forward convolution of this input size."""
    if not isinstance(params.padding, str):
        return params.padding
    pairs = []
    for n, k, s, d in zip(in_size, kernel, params.stride, params.dilation, strict=True):
        extent = d * (k - 1) + 1
        if params.padding == "valid":
            pairs.append((0, 0))
        elif params.padding == "full":
            pairs.append((max(extent - 1, 0),) * 2)
        else:
            total = max((-(-n // s) - 1) * s + extent - n, 0)
            pairs.append(_halved(total, params.padding))
    return tuple(pairs)


def _halved(total: int, padding: str) -> tuple[int, int]:
    """Split padding: the smaller half comes first for "same", the larger for "same_lower"."""
    smaller, larger = total // 2, total - total // 2
    return (smaller, larger) if padding == "same" else (larger, smaller)


def transposed_geometry(
    params: Parameters,
    size: Sequence[int],
    kernel: Sequence[int],
    output_padding: Any,
    output_size: Any,
) -> tuple[Pairs, tuple[int, ...]]:
    """Return the padding and the output size of a transposed convolution.

    The size is ``(n - 1) * stride + K + output_padding - before - after`` per axis, with
    ``0 <= output_padding < max(stride, dilation)``.
    """
    ndim = len(size)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, params.dilation, strict=True)]
    extra = per_axis("output_padding", output_padding, ndim, 0)
    if params.padding in ("same", "same_lower"):
        if output_size is not None or any(extra):
            raise ValueError(
                f"padding {params.padding!r} fixes the output size of a transposed convolution; "
                "it cannot be given output_padding or output_size as well"
            )
        pairs = tuple(
            _halved(max(k - s, 0), str(params.padding))
            for k, s in zip(extents, params.stride, strict=True)
        )
        return pairs, tuple(n * s for n, s in zip(size, params.stride, strict=True))

    pairs = resolve_padding(params, size, kernel)
    smallest = tuple(
        (n - 1) * s + k - lo - hi
        for n, s, k, (lo, hi) in zip(size, params.stride, extents, pairs, strict=True)
    )
    most = tuple(max(s, d) - 1 for s, d in zip(params.stride, params.dilation, strict=True))
    if output_size is not None:
        if any(extra):
            raise ValueError("output_padding and output_size cannot both be given")
        wanted = per_axis("output_size", output_size, ndim, 1)
        for axis in range(ndim):
            if not smallest[axis] <= wanted[axis] <= smallest[axis] + most[axis]:
                raise ShapeError(
                    f"output_size {wanted[axis]} is impossible along spatial axis {axis}: "
                    f"it may be {_listed(smallest[axis], most[axis])}"
                )
        out = wanted
    else:
        for axis in range(ndim):
            if extra[axis] > most[axis]:
                raise ValueError(
                    f"output_padding must be less than the larger of stride and dilation, so at "
                    f"most {most[axis]} along spatial axis {axis}, not {extra[axis]}"
                )
        out = tuple(n + e for n, e in zip(smallest, extra, strict=True))
    for axis in range(ndim):
        if out[axis] < 1:
            raise ShapeError(
                f"no output along spatial axis {axis}: the input size {size[axis]} with stride "
                f"{params.stride[axis]}, padding {pairs[axis]} and effective kernel size "
                f"{extents[axis]} gives a size of {out[axis]}"
            )
    return pairs, out


def _listed(first: int, more: int) -> str:
    sizes = [str(n) for n in range(max(first, 1), first + min(more, 8) + 1)]
    return ", ".join(sizes) + (", ..." if more > 8 else "")


def shape_of(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """Check a shape argument of `rank` axes."""
    if not _is_sequence(value):
        raise TypeError(f"{name} must be a tuple of {rank} integers, not {value!r}")
    if len(value) != rank:
        raise ShapeError(f"{name} must have {rank} axes, not {len(value)}: {tuple(value)}")
    return tuple(integer(name, item, 0) for item in value)
