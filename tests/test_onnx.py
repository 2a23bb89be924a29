"""ONNX's Conv and ConvTranspose: ONNX's cases, ONNX Runtime, and the lines where those differ."""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest

pytest.importorskip("onnx")
from onnx import helper, numpy_helper
from onnx_cases import (
    array,
    converted,
    generated,
    load_converted,
    one_node_model,
    runtime,
    single_node,
)

import cyconv
from cyconv.adapters.onnx import conv, conv_transpose, explain

OPERATORS = {"Conv": conv, "ConvTranspose": conv_transpose}

GENERATED = {
    "test_basic_conv_with_padding",
    "test_basic_conv_without_padding",
    "test_conv_with_autopad_same",
    "test_conv_with_strides_and_asymmetric_padding",
    "test_conv_with_strides_no_padding",
    "test_conv_with_strides_padding",
    "test_convtranspose",
    "test_convtranspose_1d",
    "test_convtranspose_3d",
    "test_convtranspose_autopad_same",
    "test_convtranspose_dilations",
    "test_convtranspose_group_2",
    "test_convtranspose_group_2_image_3",
    "test_convtranspose_kernel_shape",
    "test_convtranspose_output_shape",
    "test_convtranspose_pad",
    "test_convtranspose_pads",
}
CONVERTED = converted("test_Conv")

# Every other strategy must run every case.


def _refusal(strategy, node, w):
    """A word of the reason why a strategy does not serve a case; None if it does."""
    attributes = attributes_of(node)
    if strategy == "pointwise":
        return "kernel"  # no case has a kernel of size 1
    if strategy != "winograd":
        return None
    if w.shape[-1] != 3:
        return "kernel"
    return "stride" if {*attributes.get("strides", ())} - {1} else None


def attributes_of(node):
    decoded = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in decoded.items()}


def generated_cases():
    for case in generated("conv", "convtranspose"):
        node = single_node(case)
        if node is not None and node.op_type in OPERATORS:
            (inputs, outputs) = case.data_sets[0]
            yield case.name, node, [array(x) for x in inputs], array(outputs[0])


def converted_cases():
    for name in CONVERTED:
        model, inputs, outputs = load_converted(name)
        (node,) = (n for n in model.graph.node if n.op_type in OPERATORS)
        values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        free = [t.name for t in model.graph.input if t.name not in values]
        values |= dict(zip(free, inputs, strict=True))
        yield name, node, [values[i] for i in node.input], outputs[0]


CASES = {name: case for name, *case in (*generated_cases(), *converted_cases())}


def test_the_cases_are_all_there():
    assert len(GENERATED) == 17
    assert len(CONVERTED) == 28
    assert GENERATED | set(CONVERTED) <= CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_case_by_every_strategy(name, strategy):
    node, inputs, expected = CASES[name]
    call = OPERATORS[node.op_type]
    with cyconv.config(strict=True):
        refusal = _refusal(strategy, node, inputs[1])
        if refusal:
            with pytest.raises(cyconv.UnsupportedError, match=refusal):
                call(*inputs, **attributes_of(node), strategy=strategy)
            return
        y = call(*inputs, **attributes_of(node), strategy=strategy)
    assert y.dtype == expected.dtype
    # The tolerances of ONNX's own backend tests; where transforms round, the bound about a zero.
    atol = 64 * 2.0**-24 * np.abs(expected).max() if strategy in oracle.TRANSFORMING else 1e-7
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=atol)
    how = explain(node.op_type, *inputs, **attributes_of(node))
    assert how.problem.op == {"Conv": "fwd", "ConvTranspose": "dx"}[node.op_type]
    assert how.problem.result_shape == expected.shape


# Small integers: every order of summation gives the same float32, so results are compared exactly.


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def operands(op_type, ndim, kernel, group, bias, size=None):
    size = size or (7, 6, 5)[:ndim]
    c_in, c_out = 4, 6
    x = integers(1, 2, c_in, *size)
    channels = (c_out, c_in // group) if op_type == "Conv" else (c_in, c_out // group)
    w = integers(2, *channels, *kernel)
    return [x, w, integers(3, c_out)] if bias else [x, w]


def agrees_with_runtime(op_type, inputs, attributes):
    pytest.importorskip("onnxruntime")
    model, feeds = one_node_model(op_type, inputs, 17, attributes)
    (expected,) = runtime(model, feeds)
    y = OPERATORS[op_type](*inputs, **attributes)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)


