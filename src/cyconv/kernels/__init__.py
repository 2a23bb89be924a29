"""Compiled kernels: they see sizes, strides and addresses, never settings or problems' owners."""

from ..settings import short_openmp_spin

with short_openmp_spin():
    from . import _direct, _gemm, _geometry, _openmp

__all__ = ["_direct", "_gemm", "_geometry", "_openmp"]
