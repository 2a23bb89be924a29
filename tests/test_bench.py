"""The benchmark suite runs: its shapes parse, cells become complete records, tables add up."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest

from cyconv import ConvProblem, strategies

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_shape_is_a_problem_of_every_operator_and_layout(bench_path):
    from cells import read_shapes, select_cells

    shapes = read_shapes()
    cells = list(select_cells(shapes, batches=[1, 8]))
    assert len(cells) == len(shapes) * 3 * 2 * 2
    for cell in cells:
        assert ConvProblem.parse(str(cell.problem)) == cell.problem
    assert {cell.problem.batch for cell in cells} == {1, 8}
    assert {cell.problem.ndim for cell in cells} == {1, 2, 3}


def test_layers_are_chosen_by_regular_expression(bench_path):
    from cells import read_shapes, select_cells

    names = {cell.name for cell in select_cells(read_shapes(), layers=r"resnet50\.\d_3x3$")}
    assert names == {f"resnet50.{stage}_3x3" for stage in (2, 3, 4, 5)}


@pytest.mark.parametrize("text", ["one n1\none n1", "alone"])
def test_a_malformed_shapes_file_is_refused(bench_path, tmp_path, text):
    from cells import read_shapes

    path = tmp_path / "shapes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"shapes\.txt:\d"):
        read_shapes(path)


def test_a_cell_becomes_a_record(tmp_path):
    output = tmp_path / "records.jsonl"
    options = "--quick --layers tiny.8ch --operators fwd dw --rounds 2 --seconds-per-cell 0.02"
    table = run("bench_conv.py", *options.split(), "--peer", "--output", output)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(r["operator"], r["layout"]) for r in records] == [
        (operator, layout) for operator in ("fwd", "dw") for layout in ("nchw", "nhwc")
    ]
    for record in records:
        assert record["cyconv"]["status"] == "ok", record
        assert record["cyconv"]["seconds"] > 0
        assert record["strategy"]
        assert record["ratio"] is None
        assert str(ConvProblem.parse(record["problem"])) == record["problem"]
    assert "1x8x16x16" in table
    assert "1x16x16x8" in table
    whole = output.read_text()
    output.write_text("".join(whole.splitlines(keepends=True)[:3]))
    again = run("bench_conv.py", *options.split(), "--peer", "--output", output, "--resume")
    assert "3 records kept, 1 cells to run" in again
    key = ("operator", "layout", "problem")
    resumed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [[r[k] for k in key] for r in resumed] == [[r[k] for k in key] for r in records]


def test_the_answers_agree_with_pytorch(tmp_path):
    pytest.importorskip("torch")
    output = tmp_path / "records.jsonl"
    options = "--quick --layers tiny.8ch --rounds 1 --seconds-per-cell 0.02 --peer torch"
    run("bench_conv.py", *options.split(), "--output", output)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(records) == 6
    for record in records:
        torch = record["peers"]["torch"]
        assert torch["status"] == "ok", record
        assert torch["agrees"], record
        assert record["ratio"] == torch["ratio"]
    assert "6 cells in both" in run("compare.py", output, output)
    table = run("table.py", output)
    for layout in ("nchw", "nhwc"):
        cells = [r for r in records if r["layout"] == layout]
        assert " / ".join(f"{r['ratio']:.2f}" for r in cells) in table
    pytest.importorskip("matplotlib")
    if records[0]["peak_gflops"]:
        assert "6 cells" in run("roofline.py", output, "--output", tmp_path / "roofline.png")
    assert "6 ratios" in run("chart.py", output, "--output", tmp_path / "ratios.png")


def test_the_map_shows_what_auto_takes(bench_path):
    pytest.importorskip("matplotlib")
    from map import COLOURS, SIZES, choices

    assert set(COLOURS) == set(strategies()) - {"reference", "auto", "profile", "autotune"}
    names = list(COLOURS)
    taken = choices("fwd", "nchw", "f32", 3, depthwise=True)
    assert names[taken[-1, -1]] == "depthwise"
    assert names[taken[0, 0]] == "direct"
    assert taken.shape[0] == len(SIZES)


def test_a_failing_strategy_does_not_end_the_run(tmp_path):
    output = tmp_path / "records.jsonl"
    options = "--quick --layers tiny.8x8 --operators fwd --layouts nchw --seconds-per-cell 0.02"
    run("bench_conv.py", *options.split(), "--peer", "--strategy", "nonesuch", "auto",
        "--output", output)  # fmt: skip
    statuses = [json.loads(line)["cyconv"]["status"] for line in output.read_text().splitlines()]
    assert statuses[0].startswith("error: ValueError")
    assert statuses[1] == "ok"


def record(text, ratio, **peers):
    problem = ConvProblem.parse(text)
    return {
        "problem": text,
        "operator": problem.op,
        "layout": problem.layout,
        "dtype": problem.dtype,
        "batch": problem.batch,
        "threads": 1,
        "requested": "auto",
        "ratio": ratio,
        "peers": {name: {"ratio": value} for name, value in peers.items()},
    }


def test_the_summary_has_the_means_with_and_without_dense_3x3(bench_path):
    from report import summary

    dense = "fwd f32 nchw n1 g1 ci8 co8 i9x9 k3x3 s1 p1 d1"
    records = [
        record(dense, 4.0, torch=4.0, ort=1.0),
        record(dense.replace("s1", "s2"), 1.0, torch=1.0),
        record(dense.replace("g1", "g8"), 0.25, torch=0.125, ort=0.25),
        record("dx f64 nhwc n1 g1 ci8 co8 i9 k3 s1 p1 d1", 2.0, torch=2.0),
    ]
    lines = [line.split() for line in summary(records).splitlines()]
    for expected in (
        "fwd nchw 1.000 0.794 0.500 1 of 3 0.500 0.354 0.250 1 of 2",
        "dx nhwc 2.000 2.000 0 of 1 2.000 2.000 0 of 1",
    ):
        assert expected.split() in lines


def test_regret_times_what_serves(tmp_path):
    output = tmp_path / "regret.jsonl"
    options = "--quick --layers tiny.8ch --layouts nchw --rounds 1 --seconds-per-cell 0.01"
    table = run("regret.py", *options.split(), "--within", 1000, "--output", output)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["operator"] for r in records] == ["fwd", "dx", "dw"]
    for told in records:
        assert told["strategy"] in told["strategies"]
        assert {"direct", "im2col", "implicit_gemm"} <= set(told["strategies"])
        assert "pointwise" not in told["strategies"]
        assert told["regret"] == max(s["regret"] for s in told["strategies"].values()) >= 1
    assert "best in" in table


def test_candidates_leave_out_the_hopeless(bench_path):
    from cells import select_cells
    from libraries import Cyconv, draw_operands
    from regret import candidates

    sizes = "n1 g1 ci32 co32 i56x56 k3x3 s1 p1 d1"
    (cell,) = select_cells({"dense": sizes}, operators=["fwd"], layouts=["nchw"])
    problem = cell.description()
    arrays = Cyconv.arrays(problem, draw_operands(problem))
    _, explanation = Cyconv(1, "auto").call_on(problem, arrays)
    timed = candidates(cell, explanation, within=1e9)
    assert next(iter(timed)) == explanation.strategy
    assert not {"direct", "reference", "pointwise"} & set(timed)
    assert list(candidates(cell, explanation, within=1.0)) == [explanation.strategy]


def test_curves_tell_claims_and_what_was_achieved():
    table = run("curves.py", "subnormals", "--rounds", 1, "--seconds", 0.001)
    assert "4 claims on 1 thread(s)" in table
    assert table.count("subnormal / normal: ") == 4


def test_every_curve_claims_something_of_its_own_points(bench_path, monkeypatch):
    import cliffs

    monkeypatch.setattr(cliffs, "ours", lambda text, *_, **__: (ConvProblem.parse(text).macs, None))
    for name, curves in cliffs.CURVES.items():
        for curve in curves(1):
            labels = [one.label for one in curve.points]
            assert len(set(labels)) == len(labels), curve.title
            assert curve.claims, name
            assert {c.subject for c in curve.claims} | {c.reference for c in curve.claims} <= set(
                labels
            )


def test_an_achieved_ratio_is_per_call_or_per_multiply_add(bench_path):
    from cliffs import Claim, Curve, Point
    from curves import achieved

    curve = Curve("", [Point("a", 0, 10, None), Point("b", 1, 40, None)])
    times = {"a": [2.0, 3.0, 9.0], "b": [1.0, 1.0, 1.0]}
    assert achieved(Claim("a", "b", 1), curve, times) == 3
    assert achieved(Claim("a", "b", 1, per_mac=True), curve, times) == 12


def test_the_fft_that_long_kernels_are_compared_with_is_right(bench_path):
    from cliffs import overlap_save

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 500)), rng.standard_normal((4, 3, 30))
    truth = oracle.forward(x[None], w)[0].astype(float)
    np.testing.assert_allclose(overlap_save(x, w, n=64), truth, atol=1e-10)


def test_page_faults_of_fresh_memory_are_counted(bench_path):
    pytest.importorskip("resource")
    from bench_overhead import faults

    assert faults(lambda: np.ones(10**8, np.uint8)) >= 10  # of 2 MB, where the system has them
    kept = np.ones(10**6, np.uint8)
    assert faults(lambda: kept.fill(1)) < 10


def test_bandwidth(bench_path, monkeypatch):
    import peaks

    monkeypatch.setattr(peaks, "COPIED_NBYTES", 2**20)
    assert peaks.copy_bandwidth(threads=2, repeats=1) > 0


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_peak(bench_path, dtype):
    from peaks import fma_peak

    try:
        assert fma_peak(dtype, threads=2, seconds=0.001) > 0
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler: {error}")


def test_detector_beside_onnxruntime():
    for module in ("onnx", "onnxruntime", "skimage", "rapidocr_onnxruntime"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    size = ("--sizes", "64x96", "--threads", 1, "--rounds", 2, "--runs", 1)
    row = json.loads(run("bench_detector.py", *size, "--json"))
    assert row["size"] == [64, 96]
    assert min(row["ratio"], row["cyconv"], row["onnxruntime"]) > 0
    # Both found the text on the corner of the page.
    assert row["marked"]["cyconv"] > 0.1
    assert abs(row["marked"]["cyconv"] - row["marked"]["onnxruntime"]) < 1e-3
    assert "ratio" in run("bench_detector.py", *size)
