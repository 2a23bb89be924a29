"""Activations of arrays by themselves: what convolutions apply on the way to memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import devices
from ..operands import NAMES
from .module import Kernel, current_device, launch
from .params import TYPES, Sizes, pack
from .sums import THREADS, blocks_for


def _kernel(dtype: str) -> Kernel:
    return Kernel(("ptx", "prims", "activations"), f"activated<{TYPES[dtype]}>")


KERNELS = tuple(map(_kernel, TYPES))


def activate(x: Any, number: int, alpha: float) -> Any:
    """Apply an activation of `params.ACTIVATIONS`, by its number, to a contiguous array."""
    y = devices.cupy().empty(x.shape, x.dtype)
    nothing = (0,) * 5
    packed = pack(
        Sizes.of_image(1, 1, (1,)), nothing, nothing, nothing, activation=number, alpha=alpha
    )
    blocks = blocks_for(x.size, current_device())
    launch(_kernel(NAMES[x.dtype.name]), blocks, THREADS, (x, y, np.int64(x.size), packed))
    return y
