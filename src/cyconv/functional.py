"""The functions that users call, with their documentation; `calls` does what they say."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arguments, request
from .calls import run
from .devices import entered, on_gpu
from .errors import ShapeError
from .kernels._channel_sums import channel_sums
from .operands import Array, as_array, is_ready, result_dtype
from .settings import resolve


def _forward(
    rank: int | None, x: Any, w: Any, bias: Any, residual: Any, raw: request.Raw, out: Any
) -> Array:
    return run(
        "forward", rank, x, w, bias, residual, (), raw, out,
        lambda: request.forward(x, w, bias, rank, raw, residual),
    )  # fmt: skip


def _transposed(
    rank: int | None,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    sizes: tuple[Any, Any],
    raw: request.Raw,
    out: Any,
) -> Array:
    return run(
        "transposed", rank, x, w, bias, residual, sizes, raw, out,
        lambda: request.transposed(x, w, bias, *sizes, rank, raw, residual),
    )  # fmt: skip


def conv_forward(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    r"""Convolve over one to three spatial axes (cross-correlation: the kernel is not flipped).

    .. math::
        y_{n,o,p} = b_o + \sum_{c,r} x_{n,c,\;p\,s + r\,d - l} \; w_{o,c,r}

    with stride s, dilation d and l zeros of padding before each axis.

    Parameters
    ----------
    x : array_like, shape (N, C_in, *spatial) or (C_in, *spatial)
        Input; the second form has no batch and gives a result without one. In a channels-last
        layout the channels are the last axis. Any strides, byte order and alignment.
    w : array_like, shape (C_out, C_in / groups, *kernel)
        Weights; ``(C_out, *kernel, C_in / groups)`` in a channels-last layout. Their rank tells the
        number of spatial axes.
    bias : array_like, shape (C_out,), optional
    stride, dilation : int or sequence of int
        One number for all axes or one per axis, at least 1.
    padding : int, sequence, or {"valid", "same", "same_lower", "full"}
        Zeros around the image: one number, one per axis, or a (before, after) pair per axis.
        ``"same"`` gives ``ceil(n / stride)`` outputs with the smaller half of the padding before
        (``"same_lower"``: the larger half), ``"full"`` pads K - 1 on both sides,
        where ``K = dilation * (kernel - 1) + 1``.
    groups : int
        Channels are split into this many independent convolutions; C_in groups of one channel are
        a depthwise convolution.
    layout : str
        ``"channels_first"`` (or, as the rank is, ``"NCW"``, ``"NCHW"``, ``"NCDHW"``) or
        ``"channels_last"`` (``"NWC"``, ``"NHWC"``, ``"NDHWC"``). Never guessed from strides.
    strategy : str, optional
        ``"auto"``, ``"profile"`` or a strategy's name; see :doc:`/strategies`.
    activation : str or (str, float), optional
        Applied to each element last, while the result is in the cache: ``"relu"``, ``"relu6"``,
        ``"leaky_relu"``, ``"hardsigmoid"``, ``"hardswish"``, ``"sigmoid"``, ``"silu"``, ``"tanh"``
        or ``"gelu"``; the slope as in ``("leaky_relu", 0.1)``. See :ref:`epilogue`.
    residual : array_like, of the result's shape, optional
        Added before the activation: the result is ``activation(conv + bias + residual)``.
    out : numpy.ndarray, optional
        Where to put the result, of exactly its shape and dtype; may overlap an operand.
    threads : int, optional
        At most this many threads; by default as :doc:`/tuning` says.

    Returns
    -------
    numpy.ndarray, shape (N, C_out, *out)
        ``out = (n + before + after - K) // stride + 1`` per axis. The dtype is NumPy's
        ``result_type`` of x, w, bias and residual: float32 and float64 are computed natively;
        float16 and bfloat16 are summed in float32 and rounded once.

    Raises
    ------
    ShapeError
        If shapes do not fit together or there is no output.
    ValueError, TypeError
        If a parameter has a wrong value or type. The message names it.
    DTypeError
        If all operands are integers, or one is complex or wider than float64.
    UnsupportedError
        If `strategy` refuses the problem under ``config(strict=True)``.

    See Also
    --------
    conv_data_backward, conv_weight_backward : the two gradients.
    explain : why a strategy was chosen.

    Notes
    -----
    ``2 N C_out out C_in / groups k`` floating-point operations. Scratch memory is bounded by
    ``config(workspace_limit=...)``. The GIL is released. With a `Tensor` among the operands this
    and the other functions return a tensor that remembers the call; see :doc:`/autograd`.

    References
    ----------
    .. [1] V. Dumoulin, F. Visin, "A guide to convolution arithmetic for deep learning", 2016.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> cyconv.conv_forward(x, np.ones((1, 1, 3, 3)))
    array([[[[45., 54.],
             [81., 90.]]]])
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _forward(None, x, w, bias, residual, raw, out)


