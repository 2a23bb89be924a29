"""A stand-in for the part of CuPy that cyconv uses; kernels run on the processor.

``RawModule`` compiles the very source text that the package would hand to NVRTC, with g++ and
``cuda_emu.h`` force-included. Arrays lie between inaccessible pages and start as NaN. Every launch
runs under three schedules of its threads, which must agree bit for bit, and must not write outside
of the arrays it was given. As with CuPy, nothing becomes a NumPy array by itself, and NumPy arrays
do not mix in; functions of NumPy reach the functions of the same name here.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import subprocess
import time
from collections import Counter
from functools import partialmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.special

HERE = Path(__file__).parent
HEADERS = ("cuda_emu.h", "mma_emu.h")
CXX = os.environ.get("CXX", "g++")
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fno-gnu-unique",
    "-fno-exceptions", "-U_FORTIFY_SOURCE",
    "-fsanitize=bounds-strict,alignment,signed-integer-overflow,shift,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
# Schedules of cuda_emu.h: warps upwards, warps downwards, at random.
SEEDS = (0, 1, 12345)

__version__ = "14.2.0"
__name__ = "cupy"  # in messages

# Set by tests: where compiled kernels are kept, and how many bytes an array may have.
cache_dir = Path("emulated")
memory_limit = 2**40
launched: Counter[str] = Counter()
compiled: list[float] = []

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class EmulatedCudaError(RuntimeError):
    """What a kernel did that it must not do."""


# --- devices --------------------------------------------------------------------------------------


class _Device:
    _current: ClassVar = [0]
    capability: ClassVar = "90"
    attributes: ClassVar = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}

    def __init__(self, device=None):
        self.id = self._current[-1] if device is None else device

    @property
    def compute_capability(self):
        return self.capability

    def __enter__(self):
        self._current.append(self.id)
        return self

    def __exit__(self, *_):
        self._current.pop()

    def synchronize(self):
        pass


class _Stream:
    capturing = False

    def is_capturing(self):
        return self.capturing

    def synchronize(self):
        pass


class _Event:
    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        pass


class _OutOfMemoryError(MemoryError):
    pass


class _CompileException(Exception):  # noqa: N818 - as CuPy names it
    pass


class cuda:  # noqa: N801 - a module of CuPy
    Device, Event, Stream = _Device, _Event, _Stream

    class memory:  # noqa: N801
        OutOfMemoryError = _OutOfMemoryError

    class compiler:  # noqa: N801
        CompileException = _CompileException

    class runtime:  # noqa: N801
        @staticmethod
        def getDeviceProperties(index):  # noqa: N802
            return {"name": b"Emulated"}

    @staticmethod
    def get_current_stream():
        return _Stream()

    @staticmethod
    def get_elapsed_time(start, end):
        return (end.at - start.at) * 1e3


# --- arrays ---------------------------------------------------------------------------------------


def _guarded(nbytes, fill):
    """Bytes between two inaccessible pages, the last of them (nearly) against the second."""
    pages = -(-max(nbytes, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + 2 * _PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + _PAGE + pages):
        _libc.mprotect(guard, _PAGE, 0)
    whole = np.frombuffer(memory, np.uint8, pages, _PAGE)
    whole[:] = fill
    begin = (pages - nbytes) // 16 * 16
    return whole[begin : begin + nbytes]


def _plain(value):
    """The host array inside; containers are searched."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value


def _wrapped(result):
    """A device array of a result; views stay views of the same memory."""
    if isinstance(result, np.ndarray | np.generic):
        return ndarray(np.asarray(result))
    if isinstance(result, tuple | list):
        return type(result)(map(_wrapped, result))
    return result


def _owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class _Pointer:
    def __init__(self, ptr):
        self.ptr = ptr


class ndarray:  # noqa: N801 - as CuPy names it
    """A device array: a NumPy array in guarded memory, out of NumPy's reach."""

    def __init__(self, host):
        if not isinstance(_owner(host).base, memoryview | mmap.mmap):
            host = _filled(host)
        self._host = host
        self.device = _Device()

    @property
    def data(self):
        return _Pointer(self._host.ctypes.data)

    def get(self):
        return self._host.copy()

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use `.get()`")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **keywords):
        if method == "at" and ufunc is np.add:
            return np.add.at(*_plain(inputs))
        if method != "__call__" or ufunc.signature is not None or not hasattr(np, ufunc.__name__):
            return NotImplemented
        if any(getattr(value, "__array_ufunc__", 0) is None for value in inputs):
            return NotImplemented
        if out is None:
            return _wrapped(ufunc(*_plain(inputs), **keywords))
        ufunc(*_plain(inputs), out=_plain(out), **keywords)
        return out[0]

    def __array_function__(self, function, types, args, keywords):
        own = globals().get(function.__name__)
        if own is None or function.__module__ != "numpy":
            return NotImplemented
        return own(*args, **keywords)

    def __getitem__(self, index):
        return _wrapped(self._host[_plain(index)])

    def __setitem__(self, index, value):
        self._host[_plain(index)] = _plain(value)

    def __matmul__(self, other):
        return _wrapped(self._host @ _plain(other))

    def _in_place(self, name, other):
        getattr(self._host, name)(_plain(other))
        return self

    def __len__(self):
        return len(self._host)

    def __bool__(self):
        return bool(self._host)

    def __float__(self):
        return float(self._host)

    def __repr__(self):
        return f"cupy {self._host!r}"


