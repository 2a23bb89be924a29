"""ONNX Conv and ConvTranspose: attributes in, a call of cyconv out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import cyconv
from cyconv import ShapeError

from . import _math
from ._attributes import conv_keywords, conv_transpose_keywords

Array = NDArray[Any]
Activation = str | tuple[str, float]


def conv(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    activation: Activation | None = None,
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
    residual : array, optional
        Added to the result, as ONNX's Add would.
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
    activation, strategy, threads
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
    keywords |= {"strategy": strategy, "threads": threads}
    return convolve(partial(cyconv.conv_forward, x, w, b, **keywords), residual, activation)


def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    activation: Activation | None = None,
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
    residual : array, optional
        Added to the result, as ONNX's Add would.
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
    activation, strategy, threads
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
    keywords |= {"strategy": strategy, "threads": threads}
    return convolve(partial(cyconv.conv_transpose, x, w, b, **keywords), residual, activation)


def explain(
    op_type: str,
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    activation: Activation | None = None,
    **attributes: Any,
) -> cyconv.Explanation:
    """Say how cyconv runs a node: `cyconv.explain` for ONNX's attributes.

    Parameters
    ----------
    op_type : {"Conv", "ConvTranspose"}
        The operator.
    x, w, b, residual
        Its inputs.
    activation
        What an optimised network lets the convolution apply; like the residual, it has no part in
        the choice.
    **attributes
        Its attributes, as `conv` or `conv_transpose` takes them.

    Returns
    -------
    cyconv.Explanation

    Raises
    ------
    ValueError
        For another operator, and whatever the operator itself would raise.
    """
    del residual, activation
    if op_type == "Conv":
        keywords = conv_keywords(x, w, **attributes)
        return cyconv.explain(x, w, b, operator="forward", **keywords)
    if op_type == "ConvTranspose":
        keywords = conv_transpose_keywords(x, w, **attributes)
        return cyconv.explain(x, w, b, operator="transposed", **keywords)
    raise ValueError(f"op_type is {op_type!r}, should be 'Conv' or 'ConvTranspose'")


def convolve(
    compute: Callable[..., Array], residual: ArrayLike | None, activation: Activation | None
) -> Array:
    """Return activation(compute() + residual), where the sum broadcasts as ONNX's Add.

    `compute` takes both as keywords.
    """
    if residual is None:
        return compute(activation=activation)
    try:
        return compute(activation=activation, residual=residual)
    except ShapeError:
        # cyconv adds what has the result's shape. If that was not the matter, this raises it again.
        total = compute() + residual
    name, *parameters = (
        (activation,) if activation is None or isinstance(activation, str) else activation
    )
    return total if name is None else _ACTIVATIONS[name](total, *parameters)


# The same as cyconv's, for sums that broadcast.
_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "gelu": _math.gelu,
    "hardsigmoid": lambda x, alpha: _math.hard_sigmoid(x, alpha=alpha),
    "hardswish": _math.hard_swish,
    "leaky_relu": lambda x, alpha: _math.leaky_relu(x, alpha=alpha),
    "relu": _math.relu,
    "relu6": lambda x: _math.clip(x, 0, 6),
    "sigmoid": _math.sigmoid,
    "silu": _math.silu,
    "tanh": np.tanh,
}
