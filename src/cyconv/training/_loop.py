"""The loop that both tasks share: batches, steps, and how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..autograd import Tensor
from ..nn import Adam, Module
from ..operands import Array

Report = Callable[[int, float], None]


def fit(
    model: Module,
    loss_of: Callable[[Array], Tensor],
    count: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    rng: np.random.Generator,
    quiet: bool,
) -> list[float]:
    """Minimise a loss by Adam, the step size falling to zero along a cosine.

    Parameters
    ----------
    model : Module
    loss_of : callable
        Takes the indices of a batch, returns its mean loss.
    count : int
        Examples; an epoch takes each once, in random order.
    epochs, batch : int
    lr : float
        The first step size.
    rng : numpy.random.Generator
    quiet : bool
        Show nothing.

    Returns
    -------
    list of float
        The loss of every step.
    """
    optimiser = Adam(model.parameters(), lr)
    starts = range(0, count, batch)
    steps = epochs * len(starts)
    losses: list[float] = []
    model.train()
    with _progress(epochs, quiet) as report:
        for epoch in range(epochs):
            order = rng.permutation(count)
            for start in starts:
                optimiser.lr = lr * 0.5 * (1 + np.cos(np.pi * len(losses) / steps))
                losses.append(_step(model, loss_of, order[start : start + batch], optimiser))
            report(epoch + 1, float(np.mean(losses[-len(starts) :])))
    model.eval()
    return losses


def _step(
    model: Module, loss_of: Callable[[Array], Tensor], chosen: Array, optimiser: Adam
) -> float:
    """Take one step; its graph ends with it."""
    model.zero_grad()
    loss = loss_of(chosen)
    loss.backward()
    optimiser.step()
    return float(loss)


@contextmanager
def _progress(epochs: int, quiet: bool) -> Iterator[Report]:
    """Give a function that shows an epoch and its loss: a bar on a terminal with rich, or lines."""
    if quiet:
        yield lambda epoch, loss: None
    elif sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.progress import Progress

        with Progress() as bar:
            task: Any = bar.add_task("training", total=epochs)
            yield lambda epoch, loss: bar.update(
                task, completed=epoch, description=f"epoch {epoch} loss {loss:.4f}"
            )
    else:
        yield lambda epoch, loss: print(f"epoch {epoch:2d}  loss {loss:.4f}", flush=True)
