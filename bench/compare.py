"""Two JSON lines files of bench_conv.py, cell by cell: what became faster, what slower.

Two columns, both below 1 where the new file is faster: the ratio of the times themselves, and the
ratio of the ratios to the best peer. The second is the one to trust: the machine's speed differs
between two runs, and the peer, measured beside cyconv in each, cancels it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from report import geometric_mean, read_records

KEY = ("name", "operator", "layout", "dtype", "batch", "threads", "requested", "keep_heap")


def measured(path: Path) -> dict[tuple, dict]:
    """Read the records in which cyconv was measured, by what they measure."""
    return {
        tuple(record[key] for key in KEY): record
        for record in read_records(path)
        if "seconds" in record["cyconv"]
    }


def main() -> None:
    """Print a row per common cell and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    old, new = measured(options.old), measured(options.new)
    common = [key for key in old if key in new]
    times, ratios = [], []
    print(f"{'cell':64s} {'old ms':>10s} {'new ms':>10s} {'times':>6s} {'ratios':>6s}  strategy")
    for key in common:
        before, after = old[key], new[key]
        times.append(after["cyconv"]["seconds"] / before["cyconv"]["seconds"])
        relative = ""
        if before["ratio"] is not None and after["ratio"] is not None:
            ratios.append(after["ratio"] / before["ratio"])
            relative = f"{ratios[-1]:.2f}"
        strategy = after["strategy"] or ""
        if strategy != before["strategy"]:
            strategy = f"{before['strategy']} -> {strategy}"
        cell = f"{key[0]} {' '.join(after['problem'].split()[:4])} x{after['threads']}"
        if after["requested"] != "auto":
            cell += f" {after['requested']}"
        print(
            f"{cell:64s} {before['cyconv']['seconds'] * 1e3:10.3f} "
            f"{after['cyconv']['seconds'] * 1e3:10.3f} {times[-1]:6.2f} {relative:>6s}  {strategy}"
        )
    print(
        f"{len(common)} cells in both, {len(old) - len(common)} only in the old file, "
        f"{len(new) - len(common)} only in the new"
    )
    print(f"geometric mean: times {geometric_mean(times):.3f}, ratios {geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