PADS = {1: [2, 1], 2: [1, 0, 2, 1], 3: [1, 0, 1, 0, 2, 1]}
KERNELS = {1: [3], 2: [3, 2], 3: [2, 1, 3]}
STRIDES = {1: [2], 2: [1, 3], 3: [2, 1, 2]}
DILATIONS = {1: [2], 2: [2, 1], 3: [1, 2, 1]}


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_sweep_against_onnxruntime(op_type, ndim, group):
    for strided, dilated, padding in itertools.product((0, 1), (0, 1), ("none", "pads", "VALID")):
        attributes = {"group": group, "kernel_shape": KERNELS[ndim]}
        if strided:
            attributes["strides"] = STRIDES[ndim]
        if dilated:
            attributes["dilations"] = DILATIONS[ndim]
        if padding == "pads":
            attributes["pads"] = PADS[ndim]
        elif padding == "VALID":
            attributes["auto_pad"] = "VALID"
        inputs = operands(op_type, ndim, KERNELS[ndim], group, bias=strided)
        agrees_with_runtime(op_type, inputs, attributes)


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_against_onnxruntime(op_type, auto_pad):
    for kernel, stride, size in itertools.product((1, 2, 3, 4), (1, 2, 3), (5, 6, 7)):
        if op_type == "ConvTranspose" and kernel < stride:
            continue  # they differ: see test_transposed_same_with_a_short_kernel
        attributes = {"auto_pad": auto_pad, "strides": [stride]}
        inputs = operands(op_type, 1, (kernel,), 1, bias=True, size=(size,))
        agrees_with_runtime(op_type, inputs, attributes)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_with_dilation_follows_the_specification(auto_pad):
    """ONNX Runtime refuses it; the specification puts the dilated kernel into its formula."""
    for kernel, stride, dilation in itertools.product((2, 3), (1, 2, 3), (2, 3)):
        x, w, b = operands("Conv", 1, (kernel,), 1, bias=True)
        pad = oracle.same_padding(7, kernel, stride, dilation, lower=auto_pad == "SAME_LOWER")
        y = conv(x, w, b, auto_pad=auto_pad, strides=[stride], dilations=[dilation])
        expected = conv(x, w, b, pads=pad, strides=[stride], dilations=[dilation])
        assert y.shape[2] == -(-7 // stride)
        np.testing.assert_array_equal(y, expected)


def test_same_puts_the_odd_cell_where_it_belongs():
    x = np.zeros((1, 1, 8), np.float32)
    x[0, 0, 0] = 1
    w = np.array([[[1, 2, 3]]], np.float32)
    assert conv(x, w, auto_pad="SAME_UPPER", strides=[2])[0, 0, 0] == 1
    assert conv(x, w, auto_pad="SAME_LOWER", strides=[2])[0, 0, 0] == 2


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
def test_output_shape_against_onnxruntime(auto_pad):
    for kernel, stride, (dilation, extra) in itertools.product((2, 3), (2, 3), ((1, 0), (2, 1))):
        full = 4 * stride + dilation * (kernel - 1) + 1 + extra
        largest = full + stride - 1 - extra
        for wanted in (full - 3, full - 2, full - 1, full, largest):
            attributes = {
                "group": 2,
                "auto_pad": auto_pad,
                "strides": [stride],
                "dilations": [dilation],
                "output_padding": [extra],
                "output_shape": [wanted],
            }
            inputs = operands("ConvTranspose", 1, (kernel,), 2, bias=True, size=(5,))
            agrees_with_runtime("ConvTranspose", inputs, attributes)


def test_output_shape_overrides_pads():
    inputs = operands("ConvTranspose", 2, (3, 2), 1, bias=False)
    attributes = {"strides": [3, 2], "output_shape": [20, 12], "pads": [1, 1, 0, 0]}
    agrees_with_runtime("ConvTranspose", inputs, attributes)


def test_output_shape_cuts_the_odd_cell_first():
    x = np.array([[[1, 2, 3]]], np.float32)
    w = np.array([[[1, 2, 3]]], np.float32)
    y = conv_transpose(x, w, strides=[3], output_shape=[8])
    np.testing.assert_array_equal(y, [[[2, 3, 2, 4, 6, 3, 6, 9]]])
    y = conv_transpose(x, w, strides=[3], output_shape=[8], auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(y, [[[1, 2, 3, 2, 4, 6, 3, 6]]])


def test_transposed_same_with_a_short_kernel():
    """The specification gives n * stride; ONNX Runtime gives less (8 here)."""
    x = np.array([[[1, 2, 3]]], np.float32)
    w = np.array([[[1, 2]]], np.float32)
    b = np.array([10], np.float32)
    for auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        y = conv_transpose(x, w, b, strides=[3], auto_pad=auto_pad)
        np.testing.assert_array_equal(y, [[[11, 12, 10, 12, 14, 10, 13, 16, 10]]])


def test_output_padding_up_to_the_dilation():
    """Allowed below the larger of stride and dilation; ONNX Runtime stops at the stride."""
    x, w, b = operands("ConvTranspose", 1, (3,), 1, bias=True)
    y = conv_transpose(x, w, b, strides=[2], dilations=[4], output_padding=[3])
    full = conv_transpose(x, w, b, strides=[2], dilations=[4])
    assert y.shape[2] == 6 * 2 + 9 + 3
    np.testing.assert_array_equal(y[:, :, :-3], full)
    np.testing.assert_array_equal(y[:, :, -3:], np.broadcast_to(b[:, None], (2, 6, 3)))


def test_keywords_reach_cyconv():
    x, w = operands("Conv", 2, (3, 2), 1, bias=False)
    with pytest.raises(ValueError, match="nonesuch"):
        conv(x, w, strategy="nonesuch")
    with pytest.raises(ValueError, match="threads"):
        conv(x, w, threads=0)
    with pytest.raises(ValueError, match="nonesuch"):
        conv_transpose(*operands("ConvTranspose", 1, (3,), 1, bias=False), strategy="nonesuch")


CONV_ERRORS = {
    "kernel_shape": ({"kernel_shape": [3, 3]}, cyconv.ShapeError),
    "strides": ({"strides": [1]}, cyconv.ShapeError),
    "dilations": ({"dilations": [1, 1, 1]}, cyconv.ShapeError),
    "pads has 2 entries": ({"pads": [1, 1]}, cyconv.ShapeError),
    "no negative pads": ({"pads": [0, -1, 0, 0]}, ValueError),
    "SAME_LOWER": ({"auto_pad": "SAME_LOWER", "pads": [0, 0, 0, 0]}, ValueError),
    "auto_pad is 'same'": ({"auto_pad": "same"}, ValueError),
    "stride": ({"strides": [0, 1]}, ValueError),
    "groups": ({"group": 3}, ValueError),
}


@pytest.mark.parametrize("message", CONV_ERRORS)
def test_errors_of_conv(message):
    attributes, error = CONV_ERRORS[message]
    with pytest.raises(error, match=message):
        conv(*operands("Conv", 2, (3, 2), 1, bias=True), **attributes)


TRANSPOSED_ERRORS = {
    "output_shape has 1 entries": ({"output_shape": [8]}, cyconv.ShapeError),
    "output_padding has 1": ({"output_padding": [1]}, cyconv.ShapeError),
    "at most 22": ({"output_shape": [23, 7], "strides": [3, 1]}, cyconv.ShapeError),
    "output_padding": ({"output_padding": [1, 0]}, ValueError),
    "no negative pads": ({"pads": [0, 0, 0, -1]}, ValueError),
    "pads are given beside": ({"auto_pad": "VALID", "pads": [0, 0, 0, 0]}, ValueError),
}


@pytest.mark.parametrize("message", TRANSPOSED_ERRORS)
def test_errors_of_conv_transpose(message):
    attributes, error = TRANSPOSED_ERRORS[message]
    with pytest.raises(error, match=message):
        conv_transpose(*operands("ConvTranspose", 2, (2, 2), 1, bias=True), **attributes)


def test_unbatched_input_is_refused():
    x, w = operands("Conv", 2, (3, 2), 1, bias=False)
    with pytest.raises(cyconv.ShapeError, match="x has 3 axes and w has 4"):
        conv(x[0], w)
    with pytest.raises(cyconv.ShapeError, match="x has 3 axes and w has 4"):
        conv_transpose(x[0], w)


def test_explain_knows_two_operators():
    x, w = operands("Conv", 2, (3, 2), 1, bias=False)
    assert str(explain("Conv", x, w, strides=[2, 1]).problem).startswith("fwd f32 nchw n2")
    with pytest.raises(ValueError, match="'Relu'"):
        explain("Relu", x, w)
