"""The command line, mostly as a process of its own: with the detector, and with parts missing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

import cyconv
import cyconv.demo
from cyconv import cli

pytest.importorskip("skimage")
pytest.importorskip("matplotlib")
io = pytest.importorskip("skimage.io")

HAS_DETECTOR = any(d.name == "rapidocr-onnxruntime" for d in metadata.distributions())
needs_detector = pytest.mark.skipif(not HAS_DETECTOR, reason="rapidocr-onnxruntime is missing")

# What a process runs before the command line to hide a wheel or a package from it.
HIDE_WHEEL = """
import importlib.metadata as m
files = m.files
def without(name):
    if name == "rapidocr-onnxruntime":
        raise m.PackageNotFoundError(name)
    return files(name)
m.files = without
"""
HIDE_PACKAGE = """
import importlib.util as u, sys
find = u.find_spec
u.find_spec = lambda name, package=None: None if name == {0!r} else find(name, package)
sys.modules[{0!r}] = None
"""


def command(*arguments, before="", status=0):
    """Run ``python -m cyconv`` and return its (output, error output)."""
    code = f"{before}\nimport sys\nfrom cyconv.cli import main\nsys.exit(main({list(arguments)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def small_image(tmp_path_factory):
    """One line of the scanned page."""
    data = pytest.importorskip("skimage.data")
    path = tmp_path_factory.mktemp("demo") / "line.png"
    io.imsave(path, data.page()[:48, :300], check_contrast=False)
    return path


def is_png(path):
    pixels = io.imread(path)
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and pixels.shape[1] > 1000


@needs_detector
def test_demo_on_both_pictures(tmp_path):
    png = tmp_path / "demo.png"
    out, _ = command("demo", "--output", str(png), "--json", "--threads", "1")
    result = json.loads(out)
    assert result["threads"] == 1
    assert is_png(png)
    page, motorcycle = result["images"]
    assert (page["name"], page["size"]) == ("page", [191, 384])
    assert (motorcycle["name"], motorcycle["size"]) == ("motorcycle", [448, 768])
    # Seven lines on the page; the names of model and maker on the motorcycle.
    assert len(page["regions"]) == 7
    assert 2 <= len(motorcycle["regions"]) <= 6
    for image in result["images"]:
        assert len(image["layers"]) == 64
        for layer in image["layers"]:
            problem = cyconv.ConvProblem.parse(layer["problem"])
            assert problem.flop == layer["flop"]
            assert layer["strategy"] in cyconv.strategies()
            assert layer["seconds"] > 0
        other = image["onnxruntime"]
        assert other["largest_difference"] <= 1e-4
        assert other["same_mask"]


@needs_detector
def test_demo_prints_a_table(small_image, tmp_path):
    png = tmp_path / "demo.png"
    out, _ = command(
        "demo", "--output", str(png), "--image", str(small_image), "--strategy", "direct"
    )
    assert is_png(png)
    rows = [line for line in out.splitlines() if line.startswith(("fwd ", "dx "))]
    assert len(rows) == 64
    assert all(" direct " in row for row in rows)
    assert "all convolutions" in out
    assert "Text regions: 1." in out
    assert "Text masks: equal." in out
    assert str(png) in out


@needs_detector
def test_demo_without_onnxruntime(small_image, tmp_path):
    png = tmp_path / "demo.png"
    out, _ = command(
        "demo", "--threads", "1", "--output", str(png), "--image", str(small_image),
        before=HIDE_PACKAGE.format("onnxruntime"),
    )  # fmt: skip
    assert "ONNX Runtime" not in out
    assert "Text regions: 1." in out


@needs_detector
def test_demo_uses_rich_on_a_terminal(small_image, tmp_path, monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    picture = ["--output", str(tmp_path / "a.png"), "--image", str(small_image)]
    assert cli.main(["demo", *picture, "--threads", "1"]) == 0
    assert "┃" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "how"),
    [
        (HIDE_WHEEL, "pip install --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4"),
        (HIDE_PACKAGE.format("onnx"), 'pip install "cyconv[onnx]"'),
    ],
    ids=["no wheel", "no onnx"],
)
def test_demo_without_the_detector_shows_filters(before, how, small_image, tmp_path):
    png = tmp_path / "demo.png"
    arguments = ("demo", "--output", str(png), "--image", str(small_image))
    out, _ = command(*arguments, before=before)
    assert how in out
    assert "co4 i62x314 k15x15" in out
    assert is_png(png)


def test_demo_without_the_detector_as_json(small_image, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cyconv.demo, "model_path", lambda: None)
    png = tmp_path / "demo.png"
    assert cli.main(["demo", "--output", str(png), "--image", str(small_image), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "rapidocr-onnxruntime==1.4.4" in result["missing"]
    (bank,) = result["filters"]
    assert bank["name"] == "line.png"
    assert bank["strategy"] in cyconv.strategies()
    assert is_png(png)


def test_filters_answer_to_their_orientation():
    from cyconv.demo._filters import ORIENTATIONS, filter_bank
    from cyconv.demo._pictures import Picture

    columns = np.arange(64) // 3 % 2 * 255
    stripes = np.broadcast_to(columns[np.newaxis, :, np.newaxis], (64, 64, 3)).astype(np.uint8)
    for pixels, orientation in ((stripes, 0), (stripes.transpose(1, 0, 2), 90)):
        run = filter_bank(Picture("stripes", pixels), threads=1)
        strength = np.abs(run.responses[:, 10:-10, 10:-10]).mean(axis=(1, 2))
        assert ORIENTATIONS[int(strength.argmax())] == orientation
        assert strength.max() > 10 * np.sort(strength)[-2]


def test_pictures_of_every_kind(tmp_path):
    from cyconv.demo._pictures import read_picture

    rng = np.random.default_rng(0)
    for shape in ((9, 11), (9, 11, 3), (9, 11, 4)):
        path = tmp_path / "image.png"
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        io.imsave(path, pixels, check_contrast=False)
        picture = read_picture(str(path))
        assert picture.pixels.shape == (9, 11, 3)
        channel = pixels if pixels.ndim == 2 else pixels[..., 1]
        np.testing.assert_array_equal(picture.pixels[..., 1], channel)
    io.imsave(path, rng.integers(0, 2**16, (9, 11), dtype=np.uint16), check_contrast=False)
    with pytest.raises(ValueError, match="uint16"):
        read_picture(str(path))


def test_missing_packages_are_named():
    _, error = command("demo", before=HIDE_PACKAGE.format("skimage"), status=1)
    assert 'the demo needs skimage: pip install "cyconv[demo]"' in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--image", "nowhere.png"), "nowhere.png"),
        (("demo", "--strategy", "nonesuch"), "nonesuch"),
        (("demo", "--threads", "0"), "threads"),
        (("explain", "fwd f32 nonsense"), "nonsense"),
    ],
)
def test_what_cannot_be_used_is_said(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("cyconv: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_info(capsys):
    assert cli.main(["info"]) == 0
    assert capsys.readouterr().out.strip() == cyconv.show_config().strip()


@pytest.mark.parametrize(
    "problem",
    [
        "fwd f32 nchw n8 g1 ci64 co96 i56x56 k3x3 s1 p1 d1",
        "dx bf16 nhwc n1 g2 ci4 co6 i9 k3 s2 p1 d1 bias",
    ],
)
def test_explain(problem, capsys):
    assert cli.main(["explain", *problem.split()]) == 0
    out = capsys.readouterr().out
    plan = cyconv.plan(problem)
    assert str(plan.problem) in out
    assert f"{plan.strategy}: {plan.reason}" in out
    assert f"{plan.problem.flop:,} FLOP" in out
    for name in plan.refusals:
        assert name in out


def test_python_m_cyconv_and_help():
    done = subprocess.run(
        [sys.executable, "-m", "cyconv", "--help"], capture_output=True, text=True, check=True
    )
    for name in ("demo", "info", "explain"):
        assert name in done.stdout
