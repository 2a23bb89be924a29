"""Real networks: every convolution, with its trained weights and real input, within the bound.

The text detector of PP-OCRv4 (rapidocr-onnxruntime), the pitch detector SwiftF0 and the note
transcriber Basic Pitch come as small ONNX files in wheels that are installed for the tests.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import oracle
import pytest

pytest.importorskip("onnx")
from onnx_cases import runtime

import cyconv
from cyconv.adapters.onnx import Model, conv, conv_transpose

OPERATORS = {"Conv": conv, "ConvTranspose": conv_transpose}

# Network -> (wheel, file, number of Conv, number of ConvTranspose)
NETWORKS = {
    "detector": ("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", 62, 2),
    "recogniser": ("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", 38, 0),
    "classifier": ("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx", 53, 0),
    "swift_f0": ("swift-f0", "model.onnx", 18, 0),
    "basic_pitch": ("basic-pitch", "nmp.onnx", 32, 0),
}
WITH_BOUNDS = ("detector", "swift_f0", "basic_pitch")


def path_of(network):
    wheel, name, _, _ = NETWORKS[network]
    try:
        files = metadata.files(wheel)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{wheel} is not installed")
    return next(Path(str(f.locate())) for f in files if f.name == name)


def page():
    """The scanned page as the networks of PP-OCR want it, but not yet cut."""
    data = pytest.importorskip("skimage.data")
    gray = data.page().astype(np.float32) / 255
    return np.stack([gray] * 3)


def tone(rate, samples):
    """A note of 220 Hz with overtones that glides up, in faint noise."""
    t = np.arange(samples) / rate
    phase = 2 * np.pi * (220 * t + 30 * t**2)
    noise = 0.01 * np.random.default_rng(0).standard_normal(samples)
    wave = sum(np.sin(k * phase) / k for k in range(1, 5)) / 4 + noise
    return wave.astype(np.float32)


def inputs_of(network, height=160, width=384):
    """Real or realistic input; the size is that of the detector's crop of the page."""
    if network == "detector":
        mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
        deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
        return {"x": ((page()[:, :height, :width] - mean) / deviation)[np.newaxis]}
    if network == "recogniser":  # one line of text, 48 pixels high
        line = page()[:, 51:67].repeat(3, axis=1)[:, :, :320]
        return {"x": np.ascontiguousarray((line - 0.5) / 0.5)[np.newaxis]}
    if network == "classifier":
        line = page()[:, 51:67].repeat(3, axis=1)[:, :, :192]
        return {"x": np.ascontiguousarray((line - 0.5) / 0.5)[np.newaxis]}
    if network == "swift_f0":
        limits = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
        return {"audio": tone(16000, 8000)[np.newaxis], **limits}
    return {"serving_default_input_2:0": tone(22050, 43844)[np.newaxis, :, np.newaxis]}


@cache
def captured(network):
    """(node, inputs, output) of every convolution in a run of the network."""
    calls = []

    def trace(node, inputs, output, seconds):
        if node.op_type in OPERATORS:
            calls.append((node, inputs, output))

    model = Model(path_of(network), threads=1, optimise=False)
    model.run(inputs_of(network, 96, 256), trace=trace)
    return calls


def keywords_of(node):
    """A node's attributes as the oracle's keywords: these networks have explicit pads only."""
    attributes = dict(node.attributes)
    assert attributes.pop("auto_pad", "NOTSET") == "NOTSET"
    ndim = len(attributes.pop("kernel_shape"))
    pads = attributes.pop("pads", (0,) * (2 * ndim))
    renamed = {"strides": "stride", "dilations": "dilation", "group": "groups"}
    return {
        "padding": tuple(zip(pads[:ndim], pads[ndim:], strict=True)),
        **{renamed[name]: value for name, value in attributes.items()},
    }


@cache
def exact(network):
    """For each captured convolution: the float64 result, and what its error may be.

    |y - exact| <= gamma_{K+1} * sum |x||w| in every component, the sum being the same convolution
    of absolute values; K counts the products of an output, and one more for a bias. The second
    limit, for ``fft`` and ``winograd``, is 64 u times the largest such sum.
    """
    truths = []
    for node, (x, w, *bias), _ in captured(network):
        oracle_of = {"Conv": oracle.forward, "ConvTranspose": oracle.transposed}[node.op_type]
        bias = bias[0] if bias else None
        keywords = keywords_of(node)
        truth = oracle_of(x, w, bias, **keywords)
        magnitude = oracle_of(
            np.abs(x), np.abs(w), None if bias is None else np.abs(bias), **keywords
        )
        op, result = {"Conv": ("fwd", "y_shape"), "ConvTranspose": ("dx", "x_shape")}[node.op_type]
        shapes = {"x_shape": x.shape, "y_shape": x.shape, "w_shape": w.shape, result: truth.shape}
        count = oracle.terms(op, **shapes, bias=bias is not None)
        wider = oracle.high_bound(magnitude, count, np.float32)
        truths.append((truth, oracle.gamma(count + 1, 2.0**-24) * magnitude, wider))
    return truths


