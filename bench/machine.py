"""What the times of a run depend on: the processor, its ceilings, and what else it was doing."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from subprocess import CalledProcessError

from peaks import available_cores, copy_bandwidth, fma_peak, isa


def describe_machine() -> dict:
    """Describe the machine, with its peaks on one core and on all, measured now."""
    counts = sorted({1, available_cores()})
    machine = {
        "cpu": _processor(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "system": platform.system(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "copy_gbytes": {f"x{threads}": copy_bandwidth(threads) for threads in counts},
    }
    try:
        machine["isa"] = isa()
        machine["peak_gflops"] = {
            f"{dtype} x{threads}": fma_peak(dtype, threads)
            for dtype in ("f32", "f64")
            for threads in counts
        }
    except (OSError, CalledProcessError) as error:  # the shares are left out, the ratios are not
        print(f"FMA peak absent: {error}", file=sys.stderr)
    return machine


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def headline(machine: dict) -> str:
    """Say it on one or two lines."""
    peaks = ", ".join(f"{key} {value:.0f}" for key, value in machine.get("peak_gflops", {}).items())
    copies = ", ".join(f"{key} {value:.1f}" for key, value in machine["copy_gbytes"].items())
    line = (
        f"{machine['cpu']}, {machine['cores']} core(s); FMA peak in GFLOP/s: {peaks or 'absent'}; "
        f"copy in GB/s: {copies}"
    )
    load = (machine["load"] or [0.0])[0]
    if load > 0.5:
        line += f"\nload average {load:.1f}: something else computes here; do not trust the times"
    return line
