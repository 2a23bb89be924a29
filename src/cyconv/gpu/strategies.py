"""The strategies of the GPU, in the order in which ``auto`` considers them."""

from __future__ import annotations

from . import activations, depthwise, direct, im2col, implicit_gemm, pooling, sums
from .base import Strategy
from .depthwise import Depthwise
from .direct import Direct
from .im2col import Im2col
from .implicit_gemm import ImplicitGemm
from .module import Kernel

DIRECT = Direct()
GPU: tuple[Strategy, ...] = (Depthwise(), ImplicitGemm(), Im2col(), DIRECT)

# Every instantiation that can be launched: what is compiled as a proof, ahead of any launch.
KERNELS: tuple[Kernel, ...] = (
    *activations.KERNELS,
    *depthwise.KERNELS,
    *direct.KERNELS,
    *im2col.KERNELS,
    *implicit_gemm.KERNELS,
    *pooling.KERNELS,
    *sums.KERNELS,
)
