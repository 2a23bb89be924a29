"""Tables of benchmark records, for reading on a terminal."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PEERS = ("torch", "ort")


def read_records(path: Path) -> list[dict]:
    """Read the records of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def geometric_mean(values: Iterable[float]) -> float:
    """Give the exponential of the mean logarithm; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def shape(sizes: list[int]) -> str:
    """Write sizes as 1x3x224x224."""
    return "x".join(map(str, sizes))


def _milliseconds(entry: dict | None) -> str:
    if entry is None:
        return ""
    if "seconds" in entry:
        return f"{entry['seconds'] * 1e3:.3f}"
    return entry["status"].split(":")[0]


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


HEADER = (
    f"{'layer':20s} {'op':3s} {'lay.':4s} {'n':>2s} {'thr':>3s} {'x':>16s} {'w':>15s} "
    f"{'strategy':>14s} {'ms':>9s} {'torch':>11s} {'ort':>11s} {'peak':>7s} "
    f"{'share':>5s} {'torch':>5s} {'ort':>5s} {'ratio':>6s}"
)


def row(record: dict) -> str:
    """Write one record on one line; a ! marks an answer that differs from a peer's."""
    ours, peers = record["cyconv"], record["peers"]
    asked, took = record["requested"], record["strategy"] or ""
    strategy = took if took and asked in ("auto", took) else f"{asked}>{took}".rstrip(">")
    wrong = any(peer.get("agrees") is False for peer in peers.values())
    line = (
        f"{record['name']:20s} {record['operator']:3s} {record['layout']:4s} "
        f"{record['batch']:2d} {record['threads']:3d} {shape(record['x_shape']):>16s} "
        f"{shape(record['w_shape']):>15s} {strategy:>14s} {_milliseconds(ours):>9s} "
        + " ".join(f"{_milliseconds(peers.get(peer)):>11s}" for peer in PEERS)
        + f" {_number(record['peak_gflops'], '.0f'):>7s} "
        + " ".join(
            f"{_number(entry.get('share')):>5s}"
            for entry in (ours, *(peers.get(peer, {}) for peer in PEERS))
        )
        + f" {_number(record['ratio']):>6s}{'!' if wrong else ''}"
    )
    return line.rstrip()


def troubles(records: list[dict]) -> list[str]:
    """List where a side failed, died, took too long or answered differently."""
    expected = ("ok", "absent", "unsupported")
    lines = []
    for record in records:
        where = f"{record['name']} {record['problem']}"
        if not record["cyconv"]["status"].startswith(expected):
            lines.append(f"{where}: cyconv ({record['requested']}) {record['cyconv']['status']}")
        for name, peer in record["peers"].items():
            if not peer["status"].startswith(expected):
                lines.append(f"{where}: {name} {peer['status']}")
            if peer.get("agrees") is False:
                difference = f"differs from {name} by {peer['difference']:.1e}"
                lines.append(f"{where}: cyconv ({record['requested']}) {difference}")
    return list(dict.fromkeys(lines))


def summary(records: list[dict]) -> str:
    """Give the geometric means of the ratios per setting, operator and layout."""
    groups: dict[tuple, dict[tuple, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["ratio"] is not None:
            setting = tuple(record[key] for key in ("requested", "dtype", "batch", "threads"))
            groups[setting][record["operator"], record["layout"]].append(record["ratio"])
    lines = []
    for (requested, dtype, batch, threads), cells in groups.items():
        lines.append(
            f"strategy {requested}, {dtype}, batch {batch}, {threads} thread(s): "
            "geometric mean of time(cyconv) / time(best peer)"
        )
        for (operator, layout), ratios in cells.items():
            lines.append(f"  {operator:3s} {layout:4s} {_mean(ratios)}")
        lines.append(f"  all      {_mean([r for ratios in cells.values() for r in ratios])}")
    return "\n".join(lines) or "no ratios: nothing of cyconv's was measured beside a peer"


def _mean(ratios: list[float]) -> str:
    below = sum(ratio < 1 for ratio in ratios)
    return f"{geometric_mean(ratios):6.3f}   {below} of {len(ratios)} below 1"
