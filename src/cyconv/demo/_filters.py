"""The demonstration without a network: a bank of Gabor filters over a gray image."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cyconv

from ._pictures import Picture

Array = NDArray[Any]

ORIENTATIONS = (0, 45, 90, 135)  # degrees between the stripes' normal and the horizontal
RADIUS = 7
WAVELENGTH = 6.0  # pixels
DEVIATION = 3.0


@dataclass(frozen=True)
class FilterRun:
    """Responses of shape (filters, height, width), and how they were computed."""

    name: str
    problem: str
    strategy: str
    flop: int
    seconds: float
    responses: Array

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the responses, for JSON."""
        fields = asdict(self)
        del fields["responses"]
        return fields


def gabor_filters() -> Array:
    """Return odd Gabor filters, which answer to edges: (orientations, 1, 15, 15), float32."""
    y, x = np.mgrid[-RADIUS : RADIUS + 1, -RADIUS : RADIUS + 1]
    bank = []
    for degrees in ORIENTATIONS:
        angle = np.deg2rad(degrees)
        across = x * np.cos(angle) + y * np.sin(angle)
        envelope = np.exp(-(x**2 + y**2) / (2 * DEVIATION**2))
        wave = envelope * np.sin(2 * np.pi * across / WAVELENGTH)
        bank.append(wave / np.abs(wave).sum())
    return np.array(bank, np.float32)[:, np.newaxis]


def filter_bank(picture: Picture, threads: int, strategy: str | None = None) -> FilterRun:
    """Filter the brightness of a picture with the bank, all orientations in one convolution."""
    gray = picture.pixels.mean(axis=-1, dtype=np.float32) / 255
    x = np.pad(gray, RADIUS, mode="edge")[np.newaxis, np.newaxis]
    w = gabor_filters()
    with cyconv.config(strategy=strategy, threads=threads):
        cyconv.conv2d(x, w)  # chooses and plans, and is not timed
        start = time.perf_counter()
        y = cyconv.conv2d(x, w)
        seconds = time.perf_counter() - start
        how = cyconv.explain(x, w)
    return FilterRun(
        picture.name, str(how.problem), how.strategy, how.flop, seconds, np.asarray(y[0])
    )
