"""Packed weights: what a prepared convolution keeps between its calls."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from .algorithms.base import Packs
from .binding import Bound
from .operands import Array
from .workspace import aligned_empty


class Packings:
    """The packed forms of one array of weights, each made when it is first wanted.

    Bounds whose algorithm packs alike share a form, so that images of other sizes seldom need
    another one. Weights that are not finite have none: calls then pack, or hand over, as ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: dict[Hashable, Array | None] = {}

    def of(self, bound: Bound, w: Array) -> Array | None:
        """Return the weights as a bound algorithm wants them, or None if it takes them as they are.

        `w` is the same at every call.
        """
        algorithm = bound.algorithm
        if bound.empty or not isinstance(algorithm, Packs):
            return None
        seen, nbytes = algorithm.packing(bound.problem, bound.geometry)
        key = (algorithm.name, seen)
        with self._lock:
            if key not in self._forms:
                form = aligned_empty(nbytes)
                done = algorithm.pack(bound.problem, bound.geometry, w, form, bound.threads)
                self._forms[key] = form if done else None
            return self._forms[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all forms."""
        with self._lock:
            return sum(form.nbytes for form in self._forms.values() if form is not None)
