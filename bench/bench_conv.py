"""Convolution side by side with PyTorch and ONNX Runtime: times, ratios, shares of the FMA peak.

Each library runs in a worker process of its own, all on the same number of threads, and they take
turns within every round. Without arguments the whole shapes file is run; `--quick` takes under
three minutes. See README.md beside this file for how to read the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from cells import DTYPES, LAYOUTS, OPERATORS, SHAPES, read_shapes, select_cells
from fma_peak import available_cores, fma_peak, isa
from measure import Effort, measure_cell
from report import HEADER, PEERS, row, summary, troubles
from side import Side, SideError


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shapes", type=Path, default=SHAPES, help="file of problems")
    add("--layers", default="", metavar="REGEX", help="only names in which this is found")
    add("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    add("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    add("--dtype", nargs="+", choices=DTYPES, default=["f32"])
    add("--batch", nargs="+", type=int, help="batch sizes (default 1 8; quick: 1)")
    add("--threads", nargs="+", help="numbers, or all (default 1 all; quick: 1)")
    add("--strategy", nargs="+", default=["auto"], help="strategies of cyconv to run")
    add("--peer", nargs="*", choices=PEERS, default=list(PEERS))
    add("--rounds", type=int, help="turns of every side (default 5; quick: 3)")
    add("--seconds-per-cell", type=float, help="time for all sides (default 2; quick: 0.3)")
    add("--cell-timeout", type=float, help="bound of a side in seconds (default 120; quick: 5)")
    add("--keep-heap", action="store_true", help="no page faults for fresh outputs, on any side")
    add("--quick", action="store_true", help="a first impression of every row")
    add("--output", type=Path, metavar="FILE.jsonl", help="one record a line")
    options = parser.parse_args()
    quick = options.quick
    options.batch = options.batch or ([1] if quick else [1, 8])
    words = options.threads or (["1"] if quick else ["1", "all"])
    counts = [available_cores() if word == "all" else int(word) for word in words]
    options.threads = list(dict.fromkeys(counts))
    options.effort = Effort(
        rounds=options.rounds or (3 if quick else 5),
        seconds=options.seconds_per_cell or (0.3 if quick else 2.0),
        timeout=options.cell_timeout or (5.0 if quick else 120.0),
    )
    return options


def describe_machine() -> dict:
    """Say what the times depend on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [s for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    machine = {
        "cpu": model,
        "architecture": platform.machine(),
        "cores": available_cores(),
        "system": platform.system(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }
    try:
        machine["isa"] = isa()
        machine["peak_gflops"] = {
            f"{dtype} x{threads}": fma_peak(dtype, threads)
            for dtype in ("f32", "f64")
            for threads in sorted({1, available_cores()})
        }
    except Exception as error:  # no compiler: the shares are left out, the ratios are not
        print(f"FMA peak absent: {error}", file=sys.stderr)
    return machine


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


def main() -> None:
    """Run the cells, print a table, write the records."""
    options = parse_arguments()
    machine = describe_machine()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    peaks = ", ".join(f"{key} {value:.0f}" for key, value in machine.get("peak_gflops", {}).items())
    print(f"{machine['cpu']}, {machine['cores']} core(s); FMA peak in GFLOP/s: {peaks or 'absent'}")
    load = (machine["load"] or [0.0])[0]
    if load > 0.5:
        print(f"load average {load:.1f}: something else computes here; do not trust the times")
    output = None
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        output = options.output.open("w")
    shapes = read_shapes(options.shapes)
    records: list[dict] = []
    for threads in options.threads:
        ours, peers = open_sides(options, threads)
        versions = {"python": platform.python_version(), "numpy": version("numpy")}
        versions |= {side.library: side.version for side in (*ours, *peers) if side.version}
        print(", ".join(f"{name} {number}" for name, number in versions.items()))
        print(HEADER, flush=True)
        common = {
            "machine": machine,
            "versions": versions,
            "keep_heap": options.keep_heap,
            "started": stamp,
        }
        try:
            for cell in select_cells(
                shapes,
                layers=options.layers,
                operators=options.operators,
                layouts=options.layouts,
                dtypes=options.dtype,
                batches=options.batch,
                threads=[threads],
            ):
                for record in measure_cell(cell, ours, peers, options.effort):
                    records.append(record)
                    print(row(record), flush=True)
                    if output:
                        output.write(json.dumps(record | common) + "\n")
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
