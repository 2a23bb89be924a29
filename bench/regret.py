"""The regret of `auto`: how much longer its choice takes than the best strategy would.

All strategies that serve a cell run in one process on the same arrays and take turns in every
round. The regret is time(chosen) / time(best), the median over rounds of the ratio of the fastest
calls: 1 where the choice was the best. Left out are strategies whose estimate is beyond `--within`
times the least one, and `reference` and `direct` where they are not chosen and the work is large.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from cells import Cell, add_cell_arguments, chosen_cells
from libraries import PREPARED, Cyconv, draw_operands
from machine import describe_machine, headline
from report import geometric_mean, settings_of, title
from worker import fastest

# Idle threads of BLAS and OpenMP keep a core busy for a while, at the cost of whoever runs next.
IDLE_SECONDS = 0.15
SCALAR = ("reference", "direct")
LARGE_WORK = 10_000_000  # multiply-adds: some 10 ms of a scalar loop
WORST = 20


def candidates(cell: Cell, explanation: Any, within: float) -> dict[str, float]:
    """Name the strategies to time, with their estimates; the chosen one first."""
    serving = {
        c.name: c.estimate for c in explanation.candidates if c.refusal is None and c.estimate
    }
    least = min(serving.values(), default=0.0)
    large = cell.problem.macs > LARGE_WORK
    timed = {explanation.strategy: serving.get(explanation.strategy, 0.0)}
    for name, estimate in serving.items():
        if estimate <= within * least and not (large and name in SCALAR):
            timed.setdefault(name, estimate)
    return timed


def measure(cell: Cell, within: float, rounds: int, seconds: float, suffix: str) -> dict:
    """Time the strategies of a cell in turns; return a record."""
    problem = cell.description()
    arrays = Cyconv.arrays(problem, draw_operands(problem))
    _, explanation = Cyconv(cell.threads, "auto" + suffix).call_on(problem, arrays)
    estimates = candidates(cell, explanation, within)
    calls = {
        name: Cyconv(cell.threads, name + suffix).call_on(problem, arrays)[0] for name in estimates
    }
    for call in calls.values():
        call()
    slot = seconds / (rounds * len(calls))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if cell.threads > 1:
                time.sleep(IDLE_SECONDS)
                call()
            times[name].append(fastest(call, slot)[0])
    chosen = times[explanation.strategy]
    strategies = {
        name: {
            "seconds": min(times[name]),
            "estimate": estimates[name],
            "round_seconds": times[name],
            "regret": statistics.median(a / b for a, b in zip(chosen, times[name], strict=True)),
        }
        for name in calls
    }
    best = max(strategies, key=lambda name: strategies[name]["regret"])
    return {
        "name": cell.name,
        "problem": str(cell.problem),
        "operator": cell.problem.op,
        "layout": cell.problem.layout,
        "dtype": cell.problem.dtype,
        "batch": cell.problem.batch,
        "threads": cell.threads,
        "requested": "auto" + suffix,
        "strategy": explanation.strategy,
        "best": best,
        "regret": strategies[best]["regret"],
        "strategies": strategies,
    }


def row(record: dict) -> str:
    """Write a record on one line, every strategy with its milliseconds (and the estimate)."""
    times = "  ".join(
        f"{name} {s['seconds'] * 1e3:.3f} ({s['estimate'] * 1e3:.3f})"
        for name, s in record["strategies"].items()
    )
    return (
        f"{record['name']:20s} {record['operator']:3s} {record['layout']:4s} {record['dtype']:3s} "
        f"{record['batch']:2d} {record['threads']:3d} {record['regret']:6.2f}  "
        f"{record['strategy']:>13s} {'=' if record['best'] == record['strategy'] else '>'} "
        f"{record['best']:13s} {times}"
    )


HEADER = (
    f"{'layer':20s} {'op':3s} {'lay.':4s} {'typ':3s} {'n':>2s} {'thr':>3s} {'regret':>6s}  "
    f"{'auto':>13s}   {'best':13s} each with its ms (estimate)"
)


def summary(records: list[dict]) -> str:
    """Give the geometric means per setting, operator and layout, and the largest regrets."""
    lines = []
    for setting, chosen in settings_of(records).items():
        lines.append(f"{title(setting)}: geometric mean of time(auto) / time(best strategy)")
        for pair in (*dict.fromkeys((r["operator"], r["layout"]) for r in chosen), None):
            here = [r for r in chosen if pair is None or (r["operator"], r["layout"]) == pair]
            right = sum(r["best"] == r["strategy"] for r in here)
            lines.append(
                f"  {'all' if pair is None else ' '.join(pair):8s} "
                f"{geometric_mean(r['regret'] for r in here):.3f}   "
                f"best in {right} of {len(here)}"
            )
    worst = sorted(records, key=lambda r: -r["regret"])[:WORST]
    lines += ["largest:", HEADER, *(row(r) for r in worst if r["regret"] > 1)]
    return "\n".join(lines)


def main() -> None:
    """Run the cells, print a table, write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cell_arguments(parser)
    add = parser.add_argument
    add("--within", type=float, default=4.0, help="bound of the estimate, times the least one")
    add("--rounds", type=int, help="turns of every strategy (default 5; quick: 3)")
    add("--seconds-per-cell", type=float, help="for all strategies (default 1; quick: 0.2)")
    add("--prepared", action="store_true", help="forward, with weights packed ahead")
    add("--output", type=Path, metavar="FILE.jsonl", help="one record a line")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 5)
    seconds = options.seconds_per_cell or (0.2 if options.quick else 1.0)
    suffix = PREPARED if options.prepared else ""
    machine = describe_machine()
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    print(headline(machine))
    print(HEADER, flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    records = []
    with open(options.output or os.devnull, "w") as output:
        for cell in chosen_cells(options):
            if suffix and cell.problem.op != "fwd":
                continue
            record = measure(cell, options.within, rounds, seconds, suffix)
            records.append(record)
            print(row(record), flush=True)
            output.write(json.dumps(record | {"machine": machine, "started": started}) + "\n")
            output.flush()
    print()
    print(summary(records))


if __name__ == "__main__":
    main()
