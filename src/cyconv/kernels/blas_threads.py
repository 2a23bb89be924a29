"""The thread count of SciPy's BLAS, set for the length of a call and put back.

The count belongs to the whole process. Calls that overlap in time share it: the first one in
remembers what it was and the last one out restores it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache

from scipy.linalg import cython_blas

# (getter, setter) in the libraries that cython_blas may be linked to; both take or give a C int.
_NAMES = (
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)

_lock = threading.Lock()
_users = 0
_saved = 0


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    # Looking a name up in the module also searches the libraries that it is linked to.
    library = ctypes.CDLL(cython_blas.__file__)
    for getter, setter in _NAMES:
        if hasattr(library, getter) and hasattr(library, setter):
            return getattr(library, getter), getattr(library, setter)
    return None


def name() -> str | None:
    """Return the getter that was found, which tells the BLAS; None for a BLAS without one."""
    functions = _functions()
    return None if functions is None else getattr(functions[0], "__name__", None)


def current() -> int | None:
    """Return the number of threads that BLAS would use now; None if it cannot be asked."""
    functions = _functions()
    return None if functions is None else functions[0]()


class limited_to:  # noqa: N801 - a context manager, read as a phrase
    """Let BLAS use `threads` threads inside a ``with`` block."""

    __slots__ = ("_threads",)

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        """Remember the count if no other block is open, and set it."""
        global _users, _saved
        functions = _functions()
        if functions is None:
            return
        get, set_ = functions
        with _lock:
            now = get()
            if _users == 0:
                _saved = now
            _users += 1
            if now != self._threads:
                set_(self._threads)

    def __exit__(self, *exception: object) -> None:
        """Put the count back when the last block closes."""
        global _users
        functions = _functions()
        if functions is None:
            return
        get, set_ = functions
        with _lock:
            _users -= 1
            if _users == 0 and get() != _saved:
                set_(_saved)
