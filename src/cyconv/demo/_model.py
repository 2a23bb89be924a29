"""Where the detector's weights are, or how to get them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

MODEL_WHEEL = "rapidocr-onnxruntime"
MODEL_FILE = "ch_PP-OCRv4_det_infer.onnx"
HOW_TO_GET_THE_MODEL = f"pip install --no-deps --ignore-requires-python {MODEL_WHEEL}==1.4.4"


def model_path() -> Path | None:
    """Return where the detector's file is, if its wheel is installed."""
    try:
        files = metadata.files(MODEL_WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.name == MODEL_FILE]
    return next((path for path in paths if path.exists()), None)
