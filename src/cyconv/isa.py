"""Which instruction set the microkernels use: the processor's best, or ``CYCONV_ISA``."""

from __future__ import annotations

from functools import cache

from .kernels import _ukernels
from .settings import environment_isa


@cache
def settle() -> None:
    """Select what the environment forces, at the first plan that is made."""
    forced = environment_isa(_ukernels.names())
    if forced is not None:
        _ukernels.select(forced)


def isas() -> tuple[str, ...]:
    """Return the instruction sets that this processor can run, best first.

    Any of them may be forced with the environment variable ``CYCONV_ISA``.

    Returns
    -------
    tuple of str
        Of ``"avx512"``, ``"avx2"`` and ``"baseline"`` (what the compiler targets by default: SSE2
        on x86-64, NEON on aarch64).
    """
    return _ukernels.names()


def active_isa() -> str:
    """Return the instruction set that the microkernels use."""
    settle()
    return _ukernels.active_name()
