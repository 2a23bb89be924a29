"""Measure one cell: all sides in turn, round after round, and the arithmetic peak beside them.

The machine's speed drifts, so times are compared only within a round. What is reported is the
median over rounds of the ratio of per-round minima.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from subprocess import CalledProcessError

import numpy as np
from cells import Cell
from peaks import fma_peak
from side import Side, SideError

# Relative to the largest sampled value. It tells wrong answers from right ones, no more.
TOLERANCE = {"f32": 1e-3, "f64": 1e-9, "f16": 2e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class Effort:
    """Rounds of a cell, the seconds it takes, and the seconds after which a side is given up."""

    rounds: int
    seconds: float
    timeout: float


def measure_peak(dtype: str, threads: int) -> float | None:
    """Run the FMA loop for its GFLOP/s (half types: of float32); None without a C compiler."""
    try:
        return fma_peak("f64" if dtype == "f64" else "f32", threads, seconds=0.002, repeats=2)
    except (OSError, CalledProcessError):
        return None


def _rounds(effort: Effort, slot: float, call_seconds: list[float]) -> int:
    """Choose fewer rounds where calls are so long that all would take four times the budget."""
    one_round = sum(max(slot, call) for call in call_seconds)
    return max(1, min(effort.rounds, int(4 * effort.seconds / one_round)))


def _difference(sample: list[float], reference: list[float]) -> float:
    a, b = np.array(sample), np.array(reference)
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-300))


def measure_cell(cell: Cell, ours: list[Side], peers: list[Side], effort: Effort) -> list[dict]:
    """Run a cell; one record for each of our sides.

    A side that is absent, refuses, fails, dies or exceeds the time is told in its ``status``.
    """
    sides = [*ours, *peers]
    left = dict.fromkeys(sides, effort.timeout)  # each its own: one that hangs costs no other
    status = dict.fromkeys(sides, "ok")
    told: dict[Side, dict] = {}
    times: dict[Side, list[float]] = {side: [] for side in sides}
    calls = dict.fromkeys(sides, 0)
    peaks: list[float | None] = []

    def ask(side: Side, **request: object) -> dict | None:
        try:
            side.start()
            start = time.monotonic()
            answer = side.ask(left[side], **request)
            left[side] -= time.monotonic() - start
            return answer
        except SideError as error:
            status[side] = str(error)
            return None

    for side in sides:
        answer = ask(side, do="prepare", problem=cell.description())
        if answer is not None:
            told[side] = answer
    live = list(told)
    slot = effort.seconds / (effort.rounds * max(len(live), 1))
    n_rounds = _rounds(effort, slot, [told[side]["call_seconds"] for side in live] or [slot])
    for _ in range(n_rounds):
        peaks.append(measure_peak(cell.problem.dtype, cell.threads))
        for side in live:
            if status[side] != "ok":
                continue
            answer = ask(side, do="time", seconds=slot)
            if answer is not None:
                times[side].append(answer["seconds"])
                calls[side] += answer["calls"]

    peak = max((p for p in peaks if p is not None), default=None)
    measured = {side for side in sides if status[side] == "ok"}

    def summary(side: Side) -> dict:
        entry: dict = {"status": status[side]}
        if side in measured:
            seconds = min(times[side])
            gflops = cell.problem.flop / seconds / 1e9
            entry |= {"seconds": seconds, "calls": calls[side], "gflops": gflops}
            entry["round_seconds"] = times[side]
            entry["share"] = gflops / peak if peak else None
        return entry

    records = []
    for side in ours:
        against = [peer for peer in peers if peer in measured]
        entries = {}
        for peer in peers:
            entries[peer.library] = summary(peer)
            if peer in measured and side in measured:
                ratios = [a / b for a, b in zip(times[side], times[peer], strict=True)]
                entries[peer.library]["ratio"] = statistics.median(ratios)
                difference = _difference(told[side]["sample"], told[peer]["sample"])
                entries[peer.library]["difference"] = difference
                entries[peer.library]["agrees"] = difference <= TOLERANCE[cell.problem.dtype]
        ratio = None
        if side in measured and against:
            best = [min(round_) for round_ in zip(*(times[peer] for peer in against), strict=True)]
            ratio = statistics.median(a / b for a, b in zip(times[side], best, strict=True))
        plan = told.get(side, {})
        records.append(
            {
                "name": cell.name,
                "problem": str(cell.problem),
                "operator": cell.problem.op,
                "layout": cell.problem.layout,
                "dtype": cell.problem.dtype,
                "batch": cell.problem.batch,
                "threads": cell.threads,
                "x_shape": list(cell.problem.x_shape),
                "w_shape": list(cell.problem.w_shape),
                "flop": cell.problem.flop,
                "nbytes": cell.nbytes,
                "requested": side.strategy,
                "strategy": plan.get("strategy"),
                "reason": plan.get("reason"),
                "workspace_nbytes": plan.get("workspace_nbytes"),
                "rounds": n_rounds,
                "peak_gflops": peak,
                "ratio": ratio,
                "cyconv": summary(side),
                "peers": entries,
            }
        )
    return records
