"""The pictures of the demonstration: two that scikit-image carries, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Picture:
    """An image, uint8 of shape (height, width, 3)."""

    name: str
    pixels: Array


def bundled_pictures() -> list[Picture]:
    """Return a scanned page, and a photograph with small lettering on a motorcycle."""
    import skimage.data
    import skimage.transform

    data: Any = skimage.data  # typed only in part
    left, _, _ = data.stereo_motorcycle()
    # Around the engine, doubled: the letters are 9 pixels high in the photograph.
    photo = skimage.transform.rescale(left[208:432, 192:576], 2, order=3, channel_axis=-1)
    return [
        Picture("page", _rgb(data.page())),
        Picture("motorcycle", _rgb(np.round(photo.clip(0, 1) * 255).astype(np.uint8))),
    ]


def read_picture(path: str) -> Picture:
    """Read an image file of 8 bits per channel: gray, RGB or RGBA."""
    from skimage import io

    pixels = io.imread(path)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(f"{path}: {pixels.dtype} of shape {pixels.shape} is no 8-bit image")
    return Picture(Path(path).name, _rgb(pixels))


def _rgb(pixels: Array) -> Array:
    if pixels.ndim == 2 or pixels.shape[-1] < 3:
        gray = pixels if pixels.ndim == 2 else pixels[..., 0]
        return np.stack([gray] * 3, axis=-1)
    return np.ascontiguousarray(pixels[..., :3])
