"""Convolution side by side with PyTorch and ONNX Runtime: times, ratios, shares of the FMA peak.

Each library runs in a worker process of its own, all on the same number of threads, and they take
turns within every round. Without arguments every row of the shapes file is run in the three
operators, both layouts, batch 1 and 8, one thread and all, float32, and some rows in float64: about
an hour. `--quick` takes about three minutes. See README.md beside this file for how to read
the result.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from cells import Cell, add_cell_arguments, chosen_cells
from machine import describe_machine, headline
from measure import Effort, measure_cell
from report import HEADER, PEERS, read_records, row, summary, troubles
from side import Side, SideError

# Of a cell beyond its rounds: operands, first calls and comparisons.
PREPARATION_SECONDS = 0.5


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cell_arguments(parser)
    add = parser.add_argument
    add("--strategy", nargs="+", default=["auto"], help="strategies of cyconv to run")
    add("--peer", nargs="*", choices=PEERS, default=list(PEERS))
    add("--rounds", type=int, help="turns of every side (default 5; quick: 3)")
    add("--seconds-per-cell", type=float, help="time for all sides (default 2; quick: 0.3)")
    add("--cell-timeout", type=float, default=30.0, help="bound of a side in seconds")
    add("--keep-heap", action="store_true", help="no page faults for fresh outputs, on any side")
    add("--output", type=Path, metavar="FILE.jsonl", help="one record a line, as they come")
    add("--resume", action="store_true", help="keep the records of --output, run what is missing")
    options = parser.parse_args()
    if options.resume and not options.output:
        parser.error("--resume needs --output")
    quick = options.quick
    options.effort = Effort(
        rounds=options.rounds or (3 if quick else 5),
        seconds=options.seconds_per_cell or (0.3 if quick else 2.0),
        timeout=options.cell_timeout,
    )
    return options


def open_sides(options: argparse.Namespace, threads: int) -> tuple[list[Side], list[Side]]:
    """Start our workers and the peers'; what is absent is told once."""
    ours = [Side("cyconv", threads, name, options.keep_heap) for name in options.strategy]
    peers = [Side(name, threads, keep_heap=options.keep_heap) for name in options.peer]
    for side in (*ours, *peers):
        try:
            if not side.start():
                print(f"{side.library} absent: {side.absent}")
        except SideError as error:
            print(f"{side.library} {error}")
    return ours, peers


def earlier_records(options: argparse.Namespace) -> list[dict]:
    """Read what an interrupted run has left in the output; nothing unless it is resumed."""
    if not options.resume or not options.output.exists():
        return []
    return read_records(options.output)


def missing_cells(options: argparse.Namespace, records: list[dict]) -> list[Cell]:
    """List the chosen cells that lack a record of some strategy."""
    done = {
        (r["name"], r["problem"], r["threads"], r["requested"])
        for r in records
        if r["keep_heap"] == options.keep_heap
    }
    return [
        cell
        for cell in chosen_cells(options)
        if any(
            (cell.name, str(cell.problem), cell.threads, strategy) not in done
            for strategy in options.strategy
        )
    ]


def main() -> None:
    """Run the cells, print a table, write the records."""
    options = parse_arguments()
    records = earlier_records(options)
    cells = missing_cells(options, records)
    minutes = len(cells) * (options.effort.seconds + PREPARATION_SECONDS) / 60
    print(f"{len(records)} records kept, " if records else "", end="")
    print(f"{len(cells)} cells to run: about {minutes:.0f} min", flush=True)
    common = {
        "machine": describe_machine(),
        "keep_heap": options.keep_heap,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    print(headline(common["machine"]))
    output = None
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        output = options.output.open("a" if options.resume else "w")
    for threads, group in groupby(cells, key=lambda cell: cell.threads):
        ours, peers = open_sides(options, threads)
        versions = {"python": platform.python_version(), "numpy": version("numpy")}
        versions |= {side.library: side.version for side in (*ours, *peers) if side.version}
        print(", ".join(f"{name} {number}" for name, number in versions.items()))
        print(HEADER, flush=True)
        try:
            for cell in group:
                for record in measure_cell(cell, ours, peers, options.effort):
                    records.append(record | common | {"versions": versions})
                    print(row(record), flush=True)
                    if output:
                        output.write(json.dumps(records[-1]) + "\n")
                        output.flush()
        finally:
            for side in (*ours, *peers):
                side.stop()
    if output:
        output.close()
    print()
    for line in troubles(records):
        print(line)
    print(summary(records))


if __name__ == "__main__":
    main()
