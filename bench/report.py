"""Tables of benchmark records, for reading on a terminal."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from cyconv import ConvProblem

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
    f"{'layer':20s} {'op':3s} {'lay.':4s} {'type':4s} {'n':>2s} {'thr':>3s} {'x':>16s} {'w':>15s} "
    f"{'strategy':>14s} {'ms':>9s} {'torch ms':>11s} {'ort ms':>11s} {'peak':>6s} {'share':>5s} "
    f"{'/torch':>6s} {'/ort':>6s} {'ratio':>6s}"
)


def row(record: dict) -> str:
    """Write one record on one line; a ! marks an answer that differs from a peer's."""
    ours, peers = record["cyconv"], record["peers"]
    asked, took = record["requested"], record["strategy"] or ""
    strategy = took if took and asked in ("auto", took) else f"{asked}>{took}".rstrip(">")
    wrong = any(peer.get("agrees") is False for peer in peers.values())
    line = (
        f"{record['name']:20s} {record['operator']:3s} {record['layout']:4s} {record['dtype']:4s} "
        f"{record['batch']:2d} {record['threads']:3d} {shape(record['x_shape']):>16s} "
        f"{shape(record['w_shape']):>15s} {strategy:>14s} {_milliseconds(ours):>9s} "
        + " ".join(f"{_milliseconds(peers.get(peer)):>11s}" for peer in PEERS)
        + f" {_number(record['peak_gflops'], '.0f'):>6s} {_number(ours.get('share')):>5s} "
        + " ".join(f"{_number(peers.get(peer, {}).get('ratio')):>6s}" for peer in PEERS)
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


Setting = tuple[str, str, int, int]


def settings_of(records: list[dict]) -> dict[Setting, list[dict]]:
    """Sort records by strategy as requested, dtype, batch and threads."""
    groups: dict[Setting, list[dict]] = defaultdict(list)
    for record in records:
        groups[tuple(record[key] for key in ("requested", "dtype", "batch", "threads"))].append(
            record
        )
    return groups


def title(setting: Setting) -> str:
    """Name a setting."""
    requested, dtype, batch, threads = setting
    return f"{requested}, {dtype}, N = {batch}, {threads} thread{'s' * (threads > 1)}"


def is_dense_3x3(record: dict) -> bool:
    """Tell the layers that Winograd's method serves: two axes, 3x3, stride 1, one group."""
    problem = ConvProblem.parse(record["problem"])
    return problem.kernel == (3, 3) and set(problem.stride) == {1} and problem.groups == 1


def mean_ratios(records: list[dict]) -> tuple[float, float, float, str]:
    """Give the geometric means against the best peer, PyTorch and ONNX Runtime, and the wins."""
    best = [r["ratio"] for r in records if r["ratio"] is not None]
    each = (
        [r["peers"][peer]["ratio"] for r in records if "ratio" in r["peers"].get(peer, {})]
        for peer in PEERS
    )
    below = f"{sum(ratio < 1 for ratio in best)} of {len(best)}"
    return (geometric_mean(best), *map(geometric_mean, each), below)


def summary(records: list[dict]) -> str:
    """Give the geometric means of the ratios per setting, operator and layout."""
    lines = []
    for setting, chosen in settings_of([r for r in records if r["ratio"] is not None]).items():
        columns = f"{'best peer':>9s} {'torch':>6s} {'ort':>6s} {'below 1':>10s}"
        lines += [
            f"{title(setting)}: geometric mean of time(cyconv) / time(peer)",
            f"{'':10s}{'all rows':^34s}   {'without dense 3x3 of stride 1':^34s}".rstrip(),
            f"{'':10s}{columns}   {columns}",
        ]
        pairs = dict.fromkeys((r["operator"], r["layout"]) for r in chosen)
        for pair in (*pairs, None):
            here = [r for r in chosen if pair is None or (r["operator"], r["layout"]) == pair]
            name = "all" if pair is None else " ".join(pair)
            rest = [r for r in here if not is_dense_3x3(r)]
            lines.append(f"  {name:8s}{_means(here)}   {_means(rest)}")
    return "\n".join(lines) or "no ratios: nothing of cyconv's was measured beside a peer"


def _means(records: list[dict]) -> str:
    best, torch, ort, below = mean_ratios(records)
    numbers = ("" if math.isnan(mean) else f"{mean:.3f}" for mean in (best, torch, ort))
    return "{:>9s} {:>6s} {:>6s} {:>10s}".format(*numbers, below)
