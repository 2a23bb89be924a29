"""The cells of a result file on a roofline: GFLOP/s against the flop per byte that have to move.

The bytes are those of the three arrays, each moved once; the flop are those of the definition. The
roof is the memory's copy bandwidth times the intensity, up to the FMA peak, measured in the run.
Two things lift a cell above it: arrays that stay in a cache between the calls, and algorithms that
need less arithmetic than the definition (Winograd, FFT).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cells import LAYOUTS, OPERATORS
from chart import COLOURS, FAINT, INK, TITLES, add_setting_arguments, choose
from matplotlib.lines import Line2D
from report import PEERS, read_records

MARKERS = {"cyconv": "o", "best peer": "x"}


def best_peer_gflops(record: dict) -> float | None:
    """Give the rate of the fastest peer."""
    rates = [record["peers"].get(peer, {}).get("gflops") for peer in PEERS]
    return max((rate for rate in rates if rate), default=None)


def draw(records: list[dict]) -> plt.Figure:
    """Draw one setting's records, a panel an operator."""
    first = records[0]
    peak = max(r["peak_gflops"] for r in records)
    # A resumed run has measured the machine more than once.
    bandwidth = max(r["machine"]["copy_gbytes"][f"x{r['threads']}"] for r in records)
    operators = [op for op in OPERATORS if any(r["operator"] == op for r in records)]
    intensities = [r["flop"] / r["nbytes"] for r in records]
    low, high = min(intensities) / 1.6, max(intensities) * 1.6
    figure, axes = plt.subplots(
        1,
        len(operators),
        sharex=True,
        sharey=True,
        squeeze=False,
        figsize=(1.0 + 4.2 * len(operators), 4.6),
        layout="constrained",
    )
    for axis, operator in zip(axes[0], operators, strict=True):
        ridge = peak / bandwidth
        axis.plot([low, ridge, high], [low * bandwidth, peak, peak], color=INK, linewidth=1.2)
        for record in records:
            if record["operator"] != operator:
                continue
            x, colour = record["flop"] / record["nbytes"], COLOURS[record["layout"]]
            ours, theirs = record["cyconv"]["gflops"], best_peer_gflops(record)
            axis.plot(x, ours, MARKERS["cyconv"], color=colour, markersize=4.5, zorder=3)
            if theirs:
                axis.plot([x, x], [ours, theirs], color=colour, linewidth=0.5, alpha=0.6, zorder=1)
                axis.plot(x, theirs, MARKERS["best peer"], color=colour, markersize=5, zorder=2)
        axis.set_title(TITLES[operator], fontsize=10, color=INK)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(low, high)
        axis.grid(color=FAINT, linewidth=0.5, zorder=0)
        axis.tick_params(labelsize=8, colors=INK)
        for spine in axis.spines.values():
            spine.set_visible(False)
    axes[0][0].set_ylabel("GFLOP/s", fontsize=9, color=INK)
    figure.supxlabel(
        "flop per byte of the three arrays\n"
        f"{first['machine']['cpu']} ({first['machine'].get('isa', 'no peak')}), {first['dtype']}, "
        f"batch {first['batch']}, {first['threads']} thread(s): FMA peak {peak:.0f} GFLOP/s, "
        f"copy {bandwidth:.1f} GB/s",
        fontsize=8.5,
        color=INK,
    )
    layouts = [layout for layout in LAYOUTS if any(r["layout"] == layout for r in records)]
    figure.legend(
        handles=[
            Line2D([], [], color=INK, linewidth=1.2, label="roof"),
            *(
                Line2D([], [], color=COLOURS[layout], marker=marker, linestyle="", label=label)
                for layout in layouts
                for label, marker in (
                    (f"{name}, {layout.upper()}", mark) for name, mark in MARKERS.items()
                )
            ),
        ],
        loc="outside upper center",
        ncols=1 + 2 * len(layouts),
        frameon=False,
        fontsize=8.5,
    )
    return figure


def main() -> None:
    """Draw one setting of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, help="JSON lines of bench_conv.py")
    parser.add_argument("--output", type=Path, default=Path("docs/_static/roofline.png"))
    add_setting_arguments(parser)
    options = parser.parse_args()
    measured = [
        record
        for record in read_records(options.records)
        if record["peak_gflops"] and "gflops" in record["cyconv"]
    ]
    chosen = choose(measured, options)
    if not chosen:
        parser.exit(1, f"{options.records}: nothing measured beside a peak in that setting\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(chosen).savefig(options.output, dpi=150)
    print(f"{options.output}: {len(chosen)} cells")


if __name__ == "__main__":
    main()
