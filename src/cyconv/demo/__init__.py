"""The demonstration: find text in images with a real network, every convolution by cyconv.

The network is the text detector of PP-OCRv4 (62 convolutions, depthwise and dense, and 2 transposed
ones), which the ``rapidocr-onnxruntime`` wheel carries. Without it, a bank of Gabor filters runs.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from ..settings import default_threads
from ._filters import filter_bank
from ._model import HOW_TO_GET_THE_MODEL, model_path
from ._pictures import Picture, bundled_pictures, read_picture
from ._report import draw_filters, draw_regions, print_detection, print_filters


def run(
    *,
    output: str,
    image: str | None = None,
    threads: int | None = None,
    strategy: str | None = None,
    as_json: bool = False,
) -> int:
    """Run the demonstration: print tables or JSON, write a PNG.

    Parameters
    ----------
    output : path
        The picture to write.
    image : path, optional
        An image to use instead of the two that scikit-image carries.
    threads : int, optional
        By default all cores.
    strategy : str, optional
        By default the choice of cyconv.
    as_json : bool
        Print one JSON object instead of tables.

    Returns
    -------
    int
        Exit status, 0.

    Raises
    ------
    ImportError
        If scikit-image or matplotlib is missing.
    """
    for module in ("skimage", "matplotlib"):
        if find_spec(module) is None:
            raise ImportError(f'the demo needs {module}: pip install "cyconv[demo]"')
    threads = default_threads() if threads is None else threads
    pictures = [read_picture(image)] if image else bundled_pictures()
    missing = what_is_missing()
    if missing:
        summary = _show_filters(pictures, output, threads, strategy, as_json)
        summary["missing"] = missing
    else:
        summary = _show_detector(pictures, output, threads, strategy, as_json)
    if as_json:
        print(json.dumps({**summary, "threads": threads, "output": output}, indent=2))
        return 0
    print(f"Picture written to {output}.")
    if missing:
        print(missing)
    return 0


def _show_detector(
    pictures: list[Picture], output: str, threads: int, strategy: str | None, as_json: bool
) -> dict[str, Any]:
    from ._detector import detect  # it needs the onnx package

    detections = [detect(picture, threads, strategy) for picture in pictures]
    draw_regions(pictures, detections, output)
    if not as_json:
        for detection in detections:
            print_detection(detection, threads)
    return {"images": [detection.as_dict() for detection in detections]}


def _show_filters(
    pictures: list[Picture], output: str, threads: int, strategy: str | None, as_json: bool
) -> dict[str, Any]:
    runs = [filter_bank(picture, threads, strategy) for picture in pictures]
    draw_filters(pictures, runs, output)
    if not as_json:
        print_filters(runs, threads)
    return {"filters": [run.as_dict() for run in runs]}


def what_is_missing() -> str | None:
    """Say what to install for the detector; None if everything is there."""
    if find_spec("onnx") is None:
        return 'For the text detector, get the onnx package: pip install "cyconv[onnx]"'
    if model_path() is None:
        return f"For the text detector, get its weights (15 MB): {HOW_TO_GET_THE_MODEL}"
    return None
