"""A result file of bench_conv.py as Markdown: the means, then the ratio of every cell.

It goes into the documentation as it is printed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from cells import LAYOUTS, OPERATORS
from report import Setting, is_dense_3x3, mean_ratios, read_records, settings_of, title

LIBRARIES = {"python": "Python", "numpy": "NumPy", "torch": "PyTorch", "ort": "ONNX Runtime"}
WORDS = {"fwd": "forward", "dx": "data backward", "dw": "weight backward"}


def ratio(value: float | None) -> str:
    """Write a ratio to two places; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def circumstances(records: list[dict]) -> str:
    """Say where, when and with what the file was measured."""
    first = records[0]
    machine = first["machine"]
    versions = {key: value for record in records for key, value in record["versions"].items()}
    libraries = ", ".join(
        f"{name} {versions[key]}" for key, name in LIBRARIES.items() if key in versions
    )
    return (
        f"{machine['cpu']} ({machine.get('isa', 'no peak')}), {machine['cores']} core(s), "
        f"{first['started'][:10]}. {libraries}. {max(r['rounds'] for r in records)} rounds"
        f"{', heap kept' if first['keep_heap'] else ''}."
    )


def means(groups: dict[Setting, list[dict]]) -> list[str]:
    """Make the table of geometric means, one row a setting and layout."""
    lines = [
        f"| setting | FMA peak, GFLOP/s | layout | {' | '.join(WORDS.values())} | all | below 1 | "
        "all, without dense 3×3 of stride 1 |",
        "|---" * (len(WORDS) + 6) + "|",
    ]
    for setting, records in groups.items():
        peaks = [r["peak_gflops"] for r in records if r["peak_gflops"]]
        peak = f"{statistics.median(peaks):.0f}" if peaks else "-"
        for layout in LAYOUTS:
            here = [r for r in records if r["layout"] == layout]
            if not here:
                continue
            operators = (
                ratio(mean_ratios([r for r in here if r["operator"] == op])[0]) for op in OPERATORS
            )
            best, _, _, below = mean_ratios(here)
            rest = mean_ratios([r for r in here if not is_dense_3x3(r)])[0]
            lines.append(
                f"| {title(setting)} | {peak} | {layout.upper()} | {' | '.join(operators)} "
                f"| {ratio(best)} | {below} | {ratio(rest)} |"
            )
    return lines


def cells(setting: Setting, records: list[dict]) -> list[str]:
    """Make the table of a setting's ratios, one row a layer."""
    operators = " / ".join(OPERATORS)
    found = {(r["name"], r["layout"], r["operator"]): r["ratio"] for r in records}
    lines = [
        f"**{title(setting)}**",
        "",
        f"| layer | {' | '.join(f'{layout.upper()} {operators}' for layout in LAYOUTS)} |",
        "|---" * (1 + len(LAYOUTS)) + "|",
    ]
    for name in dict.fromkeys(r["name"] for r in records):
        columns = (
            " / ".join(ratio(found.get((name, layout, op))) for op in OPERATORS)
            for layout in LAYOUTS
        )
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


def main() -> None:
    """Print a file's tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, help="JSON lines of bench_conv.py")
    options = parser.parse_args()
    records = read_records(options.records)
    if not records:
        parser.exit(1, f"{options.records}: no records\n")
    groups = settings_of(records)
    print(circumstances(records), "", *means(groups), sep="\n")
    for setting, chosen in groups.items():
        print("", *cells(setting, chosen), sep="\n")


if __name__ == "__main__":
    main()
