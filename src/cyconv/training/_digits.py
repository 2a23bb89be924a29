"""Handwritten digits: 1797 images of 8 x 8 pixels, and a small convolutional network."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from .. import nn
from ..autograd import Tensor, cross_entropy, no_grad
from ..operands import Array
from ._loop import fit

_TEST = 360  # images that are not trained on


class Digits(NamedTuple):
    """What training gave: losses, the learnt filters, and how the test images were read."""

    losses: list[float]
    accuracy: float
    seconds: float
    filters: Array  # (filters, height, width)
    images: Array  # (test images, height, width)
    target: Array
    predicted: Array

    @property
    def mistakes(self) -> Array:
        """Indices of the test images that were read wrongly."""
        return np.flatnonzero(self.target != self.predicted)


def digits_network(layout: str, rng: np.random.Generator, dtype: type = np.float32) -> nn.Module:
    """Return a network for images of 8 x 8 pixels, with weights drawn anew."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, activation="relu", layout=layout, rng=rng, dtype=dtype),
        nn.Conv2d(32, 64, 3, padding=1, bias=False, layout=layout, rng=rng, dtype=dtype),
        nn.BatchNorm2d(64, layout=layout, dtype=dtype),
        nn.ReLU(),
        nn.MaxPool2d(2, layout=layout),
        nn.Flatten(layout=layout),
        nn.Linear(64 * 4 * 4, 10, rng=rng, dtype=dtype),
    )


def train_digits(
    epochs: int, *, layout: str = "NCHW", seed: int = 0, quiet: bool = False
) -> Digits:
    """Train on 1437 digits and read the other 360."""
    from sklearn.datasets import load_digits

    start = time.perf_counter()
    data = load_digits()
    images = (data.images / 16).astype(np.float32)
    target = data.target.astype(np.intp)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    test, train = order[:_TEST], order[_TEST:]
    model = digits_network(layout, rng)
    axis = 1 if layout == "NCHW" else 3
    x = np.expand_dims(images, axis)

    def loss_of(chosen: Array) -> Tensor:
        scores = model(x[train[chosen]])
        return cross_entropy(scores, target[train[chosen]])  # type: ignore[no-any-return]

    losses = fit(model, loss_of, len(train), epochs=epochs, batch=64, lr=2e-3, rng=rng, quiet=quiet)
    with no_grad():
        predicted = model(x[test]).numpy().argmax(axis=1)
    return Digits(
        losses,
        float((predicted == target[test]).mean()),
        time.perf_counter() - start,
        model.state_dict()["0.weight"][:, 0],
        images[test],
        target[test],
        predicted,
    )
