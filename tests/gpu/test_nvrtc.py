"""Every shipped kernel compiles for GPUs: with NVRTC, for the oldest and two newer generations.

The emulator takes some things that NVRTC does not, and cannot see what becomes of registers. No
device is needed. What has been compiled is kept from one session to the next, by the hash of
source, options and version.
"""

from __future__ import annotations

import re

import nvrtc
import pytest
from nvrtc import INSTRUCTIONS, NEWER, OLDEST

from cyconv.gpu.module import source
from cyconv.gpu.strategies import KERNELS

pytestmark = pytest.mark.skipif(
    nvrtc.library_path() is None, reason="the package nvidia-cuda-nvrtc is not installed"
)


def test_architectures():
    assert {OLDEST, *NEWER} <= set(nvrtc.architectures())


def test_no_kernel_is_listed_twice():
    assert len(set(KERNELS)) == len(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.expression)
def test_compiles(compiled, kernel):
    for capability in nvrtc.capabilities(kernel):
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