def _attribute(name):
    return property(lambda self: getattr(self._host, name))


def _method(name):
    def method(self, *args, **keywords):
        if any(getattr(value, "__array_ufunc__", 0) is None for value in args):
            return NotImplemented  # as CuPy leaves operators to such a class
        return _wrapped(getattr(self._host, name)(*_plain(args), **keywords))

    return method


for _name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__iand__"):
    setattr(ndarray, _name, partialmethod(ndarray._in_place, _name))
for _name in ("shape", "strides", "dtype", "ndim", "size", "itemsize", "nbytes", "flags"):
    setattr(ndarray, _name, _attribute(_name))
for _name in (
    "all", "any", "astype", "copy", "fill", "item", "max", "mean", "min", "ravel", "reshape",
    "squeeze", "sum", "swapaxes", "transpose", "view",
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__",
    "__rmul__", "__truediv__", "__rtruediv__", "__pow__", "__rpow__", "__neg__", "__abs__",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__", "__invert__",
):  # fmt: skip
    setattr(ndarray, _name, _method(_name))
ndarray.__hash__ = None
ndarray.base = property(lambda self: None if self._host.base is None else self._host.base)
ndarray.T = property(lambda self: _wrapped(self._host.T))


def _new(shape, dtype, fill):
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if nbytes > memory_limit:
        raise _OutOfMemoryError(f"Out of memory allocating {nbytes:,} bytes")
    return _guarded(nbytes, fill).view(dtype).reshape(shape)


def _filled(host):
    copy = _new(host.shape, host.dtype, 0)
    copy[...] = host
    return copy


def empty(shape, dtype=float, order="C"):
    return ndarray(_new(shape, dtype, 0xFF))  # NaN in every type


def zeros(shape, dtype=float, order="C"):
    return ndarray(_new(shape, dtype, 0))


def array(value, dtype=None, order="C"):
    host = value._host if isinstance(value, ndarray) else value
    return ndarray(_filled(np.asarray(host, dtype)))


def asarray(value, dtype=None):
    if isinstance(value, ndarray):
        return value if dtype in (None, value.dtype) else value.astype(dtype)
    return ndarray(_filled(np.asarray(value, dtype)))


def asnumpy(value):
    return value.get() if isinstance(value, ndarray) else np.asarray(value)


def ascontiguousarray(value, dtype=None):
    value = asarray(value, dtype)
    return value if value.flags.c_contiguous else ndarray(_filled(value._host))


def may_share_memory(a, b):
    return np.may_share_memory(_plain(a), _plain(b))


def add(a, b, out=None):
    return np.add(a, b, out=out)


def matmul(a, b, out=None):
    with np.errstate(all="ignore"):
        result = np.matmul(_plain(a), _plain(b), out=_plain(out))
    return _wrapped(result) if out is None else out


# --- kernels --------------------------------------------------------------------------------------


def _compile(key, suffix, text, flags):
    """A compiled file of this name in the cache, made if it is not there."""
    target = cache_dir / f"{key}{suffix}"
    if target.exists():
        return target
    started = time.perf_counter()
    cache_dir.mkdir(parents=True, exist_ok=True)
    source, unfinished = (cache_dir / f"{key}.{os.getpid()}.{end}" for end in ("cpp", "tmp"))
    source.write_text(text)
    command = [CXX, *FLAGS, *flags, str(source), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True)
    source.unlink()
    if done.returncode:
        raise _CompileException(done.stderr[-4000:])
    unfinished.replace(target)
    compiled.append(time.perf_counter() - started)
    return target


def _hash(*texts):
    return hashlib.sha256("\0".join((CXX, *FLAGS, *texts)).encode()).hexdigest()[:24]


def precompile_header():
    """The emulator's headers as one, with its precompiled form beside it."""
    text = "\n".join((HERE / name).read_text() for name in HEADERS if (HERE / name).exists())
    header = cache_dir / f"{_hash(text)}.h"
    _compile(header.stem, ".h.gch", text, ("-x", "c++-header"))
    if not header.exists():
        header.write_text(text)
    return header


