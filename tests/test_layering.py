"""The house rules that a reader can check in the source text: which module may see which.

Imports are read from the syntax tree of Python files, cimports from the text of Cython files. Those
inside functions and under ``TYPE_CHECKING`` count; type stubs (``.pyi``) are not looked at.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import cyconv

PACKAGE = Path(__file__).parents[1] / "src" / "cyconv"

# From the ground up: a module imports only what lies on a lower floor. Names are relative to the
# package; "" is the package itself.
FLOORS = (
    ("errors",),
    ("arguments", "devices"),
    ("operands", "problem", "settings", "workspace"),
    (
        "kernels._blas",
        "kernels._channel_sums",
        "kernels._geometry",
        "kernels._memory",
        "kernels._openmp",
        "kernels._signature",
        "kernels._ukernels",
        "kernels.blas_threads",
        "split",
        "windows",
    ),
    (
        "kernels._passes",
        "kernels._patches",
        "kernels._run",
        "kernels._winograd_ukernels",
        "request",
    ),
    ("kernels._planes", "kernels._slabs", "kernels._winograd_tiles"),
    ("kernels._few_pixels", "kernels._gradients", "kernels._panels"),
    ("kernels._winograd_weights",),
    ("kernels._winograd_plan",),
    (
        "kernels._channel_lanes",
        "kernels._columns",
        "kernels._direct",
        "kernels._gemm",
        "kernels._implicit_gemm",
        "kernels._pixel_lanes",
        "kernels._pooling",
        "kernels._slide",
        "kernels._winograd",
    ),
    ("kernels",),
    ("algorithms._fft_rounding", "algorithms._fft_views", "algorithms.base", "isa"),
    ("algorithms._fft_tiles",),
    ("costs",),
    ("algorithms._matrix",),
    (
        "algorithms.depthwise",
        "algorithms.direct",
        "algorithms.fft",
        "algorithms.im2col",
        "algorithms.implicit_gemm",
        "algorithms.pointwise",
        "algorithms.reference",
        "algorithms.winograd",
    ),
    ("algorithms",),
    ("select",),
    ("binding",),
    ("packings",),
    ("tune",),
    ("gpu.module", "gpu.params"),
    ("gpu.base", "gpu.phases", "gpu.sums", "gpu.tiles"),
    ("gpu.families",),
    (
        "gpu.activations",
        "gpu.depthwise",
        "gpu.direct",
        "gpu.im2col",
        "gpu.implicit_gemm",
        "gpu.pooling",
    ),
    ("gpu.strategies",),
    ("gpu.select",),
    ("gpu.tune",),
    ("gpu",),
    ("execute",),
    ("calls", "diagnostics", "plans"),
    ("explanation",),
    ("functional", "prepared"),
    ("autograd.recording", "autograd.sums"),
    ("autograd.tape",),
    ("autograd.reverse",),
    ("autograd.arithmetic",),
    ("autograd.activations", "autograd.losses", "autograd.normalisation", "autograd.padding"),
    ("autograd.convolution", "autograd.pooling"),
    ("autograd.check", "autograd.tensor"),
    ("autograd",),
    ("",),
    # Layers, skins and programs on top of it all: ``import cyconv`` loads none of them.
    ("nn.files", "nn.initialisation", "nn.module"),
    ("nn.convolution", "nn.layers", "nn.normalisation", "nn.optimisers", "nn.pooling"),
    ("nn",),
    (
        "adapters",
        "adapters._geometry",
        "adapters.onnx._attributes",
        "adapters.onnx._math",
        "adapters.onnx._movement",
        "adapters.onnx._pooling",
        "adapters.onnx._resize",
    ),
    ("adapters.hips", "adapters.jax", "adapters.onnx._conv", "adapters.torch"),
    ("adapters.onnx._operators",),
    ("adapters.onnx._network",),
    ("adapters.onnx._draft", "adapters.onnx._reader", "adapters.onnx._steps"),
    ("adapters.onnx._blocks", "adapters.onnx._folding"),
    ("adapters.onnx._fusing",),
    ("adapters.onnx._optimise",),
    ("adapters.onnx._graph",),
    ("adapters.onnx",),
    ("demo._model", "demo._pictures"),
    ("demo._detector", "demo._filters"),
    ("demo._report",),
    ("demo",),
    ("training._loop",),
    ("training._denoising", "training._digits"),
    ("training._figures",),
    ("training",),
    ("cli",),
    ("__main__",),
)
FLOOR = {module: number for number, floor in enumerate(FLOORS) for module in floor}

# The compiled modules that each strategy runs on, besides Geometry.
KERNEL_OF = {
    "depthwise": {
        "kernels._channel_lanes",
        "kernels._columns",
        "kernels._pixel_lanes",
        "kernels._slide",
    },
    "direct": {"kernels._direct"},
    "fft": set(),
    "implicit_gemm": {"kernels._implicit_gemm"},
    "im2col": {"kernels._gemm"},
    "pointwise": {"kernels._gemm"},
    "reference": set(),
    "winograd": {"kernels._winograd"},
}
SHARED_BY_STRATEGIES = {
    "algorithms.base",
    "algorithms._fft_rounding",
    "algorithms._fft_tiles",
    "algorithms._fft_views",
    "algorithms._matrix",
}

ENVIRONMENT = {"settings"}
BLAS = {"kernels._blas", "kernels.blas_threads"}
FOREIGN = {"numpy", "scipy"}
CYTHON_ONLY = {"cython", "libc", "libcpp", "cpython"}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}

LONGEST = {".py": 300, ".pyx": 400, ".pxd": 400, ".h": 400}
# Files that are longer, how long they may be, and why.
LONGER = {
    "functional.py": (640, "the public signatures and their docstrings, in one place"),
    "problem.py": (400, "one class"),
    "settings.py": (350, "every setting and variable has its owner here"),
    "autograd/tape.py": (400, "variables, operators and nodes refer to each other"),
    "kernels/_channel_lanes.pyx": (490, "three operators over the same slabs"),
    "kernels/_pixel_lanes.pyx": (420, "three operators over the same planes"),
    "kernels/_slide.pyx": (410, "three operators over the same strips"),
    "kernels/_columns.pyx": (420, "three operators over the same planes"),
    "kernels/_winograd.pyx": (440, "three operators over the same tiles"),
}

_CIMPORT = re.compile(r"^\s*cimport\s+(.+)$", re.MULTILINE)
_FROM_CIMPORT = re.compile(
    r"^\s*from\s+(\.*)([\w.]*)\s+c?import\s+(\(.*?\)|[^\n#]+)", re.MULTILINE | re.DOTALL
)
_PLAIN_IMPORT = re.compile(r"^\s*import\s+([^\n#]+)", re.MULTILINE)


def _name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _sources(*suffixes):
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in suffixes)


def _modules():
    """Return the files of each module: a Cython module may have two."""
    modules = {}
    for path in _sources(".py", ".pyx", ".pxd"):
        modules.setdefault(_name(path), []).append(path)
    return modules


MODULES = _modules()


def _absolute(module, is_package, dots, base):
    """Return the dotted name that a relative import means, as if the package were on the path."""
    if not dots:
        return base
    here = ["cyconv", *module.split(".")] if module else ["cyconv"]
    if not is_package:
        here = here[:-1]
    here = here[: len(here) - (dots - 1)]
    return ".".join([*here, base]) if base else ".".join(here)


def _python_imports(text, module, is_package):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, is_package, node.level, node.module or "")
            yield from ((base, alias.name) for alias in node.names)


def _cython_imports(text, module):
    for dots, base, names in _FROM_CIMPORT.findall(text):
        source = _absolute(module, False, len(dots), base)
        for name in names.strip("()\n, ").replace("\n", " ").split(","):
            yield source, name.split()[0]
    for names in (*_CIMPORT.findall(text), *_PLAIN_IMPORT.findall(text)):
        for name in names.split(","):
            yield name.split()[0], None


def imports_of_text(text, suffix, module, is_package=False):
    """Return (dotted name, imported name or None) for each import of a source text."""
    if suffix == ".py":
        return list(_python_imports(text, module, is_package))
    return list(_cython_imports(text, module))


def _imports(module):
    found = []
    for path in MODULES[module]:
        text = path.read_text(encoding="utf-8")
        found += imports_of_text(text, path.suffix, module, path.stem == "__init__")
    return found


def _own(dotted):
    return dotted == "cyconv" or dotted.startswith("cyconv.")


def own_imports(module):
    """Return the modules of the package that a module imports."""
    targets = set()
    for base, name in _imports(module):
        if not _own(base):
            continue
        base = base.removeprefix("cyconv").removeprefix(".")
        inner = f"{base}.{name}".removeprefix(".")
        targets.add(inner if inner in MODULES else base)
    return targets - {module}


def foreign_imports(module):
    """Return the top-level names of what a module imports from elsewhere."""
    return {base.split(".")[0] for base, _ in _imports(module) if not _own(base)}


def below(module):
    """Whether a module is part of the core: what ``import cyconv`` can load."""
    return FLOOR[module] <= FLOOR[""]


def test_every_module_has_a_floor():
    named = [module for floor in FLOORS for module in floor]
    assert len(named) == len(set(named))
    assert set(named) == set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES), ids=lambda m: m or "cyconv")
def test_imports_point_down(module):
    targets = own_imports(module)
    assert targets <= set(FLOOR)
    assert not {t for t in targets if FLOOR[t] >= FLOOR[module]}


def test_the_arrows_are_seen():
    """The checks of this file look at something: some arrows that must be there are."""
    assert {"kernels._gemm", "kernels._geometry", "algorithms._matrix"} <= own_imports(
        "algorithms.im2col"
    )
    assert {"kernels._geometry", "kernels._patches", "kernels._blas"} <= own_imports(
        "kernels._gemm"
    )
    assert "settings" in own_imports("kernels")
    assert foreign_imports("kernels._blas") == {"cython", "scipy"}


@pytest.mark.parametrize(
    ("text", "suffix", "expected"),
    [
        ("from ..errors import A, B", ".py", {("cyconv.errors", "A"), ("cyconv.errors", "B")}),
        ("def f():\n    from . import x", ".py", {("cyconv.room", "x")}),
        ("import numpy as np, cyconv", ".py", {("numpy", None), ("cyconv", None)}),
        (
            "from .a cimport (f,\n  g as h)",
            ".pyx",
            {("cyconv.room.a", "f"), ("cyconv.room.a", "g")},
        ),
        ("from .a cimport (\n  f, g,\n)", ".pxd", {("cyconv.room.a", "f"), ("cyconv.room.a", "g")}),
        ("cimport numpy as cnp", ".pxd", {("numpy", None)}),
        ("import os, sys", ".pyx", {("os", None), ("sys", None)}),
        ("from ..settings import resolve", ".pyx", {("cyconv.settings", "resolve")}),
    ],
)
def test_every_form_of_import_is_read(text, suffix, expected):
    assert set(imports_of_text(text, suffix, "room.module")) == expected


def test_strategies_are_files_and_do_not_see_each_other():
    assert set(KERNEL_OF) == set(cyconv.strategies())
    for name, kernels in KERNEL_OF.items():
        targets = own_imports(f"algorithms.{name}")
        assert {t for t in targets if t.startswith("algorithms")} <= SHARED_BY_STRATEGIES
        compiled = {t for t in targets if t.startswith("kernels")} - {"kernels._geometry"}
        assert compiled == kernels, name


def test_kernels_see_neither_settings_nor_problems():
    for module in MODULES:
        if not module.startswith("kernels"):
            continue
        outside = {t for t in own_imports(module) if not t.startswith("kernels")}
        assert outside == ({"settings"} if module == "kernels" else set()), module
    names = {name for base, name in _imports("kernels") if base == "cyconv.settings"}
    assert names == {"short_openmp_spin"}


def test_only_settings_touches_the_environment():
    touching = set()
    for module, paths in MODULES.items():
        for path in paths:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                tree = ast.walk(ast.parse(text))
                names = {getattr(n, "attr", getattr(n, "id", None)) for n in tree}
                names |= {name for base, name in _imports(module) if base == "os"}
            else:
                names = set(re.findall(r"\w+", text))
            if names & {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "setenv"}:
                touching.add(module)
    assert touching == ENVIRONMENT


def test_blas_has_one_owner():
    """``_blas`` multiplies; ``blas_threads`` asks the same library for its thread count."""
    calling = {
        module
        for module in MODULES
        for base, name in _imports(module)
        if {"cython_blas", "cython_lapack", "blas", "lapack"} & {*base.split("."), name}
    }
    assert calling == BLAS


def test_openmp_has_one_owner():
    """Loops are Cython's ``prange``; the runtime itself is called through one header."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in _sources(".h", ".pyx", ".pxd")}
    assert {name for name, text in texts.items() if "omp.h" in text} == {"openmp_compat.h"}
    assert {name for name, text in texts.items() if "openmp_compat.h" in text} == {"_openmp.pyx"}
    assert not {module for module in MODULES if "openmp" in foreign_imports(module)}


