"""Weights in files: NumPy's ``.npz``, written and read, and ``.safetensors``, read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..autograd import raw
from ..devices import on_host
from ..operands import Array

_BETWEEN = "/"  # the name of a mapping and those within it


def save(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write arrays by name.

    Parameters
    ----------
    path : path
        Ends in ``.npz``.
    state : mapping of str to array_like
        Such as `Module.state_dict` returns; or a mapping of names to such mappings, for a model
        and its optimiser in one file.

    Raises
    ------
    ValueError
        If the file is of another kind.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"path must end in .npz, not {str(path)!r}")
    flat: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}{_BETWEEN}{inner}": array for inner, array in value.items()})
        else:
            flat[name] = value
    flat = {name: on_host(raw(value)) for name, value in flat.items()}
    np.savez(path, **flat)


def load(path: str | Path) -> dict[str, Any]:
    """Read what `save` wrote: arrays by name, for `Module.load_state_dict`, or mappings of such.

    Parameters
    ----------
    path : path
        Ends in ``.npz`` or ``.safetensors``.

    Returns
    -------
    dict of str to numpy.ndarray, or to such dicts

    Raises
    ------
    ValueError
        If the file is of another kind.
    ImportError
        If the package ``safetensors`` is needed and missing.

    Notes
    -----
    Neither kind of file runs code when it is read.
    """
    suffix = Path(path).suffix
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return _nested(dict(file))
    if suffix == ".safetensors":
        if find_spec("safetensors") is None:
            raise ImportError('reading this file needs safetensors: pip install "cyconv[nn]"')
        from safetensors.numpy import load_file

        return dict(load_file(path))
    raise ValueError(f"path must end in .npz or .safetensors, not {str(path)!r}")


def _nested(flat: dict[str, Array]) -> dict[str, Any]:
    """Undo the joining of names."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        outer, between, inner = name.partition(_BETWEEN)
        if between:
            state.setdefault(outer, {})[inner] = value
        else:
            state[name] = value
    return state
