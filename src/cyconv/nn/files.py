"""Weights in files: NumPy's ``.npz``, written and read, and ``.safetensors``, read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..operands import Array


def save(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write arrays by name.

    Parameters
    ----------
    path : path
        Ends in ``.npz``.
    state : mapping of str to array_like
        Such as `Module.state_dict` returns.

    Raises
    ------
    ValueError
        If the file is of another kind.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"path must end in .npz, not {str(path)!r}")
    np.savez(path, **dict(state))


def load(path: str | Path) -> dict[str, Array]:
    """Read arrays by name, for `Module.load_state_dict`.

    Parameters
    ----------
    path : path
        Ends in ``.npz`` or ``.safetensors``.

    Returns
    -------
    dict of str to numpy.ndarray

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
            return dict(file)
    if suffix == ".safetensors":
        if find_spec("safetensors") is None:
            raise ImportError('reading this file needs safetensors: pip install "cyconv[nn]"')
        from safetensors.numpy import load_file

        return dict(load_file(path))
    raise ValueError(f"path must end in .npz or .safetensors, not {str(path)!r}")
