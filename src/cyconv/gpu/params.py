"""`CONVP`: how kernels are told about a problem.

The dtype mirrors ``struct ConvP`` of ``src/prims.cuh``, which says what the fields are. Kernels
take it by value, as a NumPy array of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..operands import Array
from ..problem import ConvProblem

Triple = tuple[int, int, int]

# The C++ names of the element types, and of the types in which products are summed.
TYPES = {"f32": "float", "f64": "double", "f16": "half_t", "bf16": "bfloat16_t"}
SUMS: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.float64 if name == "f64" else np.float32) for name in TYPES
}
# Of ``direct``: float32 is summed in float64.
WIDE: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.float64 if name in ("f32", "f64") else np.float32) for name in TYPES
}

# In the order of the enumeration in prims.cuh.
ACTIVATIONS = (
    "none",
    "relu",
    "relu6",
    "leaky_relu",
    "silu",
    "hardswish",
    "hardsigmoid",
    "sigmoid",
    "tanh",
    "gelu",
)

_DIVISOR = np.dtype([("value", "u4"), ("multiplier", "u4"), ("shift", "u4")])
CONVP = np.dtype(
    [
        *((name, "i8", 5) for name in ("xs", "ws", "ys")),
        ("residual", "i8"),
        ("alpha", "f8"),
        *((name, "i4") for name in ("n", "groups", "ci", "co")),
        *((name, "i4", 3) for name in ("in", "k", "out", "stride", "pad", "dil")),
        *((name, "i4") for name in ("taps", "in_pixels", "out_pixels", "activation", "last")),
        *((name, _DIVISOR, 3) for name in ("by_in", "by_out", "by_k", "by_stride")),
        *((name, _DIVISOR) for name in ("by_ci", "by_co", "by_taps")),
    ],
    align=True,
)

# Kernels count pixels, terms and channels in signed 32 bits.
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a problem as kernels see them: three spatial axes, channels of one group.

    `pad` is what lies before an axis, and may be negative: a phase can begin inside the image.
    """

    n: int
    groups: int
    ci: int
    co: int
    in_size: Triple
    kernel: Triple
    out_size: Triple
    stride: Triple
    pad: Triple
    dilation: Triple

    @classmethod
    def of(cls, problem: ConvProblem) -> Sizes:
        """Take the sizes from a problem; a step along an axis of one element is one."""
        taps = zip(problem.dilation, problem.kernel, strict=True)
        dilation = [d if k > 1 else 1 for d, k in taps]
        # Data backward divides by its stride even where there is but one output.
        stride = [
            s if n > 1 or problem.op == "dx" else 1
            for s, n in zip(problem.stride, problem.out_size, strict=True)
        ]
        return cls(
            problem.batch,
            problem.groups,
            problem.c_in // problem.groups,
            problem.c_out // problem.groups,
            three(problem.in_size, 1),
            three(problem.kernel, 1),
            three(problem.out_size, 1),
            three(stride, 1),
            three([low for low, _ in problem.padding], 0),
            three(dilation, 1),
        )

    @classmethod
    def of_image(cls, n: int, channels: int, space: Sequence[int]) -> Sizes:
        """Describe an array of images by itself, as y."""
        one: Triple = (1, 1, 1)
        size = three(space, 1)
        return cls(n, 1, 1, channels, one, one, size, one, (0, 0, 0), one)

    @property
    def taps(self) -> int:
        """Taps of the kernel."""
        return prod(self.kernel)

    @property
    def in_pixels(self) -> int:
        """Pixels of x, counted over the batch."""
        return self.n * prod(self.in_size)

    @property
    def out_pixels(self) -> int:
        """Pixels of y, counted over the batch."""
        return self.n * prod(self.out_size)

    @property
    def reach(self) -> int:
        """The largest index along an axis that a kernel computes on its way."""
        images = zip(self.in_size, self.out_size, self.stride, strict=True)
        kernels = zip(self.kernel, self.dilation, self.pad, strict=True)
        return max(
            n + out * step + k * dilation + abs(pad)
            for (n, out, step), (k, dilation, pad) in zip(images, kernels, strict=True)
        )


def three(values: Sequence[int], filler: int) -> Triple:
    """Put what stands for missing axes before the axes that there are."""
    first, second, third = (*(filler,) * (3 - len(values)), *values)
    return first, second, third


def counts_fit(problem: ConvProblem) -> bool:
    """Whether kernels can count the pixels, channels and terms of a problem; if not, halve it."""
    sizes = Sizes.of(problem)
    terms = sizes.taps * max(sizes.ci, sizes.co)
    channels = sizes.groups * max(sizes.ci, sizes.co)
    return max(sizes.in_pixels, sizes.out_pixels, terms, channels) <= MOST


def beyond_reach(problem: ConvProblem) -> str | None:
    """Refuse images whose padded coordinates do not fit signed 32 bits."""
    if Sizes.of(problem).reach <= MOST:
        return None
    return "along an axis, the image with its padding and the kernel's reach exceeds 2**31 cells"


def divisor(value: int) -> tuple[int, int, int]:
    """Return what divides 0 <= n < 2**31 by `value` in kernels: value, multiplier, shift.

    ``n // value == (n * multiplier >> 32) >> shift`` for values above 1: the multiplier is
    ``2**(31 + b) / value`` rounded up, b the bits of ``value - 1``, so that its error times n stays
    below ``2**(31 + b)``.
    """
    if value <= 1:
        return 1, 0, 0
    bits = (value - 1).bit_length()
    return value, -(-(1 << (31 + bits)) // value), bits - 1


def pack(
    sizes: Sizes,
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    ys: tuple[int, ...],
    last: bool = False,
    activation: int = 0,
    alpha: float = 0.0,
    residual: int = 0,
) -> Array:
    """Make the argument of a kernel.

    Parameters
    ----------
    sizes : Sizes
    xs, ws, ys : tuple of int
        Strides in elements over (batch or output channel, channel, spatial axes), as
        `operands.element_strides` gives them for one to three spatial axes.
    last : bool
        Whether channels are the last axis.
    activation : int
        Index into `ACTIVATIONS`.
    alpha : float
        Of leaky_relu and hardsigmoid.
    residual : int
        Bytes from an element of the result to the element that is added to it; 0 for none.

    Returns
    -------
    numpy.ndarray of one CONVP
    """
    packed = np.zeros(1, CONVP)
    record = packed[0]
    for name, strides in (("xs", xs), ("ws", ws), ("ys", ys)):
        record[name] = (*strides[:2], *three(strides[2:], 0))
    record["last"], record["activation"] = last, activation
    record["alpha"], record["residual"] = alpha, residual
    for name in ("n", "groups", "ci", "co", "taps", "in_pixels", "out_pixels"):
        record[name] = getattr(sizes, name)
    for name, values in (
        ("in", sizes.in_size),
        ("k", sizes.kernel),
        ("out", sizes.out_size),
        ("stride", sizes.stride),
        ("pad", sizes.pad),
        ("dil", sizes.dilation),
    ):
        record[name] = values
        if name in ("in", "k", "out", "stride"):
            record[f"by_{name}"] = [divisor(value) for value in values]
    for name in ("ci", "co", "taps"):
        record[f"by_{name}"] = divisor(getattr(sizes, name))
    return packed
