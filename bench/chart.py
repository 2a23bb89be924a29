"""Bar chart of the ratios in a JSON lines file of bench_conv.py: one panel an operator.

A bar to the left of 1 is a layer on which cyconv is faster than the best peer.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cells import LAYOUTS, OPERATORS
from matplotlib.patches import Patch
from report import geometric_mean, read_records

TITLES = {"fwd": "forward", "dx": "data backward", "dw": "weight backward"}
COLOURS = {"nchw": "#1f6f8b", "nhwc": "#e08e45"}
INK, FAINT, SLOWER = "#22303c", "#d5dbe1", "#fbeeee"
PEERS = {"torch": "PyTorch", "ort": "ONNX Runtime"}
BAR = 0.4


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose one setting of a file; `choose` reads them."""
    parser.add_argument("--strategy", help="as requested (default: the file's first)")
    parser.add_argument("--dtype", help="(default: the file's first)")
    parser.add_argument("--batch", type=int, help="(default: the file's first)")
    parser.add_argument("--threads", type=int, help="(default: the file's first)")


def choose(records: list[dict], options: argparse.Namespace) -> list[dict]:
    """Keep the records of one setting: what is asked for, else that of the first of them."""
    chosen = records
    for key, value in (
        ("requested", options.strategy),
        ("dtype", options.dtype),
        ("batch", options.batch),
        ("threads", options.threads),
    ):
        if chosen:
            wanted = chosen[0][key] if value is None else value
            chosen = [record for record in chosen if record[key] == wanted]
    return chosen


def fraction(value: float) -> str:
    """Write a power of two as 1/4, 1 or 2."""
    return f"1/{round(1 / value)}" if value < 1 else f"{round(value)}"


def draw_bar(
    axis: plt.Axes, place: float, ratio: float, limits: tuple[float, float], colour: str
) -> None:
    """Draw a bar from 1 to the ratio, and the ratio at its end."""
    end = min(max(ratio, limits[0]), limits[1])
    axis.barh(place, end - 1, BAR * 0.9, left=1, color=colour, zorder=2)
    cut = end != ratio
    leftward = (ratio < 1) != cut  # beyond the end, or back into a bar that is cut
    axis.annotate(
        f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.3f}",
        (end, place),
        xytext=(-3 if leftward else 3, 0),
        textcoords="offset points",
        ha="right" if leftward else "left",
        va="center_baseline",
        fontsize=6.5,
        color="white" if cut else INK,
        zorder=4,
    )


def draw(records: list[dict]) -> plt.Figure:
    """Draw the figure of one setting's records."""
    names = list(dict.fromkeys(record["name"] for record in records))
    operators = [op for op in OPERATORS if any(r["operator"] == op for r in records)]
    layouts = [layout for layout in LAYOUTS if any(r["layout"] == layout for r in records)]
    ratios = {(r["name"], r["operator"], r["layout"]): r["ratio"] for r in records}
    # Whole powers of two with room for the numbers; an extreme bar is cut and holds its number.
    low = max(-5, min(-2, math.floor(math.log2(min(ratios.values())) - 0.6)))
    high = min(3, max(1, math.ceil(math.log2(max(ratios.values())) + 0.6)))

    figure, axes = plt.subplots(
        1,
        len(operators),
        sharey=True,
        squeeze=False,
        figsize=(1.8 + 3.9 * len(operators), 2.4 + 0.31 * len(names)),
        layout="constrained",
    )
    for axis, operator in zip(axes[0], operators, strict=True):
        axis.axvspan(1, 2**high, color=SLOWER, zorder=0)
        for place in range(0, len(names), 2):
            axis.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.035, linewidth=0, zorder=0.5)
        for index, layout in enumerate(layouts):
            offset = (index - (len(layouts) - 1) / 2) * BAR
            for place, name in enumerate(names):
                ratio = ratios.get((name, operator, layout))
                if ratio is None:
                    continue
                draw_bar(axis, place + offset, ratio, (2.0**low, 2.0**high), COLOURS[layout])
        here = [ratio for (_, op, _), ratio in ratios.items() if op == operator]
        axis.set_title(
            f"{TITLES[operator]}\ngeometric mean {geometric_mean(here):.2f}",
            fontsize=10,
            color=INK,
        )
        axis.set_xscale("log", base=2)
        axis.set_xlim(2**low, 2**high)
        step = max(1, math.ceil((high - low) / 8))
        ticks = [2.0**power for power in range(low, high + 1) if power % step == 0]
        axis.set_xticks(ticks, [fraction(tick) for tick in ticks], fontsize=8, color=INK)
        axis.minorticks_off()
        axis.grid(axis="x", color=FAINT, linewidth=0.6, zorder=1)
        axis.axvline(1, color=INK, linewidth=1.0, zorder=3)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_yticks(range(len(names)), names, fontsize=8, color=INK)
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    first = records[0]
    peers = [PEERS[p] for p in PEERS if any("ratio" in r["peers"].get(p, {}) for r in records)]
    figure.suptitle(
        f"time(cyconv) / time({' or '.join(peers)}, whichever is faster): "
        "left of 1, cyconv is faster",
        fontsize=12,
        color=INK,
    )
    heap = ", heap kept" if first["keep_heap"] else ""
    figure.supxlabel(
        f"{first['machine']['cpu']} ({first['machine'].get('isa', 'no peak')}), {first['dtype']}, "
        f"batch {first['batch']}, {first['threads']} thread(s){heap}",
        fontsize=8.5,
        color=INK,
    )
    figure.legend(
        handles=[Patch(color=COLOURS[layout], label=layout.upper()) for layout in layouts],
        loc="outside upper right",
        ncols=len(layouts),
        frameon=False,
        fontsize=9,
    )
    return figure


def main() -> None:
    """Draw one setting of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, help="JSON lines of bench_conv.py")
    parser.add_argument("--output", type=Path, default=Path("docs/_static/ratios.png"))
    add_setting_arguments(parser)
    options = parser.parse_args()
    compared = [r for r in read_records(options.records) if r["ratio"] is not None]
    chosen = choose(compared, options)
    if not chosen:
        parser.exit(1, f"{options.records}: no ratios of that setting\n")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(chosen).savefig(options.output, dpi=150)
    print(f"{options.output}: {len(chosen)} ratios")


if __name__ == "__main__":
    main()
