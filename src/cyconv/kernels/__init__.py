"""Compiled kernels: they see sizes, strides and addresses, never settings or problems' owners."""

from ..settings import short_openmp_spin

with short_openmp_spin():
    from . import (
        _depthwise,
        _direct,
        _gemm,
        _geometry,
        _implicit_gemm,
        _openmp,
        _ukernels,
        _winograd,
    )

__all__ = [
    "_depthwise",
    "_direct",
    "_gemm",
    "_geometry",
    "_implicit_gemm",
    "_openmp",
    "_ukernels",
    "_winograd",
]
