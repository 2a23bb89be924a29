"""NVRTC, the compiler that CuPy uses, without CuPy and without a GPU.

The library is that of the package ``nvidia-cuda-nvrtc``. It compiles to PTX and to machine code;
neither needs a device.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

# What CuPy passes, and nothing that it does not.
OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")


class Compiled(NamedTuple):
    """What came of a kernel: PTX, machine code, and what the assembler says of its resources."""

    ptx: str
    cubin: bytes
    log: str


class NvrtcError(Exception):
    """The compiler's log."""


def library_path():
    """The file of the library, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else ()
    found = sorted(
        path
        for folder in folders
        for path in Path(folder).glob("*/lib/libnvrtc.so.*")
        if "alt" not in path.name
    )
    return found[-1] if found else None


@cache
def _library():
    return ctypes.CDLL(str(library_path()))


def version():
    """(major, minor)"""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def architectures():
    """Compute capabilities that the library compiles for: 75, 80, ..."""
    count = ctypes.c_int()
    _library().nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    _library().nvrtcGetSupportedArchs(found)
    return tuple(found)


def _text(program, what):
    size = ctypes.c_size_t()
    getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(_library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compile_kernel(source, expression, capability):
    """Compile one instantiation for one architecture."""
    program = ctypes.c_void_p()
    create = _library().nvrtcCreateProgram
    create(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        _library().nvrtcAddNameExpression(program, expression.encode())
        options = (*OPTIONS, f"-arch=sm_{capability}", "--ptxas-options=--verbose")
        pointers = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = _library().nvrtcCompileProgram(program, len(options), pointers)
        log = _text(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise NvrtcError(log)
        ptx = _text(program, "PTX").rstrip(b"\0").decode()
        return Compiled(ptx, _text(program, "CUBIN"), log)
    finally:
        _library().nvrtcDestroyProgram(ctypes.byref(program))
