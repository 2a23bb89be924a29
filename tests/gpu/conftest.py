"""The emulated GPU: ``cupy`` is the stand-in, for the tests that ask for it."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import fakecupy
import nvrtc
import pytest

import cyconv
from cyconv.gpu.module import Kernel, source
from cyconv.gpu.strategies import KERNELS

# In a session of more tests than this, all kernels are compiled at once, on all processors.
_MANY = 1000


@pytest.fixture(scope="session")
def _compiled_kernels(request, tmp_path_factory):
    """Keep compiled kernels from one session to the next, by the hash of source and flags."""
    if shutil.which(fakecupy.CXX) is None:
        pytest.skip(f"no C++ compiler ({fakecupy.CXX}): the emulator needs one")
    cache = getattr(request.config, "cache", None)  # pytest may run without
    make = tmp_path_factory.mktemp if cache is None else cache.mkdir
    fakecupy.cache_dir = make("cyconv-emulated")
    if len(request.session.items) > _MANY:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            fakecupy.precompile_header()
            list(pool.map(_compile, KERNELS))
    if nvrtc.library_path() is not None:
        # Emulated tests leave processors idle.
        request.getfixturevalue("compiled")


@pytest.fixture(scope="session")
def compiled(request):
    """(kernel, capability) -> nvrtc.Report; compiled ahead of the tests of the session that ask."""
    parameters = [
        item.callspec.params for item in request.session.items if hasattr(item, "callspec")
    ]
    kernels = dict.fromkeys(p["kernel"] for p in parameters if isinstance(p.get("kernel"), Kernel))
    cache = getattr(request.config, "cache", None)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {
            (kernel, capability): pool.submit(nvrtc.report, kernel, capability, cache)
            for kernel in kernels
            for capability in nvrtc.capabilities(kernel)
        }
        yield lambda kernel, capability: futures[kernel, capability].result()
        pool.shutdown(cancel_futures=True)


def _compile(kernel):
    code = source(kernel.files)
    fakecupy.RawModule(code=code, name_expressions=(kernel.expression,)).compile()


@pytest.fixture
def cupy(monkeypatch, _compiled_kernels):
    """Stand in for CuPy; the package finds it as if a program had imported it."""
    monkeypatch.setitem(sys.modules, "cupy", fakecupy)
    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.special"):
        monkeypatch.setitem(sys.modules, name, fakecupy.special)
    yield fakecupy
    cyconv.clear_cache()


def pytest_terminal_summary(terminalreporter):
    if fakecupy.compiled or fakecupy.launched:
        terminalreporter.write_line(
            f"emulated GPU: {sum(fakecupy.launched.values())} launches of "
            f"{len(fakecupy.launched)} kernels, {len(fakecupy.compiled)} of them compiled in "
            f"{sum(fakecupy.compiled):.0f} s"
        )