def conv_data_backward(
    dy: Any,
    w: Any,
    input_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    r"""Gradient of a convolution with respect to its input.

    .. math::
        dx_{n,c,i} = \sum_{o,r,p \,:\, p\,s + r\,d - l = i} dy_{n,o,p} \; w_{o,c,r}

    Parameters
    ----------
    dy : array_like, shape (N, C_out, *out) or (C_out, *out)
        Gradient with respect to the output.
    w : array_like, shape (C_out, C_in / groups, *kernel)
        The weights of the forward convolution.
    input_shape : tuple of int
        Shape of the input, batch included where `dy` has one. It settles what a stride leaves
        open: input that no output has seen gets a gradient of zero.
    stride, padding, dilation, groups, layout, strategy, out, threads
        As in `conv_forward`, with the values of the forward call.

    Returns
    -------
    numpy.ndarray, of shape `input_shape`

    Raises
    ------
    ShapeError
        If `dy` is not the shape that the forward call gives for `input_shape`.
    ValueError, TypeError, DTypeError, UnsupportedError
        As in `conv_forward`.

    Notes
    -----
    Only pairs of output and tap that exist are added. ``2 N C_out out C_in / groups k``
    floating-point operations.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> dy = np.ones((1, 1, 2))
    >>> cyconv.conv_data_backward(dy, np.array([[[1.0, 2.0, 3.0]]]), (1, 1, 6), stride=2)
    array([[[1., 2., 4., 2., 3., 0.]]])
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, None)
    return run(
        "data_backward", None, dy, w, None, None, (input_shape,), raw, out,
        lambda: request.data_backward(dy, w, input_shape, None, raw),
    )  # fmt: skip


def conv_weight_backward(
    x: Any,
    dy: Any,
    weight_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    r"""Gradient of a convolution with respect to its weights.

    .. math::
        dw_{o,c,r} = \sum_{n,p} dy_{n,o,p} \; x_{n,c,\;p\,s + r\,d - l}

    Parameters
    ----------
    x : array_like, shape (N, C_in, *spatial) or (C_in, *spatial)
        The input of the forward convolution.
    dy : array_like, shape (N, C_out, *out) or (C_out, *out)
        Gradient with respect to the output.
    weight_shape : tuple of int
        Shape of the weights, ``(C_out, C_in / groups, *kernel)``.
    stride, padding, dilation, groups, layout, strategy, out, threads
        As in `conv_forward`, with the values of the forward call.

    Returns
    -------
    numpy.ndarray, of shape `weight_shape`
        Its dtype is ``result_type(x, dy)``.

    Raises
    ------
    ShapeError
        If `dy` is not the shape that the forward call gives for `x` and `weight_shape`.
    ValueError, TypeError, DTypeError, UnsupportedError
        As in `conv_forward`.

    See Also
    --------
    bias_backward : the gradient of the bias.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> x = np.arange(36.0).reshape(1, 1, 6, 6)
    >>> cyconv.conv_weight_backward(x, np.ones((1, 1, 2, 2)), (1, 1, 3, 3), stride=2)
    array([[[[28., 32., 36.],
             [52., 56., 60.],
             [76., 80., 84.]]]])
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, None)
    return run(
        "weight_backward", None, x, dy, None, None, (weight_shape,), raw, out,
        lambda: request.weight_backward(x, dy, weight_shape, None, raw),
    )  # fmt: skip


