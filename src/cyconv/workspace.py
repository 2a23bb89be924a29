"""Scratch memory, reused by each thread and released on request."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

Scratch = np.ndarray[Any, np.dtype[np.uint8]]

_LINE = 64
_NOTHING: Scratch = np.empty(0, np.uint8)


class _Holder:
    """The scratch that one thread keeps between calls."""

    def __init__(self) -> None:
        self.buffer: Scratch | None = None


_local = threading.local()
_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
_lock = threading.Lock()


def _holder() -> _Holder:
    try:
        holder: _Holder = _local.holder
    except AttributeError:
        holder = _local.holder = _Holder()
        with _lock:
            _holders.add(holder)
    return holder


def aligned_empty(nbytes: int) -> Scratch:
    """Allocate bytes that begin at a cache line, uninitialised."""
    raw = np.empty(nbytes + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + nbytes]


def take(nbytes: int) -> Scratch:
    """Take at least `nbytes` bytes that begin at a cache line, uninitialised.

    The buffer is out of its holder until `give` puts it back, so that a call made from a destructor
    or a signal handler in the middle of another gets its own.
    """
    if nbytes == 0:
        return _NOTHING
    holder = _holder()
    buffer, holder.buffer = holder.buffer, None
    if buffer is None or buffer.size < nbytes:
        buffer = aligned_empty(nbytes)
    return buffer


def give(buffer: Scratch) -> None:
    """Keep a buffer from `take` for this thread's next call."""
    if buffer is not _NOTHING:
        _holder().buffer = buffer


def held_nbytes() -> int:
    """Bytes of scratch that threads keep for their next calls."""
    with _lock:
        return sum(h.buffer.size for h in _holders if h.buffer is not None)


def release() -> None:
    """Let every thread's idle scratch go."""
    with _lock:
        for holder in _holders:
            holder.buffer = None
