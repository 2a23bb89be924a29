"""Training from the command line: what it learns and writes, and what it says without parts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cyconv import cli

pytest.importorskip("sklearn")
pytest.importorskip("skimage")
pytest.importorskip("matplotlib")
io = pytest.importorskip("skimage.io")


def train(capsys, tmp_path, *arguments):
    """Run the command and return its JSON."""
    png = tmp_path / "train.png"
    assert cli.main(["train", *arguments, "--output", str(png), "--json", "--threads", "1"]) == 0
    assert io.imread(png).shape[1] > 1000
    return json.loads(capsys.readouterr().out)


def test_digits_are_learnt(capsys, tmp_path):
    result = train(capsys, tmp_path)
    assert result["accuracy"] >= 0.98
    assert len(result["losses"]) == 15 * 23
    assert result["losses"][-1] < 0.05


def test_the_denoiser_denoises(capsys, tmp_path):
    result = train(capsys, tmp_path, "denoise", "--epochs", "4")
    assert result["clean_psnr"] > result["noisy_psnr"] + 4


@pytest.mark.parametrize("task", ["digits", "denoise"])
def test_both_layouts_start_alike(task, capsys, tmp_path):
    first, last = (
        train(capsys, tmp_path, task, "--epochs", "1", "--layout", layout)["losses"]
        for layout in ("NCHW", "NHWC")
    )
    # float32: rounding differs, and grows with the steps.
    assert all(abs(a - b) <= 1e-4 * a for a, b in zip(first[:10], last[:10], strict=True))


def test_progress_as_lines_and_as_a_bar(capsys, tmp_path, monkeypatch):
    pytest.importorskip("rich")
    arguments = ["train", "--epochs", "1", "--output", str(tmp_path / "a.png")]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "epoch  1  loss" in out
    assert "Test accuracy" in out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(arguments) == 0
    assert "epoch  1" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"), [(("faces",), "faces"), (("digits", "--epochs", "0"), "epochs")]
)
def test_what_cannot_be_used_is_said(arguments, message, capsys):
    assert cli.main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("task", "package"), [("digits", "sklearn"), ("denoise", "skimage")])
def test_missing_packages_are_named(task, package):
    code = f"""
import importlib.util as u, sys
find = u.find_spec
u.find_spec = lambda name, package=None: None if name == {package!r} else find(name, package)
from cyconv.cli import main
sys.exit(main(["train", {task!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f'training needs {package}: pip install "cyconv[train]"' in done.stderr
