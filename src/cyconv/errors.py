"""The exceptions and the warning that cyconv raises."""

from __future__ import annotations


class CyconvError(Exception):
    """Base of every exception that cyconv raises by itself."""


class ShapeError(CyconvError, ValueError):
    """Shapes or sizes that do not fit together."""


class UnsupportedError(CyconvError, NotImplementedError):
    """A strategy, operator or attribute that does not serve the problem."""


class DTypeError(CyconvError, TypeError):
    """A dtype that convolution does not take."""


class GpuError(CyconvError):
    """A GPU that cannot run a kernel, or a kernel that cannot be compiled for it."""


class GpuMemoryError(GpuError, MemoryError):
    """Too little memory on a GPU."""


class CyconvWarning(UserWarning):
    """Something was ignored or replaced by a default; the result is right."""
