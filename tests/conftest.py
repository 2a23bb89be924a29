"""Fixtures that several test modules share: the axes of every comparison, and fresh processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import pytest
from lab import Lab
from strategies import named_strategies

import cyconv

OWN_VARIABLES = ("CYCONV_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "MALLOC_")


def pytest_generate_tests(metafunc):
    if "strategy" in metafunc.fixturenames:
        metafunc.parametrize("strategy", named_strategies())
    if "any_strategy" in metafunc.fixturenames:
        metafunc.parametrize("any_strategy", ("auto", *named_strategies()))


@pytest.fixture(params=("nchw", "nhwc"))
def layout(request):
    return request.param


@pytest.fixture(params=("float32", "float64"))
def dtype(request):
    return request.param


@pytest.fixture(params=(1, 2), ids=lambda n: f"t{n}")
def threads(request):
    return request.param


@pytest.fixture
def lab(any_strategy, layout, dtype, threads):
    return Lab(any_strategy, layout, dtype, threads)


@pytest.fixture
def lab2(any_strategy, layout, dtype):
    """For the longer reports: two threads only."""
    return Lab(any_strategy, layout, dtype, 2)


def _environment(extra):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    return clean | {k: str(v) for k, v in (extra or {}).items()}


@pytest.fixture(scope="session")
def python():
    """Run code in a fresh interpreter: (code, env=, timeout=) -> standard output.

    The process starts without any variable that steers the package, OpenMP, BLAS or malloc, except
    those of ``env``.  A signal, a non-zero exit or a hang is a failure that shows what it printed.
    """

    def run(code, env=None, timeout=60, arguments=()):
        with subprocess.Popen(
            [sys.executable, *arguments, "-c", code],
            env=_environment(env),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its children too
                out, err = process.communicate()
                pytest.fail(f"no end after {timeout} s\n{out}\n{err}")
        if process.returncode:
            pytest.fail(f"exit status {process.returncode}\n{out}\n{err}")
        return out

    return run


_FORKER = """
import json, os, sys, traceback, warnings
import numpy as np
import cyconv
code, environments = json.loads(sys.argv[1])
for environment in environments:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.environ.update(environment)
        warnings.simplefilter("always")
        try:
            with warnings.catch_warnings(record=True) as caught:
                scope = {"np": np, "cyconv": cyconv}
                exec(code, scope)
            messages = [str(w.message) for w in caught if w.category is cyconv.CyconvWarning]
            answer = [scope["answer"], messages]
        except BaseException:
            answer = ["failed", traceback.format_exc()]
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(pipe.read())
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="session")
def under_environments(python):
    """Run code once under each environment: (code, [env, ...]) -> [(answer, warnings), ...].

    The package reads the environment at first use, so one interpreter imports it and then forks a
    child for each environment.  The code leaves its result in ``answer`` (JSON); the warnings are
    the messages of the CyconvWarnings that it caused.
    """

    def run(code, environments, timeout=60):
        table = json.dumps([code, [{k: str(v) for k, v in e.items()} for e in environments]])
        lines = python(_FORKER.replace("sys.argv[1]", repr(table)), timeout=timeout).splitlines()
        answers = [tuple(json.loads(line)) for line in lines]
        assert len(answers) == len(environments)
        for environment, (answer, text) in zip(environments, answers, strict=True):
            assert answer != "failed", f"{environment}: {text}"
        return answers

    return run


def pytest_sessionstart():
    """A forced instruction set is the one that runs, or nothing does."""
    with warnings.catch_warnings(action="ignore", category=cyconv.CyconvWarning):
        active = cyconv.active_isa()
    forced = os.environ.get("CYCONV_ISA", active)
    if forced != active:
        raise pytest.UsageError(f"CYCONV_ISA={forced}, but {active} is active")


def pytest_report_header():
    return f"cyconv {cyconv.__version__}: {cyconv.active_isa()} of {', '.join(cyconv.isas())}"


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU and CuPy; skipped where there is none")
    config.addinivalue_line("markers", "large: needs many GB; runs only with CYCONV_TEST_LARGE=1")


def pytest_collection_modifyitems(items):
    if os.environ.get("CYCONV_TEST_LARGE") == "1":
        return
    skip = pytest.mark.skip(reason="needs 12 GB of memory: set CYCONV_TEST_LARGE=1 to run it")
    for item in items:
        if "large" in item.keywords:
            item.add_marker(skip)
