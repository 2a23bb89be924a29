"""A photograph with noise, and an autoencoder that learns to take it away.

It learns on patches of the photograph's left half [1]_ and is tried on the right one.

.. [1] P. Vincent et al., "Extracting and Composing Robust Features with Denoising Autoencoders",
   2008.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from .. import nn
from ..autograd import Tensor, mse_loss, no_grad
from ..operands import Array
from ._loop import fit

_NOISE = 0.15  # standard deviation, of brightness from 0 to 1
_PATCH = 32  # pixels
_PATCHES = 1024


class Denoised(NamedTuple):
    """What training gave; pictures are (height, width), from 0 to 1."""

    losses: list[float]
    seconds: float
    original: Array
    noisy: Array
    clean: Array

    @property
    def noisy_psnr(self) -> float:
        """Peak signal-to-noise ratio before, in dB."""
        return _psnr(self.noisy, self.original)

    @property
    def clean_psnr(self) -> float:
        """Peak signal-to-noise ratio after, in dB."""
        return _psnr(self.clean, self.original)


def _psnr(picture: Array, truth: Array) -> float:
    return float(-10 * np.log10(np.mean((picture - truth) ** 2)))


def autoencoder(layout: str, rng: np.random.Generator) -> nn.Module:
    """Return a network that halves an image twice and doubles it twice."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1, activation="relu", layout=layout, rng=rng),
        nn.Conv2d(32, 64, 4, stride=2, padding=1, activation="relu", layout=layout, rng=rng),
        nn.Conv2d(64, 64, 3, padding=1, activation="relu", layout=layout, rng=rng),
        nn.ConvTranspose2d(
            64, 32, 4, stride=2, padding=1, activation="relu", layout=layout, rng=rng
        ),
        nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1, layout=layout, rng=rng),
    )


def train_denoiser(
    epochs: int, *, layout: str = "NCHW", seed: int = 0, quiet: bool = False
) -> Denoised:
    """Train on patches of one half of a photograph, and denoise the other half."""
    from skimage import data

    pictures: Any = data  # typed only in part
    start = time.perf_counter()
    photo = pictures.camera().astype(np.float32) / 255
    middle = photo.shape[1] // 2
    left, right = photo[:, :middle], photo[:, middle:]
    rng = np.random.default_rng(seed)
    model = autoencoder(layout, rng)
    axis = 1 if layout == "NCHW" else 3
    patches = np.expand_dims(_cut(left, rng), axis)

    def loss_of(chosen: Array) -> Tensor:
        clean = patches[chosen]
        noise = rng.normal(0, _NOISE, clean.shape).astype(np.float32)
        return mse_loss(model(clean + noise), clean)  # type: ignore[no-any-return]

    losses = fit(
        model, loss_of, len(patches), epochs=epochs, batch=32, lr=2e-3, rng=rng, quiet=quiet
    )
    noisy = right + rng.normal(0, _NOISE, right.shape).astype(np.float32)
    with no_grad():
        clean = model(np.expand_dims(noisy, (0, axis))).numpy().reshape(right.shape)
    return Denoised(losses, time.perf_counter() - start, right, noisy, clean)


def _cut(picture: Array, rng: np.random.Generator) -> Array:
    """Cut patches at random places: (patches, height, width)."""
    height, width = picture.shape
    places = rng.integers(0, (height - _PATCH, width - _PATCH), (_PATCHES, 2))
    return np.stack([picture[y : y + _PATCH, x : x + _PATCH] for y, x in places])
