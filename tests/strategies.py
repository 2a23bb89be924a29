"""The strategies that tests run through."""

from __future__ import annotations

import os

import cyconv

POLICIES = ("auto", "profile", "autotune")
# Compiled once for all processors: a forced instruction set does not change them.
SAME_ON_EVERY_ISA = ("direct", "fft", "im2col", "pointwise", "reference")


def named_strategies():
    """The algorithms that can be asked for by name; under CYCONV_ISA, those that depend on it."""
    forced = "CYCONV_ISA" in os.environ
    apart = POLICIES + (SAME_ON_EVERY_ISA if forced else ())
    return tuple(name for name in cyconv.strategies() if name not in apart)
