"""ONNX Conv and ConvTranspose: attributes in, cyconv's keywords out.

Where ONNX Runtime and the specification differ, the comments say which of them is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import cyconv
from cyconv import ShapeError

Array = NDArray[Any]
Pairs = tuple[tuple[int, int], ...]

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def conv(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    strategy: str | None = None,
    threads: int | None = None,
) -> Array:
    """ONNX Conv.

    Parameters
    ----------
    x : array, shape (N, C, D1, ..., Dn)
        Input, 1 to 3 spatial axes.
    w : array, shape (M, C / group, k1, ..., kn)
        Weights.
    b : array, shape (M,), optional
        Bias.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        NOTSET takes `pads`. SAME gives ``ceil(D / stride)`` outputs per axis, an odd cell of
        padding at the end (UPPER) or at the start (LOWER). VALID pads nothing.
    dilations, strides : sequence of int, optional
        One per spatial axis, by default 1.
    group : int
        Groups of channels.
    kernel_shape : sequence of int, optional
        Must be the spatial part of the shape of `w`.
    pads : sequence of int, optional
        Zeros before each spatial axis, then zeros after each; by default none.
    strategy, threads
        As in `cyconv.conv_forward`.

    Returns
    -------
    array, shape (N, M, P1, ..., Pn)

    Raises
    ------
    ShapeError
        If shapes, or lengths of attributes, do not fit together.
    ValueError
        For an unknown `auto_pad`, `pads` beside another `auto_pad` than NOTSET, negative `pads`.

    Notes
    -----
    SAME takes dilation into account as the specification says; ONNX Runtime refuses the two
    together.

    Examples
    --------
    >>> import numpy as np
    >>> from cyconv.adapters.onnx import conv
    >>> x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    >>> conv(x, np.ones((1, 1, 2), np.float32), auto_pad="SAME_UPPER", strides=[2])
    array([[[1., 5., 4.]]], dtype=float32)
    """
    keywords = conv_keywords(
        x,
        w,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return cyconv.conv_forward(x, w, b, **keywords, strategy=strategy, threads=threads)


def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    strategy: str | None = None,
    threads: int | None = None,
) -> Array:
    """ONNX ConvTranspose.

    With ``full = (D - 1) * stride + dilation * (k - 1) + 1 + output_padding`` per axis, the result
    is the transposed convolution of that size, cut to the output's size.

    Parameters
    ----------
    x : array, shape (N, C, D1, ..., Dn)
        Input, 1 to 3 spatial axes.
    w : array, shape (C, M / group, k1, ..., kn)
        Weights.
    b : array, shape (M,), optional
        Bias.
    auto_pad : {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
        NOTSET takes `pads` or `output_shape`. SAME gives ``D * stride`` outputs per axis. VALID
        cuts nothing.
    dilations, strides, output_padding : sequence of int, optional
        One per spatial axis; by default 1, 1 and 0. The output padding is less than the larger of
        stride and dilation.
    group : int
        Groups of channels.
    kernel_shape : sequence of int, optional
        Must be the spatial part of the shape of `w`.
    output_shape : sequence of int, optional
        Spatial size of the output; `pads` are then ignored. Of an odd number of cells to cut, one
        more is cut at the start, or with SAME_UPPER at the end.
    pads : sequence of int, optional
        Cells to cut before each spatial axis, then after each; by default none.
    strategy, threads
        As in `cyconv.conv_transpose`.

    Returns
    -------
    array, shape (N, M, P1, ..., Pn)

    Raises
    ------
    ShapeError
        If shapes, lengths of attributes or sizes do not fit together.
    ValueError
        For an unknown `auto_pad`, `pads` beside another `auto_pad` than NOTSET, negative `pads`.

    Examples
    --------
    >>> import numpy as np
    >>> from cyconv.adapters.onnx import conv_transpose
    >>> x = np.ones((1, 1, 2), np.float32)
    >>> conv_transpose(x, np.ones((1, 1, 3), np.float32), strides=[2], output_shape=[4])
    array([[[1., 2., 1., 1.]]], dtype=float32)
    """
    keywords = conv_transpose_keywords(
        x,
        w,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        output_shape=output_shape,
        pads=pads,
        strides=strides,
    )
    return cyconv.conv_transpose(x, w, b, **keywords, strategy=strategy, threads=threads)


def explain(
    op_type: str, x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, **attributes: Any
) -> cyconv.Explanation:
    """Say how cyconv runs a node: `cyconv.explain` for ONNX's attributes.

    Parameters
    ----------
    op_type : {"Conv", "ConvTranspose"}
        The operator.
    x, w, b
        Its inputs.
    **attributes
        Its attributes, as `conv` or `conv_transpose` takes them.
    """
    operator, keywords = {
        "Conv": ("forward", conv_keywords),
        "ConvTranspose": ("transposed", conv_transpose_keywords),
    }[op_type]
    return cyconv.explain(x, w, b, operator=operator, **keywords(x, w, **attributes))


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
