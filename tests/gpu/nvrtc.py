"""NVRTC, the compiler that CuPy uses, without CuPy and without a GPU.

The library is that of the package ``nvidia-cuda-nvrtc``. It compiles to PTX and to machine code;
neither needs a device.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cyconv.gpu.module import source

# What CuPy passes, and nothing that it does not.
OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")

# Of GPUs that kernels are compiled for.
OLDEST, NEWER = 75, (80, 90)
# Of tensor cores, by element type; double has no ldmatrix, its fragments are loads of 16 bytes.
INSTRUCTIONS = {
    "half_t": ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "ldmatrix", "cp.async"),
    "bfloat16_t": ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"),
    "float": ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "ldmatrix", "cp.async"),
    "double": ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "cp.async"),
}


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


@dataclass
class Report:
    """What is worth knowing of a compiled kernel."""

    nbytes: int
    stack_nbytes: int
    local: bool
    instructions: list[str]


def report(kernel, capability, cache):
    """Compile, or recall what came of it in an earlier session; `cache` is pytest's, or None."""
    text = source(kernel.files)
    parts = (text, kernel.expression, str(capability), repr(version()), *OPTIONS)
    key = "cyconv-nvrtc/" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    known = None if cache is None else cache.get(key, None)
    if known is None:
        result = compile_kernel(text, kernel.expression, capability)
        stacks = map(int, re.findall(r"(\d+) bytes stack frame", result.log))
        found = {name for names in INSTRUCTIONS.values() for name in names if name in result.ptx}
        local = "__local_depot" in result.ptx
        known = asdict(Report(len(result.cubin), max(stacks), local, sorted(found)))
        if cache is not None:
            cache.set(key, known)
    return Report(**known)


def capabilities(kernel):
    """Those of `OLDEST` and `NEWER` that a kernel compiles for."""
    return [c for c in (OLDEST, *NEWER) if c >= kernel.capability]
