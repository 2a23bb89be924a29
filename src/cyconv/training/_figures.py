"""What training shows: the loss, and what was learnt."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operands import Array
from ._denoising import Denoised
from ._digits import Digits

ACCENT = "#ff5a36"
INK = "#222222"
DPI = 150
_MISTAKES = 8  # at most this many are drawn


def draw_digits(result: Digits, output: str) -> None:
    """Write the loss curve, the filters of the first layer and the misread digits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(3, 2))
    top, bottom = parts
    loss, filters = top.subplots(1, 2, width_ratios=(3, 2))
    _draw_losses(loss, result.losses, "cross-entropy")
    _title(filters, "filters of the first layer", "")
    limit = np.abs(result.filters).max()
    filters.imshow(_tiled(result.filters, 8), cmap="RdBu_r", vmin=-limit, vmax=limit)
    mistakes = result.mistakes
    bottom.suptitle(
        f"{result.accuracy:.2%} of {len(result.target)} test digits are right; misread:",
        fontsize=11, fontweight="bold", color=INK,
    )  # fmt: skip
    for ax, i in zip(np.ravel(bottom.subplots(1, _MISTAKES)), mistakes, strict=False):
        ax.imshow(result.images[i], cmap="gray_r")
        ax.set_title(f"{result.target[i]} as {result.predicted[i]}", fontsize=10, color=INK)
    for ax in bottom.axes:
        ax.set_axis_off()
    figure.savefig(output, dpi=DPI)


def draw_denoiser(result: Denoised, output: str) -> None:
    """Write the loss curve, and the picture before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 7), layout="constrained")
    axes = figure.subplots(1, 4, width_ratios=(1.3, 1, 1, 1))
    _draw_losses(axes[0], result.losses, "mean squared error")
    pictures = (
        (result.noisy, "noisy", f"{result.noisy_psnr:.1f} dB"),
        (result.clean, "denoised", f"{result.clean_psnr:.1f} dB"),
        (result.original, "original", ""),
    )
    for ax, (picture, name, note) in zip(axes[1:], pictures, strict=True):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
        _title(ax, name, note)
    figure.savefig(output, dpi=DPI)


def _draw_losses(ax: Any, losses: list[float], name: str) -> None:
    window = max(len(losses) // 50, 1)
    smooth = np.convolve(losses, np.ones(window) / window, "valid")
    ax.plot(losses, color=ACCENT, alpha=0.3, linewidth=1)
    ax.plot(np.arange(len(smooth)) + window // 2, smooth, color=ACCENT, linewidth=1.8)
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.set_title(name, loc="left", fontsize=11, fontweight="bold", color=INK)
    ax.spines[["top", "right"]].set_visible(False)


def _tiled(images: Array, columns: int) -> Array:
    """Lay images out in rows, with a gap between."""
    n, height, width = images.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan, np.float32)
    for i, image in enumerate(images):
        y, x = i // columns * (height + 1), i % columns * (width + 1)
        sheet[y : y + height, x : x + width] = image
    return sheet


def _title(ax: Any, name: str, note: str) -> None:
    ax.set_axis_off()
    ax.set_title(name, loc="left", fontsize=11, fontweight="bold", color=INK)
    ax.set_title(note, loc="right", fontsize=9, color=INK)