def bias_backward(dy: Any, *, layout: str = "channels_first") -> Array:
    """Gradient of a convolution with respect to its bias: dy summed over batch and space.

    Parameters
    ----------
    dy : array_like, shape (N, C_out, *out)
        Gradient with respect to the output, with its batch axis.
    layout : str
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray, shape (C_out,)
        In the dtype of `dy`, summed in float64 and rounded once.

    Raises
    ------
    ShapeError
        If `dy` does not have 3 to 5 axes.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> cyconv.bias_backward(np.ones((2, 3, 4, 4), np.float32))
    array([32., 32., 32.], dtype=float32)
    """
    if hasattr(type(dy), "__cyconv_call__"):
        raw = (1, 0, 1, 1, layout, None, None, None)
        return type(dy).__cyconv_call__("bias_backward", None, dy, None, None, None, (), raw, None)  # type: ignore[no-any-return]
    dy = as_array("dy", dy)
    dtype = result_dtype(dy=dy)
    if not 3 <= dy.ndim <= 5:
        raise ShapeError(f"dy must have 3 to 5 axes, batch included, not {dy.ndim}: {dy.shape}")
    first = arguments.layout_of(layout, dy.ndim - 2) == "nchw"
    if on_gpu(dy):
        from . import gpu

        with entered(dy) as cupy:
            ready = dy if is_ready(dy, dtype) else cupy.array(dy, dtype, order="C")
            return gpu.bias_gradient(ready, "nchw" if first else "nhwc")  # type: ignore[no-any-return]
    threads = resolve("dw", None, None).threads or 1
    with np.errstate(over="ignore"):
        return channel_sums(dy, 1 if first else dy.ndim - 1, threads).astype(dtype)


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "channels_first",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Transposed convolution over one to three spatial axes: data backward, seen as a layer.

    Parameters
    ----------
    x : array_like, shape (N, C_in, *spatial) or (C_in, *spatial)
    w : array_like, shape (C_in, C_out / groups, *kernel)
        ``(C_in, *kernel, C_out / groups)`` in a channels-last layout.
    bias : array_like, shape (C_out,), optional
    stride, dilation : int or sequence of int
    padding : int, sequence, or {"valid", "same", "same_lower", "full"}
        Cut from both sides of the result. With ``"same"`` the result has ``n * stride`` cells: the
        total of K - stride is cut, the smaller half before (``"same_lower"``: the larger half);
        where K < stride, zeros (and the bias) follow at the end.
    output_padding : int or sequence of int
        More cells at the end of each axis, less than the larger of stride and dilation.
    output_size : int or sequence of int, optional
        The result's spatial size instead of `output_padding`.
    groups, layout, strategy, activation, residual, out, threads
        As in `conv_forward`; strategy settings are those of data backward.

    Returns
    -------
    numpy.ndarray, shape (N, C_out, *out)
        ``out = (n - 1) * stride + K + output_padding - before - after`` per axis.

    Raises
    ------
    ShapeError
        If shapes do not fit, there is no output, or `output_size` cannot be had.
    ValueError, TypeError, DTypeError, UnsupportedError
        As in `conv_forward`.

    References
    ----------
    .. [1] V. Dumoulin, F. Visin, "A guide to convolution arithmetic for deep learning", 2016,
       section 4.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> x, w = np.ones((1, 1, 2)), np.array([[[1.0, 2.0, 3.0]]])
    >>> cyconv.conv_transpose(x, w, stride=2, padding=1, output_padding=1)
    array([[[2., 4., 2., 3.]]])
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _transposed(None, x, w, bias, residual, (output_padding, output_size), raw, out)


def conv1d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Convolve over one spatial axis; `conv_forward` documents parameters, result and errors.

    Parameters
    ----------
    x : array_like, shape (N, C_in, W), or without N
    w : array_like, shape (C_out, C_in / groups, k)
    bias : array_like, shape (C_out,), optional
    stride, padding, dilation, groups, layout, strategy, activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 3 axes; and all that `conv_forward` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _forward(1, x, w, bias, residual, raw, out)


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Convolve over two spatial axes; `conv_forward` documents parameters, result and errors.

    Parameters
    ----------
    x : array_like, shape (N, C_in, H, W), or without N
    w : array_like, shape (C_out, C_in / groups, kh, kw)
    bias : array_like, shape (C_out,), optional
    stride, padding, dilation, groups, layout, strategy, activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 4 axes; and all that `conv_forward` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _forward(2, x, w, bias, residual, raw, out)


def conv3d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Convolve over three spatial axes; `conv_forward` documents parameters, result and errors.

    Parameters
    ----------
    x : array_like, shape (N, C_in, D, H, W), or without N
    w : array_like, shape (C_out, C_in / groups, kd, kh, kw)
    bias : array_like, shape (C_out,), optional
    stride, padding, dilation, groups, layout, strategy, activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 5 axes; and all that `conv_forward` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _forward(3, x, w, bias, residual, raw, out)


def conv_transpose1d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Transposed convolution over one spatial axis; `conv_transpose` documents the rest.

    Parameters
    ----------
    x : array_like, shape (N, C_in, W), or without N
    w : array_like, shape (C_in, C_out / groups, k)
    bias : array_like, shape (C_out,), optional
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `conv_transpose`.
    activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 3 axes; and all that `conv_transpose` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _transposed(1, x, w, bias, residual, (output_padding, output_size), raw, out)


def conv_transpose2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Transposed convolution over two spatial axes; `conv_transpose` documents the rest.

    Parameters
    ----------
    x : array_like, shape (N, C_in, H, W), or without N
    w : array_like, shape (C_in, C_out / groups, kh, kw)
    bias : array_like, shape (C_out,), optional
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `conv_transpose`.
    activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 4 axes; and all that `conv_transpose` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _transposed(2, x, w, bias, residual, (output_padding, output_size), raw, out)


def conv_transpose3d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    output_size: Any = None,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    strategy: str | None = None,
    activation: str | tuple[str, float] | None = None,
    residual: Any = None,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Transposed convolution over three spatial axes; `conv_transpose` documents the rest.

    Parameters
    ----------
    x : array_like, shape (N, C_in, D, H, W), or without N
    w : array_like, shape (C_in, C_out / groups, kd, kh, kw)
    bias : array_like, shape (C_out,), optional
    stride, padding, output_padding, output_size, dilation, groups, layout, strategy
        As in `conv_transpose`.
    activation, residual, out, threads
        As in `conv_forward`.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    ShapeError
        If `w` does not have 5 axes; and all that `conv_transpose` raises.
    """
    raw = (stride, padding, dilation, groups, layout, strategy, threads, activation)
    return _transposed(3, x, w, bias, residual, (output_padding, output_size), raw, out)
