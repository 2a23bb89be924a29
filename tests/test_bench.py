"""The benchmark suite runs: its shapes parse, and a cell comes out as a complete record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cyconv import ConvProblem

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


def test_a_failing_strategy_does_not_end_the_run(tmp_path):
    output = tmp_path / "records.jsonl"
    options = "--quick --layers tiny.8x8 --operators fwd --layouts nchw --seconds-per-cell 0.02"
    run("bench_conv.py", *options.split(), "--peer", "--strategy", "nonesuch", "auto",
        "--output", output)  # fmt: skip
    statuses = [json.loads(line)["cyconv"]["status"] for line in output.read_text().splitlines()]
    assert statuses[0].startswith("error: ValueError")
    assert statuses[1] == "ok"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_peak(bench_path, dtype):
    from peaks import fma_peak

    try:
        assert fma_peak(dtype, threads=2, seconds=0.001) > 0
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler: {error}")
