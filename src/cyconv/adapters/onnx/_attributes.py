"""The attributes of ONNX Conv and ConvTranspose as cyconv's keywords.

Where ONNX Runtime and the specification differ, the comments say which of them is followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cyconv import ShapeError

Pairs = tuple[tuple[int, int], ...]

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def conv_keywords(
    x: ArrayLike,
    w: ArrayLike,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return Conv's attributes as the keywords of `cyconv.conv_forward`."""
    sizes, _ = _spatial(x, w, kernel_shape)
    given = _pads(auto_pad, pads, len(sizes))
    padding = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower"}.get(auto_pad, given)
    return {
        "stride": _per_axis("strides", strides, len(sizes), 1),
        "padding": padding,
        "dilation": _per_axis("dilations", dilations, len(sizes), 1),
        "groups": group,
    }


def conv_transpose_keywords(
    x: ArrayLike,
    w: ArrayLike,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return ConvTranspose's attributes as the keywords of `cyconv.conv_transpose`."""
    sizes, kernel = _spatial(x, w, kernel_shape)
    ndim = len(sizes)
    stride = _per_axis("strides", strides, ndim, 1)
    dilation = _per_axis("dilations", dilations, ndim, 1)
    extra = _per_axis("output_padding", output_padding, ndim, 0)
    padding = _pads(auto_pad, pads, ndim)
    if output_shape is not None:
        wanted = _per_axis("output_shape", output_shape, ndim, 0)
    elif auto_pad.startswith("SAME"):
        # The specification's size, also for a kernel shorter than the stride, where ONNX Runtime
        # gives less: D = 3, stride 3, kernel 2 is 9 here and 8 there.
        wanted = tuple(n * s for n, s in zip(sizes, stride, strict=True))
    else:
        wanted = None
    if wanted is not None:
        fitted = [
            _fit(axis, n, k, s, d, op, size, larger_half_first=auto_pad != "SAME_UPPER")
            for axis, (n, k, s, d, op, size) in enumerate(
                zip(sizes, kernel, stride, dilation, extra, wanted, strict=True)
            )
        ]
        padding = tuple(cut for cut, _ in fitted)
        extra = tuple(op for _, op in fitted)
    return {
        "stride": stride,
        "padding": padding,
        "output_padding": extra,
        "dilation": dilation,
        "groups": group,
    }


def sizes_its_output(attributes: Mapping[str, Any]) -> bool:
    """Whether ConvTranspose's padding depends on the size of its input."""
    return "output_shape" in attributes or attributes.get("auto_pad", "").startswith("SAME")


def _fit(
    axis: int, n: int, k: int, s: int, d: int, op: int, wanted: int, *, larger_half_first: bool
) -> tuple[tuple[int, int], int]:
    """Return the padding and output padding that give one axis the wanted size."""
    full = (n - 1) * s + d * (k - 1) + 1 + op
    if wanted <= full:
        # The larger half comes first unless SAME_UPPER is set: the last branch of the
        # specification's formula, NOTSET included. ONNX Runtime does the same.
        small, large = (full - wanted) // 2, (full - wanted + 1) // 2
        return ((large, small) if larger_half_first else (small, large)), op
    # The formula's negative padding would put a part of the new cells first. ONNX Runtime and
    # ONNX's own case ``convtranspose_output_shape`` append all of them; so does this.
    grown = op + wanted - full
    most = max(s, d) - 1
    if grown > most:
        raise ShapeError(
            f"output_shape is {wanted} along spatial axis {axis}, where at most "
            f"{full - op + most} can be reached"
        )
    return (0, 0), grown


def _spatial(
    x: ArrayLike, w: ArrayLike, kernel_shape: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the spatial sizes of input and kernel."""
    x_shape, w_shape = np.shape(x), np.shape(w)
    # cyconv itself takes unbatched input; ONNX does not.
    if len(x_shape) != len(w_shape):
        raise ShapeError(
            f"x has {len(x_shape)} axes and w has {len(w_shape)}; ONNX wants as many of each"
        )
    if kernel_shape is not None and tuple(kernel_shape) != w_shape[2:]:
        raise ShapeError(
            f"kernel_shape is {tuple(kernel_shape)}, but the weights of shape {w_shape} have "
            f"{w_shape[2:]}"
        )
    return x_shape[2:], w_shape[2:]


def _per_axis(name: str, values: Sequence[int] | None, ndim: int, default: int) -> tuple[int, ...]:
    if values is None:
        return (default,) * ndim
    if len(values) != ndim:
        raise ShapeError(f"{name} has {len(values)} entries for {ndim} spatial axes")
    return tuple(values)


def _pads(auto_pad: str, pads: Sequence[int] | None, ndim: int) -> Pairs:
    """Return explicit pads as (before, after) per axis."""
    if auto_pad not in AUTO_PADS:
        raise ValueError(f"auto_pad is {auto_pad!r}, should be one of {', '.join(AUTO_PADS)}")
    if pads is None:
        return ((0, 0),) * ndim
    # The specification forbids the two together, and ONNX Runtime refuses them.
    if auto_pad != "NOTSET":
        raise ValueError(f"pads are given beside auto_pad={auto_pad!r}: only one of them may be")
    if len(pads) != 2 * ndim:
        raise ShapeError(
            f"pads has {len(pads)} entries, should have {2 * ndim}: all begins, then all ends"
        )
    if min(pads) < 0:
        raise ValueError(f"pads is {list(pads)}: ONNX has no negative pads here; crop the input")
    return tuple(zip(pads[:ndim], pads[ndim:], strict=True))
