"""The arrays of a call, and what kernels ask of them: native dtype, alignment, element strides.

Arrays are NumPy's; those of CuPy pass as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arguments import Activation
from .devices import namespace, on_gpu
from .errors import DTypeError

Array = np.ndarray[Any, np.dtype[Any]]
Strides = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

# Which of x, w and y each operator writes.
RESULT = {"fwd": "y", "dx": "x", "dw": "w"}

NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def as_array(name: str, value: Any) -> Array:
    """Turn an argument into a plain NumPy array without a copy where that is possible.

    A CuPy array stays one.

    Takes what NumPy takes: arrays, anything with ``__array__`` or ``__array_interface__``, nested
    sequences; and anything on the CPU that offers DLPack.
    """
    if type(value) is np.ndarray or on_gpu(value):
        return value  # type: ignore[no-any-return]
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be an array, not {value!r}")
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} cannot be turned into an array: {error}") from error


def result_dtype(**operands: Array | None) -> np.dtype[Any]:
    """Promote the operands' dtypes as NumPy does, to a float dtype in native byte order.

    Raises
    ------
    DTypeError
        If the result would not be float16, bfloat16, float32 or float64.
    """
    given = {name: array for name, array in operands.items() if array is not None}
    for name, array in given.items():
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            advice = "; convolve the real and imaginary parts" if array.dtype.kind == "c" else ""
            raise DTypeError(
                f"{name} has dtype {array.dtype}, which convolution does not take{advice}"
            )
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            raise DTypeError(
                f"{name} has dtype {array.dtype}; the widest that convolution takes is float64"
            )
    dtype = np.result_type(*(array.dtype for array in given.values()))
    if dtype.name not in NAMES:
        listed = ", ".join(f"{name} ({array.dtype})" for name, array in given.items())
        raise DTypeError(
            f"{listed} are all integer; convert one to a float dtype, as {next(iter(given))}"
            ".astype(np.float32)"
        )
    return dtype.newbyteorder("=")


def is_ready(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether kernels can use an operand where it lies."""
    if on_gpu(array):
        return array.dtype == dtype and not any(n % array.itemsize for n in array.strides)
    return array.dtype == dtype and array.flags.aligned and array.dtype.isnative


def takes_result(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], inputs: tuple[Array | None, ...]
) -> bool:
    """Whether kernels can write into `out` as it is: contiguous, and apart from the inputs."""
    xp = namespace(inputs[0])
    return (
        type(out) is xp.ndarray
        and out.shape == shape
        and out.dtype == dtype
        and (out.flags.carray if xp is np else out.flags.c_contiguous)
        and not any(a is not None and xp.may_share_memory(out, a) for a in inputs)
    )


def element_strides(array: Array, layout: str) -> tuple[int, ...]:
    """Strides in elements, ordered (first axis, channel, spatial axes)."""
    size = array.itemsize
    first, *rest = (stride // size for stride in array.strides)
    if layout == "nchw":
        return (first, *rest)
    return (first, rest[-1], *rest[:-1])


def contiguous_strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides of a new array, ordered as `element_strides` orders them."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * max(size, 1))
    first, *rest = reversed(strides)
    if layout == "nchw":
        return (first, *rest)
    return (first, rest[-1], *rest[:-1])


class Operands(NamedTuple):
    """The arrays of one call, of which x, w or y is the result, and what is done to that last."""

    x: Array
    w: Array
    y: Array
    bias: Array | None
    residual: Array | None = None
    activation: Activation | None = None

    def result(self, op: str) -> Array:
        """Return the array that the operator writes."""
        return {"y": self.y, "x": self.x, "w": self.w}[RESULT[op]]

    def with_result(self, op: str, array: Array) -> Operands:
        """Put another array in the result's place."""
        return self.with_arrays({RESULT[op]: array})

    def with_arrays(self, arrays: dict[str, Array]) -> Operands:
        """Put other arrays in the places of these names."""
        return self._replace(**arrays)  # type: ignore[arg-type]

    def strides(self, layout: str) -> Strides:
        """Element strides of x, w and y."""
        return (
            element_strides(self.x, layout),
            element_strides(self.w, layout),
            element_strides(self.y, layout),
        )
