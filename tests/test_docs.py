"""What the documentation says is true: its examples run, its tables match the code.

Fenced blocks marked ``pycon`` are doctests, blocks marked ``python`` are run; those of a page share
their names, in order. Other blocks (shell, trees) are not run.
"""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import cyconv
from cyconv import settings

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cyconv"

# Every module with an example in a docstring.
MODULES = (
    "cyconv",
    "cyconv.adapters.hips",
    "cyconv.adapters.jax",
    "cyconv.adapters.onnx._conv",
    "cyconv.adapters.onnx._graph",
    "cyconv.adapters.torch",
    "cyconv.autograd.check",
    "cyconv.autograd.recording",
    "cyconv.autograd.reverse",
    "cyconv.autograd.tape",
    "cyconv.autograd.tensor",
    "cyconv.explanation",
    "cyconv.functional",
    "cyconv.nn.module",
    "cyconv.plans",
    "cyconv.prepared",
    "cyconv.problem",
    "cyconv.settings",
)
# Every page with a block to run.
PAGES = (
    "README.md",
    "docs/adapters.md",
    "docs/autograd.md",
    "docs/concepts.md",
    "docs/errors.md",
    "docs/index.md",
    "docs/onnx.md",
    "docs/quickstart.md",
    "docs/strategies.md",
    "docs/training.md",
    "docs/tuning.md",
)
# What pages and modules need beyond NumPy and SciPy.
NEEDS = {
    "docs/onnx.md": ("onnx",),
    "docs/adapters.md": ("torch", "jax", "autograd"),
    "cyconv.adapters.hips": ("autograd",),
    "cyconv.adapters.jax": ("jax",),
    "cyconv.adapters.torch": ("torch",),
}
EXAMPLES = ("filter_image.py", "fit_filter.py")

_BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VARIABLE_ROW = re.compile(r"^\| `([A-Z_]+)` \| (.+?) \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def fresh():
    """Run every example with empty caches, and restore the warning filters that a page sets."""
    cyconv.clear_cache()
    with warnings.catch_warnings():
        yield
    cyconv.clear_cache()


def _run(examples, name):
    """Run a doctest; its report is the failure's message."""
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(examples, out=report.append, clear_globs=False)
    assert runner.failures == 0, f"{name}:\n{''.join(report)}"
    assert runner.tries > 0, name


def _docstrings():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module_name in MODULES:
        if not all(map(find_spec, NEEDS.get(module_name, ()))):
            continue
        module = importlib.import_module(module_name)
        for test in finder.find(module, module_name, globs={}):
            if test.examples:
                yield pytest.param(module, test, id=test.name)


@pytest.mark.parametrize(("module", "test"), list(_docstrings()))
def test_examples_in_docstrings(module, test):
    # The examples import what they use, apart from what their own module defines.
    test.globs.update(vars(module))
    _run(test, test.name)


def test_every_example_in_a_docstring_runs():
    found = {
        ".".join(("cyconv", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == set(MODULES)


def _blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start()) + 1


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page(page, capsys):
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package)
    names = {}
    parser = doctest.DocTestParser()
    ran = 0
    for kind, text, line in _blocks(page):
        if kind == "pycon":
            test = parser.get_doctest(text, names, f"{page}:{line}", page, line)
            # get_doctest copies the names; the blocks of a page share them.
            test.globs = names
            _run(test, f"{page}:{line}")
        else:
            exec(compile("\n" * line + text, page, "exec"), names)
        ran += 1
    assert ran > 0
    capsys.readouterr()


def test_every_page_with_blocks_runs():
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"))
    found = {p.relative_to(ROOT).as_posix() for p in pages if _BLOCK.search(p.read_text("utf-8"))}
    assert found == set(PAGES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir())


def test_every_example_is_listed():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


def test_the_fitted_filter_is_right(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert importlib.import_module("fit_filter").main() < 1e-3
    assert "largest error" in capsys.readouterr().out


def test_the_blur_keeps_the_brightness(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    blur = importlib.import_module("filter_image").blur
    gray = np.full((40, 50, 3), 0.25, np.float32)
    np.testing.assert_allclose(blur(gray)[8:-8, 8:-8], 0.25, rtol=1e-6)


def test_the_reference_lists_what_is_public():
    text = (ROOT / "docs/api/index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   ([A-Za-z]\w*)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(cyconv.__all__) - {"__version__"}


@pytest.mark.parametrize(
    ("room", "page"), [("autograd", "docs/autograd.md"), ("nn", "docs/training.md")]
)
def test_every_name_of_a_room_is_told(room, page):
    module = importlib.import_module(f"cyconv.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    reference = (ROOT / "docs/api/index.md").read_text(encoding="utf-8")
    listed = set(re.findall(rf"^   {room}\.(\w+)$", reference, re.MULTILINE))
    told = set(re.findall(r"\w+", (ROOT / page).read_text(encoding="utf-8")))
    assert listed <= set(module.__all__)
    assert set(module.__all__) <= listed | told
    for name in module.__all__:
        assert hasattr(module, name), name


def _variables():
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    return dict(_VARIABLE_ROW.findall(text))


_USE_EVERYTHING = """
import warnings
import numpy as np
import cyconv
x, w = np.ones((1, 1, 6)), np.ones((1, 1, 3))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for strategy in ("auto", "profile", None):
        y = cyconv.conv1d(x, w, strategy=strategy)
        cyconv.conv_data_backward(y, w, x.shape, strategy=strategy)
        cyconv.conv_weight_backward(x, y, w.shape, strategy=strategy)
print(*(str(w.message).split("=")[0] for w in caught if w.category is cyconv.CyconvWarning))
"""


def test_every_variable_in_the_table_is_read_and_warns_once(python):
    variables = _variables()
    assert len(variables) >= 12
    warned = python(_USE_EVERYTHING, env=dict.fromkeys(variables, "junk")).split()
    assert sorted(warned) == sorted(variables)


def test_every_variable_that_is_read_is_in_the_table():
    source = (PACKAGE / "settings.py").read_text(encoding="utf-8")
    named = set(re.findall(r"CYCONV_[A-Z_]*[A-Z_]", source))
    assert named
    for name in named:
        matching = [
            v for v in _variables() if v == name or (name[-1] == "_" and v.startswith(name))
        ]
        assert matching, name


def test_the_defaults_in_the_tables_are_right():
    variables = _variables()
    assert int(variables["CYCONV_CPU_CONV_MIN_WORK"]) == settings._DEFAULT_MIN_WORK
    assert int(variables["CYCONV_CPU_CONV_BWD_MIN_WORK"]) == settings._DEFAULT_MIN_WORK
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    table = text[text.index("| setting |") : text.index("The value lives in")]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    shown = {
        name: f"{value // 2**20} MiB" if name == "workspace_limit" else f"`{value!r}`"
        for name, value in cyconv.Config()._asdict().items()
    }
    assert rows == {name: text.replace("'", '"') for name, text in shown.items()}


def test_the_table_of_strategies_is_complete():
    text = (ROOT / "docs/strategies.md").read_text(encoding="utf-8")
    table = text[: text.index("## Why")]
    named = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert named == {*cyconv.strategies(), *settings.POLICIES}


def test_the_version_is_the_same_everywhere():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{cyconv.__version__}"' in project
    assert f"## {cyconv.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_relative_links_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