def test_microkernels_have_one_owner():
    """``_ukernels`` and the declarations beside it alone see the C; which processor has what is
    asked in one place.
    """
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in (*_sources(".h", ".pyx", ".pxd"), *PACKAGE.glob("kernels/ukernel/*.c"))
    }
    extern = re.compile(r'cdef extern from "ukernel')
    assert {name for name, text in texts.items() if extern.search(text)} == {
        "_ukernels.pxd",
        "_ukernels.pyx",
        "_winograd_ukernels.pxd",
    }
    asking = {name for name, text in texts.items() if "__builtin_cpu_supports" in text}
    assert asking == {"dispatch.c"}


@pytest.mark.parametrize("module", sorted(filter(below, FLOOR)), ids=lambda m: m or "cyconv")
def test_the_core_needs_numpy_and_scipy_only(module):
    allowed = FOREIGN | CYTHON_ONLY | set(sys.stdlib_module_names)
    assert foreign_imports(module) <= allowed


@pytest.mark.parametrize("module", sorted(MODULES), ids=lambda m: m or "cyconv")
def test_no_wildcards_and_no_drawers(module):
    assert "*" not in {name for _, name in _imports(module)}
    assert not DRAWERS & set(module.strip("_").split("."))


def test_files_are_short():
    for path in _sources(*LONGEST):
        name = path.relative_to(PACKAGE).as_posix()
        most, _ = LONGER.get(name, (LONGEST[path.suffix], None))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= most, f"{name} has {lines} lines, at most {most} should do"
