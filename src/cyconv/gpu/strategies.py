"""The strategies of the GPU, in the order in which ``auto`` considers them."""

from __future__ import annotations

from . import direct, sums
from .base import Strategy
from .direct import Direct
from .module import Kernel

DIRECT = Direct()
GPU: tuple[Strategy, ...] = (DIRECT,)

# Every instantiation that can be launched: what is compiled as a proof, ahead of any launch.
KERNELS: tuple[Kernel, ...] = (*direct.KERNELS, *sums.KERNELS)
