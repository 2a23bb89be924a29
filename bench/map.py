"""Map of what `auto` takes: over channels and image size, a panel a kernel, dense and depthwise.

The choice is the cost model's, for the instruction set in use; nothing is measured. `CYCONV_ISA`
draws another instruction set's map.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from cells import OPERATORS
from chart import INK, TITLES
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import cyconv
from cyconv import ConvProblem

KERNELS = (1, 3, 5, 7, 11, 15, 21, 31)
# Steps of the square root of 2: an image's side, and channels in and out.
SIZES = sorted({round(2 ** (i / 2)) for i in range(6, 19)})
CHANNELS = sorted({round(2 ** (i / 2)) for i in range(19)})
COLOURS = {
    "direct": "#9aa5b1",
    "pointwise": "#7a5195",
    "depthwise": "#e08e45",
    "winograd": "#2a9d68",
    "implicit_gemm": "#1f6f8b",
    "im2col": "#8ecae6",
    "fft": "#c8443c",
}


def choices(operator: str, layout: str, dtype: str, kernel: int, depthwise: bool) -> np.ndarray:
    """Return the index among COLOURS of what is taken, for (size, channels)."""
    names = list(COLOURS)
    taken = np.zeros((len(SIZES), len(CHANNELS)), int)
    for (i, j), _ in np.ndenumerate(taken):
        size, channels = SIZES[i], CHANNELS[j]
        groups = channels if depthwise else 1
        text = (
            f"{operator} {dtype} {layout} n1 g{groups} ci{channels} co{channels} "
            f"i{size}x{size} k{kernel}x{kernel} s1 p{kernel // 2} d1"
        )
        taken[i, j] = names.index(cyconv.plan(ConvProblem.parse(text), threads=1).strategy)
    return taken


def draw(operator: str, layout: str, dtype: str) -> plt.Figure:
    """Draw the panels: kernels from left to right, dense above depthwise."""
    figure, axes = plt.subplots(
        2, len(KERNELS), sharex=True, sharey=True, figsize=(15, 4.6), layout="constrained"
    )
    colours = ListedColormap(list(COLOURS.values()))
    seen: set[int] = set()
    for row, depthwise in zip(axes, (False, True), strict=True):
        for axis, kernel in zip(row, KERNELS, strict=True):
            taken = choices(operator, layout, dtype, kernel, depthwise)
            seen |= set(taken.flat)
            axis.imshow(
                taken, cmap=colours, vmin=0, vmax=len(COLOURS) - 1, origin="lower", aspect="auto"
            )
            axis.set_xticks(range(0, len(CHANNELS), 4), [str(c) for c in CHANNELS[::4]])
            axis.set_yticks(range(0, len(SIZES), 2), [str(s) for s in SIZES[::2]])
            axis.tick_params(labelsize=8, colors=INK, length=0)
            for spine in axis.spines.values():
                spine.set_visible(False)
        row[0].set_ylabel(
            f"{'depthwise' if depthwise else 'dense'}\nside of the image", fontsize=9, color=INK
        )
    for axis, kernel in zip(axes[0], KERNELS, strict=True):
        axis.set_title(f"{kernel}×{kernel}", fontsize=10, color=INK)
    figure.supxlabel(
        f"channels (in and out)\n{TITLES[operator]}, {dtype}, {layout.upper()}, one image, "
        f"stride 1, padding k // 2, one thread, {cyconv.active_isa()}",
        fontsize=8.5,
        color=INK,
    )
    figure.legend(
        handles=[
            Patch(color=colour, label=name)
            for i, (name, colour) in enumerate(COLOURS.items())
            if i in seen
        ],
        loc="outside upper center",
        ncols=len(COLOURS),
        frameon=False,
        fontsize=9,
    )
    return figure


def main() -> None:
    """Draw one operator's map."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operator", choices=OPERATORS, default="fwd")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw")
    parser.add_argument("--dtype", choices=("f32", "f64"), default="f32")
    parser.add_argument("--output", type=Path, default=Path("docs/_static/strategies.png"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(options.operator, options.layout, options.dtype).savefig(options.output, dpi=120)
    print(f"{options.output}: {2 * len(KERNELS) * len(SIZES) * len(CHANNELS)} problems")


if __name__ == "__main__":
    main()