@pytest.mark.parametrize("network", WITH_BOUNDS)
def test_every_convolution_is_within_its_bound(network):
    """In the default precision, which permits the wider bound, and in the strictest."""
    _, _, n_conv, n_transposed = NETWORKS[network]
    calls = captured(network)
    kinds = [node.op_type for node, _, _ in calls]
    assert (kinds.count("Conv"), kinds.count("ConvTranspose")) == (n_conv, n_transposed)
    for (node, inputs, y), (truth, limit, wider) in zip(calls, exact(network), strict=True):
        assert y.dtype == np.float32
        oracle.assert_within(y, truth, np.maximum(limit, wider), node.name)
        with cyconv.config(precision="highest"):
            strict = OPERATORS[node.op_type](*inputs, **node.attributes, threads=1)
        oracle.assert_within(strict, truth, limit, node.name)


@pytest.mark.parametrize("network", ["detector", "swift_f0"])
def test_by_every_strategy(network, strategy):
    """A strategy serves all of them, but pointwise exactly those of kernel 1 without padding, and
    depthwise those of at most 32 channels a group.
    """
    served = 0
    for (node, inputs, _), (truth, *limits) in zip(captured(network), exact(network), strict=True):
        call = OPERATORS[node.op_type]
        keywords = keywords_of(node)
        serves = {
            "pointwise": set(inputs[1].shape[2:]) == {1} and not np.any(keywords["padding"]),
            "depthwise": max(_channels_of_a_group(inputs[1], keywords.get("groups", 1))) <= 32,
            "fft": max(inputs[1].shape[2:]) > 1,
            "winograd": _has_tiles(inputs[1], keywords),
        }.get(strategy, True)
        with cyconv.config(strict=True):
            if not serves:
                with pytest.raises(cyconv.UnsupportedError):
                    call(*inputs, **node.attributes, strategy=strategy, threads=1)
                continue
            y = call(*inputs, **node.attributes, strategy=strategy, threads=1)
        served += 1
        limit = limits[strategy in oracle.TRANSFORMING]
        oracle.assert_within(y, truth, limit, f"{node.name} by {strategy}")
    assert served


def _has_tiles(w, keywords):
    """Kernel 3 along the last axis, or the last but one of kernel 1, with no steps."""
    kernel = w.shape[2:]
    return (kernel[-1] == 3 or kernel[-2:] == (3, 1)) and set(keywords.get("stride", (1,))) == {1}


def _channels_of_a_group(w, groups):
    """Input and output channels; for a transposed convolution in the other order."""
    return w.shape[0] // groups, w.shape[1]


@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_whole_network_against_onnxruntime(network, optimise):
    pytest.importorskip("onnxruntime")
    path = path_of(network)
    inputs = inputs_of(network)
    model = Model(path, threads=1, optimise=optimise)
    results = model.run(inputs)
    expected = runtime(str(path), inputs)
    assert [value.name for value in model.outputs] == list(results)
    for y, e in zip(results.values(), expected, strict=True):
        assert y.dtype == e.dtype
        assert y.shape == e.shape
        # Probabilities, except for the pitch in Hz.
        scale = max(1.0, float(np.abs(e).max()))
        np.testing.assert_allclose(y, e, rtol=0, atol=1e-4 * scale)


def test_the_detector_marks_the_same_pixels():
    pytest.importorskip("onnxruntime")
    path = path_of("detector")
    inputs = inputs_of("detector")
    (y,) = Model(path, threads=2).run(inputs).values()
    (expected,) = runtime(str(path), inputs, threads=2)
    assert y.shape == (1, 1, 160, 384)
    assert np.abs(y - expected).max() <= 1e-4
    np.testing.assert_array_equal(y > 0.3, expected > 0.3)
    # It found the text: six lines, which cover a good part of the page.
    assert 0.1 < (y > 0.3).mean() < 0.5


def test_the_pitch_is_the_one_that_was_played():
    (pitch, confidence) = Model(path_of("swift_f0"), threads=1).run(inputs_of("swift_f0")).values()
    middle = slice(5, -5)
    times = np.arange(pitch.size) * 256 / 16000
    played = 220 + 60 * times
    assert confidence[0, middle].min() > 0.9
    np.testing.assert_allclose(pitch[0, middle], played[middle], rtol=0.02)
