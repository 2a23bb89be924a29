"""`prepare`: a convolution whose weights are packed once, for inference."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arguments, calls, request
from .binding import bind, natural_strides
from .devices import refuse_gpu
from .errors import DTypeError
from .explanation import Explanation, explained
from .operands import NAMES, Array, as_array, element_strides, result_dtype
from .packings import Packings
from .request import Request
from .settings import check_strategy, check_threads

_OPERATORS = ("forward", "transposed")
_DEFAULTS = {
    "operator": "forward", "stride": 1, "padding": 0, "dilation": 1, "groups": 1,
    "output_padding": 0, "layout": "channels_first", "activation": None, "strategy": None,
    "threads": None,
}  # fmt: skip


class Prepared:
    """A convolution with its weights, to be called on images again and again.

    Made by `prepare`. It owns copies of the weights and the bias, so it never is out of date, and
    packs the weights for an image size when it first meets one; sizes share what is packed alike.
    Threads may call it at once. It can be pickled and copied, and packs anew then.

    Parameters
    ----------
    w, bias : numpy.ndarray
        Copies, which it owns; the bias may be None.
    parameters : dict of str to object
        The keywords of `prepare`.
    input_shape : tuple of int or None
        Of images to pack for at once.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the results.
    nbytes : int
        Bytes of weights, bias and all that is packed.
    strategies : dict of tuple to str
        The shapes that were met, and the strategy that each takes.
    """

    def __init__(
        self, w: Array, bias: Array | None, parameters: dict[str, Any], input_shape: Any
    ) -> None:
        self._w, self._bias, self._parameters = w, bias, parameters
        self.dtype = result_dtype(w=w, bias=bias)
        # Half types are computed in float32: the weights are widened once.
        wide = np.float32 if self.dtype.itemsize == 2 else self.dtype
        self._ready = w if w.dtype == wide else w.astype(wide)
        self._packings = Packings()
        self._memory: calls.Memory = {}
        self._kind = parameters["operator"]
        self._sizes = () if self._kind == "forward" else (parameters["output_padding"], None)
        self._raw: request.Raw = tuple(
            parameters[name]
            for name in (
                "stride", "padding", "dilation", "groups", "layout", "strategy", "threads",
                "activation",
            )
        )  # fmt: skip
        if input_shape is not None:
            self._pack(input_shape)

    def __call__(self, x: Any, residual: Any = None, *, out: Array | None = None) -> Array:
        """Convolve.

        Parameters
        ----------
        x : array_like
            Of the channels and the number of axes that the weights ask for.
        residual, out
            As in `conv_forward`.

        Returns
        -------
        numpy.ndarray
            What the function of the same parameters gives; another strategy may be chosen, as
            packing costs nothing. A `Tensor` gives a tensor, through which gradients flow to x.

        Raises
        ------
        ShapeError
            If x or the residual does not fit.
        DTypeError
            If the result would not be of `dtype`.
        """
        return calls.run(
            self._kind, None, x, self._w, self._bias, residual, self._sizes, self._raw, out,
            lambda: self._check(x, residual), self._memory, self._packings,
        )  # fmt: skip

    def _check(self, x: Any, residual: Any) -> Request:
        if self._kind == "forward":
            checked = request.forward(x, self._w, self._bias, None, self._raw, residual)
        else:
            padding = self._parameters["output_padding"]
            checked = request.transposed(
                x, self._w, self._bias, padding, None, None, self._raw, residual
            )
        if checked.dtype != self.dtype:
            raise DTypeError(
                f"the result would be {checked.dtype}, the weights were prepared for {self.dtype}: "
                "convert x and residual, or prepare other weights"
            )
        return checked._replace(w=self._ready)

    def explain(self, x: Any) -> Explanation:
        """Tell which strategy a call on `x` takes, and why; packing is counted as free.

        Parameters
        ----------
        x : array_like, or tuple of int
            An image, or the shape of a contiguous one.

        Returns
        -------
        Explanation

        Raises
        ------
        ShapeError, DTypeError
            If the call would raise it.
        """
        is_shape = isinstance(x, tuple)
        checked = self._check(np.broadcast_to(np.zeros((), self.dtype), x) if is_shape else x, None)
        problem = checked.problem
        of_x, of_w, of_y = natural_strides(problem)
        if checked.x is not None and not is_shape:
            of_x = element_strides(checked.x, problem.layout)
        if checked.y is not None and not is_shape:
            of_y = element_strides(checked.y, problem.layout)
        return explained(problem, checked.settings, (of_x, of_w, of_y), prepared=True)

    def _pack(self, input_shape: Any) -> None:
        """Choose and pack for contiguous images of a shape."""
        ndim = self._w.ndim - 2
        if not hasattr(input_shape, "__len__") or len(input_shape) not in (ndim + 1, ndim + 2):
            raise TypeError(
                f"input_shape must be a tuple of {ndim + 2} integers, or without a batch"
            )
        shape = arguments.shape_of("input_shape", input_shape, len(input_shape))
        checked = self._check(np.broadcast_to(np.zeros((), self.dtype), shape), None)
        settings = checked.settings
        if settings.strategy == "profile":  # there is no data to measure with
            settings = settings._replace(strategy="auto")
        bound = bind(checked.problem, settings, natural_strides(checked.problem), prepared=True)
        self._packings.of(bound, self._ready)

    @property
    def strategies(self) -> dict[tuple[int, ...], str]:
        """The shapes that were met, and the strategy that each takes."""
        return {key[2]: call.bound.algorithm.name for key, call in dict(self._memory).items()}

    @property
    def nbytes(self) -> int:
        """Bytes of weights, bias and all that is packed."""
        own = {id(a): a.nbytes for a in (self._w, self._ready, self._bias) if a is not None}
        return sum(own.values()) + self._packings.nbytes

    def __repr__(self) -> str:
        parameters = {k: v for k, v in self._parameters.items() if v != _DEFAULTS[k]}
        said = "".join(f", {name}={value!r}" for name, value in parameters.items())
        strategies = ", ".join(sorted(set(self.strategies.values()))) or "not called yet"
        return (
            f"<Prepared {NAMES[self.dtype.name]} {self._w.shape}{said}: {strategies}, "
            f"{self.nbytes:,} bytes>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, (self._w, self._bias, self._parameters, None)


def prepare(
    w: Any,
    bias: Any = None,
    *,
    operator: str = "forward",
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    output_padding: Any = 0,
    layout: str = "channels_first",
    activation: str | tuple[str, float] | None = None,
    strategy: str | None = None,
    threads: int | None = None,
    input_shape: Any = None,
) -> Prepared:
    """Pack weights for many convolutions.

    Parameters
    ----------
    w, bias
        As in `conv_forward`, or in `conv_transpose`; copied. `w` must be floating.
    operator : {"forward", "transposed"}
    stride, padding, dilation, groups, layout, activation, strategy, threads
        As in `conv_forward`.
    output_padding
        As in `conv_transpose`.
    input_shape : tuple of int, optional
        Packs at once for contiguous images of this shape; otherwise the first call does.

    Returns
    -------
    Prepared
        ``layer(x)``, or ``layer(x, residual, out=out)``.

    Raises
    ------
    ValueError, TypeError, DTypeError, ShapeError
        If a parameter is wrong. What depends on the image is checked by the calls.
    UnsupportedError
        If `w` or `bias` is a CuPy array.

    Notes
    -----
    ``implicit_gemm`` keeps panels, about as large as the weights; ``winograd`` transformed
    filters, 1.3 to 4 times as large. The other strategies take weights as they lie. Settings of
    `config` count at each call. Weights that are not all finite are not packed.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> w = np.ones((8, 4, 3, 3), np.float32)
    >>> layer = cyconv.prepare(w, padding=1, activation="relu")
    >>> layer(np.ones((1, 4, 16, 16), np.float32)).shape
    (1, 8, 16, 16)
    """
    if operator not in _OPERATORS:
        raise ValueError(f"operator must be one of {', '.join(_OPERATORS)}, not {operator!r}")
    for name, value in (("w", w), ("bias", bias)):
        refuse_gpu("prepare", name, value)
    w = as_array("w", w)
    ndim = request.spatial_axes("w", w.shape, None)
    arguments.parameters(ndim, stride, padding, dilation, groups, layout)
    arguments.activation_of(activation)
    check_strategy("strategy", strategy)
    check_threads("threads", threads)
    if operator == "forward" and output_padding != 0:
        raise ValueError("output_padding is for operator='transposed'")
    outputs = w.shape[0]
    if operator == "transposed":
        outputs = groups * w.shape[1 if arguments.layout_of(layout, ndim) == "nchw" else -1]
    bias = request.check_bias(bias, outputs)
    return Prepared(
        _copied(w, result_dtype(w=w)),
        None if bias is None else _copied(bias, result_dtype(w=w, bias=bias)),
        {
            "operator": operator, "stride": stride, "padding": padding, "dilation": dilation,
            "groups": groups, "output_padding": output_padding, "layout": layout,
            "activation": activation, "strategy": strategy, "threads": threads,
        },
        input_shape,
    )  # fmt: skip


def _copied(array: Array, dtype: Any) -> Array:
    copy = np.array(array, dtype, order="C")
    copy.flags.writeable = False
    return copy
