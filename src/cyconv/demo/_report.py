"""What the demonstration shows: tables on the terminal and figures in a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ._filters import ORIENTATIONS, FilterRun
from ._pictures import Picture

if TYPE_CHECKING:
    from ._detector import Detection

ACCENT = "#ff5a36"
INK = "#222222"
WIDTH = 14.0  # inches
DPI = 150


def print_detection(detection: Detection, threads: int) -> None:
    """Print one row per convolution, the sums, and the comparison."""
    height, width = detection.size
    rows = [
        (layer.problem, layer.strategy, f"{layer.seconds * 1e3:.3f}", f"{layer.gflops:.1f}")
        for layer in detection.layers
    ]
    seconds = sum(layer.seconds for layer in detection.layers)
    flop = sum(layer.flop for layer in detection.layers)
    rows.append(("all convolutions", "", f"{seconds * 1e3:.3f}", f"{flop / seconds / 1e9:.1f}"))
    print_table(
        f"{detection.name}, {width} x {height} pixels, threads: {threads}",
        ("problem", "strategy", "ms", "GFLOP/s"),
        rows,
    )
    print(
        f"Whole network: {detection.seconds * 1e3:.1f} ms. Text regions: {len(detection.regions)}."
    )
    other = detection.onnxruntime
    if other is not None:
        print(
            f"ONNX Runtime: {other.seconds * 1e3:.1f} ms. Largest difference of the probability "
            f"map: {other.largest_difference:.1e}. Text masks: "
            f"{'equal' if other.same_mask else 'DIFFERENT'}."
        )
    print()


def print_filters(runs: Sequence[FilterRun], threads: int) -> None:
    """Print one row per picture."""
    rows = [
        (
            run.name,
            run.problem,
            run.strategy,
            f"{run.seconds * 1e3:.3f}",
            f"{run.flop / run.seconds / 1e9:.1f}",
        )
        for run in runs
    ]
    print_table(
        f"Gabor filters, threads: {threads}",
        ("picture", "problem", "strategy", "ms", "GFLOP/s"),
        rows,
    )


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the last two columns numbers; with rich if it is there, on a terminal."""
    numeric = range(len(header) - 2, len(header))
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title)
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i in numeric else "left")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(title)
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print()


def draw_regions(pictures: Sequence[Picture], detections: Sequence[Detection], output: str) -> None:
    """Write the pictures side by side with their text masks and regions."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Polygon

    aspects = [_aspect(picture) for picture in pictures]
    figure = Figure(figsize=(WIDTH, WIDTH / sum(aspects) + 0.35), layout="constrained")
    axes = figure.subplots(1, len(pictures), squeeze=False, width_ratios=aspects)[0]
    for ax, picture, detection in zip(axes, pictures, detections, strict=True):
        ax.imshow(picture.pixels)
        veil = np.zeros((*detection.mask.shape, 4))
        veil[detection.mask] = (1.0, 0.35, 0.21, 0.35)
        ax.imshow(veil)
        for corners in detection.regions:
            ax.add_patch(Polygon(corners, fill=False, edgecolor=ACCENT, linewidth=1.4))
        count = len(detection.regions)
        _title(
            ax,
            detection.name,
            f"{count} text region{'' if count == 1 else 's'}, {detection.seconds * 1e3:.0f} ms",
        )
    figure.savefig(output, dpi=DPI)


def draw_filters(pictures: Sequence[Picture], runs: Sequence[FilterRun], output: str) -> None:
    """Write each picture with its responses to the right of it."""
    from matplotlib.figure import Figure

    columns = 1 + len(ORIENTATIONS)
    aspects = [_aspect(picture) for picture in pictures]
    height = sum(WIDTH / columns / aspect + 0.3 for aspect in aspects)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    rows = figure.subplots(
        len(pictures), columns, squeeze=False, height_ratios=[1 / aspect for aspect in aspects]
    )
    for axes, picture, run in zip(rows, pictures, runs, strict=True):
        axes[0].imshow(picture.pixels)
        _title(axes[0], run.name, f"{run.seconds * 1e3:.1f} ms")
        limit = float(np.quantile(abs(run.responses), 0.995)) or 1.0
        for ax, degrees, response in zip(axes[1:], ORIENTATIONS, run.responses, strict=True):
            ax.imshow(response, cmap="RdBu_r", vmin=-limit, vmax=limit)
            _title(ax, f"{degrees}°", "")
    figure.savefig(output, dpi=DPI)


def _aspect(picture: Picture) -> float:
    height, width, _ = picture.pixels.shape
    return float(width / height)


def _title(ax: Any, name: str, note: str) -> None:
    ax.set_axis_off()
    ax.set_title(name, loc="left", fontsize=11, fontweight="bold", color=INK)
    ax.set_title(note, loc="right", fontsize=9, color=INK)
