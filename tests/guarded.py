"""Arrays that end, or begin, exactly where accessible memory does.

An access beyond the guarded end is a fault at once, and so is a write to a frozen array: the
process dies, so use these in a process of their own.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

SIDES = ("end", "start")
_NONE, _READ = 0, 1  # PROT_NONE, PROT_READ
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def _protect(address, nbytes, protection):
    if _libc.mprotect(address, nbytes, protection):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def empty(shape, dtype, side="end"):
    """A contiguous array, all bits set (NaN), between two pages that may not be touched.

    It lies flush against one of them: at the "end" no byte lies between, at the "start" neither.
    The memory goes with the array and its views.
    """
    dtype, page = np.dtype(dtype), mmap.PAGESIZE
    count = int(np.prod(shape))
    body = -(-max(count * dtype.itemsize, 1) // page) * page
    memory = mmap.mmap(-1, body + 2 * page)
    every_byte = np.frombuffer(memory, np.uint8)
    every_byte[page : page + body] = 0xFF
    first = every_byte.ctypes.data
    _protect(first, page, _NONE)
    _protect(first + page + body, page, _NONE)
    offset = page + (body - count * dtype.itemsize if side == "end" else 0)
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)


def copy(array, side="end", *, step=1, margin=0):
    """A read-only guarded copy, whose memory cannot be written either.

    With a step or a margin it is a view of every `step`-th element along the last axis of a larger
    array, or of all but `margin` of them; its first or last element is still flush with the guard.
    """
    *rest, last = array.shape
    whole = empty((*rest, (last - 1) * step + 1 + margin), array.dtype, side)
    kept = slice(margin, None, step) if side == "end" else slice(0, (last - 1) * step + 1, step)
    view = whole[..., kept]
    view[...] = array
    address = whole.ctypes.data - whole.ctypes.data % mmap.PAGESIZE
    end = whole.ctypes.data + whole.nbytes
    _protect(address, -(-(end - address) // mmap.PAGESIZE) * mmap.PAGESIZE, _READ)
    view.flags.writeable = False
    return view
