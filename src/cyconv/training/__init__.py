"""Training on real data: a classifier of handwritten digits, and a denoiser of a photograph.

Both start from random weights. The digits are scikit-learn's, the photograph is scikit-image's;
their wheels carry them.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import cyconv

from ..settings import default_threads
from ._denoising import train_denoiser
from ._digits import train_digits
from ._figures import draw_denoiser, draw_digits

TASKS = ("digits", "denoise")
_NEEDS = {"digits": ("sklearn", "matplotlib"), "denoise": ("skimage", "matplotlib")}


def run(
    task: str,
    *,
    output: str,
    epochs: int | None = None,
    layout: str = "NCHW",
    seed: int = 0,
    threads: int | None = None,
    as_json: bool = False,
) -> int:
    """Train a network: print its progress, write a PNG.

    Parameters
    ----------
    task : {"digits", "denoise"}
    output : path
        The picture to write.
    epochs : int, optional
        By default what the task needs.
    layout : {"NCHW", "NHWC"}
    seed : int
        Of weights, order and noise.
    threads : int, optional
        By default all cores.
    as_json : bool
        Print one JSON object at the end instead of text.

    Returns
    -------
    int
        Exit status, 0.

    Raises
    ------
    ImportError
        If a package that the task needs is missing.
    ValueError
        If an argument is out of range.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, not {task!r}")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    for module in _NEEDS[task]:
        if find_spec(module) is None:
            raise ImportError(f'training needs {module}: pip install "cyconv[train]"')
    threads = default_threads() if threads is None else threads
    with cyconv.config(threads=threads):
        if task == "digits":
            summary = _digits(output, epochs or 15, layout, seed, as_json)
        else:
            summary = _denoise(output, epochs or 12, layout, seed, as_json)
    if as_json:
        print(json.dumps({**summary, "threads": threads, "output": output}, indent=2))
    else:
        print(f"Picture written to {output}.")
    return 0


def _digits(output: str, epochs: int, layout: str, seed: int, quiet: bool) -> dict[str, Any]:
    result = train_digits(epochs, layout=layout, seed=seed, quiet=quiet)
    draw_digits(result, output)
    if not quiet:
        print(
            f"Test accuracy {result.accuracy:.2%}: {len(result.mistakes)} mistakes among "
            f"{len(result.target)} digits. {result.seconds:.1f} s."
        )
    return {
        "task": "digits",
        "accuracy": result.accuracy,
        "losses": result.losses,
        "seconds": result.seconds,
    }


def _denoise(output: str, epochs: int, layout: str, seed: int, quiet: bool) -> dict[str, Any]:
    result = train_denoiser(epochs, layout=layout, seed=seed, quiet=quiet)
    draw_denoiser(result, output)
    if not quiet:
        print(
            f"Peak signal-to-noise ratio of the half that was not seen: "
            f"{result.noisy_psnr:.1f} dB noisy, {result.clean_psnr:.1f} dB denoised. "
            f"{result.seconds:.1f} s."
        )
    return {
        "task": "denoise",
        "noisy_psnr": result.noisy_psnr,
        "clean_psnr": result.clean_psnr,
        "losses": result.losses,
        "seconds": result.seconds,
    }
