"""The text detector of PP-OCRv4: prepare an image, run and time the network, read its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..adapters.onnx import Model, Node, explain
from ._model import HOW_TO_GET_THE_MODEL, model_path
from ._pictures import Picture

Array = NDArray[Any]

THRESHOLD = 0.3
LEAST_SCORE = 0.6  # mean probability of a region that counts as text
REPEATS = 3

Region = tuple[tuple[float, float], ...]  # four corners (x, y)


@dataclass
class Layer:
    """A convolution of the network and the best time of its runs."""

    name: str
    problem: str
    strategy: str
    flop: int
    seconds: float

    @property
    def gflops(self) -> float:
        """10⁹ floating-point operations per second."""
        return self.flop / self.seconds / 1e9


@dataclass(frozen=True)
class Comparison:
    """The same network on the same picture by ONNX Runtime."""

    seconds: float
    largest_difference: float
    same_mask: bool


@dataclass(frozen=True)
class Detection:
    """What the network found in a picture, and how long it took."""

    name: str
    size: tuple[int, int]
    seconds: float
    layers: tuple[Layer, ...]
    regions: tuple[Region, ...]
    mask: Array
    onnxruntime: Comparison | None

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the mask, for JSON."""
        fields = asdict(self)
        del fields["mask"]
        return fields


def prepare(pixels: Array) -> Array:
    """Return an image as the detector wants it: (1, 3, H, W), BGR, normalised, sides of 32·n."""
    height, width, _ = pixels.shape
    padded = np.pad(pixels, ((0, -height % 32), (0, -width % 32), (0, 0)), mode="edge")
    # The statistics are in the order of the channels after the swap, as in the training.
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    deviation = np.array([0.229, 0.224, 0.225], np.float32)
    normal = (padded[..., ::-1].astype(np.float32) / 255 - mean) / deviation
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[np.newaxis])


def regions(probability: Array) -> list[Region]:
    """Return the connected regions that are probably text, in reading order.

    The network marks a shrunken core of each line. The rectangle around it, along its principal
    axes, is grown by 1.6 · area / perimeter, which undoes the shrinking (Liao et al., Real-time
    Scene Text Detection with Differentiable Binarization, AAAI 2020).
    """
    from scipy import ndimage

    labels, count = ndimage.label(probability > THRESHOLD)
    scores = ndimage.mean(probability, labels, range(1, count + 1))
    found = []
    for label, (box, score) in enumerate(
        zip(ndimage.find_objects(labels), scores, strict=True), start=1
    ):
        rows, columns = box
        if score < LEAST_SCORE or min(rows.stop - rows.start, columns.stop - columns.start) < 3:
            continue
        y, x = np.nonzero(labels[box] == label)
        found.append(_rectangle(np.stack([x + columns.start, y + rows.start], axis=1)))
    return sorted(found, key=lambda corners: min(y for _, y in corners))


def _rectangle(points: Array) -> Region:
    """Return the grown rectangle around points (x, y), along their principal axes."""
    center = points.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(points.T))
    along = (points - center) @ axes
    # A pixel is a square of side 1, not a point.
    low, high = along.min(axis=0) - 0.5, along.max(axis=0) + 0.5
    grow = 1.6 * np.prod(high - low) / (2 * np.sum(high - low))
    (u0, v0), (u1, v1) = low - grow, high + grow
    corners = center + np.array([(u0, v0), (u1, v0), (u1, v1), (u0, v1)]) @ axes.T
    return tuple((round(float(x), 1), round(float(y), 1)) for x, y in corners)


def detect(picture: Picture, threads: int, strategy: str | None = None) -> Detection:
    """Run the network on a picture, by cyconv and, if it is installed, by ONNX Runtime."""
    path = model_path()
    if path is None:
        raise FileNotFoundError(f"the detector is not installed: {HOW_TO_GET_THE_MODEL}")
    model = Model(path, strategy=strategy, threads=threads)
    feeds = {model.inputs[0].name: prepare(picture.pixels)}
    layers: dict[str, Layer] = {}

    def plan(node: Node, operands: tuple[Any, ...], result: Array, seconds: float) -> None:
        if node.op_type in ("Conv", "ConvTranspose"):
            how = explain(node.op_type, *operands, **node.attributes)
            layers[node.name] = Layer(
                node.name, str(how.problem), how.strategy, how.flop, seconds=float("inf")
            )

    def clock(node: Node, operands: tuple[Any, ...], result: Array, seconds: float) -> None:
        if node.name in layers:
            layers[node.name].seconds = min(layers[node.name].seconds, seconds)

    model.run(feeds, trace=plan)  # also the warm-up
    seconds, outputs = _best(lambda: model.run(feeds, trace=clock))
    probability = outputs[model.outputs[0].name][0, 0]
    height, width, _ = picture.pixels.shape
    inside = probability[:height, :width]
    return Detection(
        name=picture.name,
        size=(height, width),
        seconds=seconds,
        layers=tuple(layers.values()),
        regions=tuple(regions(inside)),
        mask=inside > THRESHOLD,
        onnxruntime=_compare(path, feeds, probability, threads),
    )


def _compare(
    path: Path, feeds: dict[str, Array], probability: Array, threads: int
) -> Comparison | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    seconds, outputs = _best(lambda: session.run(None, feeds))
    other = outputs[0][0, 0]
    return Comparison(
        seconds=seconds,
        largest_difference=float(np.abs(probability - other).max()),
        same_mask=bool(np.array_equal(probability > THRESHOLD, other > THRESHOLD)),
    )


def _best(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the shortest time of several calls, and the last result."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result