class RawModule:
    """Compiles one instantiation of a kernel, once for all sessions."""

    def __init__(self, code=None, *, options=(), name_expressions=None):
        (self.expression,) = name_expressions
        self.code = f"{code}\nEMULATED_KERNEL({self.expression})\n"

    def compile(self):
        header = precompile_header()
        key = _hash(header.stem, self.code)
        return _compile(key, ".so", self.code, ("-shared", "-include", str(header)))

    def get_function(self, name):
        assert name == self.expression
        return RawKernel(ctypes.CDLL(str(self.compile())), name)


class RawKernel:
    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, library, name):
        self.name, self.library = name, library
        library.emulated_message.restype = ctypes.c_char_p
        sizes, kinds = (ctypes.c_int * 64)(), ctypes.create_string_buffer(64)
        n = library.emulated_signature(sizes, kinds)
        self.parameters = list(zip(kinds.raw[:n].decode(), sizes[:n], strict=True))

    def __call__(self, grid, block, args, shared_mem=0):
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise EmulatedCudaError(f"{self.name}: {shared_mem} bytes of shared memory, not opted")
        launched[self.name] += 1
        keep = [self._argument(i, value) for i, value in enumerate(args)]
        if len(args) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(args)}")
        pointers = (ctypes.c_void_p * len(keep))(*(value.ctypes.data for value in keep))
        written = [
            value._host
            for value, (kind, _) in zip(args, self.parameters, strict=True)
            if kind == "w" and isinstance(value, ndarray)
        ]
        before = [_owner(array).copy() for array in written]
        results = None
        for seed in SEEDS:
            for array, bytes_before in zip(written, before, strict=True):
                _owner(array)[...] = bytes_before
            self._run(grid, block, shared_mem, pointers, seed)
            now = [array.tobytes() for array in written]
            if results is not None and now != results:
                raise EmulatedCudaError(
                    f"{self.name}: the result depends on the order of threads (seed {seed}): "
                    "a race, or a missing barrier"
                )
            results = now
        for array, bytes_before in zip(written, before, strict=True):
            self._check_strays(array, bytes_before)

    def _run(self, grid, block, shared_mem, pointers, seed):
        grid, block = ((ctypes.c_uint * 3)(*(*v, 1, 1)[:3]) for v in (grid, block))
        if self.library.emulated_launch(grid, block, ctypes.c_size_t(shared_mem), pointers, seed):
            raise EmulatedCudaError(f"{self.name}: {self.library.emulated_message().decode()}")

    def _argument(self, i, value):
        """The bytes of an argument as CuPy passes it; a Python int is 64 bits, a float double."""
        if value is None:
            kind, data = "rw", np.zeros(1, np.uintp)
        elif isinstance(value, ndarray):
            if value.device.id != _Device().id:
                raise EmulatedCudaError(f"{self.name}: argument {i} is on another device")
            kind, data = "rw", np.array([value.data.ptr], np.uintp)
        else:
            if isinstance(value, np.ndarray) and value.size != 1:
                raise TypeError("only numpy.ndarrays of size one can be passed by value")
            data = np.ascontiguousarray(value)
            kind = {"V": "s", "f": "f"}.get(data.dtype.kind, "i")
        wanted, size = self.parameters[i] if i < len(self.parameters) else ("", 0)
        if not wanted or wanted not in kind or data.nbytes != size:
            raise TypeError(
                f"{self.name}: argument {i} is {kind} of {data.nbytes} bytes, "
                f"the kernel takes {wanted} of {size}"
            )
        return data

    def _check_strays(self, array, before):
        """Nothing but the elements of an array has changed in the memory that it is a view of."""
        owner = _owner(array)
        start = array.ctypes.data - owner.ctypes.data
        outside = np.ones(owner.nbytes, bool)
        mask = np.ndarray((*array.shape, array.itemsize), bool, outside, start, (*array.strides, 1))
        mask[...] = False
        changed = owner.view(np.uint8).ravel() != before.view(np.uint8).ravel()
        if (changed & outside).any():
            raise EmulatedCudaError(f"{self.name} wrote beside the array it was given")


# --- functions of NumPy that reach CuPy's of the same name ----------------------------------------


def _same(name):
    function = getattr(np, name)

    def same(*args, **keywords):
        return _wrapped(function(*_plain(args), **keywords))

    return same


for _name in (
    "broadcast_to", "expand_dims", "full", "full_like", "maximum", "moveaxis", "ones", "ones_like",
    "pad", "put_along_axis", "take_along_axis", "where", "zeros_like",
):  # fmt: skip
    globals()[_name] = _same(_name)


def shape(a):
    return a.shape


def array2string(a, *args, **keywords):
    return np.array2string(a._host, *args, **keywords)


class special:  # noqa: N801 - cupyx.scipy.special
    @staticmethod
    def expit(x, out=None):
        result = scipy.special.expit(x._host, out=_plain(out))
        return _wrapped(result) if out is None else out

    @staticmethod
    def erf(x):
        return _wrapped(scipy.special.erf(x._host))
