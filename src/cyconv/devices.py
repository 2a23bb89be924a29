"""Where arrays live: in the processor's memory as NumPy's, or on a GPU as CuPy's.

CuPy is looked for, never imported: before a user has imported it, there are no arrays of its.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from .errors import GpuMemoryError, UnsupportedError


def cupy() -> Any:
    """Return the module that the user has imported, or None."""
    return sys.modules.get("cupy")


def on_gpu(value: Any) -> bool:
    """Whether a value is a CuPy array."""
    module = sys.modules.get("cupy")
    return module is not None and isinstance(value, getattr(module, "ndarray", ()))


def namespace(array: Any) -> Any:
    """Return the module that an array is of, ``numpy`` or ``cupy``."""
    return cupy() if on_gpu(array) else np


def on_host(array: Any) -> Any:
    """Return an array in the processor's memory: a copy of what is on a GPU."""
    return array.get() if on_gpu(array) else np.asarray(array)


def beside(array: Any, value: Any) -> Any:
    """Return a value, of the processor's memory, as an array where another array lies."""
    with entered(array) as module:
        return module.asarray(value)


def special(name: str, x: Any, **keywords: Any) -> Any:
    """Apply a function of ``scipy.special``, or on a GPU of ``cupyx.scipy.special``."""
    home = "cupyx.scipy.special" if on_gpu(x) else "scipy.special"
    return getattr(import_module(home), name)(x, **keywords)


def check_places(**operands: Any) -> None:
    """Check that the operands of a call are together: all NumPy's, or all on one GPU.

    Raises
    ------
    TypeError
        If some are CuPy arrays and others are not.
    ValueError
        If they are on two GPUs.
    """
    given = {name: value for name, value in operands.items() if value is not None}
    on = {name: value.device.id for name, value in given.items() if on_gpu(value)}
    if not on:
        return
    first, index = next(iter(on.items()))
    for name, value in given.items():
        if name not in on:
            raise TypeError(
                f"{first} is a cupy.ndarray, {name} is a {type(value).__name__}: move one of them "
                "with cupy.asarray or cupy.asnumpy"
            )
        if on[name] != index:
            raise ValueError(
                f"{first} is on GPU {index}, {name} on GPU {on[name]}: all operands must be on one"
            )


def refuse_gpu(what: str, name: str, value: Any) -> None:
    """Raise UnsupportedError for a CuPy array, where there are kernels for the CPU only."""
    if on_gpu(value):
        raise UnsupportedError(f"{name} is a cupy.ndarray; {what} has no kernels for a GPU")


@contextmanager
def entered(array: Any) -> Iterator[Any]:
    """Make an array's device the current one, and give the array's namespace.

    Raises
    ------
    GpuMemoryError
        If the memory of the GPU does not suffice for what is done inside.
    """
    if not on_gpu(array):
        yield np
        return
    module = cupy()
    with array.device:
        try:
            yield module
        except module.cuda.memory.OutOfMemoryError as error:
            raise GpuMemoryError(f"GPU {array.device.id} has too little memory: {error}") from error
