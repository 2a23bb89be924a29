"""`ConvProblem`: what a convolution is, apart from the numbers in it.

One frozen description serves all three operators. Its string form (``fwd f32 nchw n8 g1 ci64 co96
i56x56 k3x3 s1 p1 d1``) names tests, benchmark rows, measured choices and errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from .errors import ShapeError

OPERATORS = ("fwd", "dx", "dw")
LAYOUTS = ("nchw", "nhwc")
ITEMSIZE = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
COMPUTE_DTYPE: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float32),
    "bf16": np.dtype(np.float32),
}
# Kernels count elements and bytes in signed 64 bits; this leaves room for a few such sums.
_LARGEST = 2**60

_TOKEN = re.compile(r"(bias|ci|co|[ngikspdo])(.*)", re.DOTALL)


@dataclass(frozen=True, eq=True)
class ConvProblem:
    """A convolution problem: operator, sizes, parameters, layout and dtype.

    Parameters
    ----------
    op : {"fwd", "dx", "dw"}
        Forward, data backward (also a transposed convolution) or weight backward.
    batch, c_in, c_out, groups : int
        Channels are those of the forward convolution: ``x`` has `c_in`, ``y`` has `c_out`.
    in_size, kernel, stride, dilation : tuple of int
        One entry per spatial axis, 1 to 3 of them.
    padding : tuple of (int, int)
        Zeros before and after each axis.
    out_size : tuple of int, optional
        Spatial size of ``y``, by default ``(in + lo + hi - K) // stride + 1`` with the effective
        kernel ``K = dilation * (kernel - 1) + 1``. The gradients also take less than that: a
        transposed convolution whose output padding reaches the stride needs it.
    has_bias : bool
        A bias is added to the result (not for "dw").
    layout : {"nchw", "nhwc"}
        Channels first or last, for any rank.
    dtype : {"f32", "f64", "f16", "bf16"}

    Raises
    ------
    ShapeError
        If an output size is below 1, a size is negative or the element count overflows.
    ValueError
        If a parameter is out of range.

    Examples
    --------
    >>> p = ConvProblem.parse("fwd f32 nchw n8 g1 ci64 co96 i56x56 k3x3 s1 p1 d1")
    >>> p.out_size
    (56, 56)
    >>> str(p)
    'fwd f32 nchw n8 g1 ci64 co96 i56x56 k3x3 s1 p1 d1'
    """

    op: str
    batch: int
    c_in: int
    c_out: int
    groups: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    has_bias: bool = False
    layout: str = "nchw"
    dtype: str = "f32"
    out_size: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every field and fill in `out_size`."""
        _one_of("op", self.op, OPERATORS)
        _one_of("layout", self.layout, LAYOUTS)
        _one_of("dtype", self.dtype, tuple(ITEMSIZE))
        ndim = len(self.in_size)
        if not 1 <= ndim <= 3:
            raise ShapeError(f"in_size has {ndim} axes; convolution has 1 to 3 spatial axes")
        for name in ("kernel", "stride", "padding", "dilation"):
            if len(getattr(self, name)) != ndim:
                raise ShapeError(f"{name} has {len(getattr(self, name))} axes, in_size has {ndim}")
        _at_least("batch", (self.batch,), 0)
        _at_least("c_in", (self.c_in,), 0)
        _at_least("c_out", (self.c_out,), 0)
        _at_least("in_size", self.in_size, 0)
        _at_least("groups", (self.groups,), 1)
        _at_least("stride", self.stride, 1)
        _at_least("dilation", self.dilation, 1)
        _at_least("padding", (p for pair in self.padding for p in pair), 0)
        _at_least("kernel", self.kernel, 1, ShapeError)
        for name in ("c_in", "c_out"):
            if getattr(self, name) % self.groups:
                raise ShapeError(
                    f"groups={self.groups} does not divide {name}={getattr(self, name)}"
                )
        if self.has_bias and self.op == "dw":
            raise ValueError("has_bias: weight backward has no bias")
        self._check_out_size()
        self._check_overflow()

    def _check_out_size(self) -> None:
        largest = tuple(
            (n + lo + hi - k) // s + 1
            for n, (lo, hi), k, s in zip(
                self.in_size, self.padding, self.effective_kernel, self.stride, strict=True
            )
        )
        for axis, size in enumerate(largest):
            if size < 1:
                raise ShapeError(
                    f"no output along spatial axis {axis}: the input size {self.in_size[axis]} "
                    f"with padding {self.padding[axis]} is smaller than the effective kernel size "
                    f"{self.effective_kernel[axis]} (kernel {self.kernel[axis]}, "
                    f"dilation {self.dilation[axis]})"
                )
        if not self.out_size:
            object.__setattr__(self, "out_size", largest)
        elif self.op == "fwd" and self.out_size != largest:
            raise ShapeError(f"out_size is {self.out_size}, should be {largest}")
        elif len(self.out_size) != len(largest) or not all(
            1 <= size <= most for size, most in zip(self.out_size, largest, strict=True)
        ):
            raise ShapeError(f"out_size is {self.out_size}, should be {largest} or less")
        object.__setattr__(self, "_default_out_size", self.out_size == largest)

    def _check_overflow(self) -> None:
        for name, shape in (("x", self.x_shape), ("w", self.w_shape), ("y", self.y_shape)):
            if prod(max(n, 1) for n in shape) > _LARGEST:
                raise ShapeError(
                    f"{name} of shape {shape} has too many elements: {self._parameters()}"
                )
        spans = (
            n + lo + hi + k * s
            for n, (lo, hi), k, s in zip(
                self.in_size, self.padding, self.effective_kernel, self.stride, strict=True
            )
        )
        if max(spans) > _LARGEST:
            raise ShapeError(f"sizes are too large: {self._parameters()}")

    def _parameters(self) -> str:
        return (
            f"in_size={self.in_size}, kernel={self.kernel}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}"
        )

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.in_size)

    @property
    def effective_kernel(self) -> tuple[int, ...]:
        """Extent of the dilated kernel, ``dilation * (kernel - 1) + 1`` per axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """Native dtype in which kernels read and write: float32 for the half types."""
        return COMPUTE_DTYPE[self.dtype]

    def _shape(self, first: int, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
        if self.layout == "nchw":
            return (first, channels, *spatial)
        return (first, *spatial, channels)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of ``x`` and ``dx``."""
        return self._shape(self.batch, self.c_in, self.in_size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of ``w`` and ``dw``."""
        return self._shape(self.c_out, self.c_in // self.groups, self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of ``y`` and ``dy``."""
        return self._shape(self.batch, self.c_out, self.out_size)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of what the operator gives."""
        return {"fwd": self.y_shape, "dx": self.x_shape, "dw": self.w_shape}[self.op]

    @property
    def elements(self) -> dict[str, int]:
        """Element counts of ``"x"``, ``"w"`` and ``"y"``."""
        return {"x": prod(self.x_shape), "w": prod(self.w_shape), "y": prod(self.y_shape)}

    @property
    def macs(self) -> int:
        """Multiply-adds, padding counted: ``n * c_out * out * c_in / g * k``, for any operator."""
        return (
            self.batch
            * self.c_out
            * prod(self.out_size)
            * (self.c_in // self.groups)
            * prod(self.kernel)
        )

    @property
    def flop(self) -> int:
        """Floating-point operations, two per multiply-add."""
        return 2 * self.macs

    @property
    def work(self) -> int:
        """Measure that ``auto`` compares with the minimum work.

        The multiply-adds forward; for the gradients ``n * c_in * in * c_out / g * k``.
        """
        if self.op == "fwd":
            return self.macs
        return (
            self.batch
            * self.c_in
            * prod(self.in_size)
            * (self.c_out // self.groups)
            * prod(self.kernel)
        )

    @property
    def terms(self) -> int:
        """Products summed into one element of the result, and one more for a bias."""
        taps = prod(self.kernel)
        products = {
            "fwd": self.c_in // self.groups * taps,
            "dx": self.c_out // self.groups * taps,
            "dw": self.batch * prod(self.out_size),
        }[self.op]
        return products + self.has_bias

    @cached_property
    def _text(self) -> str:
        fields = [
            self.op,
            self.dtype,
            self.layout,
            f"n{self.batch}",
            f"g{self.groups}",
            f"ci{self.c_in}",
            f"co{self.c_out}",
            "i" + "x".join(map(str, self.in_size)),
            "k" + "x".join(map(str, self.kernel)),
            "s" + _joined(self.stride),
            "p" + _joined([lo if lo == hi else f"{lo}:{hi}" for lo, hi in self.padding]),
            "d" + _joined(self.dilation),
        ]
        if not getattr(self, "_default_out_size"):  # noqa: B009 - set by __post_init__, not a field
            fields.append("o" + "x".join(map(str, self.out_size)))
        if self.has_bias:
            fields.append("bias")
        return " ".join(fields)

    def __str__(self) -> str:
        return self._text

    @classmethod
    def parse(cls, text: str) -> ConvProblem:
        """Read the string form back: ``ConvProblem.parse(str(p)) == p``.

        Parameters
        ----------
        text : str
            Tokens in any order: an operator (default ``fwd``), a dtype (``f32``), a layout
            (``nchw``), ``n g ci co i k s p d`` and optionally ``o`` (output size) and ``bias``.
            ``s``, ``p`` and ``d`` (defaults 1, 0, 1) give one number for all axes or ``1x2``;
            asymmetric padding is ``0:1x2:3``.

        Raises
        ------
        ValueError
            For a token that is unknown, doubled, missing or not a number.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a string, not {text!r}")
        fields: dict[str, str] = {}
        for token in text.split():
            for name, names in (("op", OPERATORS), ("layout", LAYOUTS), ("dtype", ITEMSIZE)):
                if token in names:
                    key, value = name, token
                    break
            else:
                match = _TOKEN.fullmatch(token)
                if match is None or (match[1] == "bias") == bool(match[2]):
                    raise ValueError(f"unknown token {token!r} in problem {text!r}")
                key, value = match[1], match[2]
            if key in fields:
                raise ValueError(f"{key} is given twice in problem {text!r}")
            fields[key] = value
        missing = [key for key in ("n", "ci", "co", "i", "k") if key not in fields]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing in problem {text!r}")
        try:
            return cls._from_fields(fields)
        except ShapeError:
            raise
        except ValueError as error:
            raise ValueError(f"problem {text!r}: {error}") from None

    @classmethod
    def _from_fields(cls, fields: dict[str, str]) -> ConvProblem:
        in_size = _numbers(fields["i"])
        ndim = len(in_size)
        pads = [part.split(":") for part in fields.get("p", "0").split("x")]
        if any(len(pad) > 2 for pad in pads):
            raise ValueError(f"padding {fields['p']!r} should be lo:hi per axis")
        return cls(
            op=fields.get("op", "fwd"),
            batch=int(fields["n"]),
            c_in=int(fields["ci"]),
            c_out=int(fields["co"]),
            groups=int(fields.get("g", "1")),
            in_size=in_size,
            kernel=_numbers(fields["k"]),
            stride=_spread(_numbers(fields.get("s", "1")), ndim),
            padding=_spread(tuple((int(pad[0]), int(pad[-1])) for pad in pads), ndim),
            dilation=_spread(_numbers(fields.get("d", "1")), ndim),
            has_bias="bias" in fields,
            layout=fields.get("layout", "nchw"),
            dtype=fields.get("dtype", "f32"),
            out_size=_numbers(fields["o"]) if "o" in fields else (),
        )

    def tune_key(self) -> str:
        """Return the key of a measured choice: the string with batch and sizes rounded up.

        The batch is rounded to a power of two, and a spatial size above 16 to three significant
        bits, so that neighbouring batches and image sizes share one measurement.
        """
        sizes = "x".join(str(_rounded(n)) for n in self.in_size)
        exact = " ".join(t for t in str(self).split() if t[0] not in "nio" or t in LAYOUTS)
        return f"{exact} n{_power_of_two(self.batch)} i{sizes}"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _at_least(
    name: str, values: Iterable[int], minimum: int, error: type[ValueError] = ValueError
) -> None:
    for value in values:
        if value < minimum:
            raise error(f"{name} must be at least {minimum}, not {value}")


def _joined(values: Iterable[object]) -> str:
    """One text if all are alike, else the texts with x between."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else "x".join(texts)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def _spread(values: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    return values * ndim if len(values) == 1 else values


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


def _rounded(n: int) -> int:
    """Round up to three significant bits; exact up to 16."""
    if n <= 16:
        return n
    step = 1 << (n.bit_length() - 3)
    return ceil(n / step) * step
