"""Every shipped kernel compiles for GPUs: with NVRTC, for the oldest and two newer generations.

The emulator takes some things that NVRTC does not, and cannot see what becomes of registers. No
device is needed. What has been compiled is kept from one session to the next, by the hash of
source, options and version.
"""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import nvrtc
import pytest

from cyconv.gpu.module import Kernel, source
from cyconv.gpu.strategies import KERNELS

pytestmark = pytest.mark.skipif(
    nvrtc.library_path() is None, reason="the package nvidia-cuda-nvrtc is not installed"
)

OLDEST, NEWER = 75, (80, 90)
# Of tensor cores, by element type; double has no ldmatrix, its fragments are loads of 16 bytes.
INSTRUCTIONS = {
    "half_t": ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "ldmatrix", "cp.async"),
    "bfloat16_t": ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"),
    "float": ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "ldmatrix", "cp.async"),
    "double": ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "cp.async"),
}


@dataclass
class Report:
    """What is worth knowing of a compiled kernel."""

    nbytes: int
    stack_nbytes: int
    local: bool
    instructions: list[str]


def _report(kernel, capability, cache):
    """Compile, or recall what came of it in an earlier session."""
    text = source(kernel.files)
    parts = (text, kernel.expression, str(capability), repr(nvrtc.version()), *nvrtc.OPTIONS)
    key = "cyconv-nvrtc/" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    known = cache.get(key, None)
    if known is None:
        result = nvrtc.compile_kernel(text, kernel.expression, capability)
        stacks = map(int, re.findall(r"(\d+) bytes stack frame", result.log))
        found = {name for names in INSTRUCTIONS.values() for name in names if name in result.ptx}
        local = "__local_depot" in result.ptx
        known = asdict(Report(len(result.cubin), max(stacks), local, sorted(found)))
        cache.set(key, known)
    return Report(**known)


def _capabilities(kernel):
    return [c for c in (OLDEST, *NEWER) if c >= kernel.capability]


@pytest.fixture(scope="session")
def compiled(request):
    """(kernel, capability) -> Report; two at a time are compiled ahead of the tests that ask."""
    parameters = [
        item.callspec.params for item in request.session.items if hasattr(item, "callspec")
    ]
    kernels = dict.fromkeys(p["kernel"] for p in parameters if isinstance(p.get("kernel"), Kernel))
    with ThreadPoolExecutor(2) as pool:
        futures = {
            (kernel, capability): pool.submit(_report, kernel, capability, request.config.cache)
            for kernel in kernels
            for capability in _capabilities(kernel)
        }
        yield lambda kernel, capability: futures[kernel, capability].result()
        pool.shutdown(cancel_futures=True)


def test_architectures():
    assert {OLDEST, *NEWER} <= set(nvrtc.architectures())


def test_no_kernel_is_listed_twice():
    assert len(set(KERNELS)) == len(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.expression)
def test_compiles(compiled, kernel):
    for capability in _capabilities(kernel):
        assert compiled(kernel, capability).nbytes > 0


@pytest.mark.parametrize("capability", NEWER)
@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in KERNELS if {"igemm", "tensor"} & set(kernel.files)],
    ids=lambda kernel: kernel.expression,
)
def test_products_stay_in_registers(compiled, kernel, capability):
    report = compiled(kernel, capability)
    assert not report.local
    assert report.stack_nbytes == 0


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in KERNELS if "tensor" in kernel.files],
    ids=lambda kernel: kernel.expression,
)
def test_tensor_cores_are_used(compiled, kernel):
    element = re.search(r"<(\w+)", kernel.expression)[1]
    # Halves across: transposed in ldmatrix; floats across are loaded one by one.
    expected = set(INSTRUCTIONS[element])
    if element == "float" and "tensor_dw" in kernel.expression:
        expected.remove("ldmatrix")
    assert expected <= set(compiled(kernel, 80).instructions)


def test_errors_come_with_the_log():
    with pytest.raises(nvrtc.NvrtcError, match="undefined"):
        nvrtc.compile_kernel("__global__ void f() { undefined(); }", "f", 80)


def test_tensor_kernels_need_their_capability():
    kernel = next(kernel for kernel in KERNELS if "tensor" in kernel.files)
    with pytest.raises(nvrtc.NvrtcError):
        nvrtc.compile_kernel(source(kernel.files), kernel.expression, OLDEST)
