"""Kernels of the GPU: from source files to functions that are compiled once and launched.

The sources in ``src/`` are concatenated, not included, so that a compiler without an include path
takes them. Every instantiation of a template is a module of its own, compiled when it is first
launched; CuPy keeps what it has compiled on disk.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .. import devices
from ..errors import GpuError

_SOURCES = Path(__file__).parent / "src"
_OPTIONS = ("-std=c++17",)
# The oldest architecture that the sources are compiled for.
_LEAST_CAPABILITY = 75
# More than this a kernel must ask for.
_PLAIN_SHARED_NBYTES = 48 * 1024


class Kernel(NamedTuple):
    """An instantiation of a kernel template.

    Attributes
    ----------
    files : tuple of str
        Its source files in order, without ``.cuh``.
    expression : str
        The instantiation: ``"direct_fwd<float, false>"``.
    capability : int
        The least compute capability it compiles for.
    """

    files: tuple[str, ...]
    expression: str
    capability: int = _LEAST_CAPABILITY


class Device(NamedTuple):
    """What choices depend on: a GPU as CuPy describes it.

    Attributes
    ----------
    ordinal : int
        CuPy's number of it.
    name : str
    capability : int
        90 for compute capability 9.0.
    processors : int
        Streaming multiprocessors.
    shared_nbytes : int
        Most shared memory of a block that asks for it.
    """

    ordinal: int
    name: str
    capability: int
    processors: int
    shared_nbytes: int


def current_device() -> Device:
    """Describe CuPy's current device.

    Raises
    ------
    GpuError
        If it is older than the kernels can be compiled for.
    """
    return _describe(devices.cupy().cuda.Device().id)


@cache
def _describe(index: int) -> Device:
    cuda = devices.cupy().cuda
    device = cuda.Device(index)
    capability = int(device.compute_capability)
    name = cuda.runtime.getDeviceProperties(index)["name"].decode()
    if capability < _LEAST_CAPABILITY:
        raise GpuError(
            f"GPU {index} ({name}) has compute capability {capability / 10}; "
            f"kernels need {_LEAST_CAPABILITY / 10} or more"
        )
    attributes = device.attributes
    return Device(
        index,
        name,
        capability,
        attributes["MultiProcessorCount"],
        attributes["MaxSharedMemoryPerBlockOptin"],
    )


@cache
def source(files: tuple[str, ...]) -> str:
    """Concatenate source files."""
    return "\n".join((_SOURCES / f"{name}.cuh").read_text(encoding="utf-8") for name in files)


@cache
def fingerprint() -> str:
    """Return a hash of all sources, for keys of what was measured with them."""
    texts = [path.read_bytes() for path in sorted(_SOURCES.glob("*.cuh"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:8]


@cache
def _function(kernel: Kernel, device: Device) -> Any:
    """Compile a kernel for the current device.

    Raises
    ------
    GpuError
        If the compiler refuses it; the message has the kernel, the architecture and the log.
    """
    cupy = devices.cupy()
    module = cupy.RawModule(
        code=source(kernel.files), options=_OPTIONS, name_expressions=(kernel.expression,)
    )
    try:
        return module.get_function(kernel.expression)
    except cupy.cuda.compiler.CompileException as error:
        raise GpuError(
            f"{kernel.expression} cannot be compiled for sm_{device.capability} "
            f"({device.name}):\n{error}"
        ) from error


def launch(
    kernel: Kernel, blocks: int, threads: int, args: tuple[Any, ...], dynamic_nbytes: int = 0
) -> None:
    """Start a kernel on the current stream of the current device.

    Parameters
    ----------
    kernel : Kernel
    blocks, threads : int
        The one-dimensional grid, and threads of a block; no blocks, no launch.
    args : tuple
        CuPy arrays, NumPy scalars of the exact type, a `params.CONVP`, or None for a null pointer.
    dynamic_nbytes : int
        Shared memory beyond what the kernel declares.
    """
    if blocks == 0:
        return
    function = _function(kernel, current_device())
    if dynamic_nbytes > _PLAIN_SHARED_NBYTES:
        function.max_dynamic_shared_size_bytes = dynamic_nbytes
    function((blocks,), (threads,), args, shared_mem=dynamic_nbytes)
