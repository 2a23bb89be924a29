"""Settings: a frozen value in a context variable over defaults from the environment.

A setting given in the call wins, then the innermost ``config(...)`` block, then the environment,
then the default. This is the only module that touches ``os.environ``; it is read at first use,
never at import, and a value that cannot be understood costs one warning and falls back to the
default.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .errors import CyconvWarning

T = TypeVar("T")

STRATEGIES = (
    "depthwise",
    "direct",
    "fft",
    "implicit_gemm",
    "im2col",
    "pointwise",
    "reference",
    "winograd",
)
POLICIES = ("auto", "profile")
_ALIASES = {"autotune": "profile"}
_PRECISIONS = ("highest", "high", "medium")
_DEFAULT_WORKSPACE_LIMIT = 64 * 2**20
_DEFAULT_MIN_WORK = 65536

# Operator -> the part of a variable's name that stands for it.
_TARGETS = {"dx": "GRAD_INPUT", "dw": "GRAD_WEIGHT"}


class Config(NamedTuple):
    """Settings of one context; ``None`` means not set here.

    Attributes
    ----------
    strategy : str or None
        A strategy's name, ``"auto"`` or ``"profile"``.
    threads : int or None
        Number of threads of a call.
    strict : bool
        Raise `UnsupportedError` where a named strategy would fall back to ``direct``.
    precision : {"highest", "high", "medium"}
        The weakest error bound that a strategy may have: ``"highest"`` excludes ``winograd``
        and ``fft``. ``"medium"`` permits TF32 on a GPU, and no more than ``"high"`` on a CPU.
    reproducible : bool
        Only strategies whose result depends neither on the thread count nor on the batch size.
    workspace_limit : int
        Most bytes of scratch memory in one call, copies of unusual operands included.
    flush_subnormals : bool
        Let ``depthwise``, ``implicit_gemm`` and ``winograd`` treat subnormal numbers as zero, which
        adds at most ``K * 2**-126`` to the error of a float32 result and spares some processors a
        hundredfold slowdown. The processor's mode is put back before the call returns.
    """

    strategy: str | None = None
    threads: int | None = None
    strict: bool = False
    precision: str = "high"
    reproducible: bool = False
    workspace_limit: int = _DEFAULT_WORKSPACE_LIMIT
    flush_subnormals: bool = True


_DEFAULTS = Config()
_current: ContextVar[Config] = ContextVar("cyconv_config", default=_DEFAULTS)


def get_config() -> Config:
    """Return the settings in force in this context (environment defaults not included)."""
    return _current.get()


@contextmanager
def config(**settings: Any) -> Iterator[Config]:
    """Change settings inside a ``with`` block; nested blocks merge.

    Parameters
    ----------
    **settings
        Any field of `Config`: ``strategy``, ``threads``, ``strict``, ``precision``,
        ``reproducible``, ``workspace_limit`` (bytes), ``flush_subnormals``.

    Yields
    ------
    Config
        The merged settings.

    Raises
    ------
    TypeError
        For an unknown setting, or a value of the wrong type.
    ValueError
        For a value out of range, or an unknown name.

    Notes
    -----
    The settings live in a ``contextvars.ContextVar``: they follow asynchronous tasks, and a new
    thread starts from the environment's defaults.

    Examples
    --------
    >>> import cyconv
    >>> with cyconv.config(strategy="direct", threads=1) as settings:
    ...     settings.strategy
    'direct'
    """
    for name, value in settings.items():
        if name not in _CHECKS:
            raise TypeError(f"config() has no setting {name!r}; it has {', '.join(_CHECKS)}")
        settings[name] = _CHECKS[name](name, value)
    token = _current.set(_current.get()._replace(**settings))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def check_strategy(name: str, value: object) -> str | None:
    """Return the canonical name of a strategy or policy; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    folded = value.lower()
    folded = _ALIASES.get(folded, folded)
    if folded not in STRATEGIES and folded not in POLICIES:
        raise ValueError(f"{name} {value!r} is unknown; it may be {strategy_names()}")
    return folded


def strategy_names() -> str:
    """List every accepted strategy name, for messages."""
    return ", ".join((*POLICIES, *_ALIASES, *STRATEGIES))


def check_threads(name: str, value: object) -> int | None:
    """Return a thread count as an int; None stays None."""
    return None if value is None else _check_int(name, value, minimum=1)


