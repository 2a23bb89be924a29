"""Convolution for NumPy arrays: forward and both gradients, one to three axes, fast.

>>> import numpy as np, cyconv
>>> cyconv.conv2d(np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3)), padding="same").shape
(1, 1, 4, 4)
"""

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import binding, calls, tune, workspace
from .diagnostics import show_config
from .errors import (
    CyconvError,
    CyconvWarning,
    DTypeError,
    GpuError,
    GpuMemoryError,
    ShapeError,
    UnsupportedError,
)
from .explanation import Candidate, Explanation, explain
from .functional import (
    bias_backward,
    conv1d,
    conv2d,
    conv3d,
    conv_data_backward,
    conv_forward,
    conv_transpose,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    conv_weight_backward,
)
from .isa import active_isa, isas
from .kernels import _memory, _openmp
from .plans import Plan, plan
from .prepared import Prepared, prepare
from .problem import ConvProblem
from .settings import STRATEGIES, Config, config, get_config
from .tune import tuned

if TYPE_CHECKING:
    from .autograd import Tensor, no_grad

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Config",
    "ConvProblem",
    "CyconvError",
    "CyconvWarning",
    "DTypeError",
    "Explanation",
    "GpuError",
    "GpuMemoryError",
    "Plan",
    "Prepared",
    "ShapeError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "active_isa",
    "bias_backward",
    "clear_cache",
    "config",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_data_backward",
    "conv_forward",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_weight_backward",
    "explain",
    "get_config",
    "isas",
    "no_grad",
    "plan",
    "prepare",
    "show_config",
    "strategies",
    "tuned",
]

logging.getLogger("cyconv").addHandler(logging.NullHandler())

# A child of fork() has none of its parent's OpenMP threads and would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_openmp.pause_threads)

# Loaded when they are first asked for, so that who only convolves does not wait for them.
_LATER = {"Tensor": "autograd", "no_grad": "autograd"}
_ROOMS = ("autograd", "nn")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def strategies() -> tuple[str, ...]:
    """Return the names that ``strategy=`` takes, apart from ``"auto"`` and ``"profile"``."""
    return STRATEGIES


def clear_cache() -> None:
    """Forget plans and measured choices, and release the memory that is kept for reuse."""
    calls.clear()
    binding.clear()
    tune.clear()
    workspace.release()
    _memory.release()
