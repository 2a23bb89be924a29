"""``show_config``: what this installation is and what it found, for a bug report."""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import scipy

from . import workspace
from .isa import active_isa, isas
from .kernels import _memory, _openmp, blas_threads
from .settings import STRATEGIES, Config, default_threads, environment_strategy, get_config


def show_config() -> str:
    """Return versions, threads, BLAS, OpenMP runtimes and settings, as lines of text.

    Returns
    -------
    str
        One ``name: value`` a line; print it.
    """
    settings = get_config()
    defaults = Config()
    changed = [
        f"{name}={value!r}"
        for name, value in settings._asdict().items()
        if value != getattr(defaults, name)
    ]
    lines = {
        "cyconv": version("cyconv"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.machine()} {platform.system()}",
        "strategies": ", ".join(STRATEGIES),
        "strategy from the environment": ", ".join(
            f"{op} {environment_strategy(op)}" for op in ("fwd", "dx")
        ),
        "instruction sets": f"{active_isa()} in use, of {', '.join(isas())}",
        "threads": str(default_threads()),
        "blas": f"{_blas()} with {blas_threads.current()} threads",
        "openmp version": str(_openmp.version()),
        "openmp runtimes": ", ".join(_openmp_runtimes()) or "unknown",
        "scratch held": f"{workspace.held_nbytes()} bytes",
        "tensors' memory held": f"{_memory.held_nbytes()} bytes",
        "settings changed": ", ".join(changed) or "none",
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items())


def _blas() -> str:
    name = blas_threads.name()
    return "unknown BLAS" if name is None else name.split("_get_")[0].split("_Get_")[0]


def _openmp_runtimes() -> list[str]:
    """Names of the OpenMP libraries mapped into this process; more than one may fight."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted(set(re.findall(r"/(lib(?:gomp|omp|iomp5)[^/\s]*)$", maps, re.MULTILINE)))