def _check_int(name: str, value: object, minimum: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = int(value.__index__())
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {number}")
    return number


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def _check_precision(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    if value not in _PRECISIONS:
        raise ValueError(f"{name} must be one of {', '.join(_PRECISIONS)}, not {value!r}")
    return value


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "strategy": check_strategy,
    "threads": check_threads,
    "strict": _check_bool,
    "precision": _check_precision,
    "reproducible": _check_bool,
    "workspace_limit": lambda name, value: _check_int(name, value, minimum=0),
    "flush_subnormals": _check_bool,
}


def _warn(variable: str, text: str, allowed: str) -> None:
    warnings.warn(
        f"{variable}={text!r} is ignored: it must be {allowed}", CyconvWarning, stacklevel=2
    )


def _read(variable: str, parse: Callable[[str], T], allowed: str, default: T) -> T:
    """Parse an environment variable; unset or empty gives the default, junk a warning too."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError:
        _warn(variable, text, allowed)
        return default


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _first_of_list(text: str) -> int:
    return _positive(text.split(",")[0].strip())


def _strategy(text: str) -> str:
    return check_strategy("strategy", text) or "auto"


@cache
def _operator_variable(kind: str, op: str, device: str) -> int:
    """Read ``MIN_WORK`` or ``PROFILE_ITERS`` for an operator, by the most specific variable set."""
    parse, allowed, value = {
        "MIN_WORK": (_count, "an integer of at least 0", _DEFAULT_MIN_WORK),
        "PROFILE_ITERS": (_positive, "an integer of at least 1", 1),
    }[kind]
    if op == "fwd":
        return _read(f"CYCONV_{device}_CONV_{kind}", parse, allowed, value)
    shared = _shared_gradient_variable(kind, device, parse, allowed, value)
    return _read(f"CYCONV_{device}_CONV_BWD_{kind}_{_TARGETS[op]}", parse, allowed, shared)


@cache
def _shared_gradient_variable(
    kind: str, device: str, parse: Callable[[str], int], allowed: str, value: int
) -> int:
    return _read(f"CYCONV_{device}_CONV_BWD_{kind}", parse, allowed, value)


def min_work(op: str, device: str = "CPU") -> int:
    """Return the work below which ``auto`` takes ``direct``, for "fwd", "dx" or "dw"."""
    return _operator_variable("MIN_WORK", op, device)


def profile_iterations(op: str, device: str = "CPU") -> int:
    """Return the rounds in which ``profile`` times each candidate, at least 1."""
    return _operator_variable("PROFILE_ITERS", op, device)


@cache
def _environment_strategy(variable: str) -> str:
    return _read(variable, _strategy, f"one of {strategy_names()}", "auto")


def environment_strategy(op: str, device: str = "CPU") -> str:
    """Return the strategy that the environment asks for, ``"auto"`` by default."""
    return _environment_strategy(f"CYCONV_{device}_CONV_{'' if op == 'fwd' else 'BWD_'}STRATEGY")


@cache
def default_threads() -> int:
    """Return the number of threads where neither the call nor the context names one.

    ``CYCONV_NUM_THREADS``, else ``OMP_NUM_THREADS`` (its first entry), else the smaller of the
    processors this process may run on and the CPU quota of its control group.
    """
    allowed = "a positive integer"
    for variable, parse in (
        ("CYCONV_NUM_THREADS", _positive),
        ("OMP_NUM_THREADS", _first_of_list),
    ):
        count = _read(variable, parse, allowed, 0)
        if count:
            return count
    return max(1, min(_affinity(), _cgroup_quota()))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole processors that the control group's CPU quota allows; a large number if unlimited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    try:
        version1 = root / "cpu"
        quota_us = int((version1 / "cpu.cfs_quota_us").read_text())
        period_us = int((version1 / "cpu.cfs_period_us").read_text())
        return max(1, -(-quota_us // period_us)) if quota_us > 0 else 2**31
    except (OSError, ValueError, ZeroDivisionError):
        return 2**31


@contextmanager
def short_openmp_spin() -> Iterator[None]:
    """Let the OpenMP runtime that is loaded inside start with threads that soon sleep when idle.

    libgomp's idle threads spin, and take the processors from BLAS: alternating a threaded matrix
    product with a parallel loop is four times slower so. A setting of the user's is left alone.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = "2000"
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def resolve(op: str, strategy: str | None, threads: int | None, device: str = "CPU") -> Config:
    """Merge a call's own strategy and threads with the context and the environment."""
    settings = _current.get()
    strategy = strategy or settings.strategy or environment_strategy(op, device)
    threads = threads or settings.threads or default_threads()
    return settings._replace(strategy=strategy, threads=min(threads, _most_threads()))


@cache
def _most_threads() -> int:
    """Return the most threads a call gets: more than this only costs memory, or fails to start."""
    return max(64, os.cpu_count() or 1)


def environment_isa(available: tuple[str, ...]) -> str | None:
    """Return the instruction set that ``CYCONV_ISA`` forces, None if it forces none."""

    def parse(text: str) -> str | None:
        if text.lower() not in available:
            raise ValueError(text)
        return text.lower()

    return _read("CYCONV_ISA", parse, f"one of {', '.join(available)} on this processor", None)
