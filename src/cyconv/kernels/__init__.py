"""Compiled kernels: they see sizes, strides and addresses, never settings or problems' owners."""

from ..settings import short_openmp_spin

with short_openmp_spin():
    from . import (
        _channel_lanes,
        _columns,
        _direct,
        _gemm,
        _geometry,
        _implicit_gemm,
        _openmp,
        _pixel_lanes,
        _run,
        _slide,
        _ukernels,
        _winograd,
    )

__all__ = [
    "_channel_lanes",
    "_columns",
    "_direct",
    "_gemm",
    "_geometry",
    "_implicit_gemm",
    "_openmp",
    "_pixel_lanes",
    "_run",
    "_slide",
    "_ukernels",
    "_winograd",
]
