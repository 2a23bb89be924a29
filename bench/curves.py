"""Time over size on the curves of cliffs.py, and the ratios that are claimed of them.

Points of a curve take turns in every round; a ratio is the median over rounds of the ratio of the
fastest calls. `python bench/curves.py` runs all of them and says which claims are missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from cliffs import CURVES, Claim, Curve, Point
from machine import describe_machine, headline
from peaks import available_cores
from worker import fastest


def measure(points: list[Point], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Time the points in turns; the fastest call of each in every round."""
    for one in points:
        one.call()
    times: dict[str, list[float]] = {one.label: [] for one in points}
    for _ in range(rounds):
        for one in points:
            times[one.label].append(fastest(one.call, seconds)[0])
    return times


def achieved(claim: Claim, curve: Curve, times: dict[str, list[float]]) -> float:
    """Give the ratio that a claim is about."""
    pairs = zip(times[claim.subject], times[claim.reference], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    if claim.per_mac:
        macs = {one.label: one.macs for one in curve.points}
        ratio *= macs[claim.reference] / macs[claim.subject]
    return ratio


def tell(curve: Curve, times: dict[str, list[float]]) -> int:
    """Print a curve and its claims; return how many are missed."""
    print(f"\n{curve.title}")
    for one in curve.points:
        best = min(times[one.label])
        rate = f"{2 * one.macs / best / 1e9:8.1f} GFLOP/s" if one.macs else ""
        print(f"  {one.label:14s} {best * 1e3:10.3f} ms {rate}".rstrip())
    missed = 0
    for claim in curve.claims:
        ratio = achieved(claim, curve, times)
        missed += ratio > claim.bound
        per = " per multiply-add" if claim.per_mac else ""
        print(
            f"    {claim.subject} / {claim.reference}{per}: {ratio:.2f}, stated {claim.bound:.2f}"
            f"{'  MISSED' if ratio > claim.bound else ''}"
        )
    return missed


def draw(measured: list[tuple[Curve, dict[str, list[float]]]], path: Path) -> None:
    """Draw time over size, a panel a curve."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(measured))
    rows = math.ceil(len(measured) / columns)
    figure, axes = plt.subplots(
        rows, columns, squeeze=False, figsize=(4 * columns, 3 * rows), layout="constrained"
    )
    for axis in axes.flat[len(measured) :]:
        axis.set_visible(False)
    for axis, (curve, times) in zip(axes.flat, measured, strict=False):
        sizes = [one.size for one in curve.points]
        axis.plot(sizes, [min(times[one.label]) * 1e3 for one in curve.points], ".")
        for one in curve.points:
            axis.annotate(one.label, (one.size, min(times[one.label]) * 1e3), fontsize=5)
        axis.set_yscale("log")
        axis.set_ylabel("ms", fontsize=7)
        axis.set_title(curve.title, fontsize=7)
        axis.tick_params(labelsize=6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the curves, print them, draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CURVES)}")
    parser.add_argument("--threads", default="1", help="a number, or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a point in a round")
    parser.add_argument("--draw", type=Path, metavar="FILE.png")
    options = parser.parse_args()
    unknown = set(options.names) - set(CURVES)
    if unknown:
        parser.error(f"no curve {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    threads = available_cores() if options.threads == "all" else int(options.threads)
    print(headline(describe_machine()))
    measured, missed, claims = [], 0, 0
    for name in options.names or CURVES:
        for curve in CURVES[name](threads):
            times = measure(curve.points, options.rounds, options.seconds)
            missed += tell(curve, times)
            claims += len(curve.claims)
            measured.append((curve, times))
    print(f"\n{claims} claims on {threads} thread(s), {missed} missed")
    if options.draw:
        draw(measured, options.draw)


if __name__ == "__main__":
    main()
