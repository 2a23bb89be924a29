"""The graph optimiser: each rewrite alone, what it must leave alone, and runs of the result."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

pytest.importorskip("onnx")
import onnx.parser
from onnx import numpy_helper
from onnx_cases import runtime

from cyconv.adapters.onnx import Model, _optimise

RNG = np.random.default_rng(0)


def weights(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


SHAPE = (2, 4, 6, 7)
X = 2 * weights(*SHAPE)
CONSTANTS = {
    "w": weights(6, 4, 3, 3),
    "w_1x1": weights(6, 4, 1, 1),
    "w_back": weights(4, 6, 1, 1),
    "w_grouped": weights(6, 2, 3, 3),
    "w_one": weights(1, 4, 3, 3),
    "w_transposed": weights(4, 3, 2, 2),
    "w_2x3": weights(4, 3, 2, 3),
    "w_further": weights(3, 1, 2, 2),
    "w_across": weights(2, 3, 2, 2),
    "bias3": weights(3),
    "bias": weights(6),
    "column4": weights(1, 4, 1, 1),
    "column6": weights(1, 6, 1, 1),
    "column6_of_3_axes": weights(6, 1, 1),
    "row": weights(5),
    "five_axes": weights(1, 1, 1, 1, 1),
    "gain": weights(6),
    "offset": weights(6),
    "mean": weights(6),
    "variance": weights(6) ** 2,
    **{
        name: np.array(value, np.float32)
        for name, value in {
            "zero": 0, "half": 0.5, "one": 1, "two": 2, "three": 3, "five": 5, "six": 6,
            "sixth": 1 / 6, "root": 2**0.5, "inverse_root": 0.5**0.5, "near_root": 1.5,
            "huge": 3e38, "by_2_3": [1, 1, 2, 3], "by_3_7": [1, 1, 3, 7], "by_6_1": [1, 1, 6, 1],
            "by_6_7": [1, 1, 6, 7], "by_a_fraction": [1, 1, 1.5, 2],
        }.items()
    },
    "large": np.array([1000, *SHAPE]),
}  # fmt: skip


def network(body, outputs="float[] y", dtype=np.float32):
    """A model in ONNX's text form over an input x; names of `CONSTANTS` are initializers."""
    kind = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    sizes = ", ".join(map(str, SHAPE))
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> '
        f"test ({kind}[{sizes}] x) => ({outputs.replace('float', kind)}) {{ {body} }}"
    )
    proto = onnx.parser.parse_model(text)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    for name in sorted(set(re.findall(r"\w+", body)) & set(CONSTANTS)):
        array = CONSTANTS[name]
        cast = array.astype(dtype) if array.dtype == np.float32 else array
        proto.graph.initializer.append(numpy_helper.from_array(cast, name))
    return proto


SAME = "<pads = [1, 1, 1, 1]>"
STATISTICS = "gain, offset, mean, variance"
POOLED = "p = MaxPool<kernel_shape = [3, 7], strides = [3, 7]>(x)"

# Rewrite -> models that it shortens, and their operators afterwards.
CASES = {
    "constant": [
        ("r = Sqrt(two) y = Mul(x, r)", "Mul"),
        ("y = Sqrt(two)", ""),
        ("s = Shape(w) r = Shape(s) q = Shape(r) z = ConstantOfShape(q) y = Add(x, z)", "Add"),
    ],
    "nothing": [
        ("a = Identity(x) y = Relu(a)", "Relu"),
        ("a = Dropout(x) y = Relu(a)", "Relu"),
        ("a = Identity(x) b = Add(a, x) y = Mul(a, b)", "Add Mul"),
    ],
    "constant_second": [("a = Conv(x, w) y = Mul(two, a)", "Conv")],
    "hard_sigmoid": [
        ("a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)", "HardSigmoid"),
        ("a = Add(three, x) b = Clip(a, zero, six) y = Mul(b, sixth)", "HardSigmoid"),
    ],
    "hard_swish": [
        ("a = HardSigmoid<alpha = 0.16666667>(x) y = Mul(x, a)", "HardSwish"),
        ("a = HardSigmoid<alpha = 0.16666667>(x) y = Mul(a, x)", "HardSwish"),
        ("a = Add(x, three) b = Clip(a, zero, six) c = Div(b, six) y = Mul(c, x)", "HardSwish"),
    ],
    "hard_swish_in_pieces": [
        ("a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)", "HardSwish"),
        ("a = Add(x, three) b = Clip(a, zero, six) c = Mul(b, x) y = Mul(c, sixth)", "HardSwish"),
    ],
    "silu": [("a = Sigmoid(x) y = Mul(a, x)", "Silu")],
    "gelu": [
        ("a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)", "Gelu"),
        (
            "a = Mul(x, inverse_root) b = Erf(a) c = Add(one, b) d = Mul(half, x) y = Mul(d, c)",
            "Gelu",
        ),
    ],
    "gate": [
        ("g = GlobalAveragePool(x) a = Mul(x, g) y = Add(x, a)", "GlobalAveragePool Gate"),
        ("g = GlobalAveragePool(x) a = Mul(g, x) y = Add(a, x)", "GlobalAveragePool Gate"),
    ],
    "repeat": [
        (
            f"y = Resize<coordinate_transformation_mode = '{mode}', nearest_mode = '{nearest}'>"
            "(x, , by_2_3)".replace("'", '"'),
            "Repeat",
        )
        for mode, nearest in (
            ("asymmetric", "floor"),
            ("half_pixel", "round_prefer_floor"),
            ("half_pixel", "round_prefer_ceil"),
            ("pytorch_half_pixel", "round_prefer_floor"),
        )
    ],
    "add_repeated": [
        (f"{POOLED} r = Resize(p, , by_3_7) y = Add(r, x)", "MaxPool AddRepeated"),
        # Repeated to 6 × 1; the rest is broadcasting.
        ("p = GlobalMaxPool(x) r = Resize(p, , by_6_1) y = Add(x, r)", "GlobalMaxPool AddRepeated"),
    ],
    "concat_repeated": [
        (
            "a = Conv(x, w_1x1) p = GlobalMaxPool(x) g = Conv(p, w_1x1) r = Resize(g, , by_6_7)"
            " y = Concat<axis = 1>(r, a)",
            "Conv GlobalMaxPool Conv ConcatRepeated",
        ),
        (
            f"{POOLED} r = Resize(p, , by_3_7) y = Concat<axis = 1>(x, r, x)",
            "MaxPool ConcatRepeated",
        ),
    ],
    "affine_after": [
        (f"a = Conv{SAME}(x, w, bias) y = Mul(a, column6)", "Conv"),
        (f"a = Conv{SAME}(x, w) y = Div(a, column6_of_3_axes)", "Conv"),
        (f"a = Conv{SAME}(x, w) y = Add(a, column6)", "Conv"),
        ("a = Conv(x, w, bias) y = Sub(a, two)", "Conv"),
        (
            f"a = Conv<group = 2>(x, w_grouped) y = BatchNormalization(a, {STATISTICS})",
            "Conv",
        ),
        (
            "a = ConvTranspose<group = 2, strides = [2, 2]>(x, w_transposed) y = Mul(a, column6)",
            "ConvTranspose",
        ),
    ],
    "affine_before": [
        (f"a = Mul(x, column4) y = Conv{SAME}(a, w, bias)", "Conv"),
        ("a = Add(x, column4) y = Conv(a, w_1x1)", "Conv"),
        ("a = Sub(x, column4) y = Conv<group = 2>(a, w_grouped)", "Conv"),
        # Zeros of padding get no shift: only the scale goes.
        (f"a = Mul(x, half) b = Add(a, two) y = Conv{SAME}(b, w)", "Add Conv"),
        # Another reader of the scaled value keeps it.
        (
            "a = Mul(x, column4) c = Relu(a) d = ReduceMax(c) e = Conv(a, w_1x1) y = Sub(e, d)",
            "Mul Relu ReduceMax Conv Sub",
        ),
    ],
    "residual": [
        ("a = Conv(x, w) c = Relu(x) d = Conv(c, w) y = Add(d, a)", "Conv Relu Conv"),
        # Broadcasting is not for the convolution, and right all the same.
        (
            "a = Conv(x, w) p = GlobalMaxPool(x) g = Conv(p, w_1x1) c = Add(g, a) y = Relu(c)",
            "Conv GlobalMaxPool Conv",
        ),
    ],
    "activation": [
        (f"a = Conv{SAME}(x, w, bias) y = {activation}", "Conv")
        for activation in (
            "Relu(a)",
            "LeakyRelu<alpha = 0.2>(a)",
            "LeakyRelu(a)",
            "HardSigmoid(a)",
            "HardSigmoid<alpha = 0.3>(a)",
            "HardSwish(a)",
            "Sigmoid(a)",
            "Tanh(a)",
            "Clip(a, zero, six)",
            "Clip(a, zero)",
        )
    ],
}
CASES |= {
    "pointwise": [
        (
            f"y = ConvTranspose<strides = {strides}>(x, {operands})",
            "Conv SplitBlocks PlaceBlocks",
        )
        for strides, operands in (
            ("[2, 2]", "w_transposed"),
            ("[2, 2]", "w_transposed, bias3"),
            ("[2, 3]", "w_2x3"),
        )
    ],
    "place_later": [
        (
            "a = ConvTranspose<strides = [2, 3]>(x, w_2x3, bias3) c = Relu(a)"
            " d = ConvTranspose<strides = [2, 2]>(c, w_further) y = Sigmoid(d)",
            "Conv SplitBlocks Conv PlaceBlocks SplitBlocks PlaceBlocks",
        ),
    ],
}

LEFT_ALONE = {
    "a second reader": ("a = Conv(x, w) c = Relu(a) y = Sub(a, c)", "Conv Relu Sub"),
    "weights that are computed": (
        "v = Relu(x) a = Conv(x, v) y = Mul(a, two)",
        "Relu Conv Mul",
    ),
    "a scale that is computed": (
        "m = ReduceMax(x) a = Conv(x, w) y = Mul(a, m)",
        "ReduceMax Conv Mul",
    ),
    "one number per column": ("a = Conv(x, w) y = Mul(a, row)", "Conv Mul"),
    "more axes": ("a = Conv(x, w) y = Mul(a, five_axes)", "Conv Mul"),
    "one channel made six": ("a = Conv(x, w_one) y = Mul(a, column6)", "Conv Mul"),
    "a shift before padding": (f"a = Add(x, column4) y = Conv{SAME}(a, w)", "Add Conv"),
    "a shift before SAME": (
        'a = Add(x, column4) y = Conv<auto_pad = "SAME_UPPER">(a, w)',
        "Add Conv",
    ),
    "k - x": ("a = Conv(x, w) y = Sub(two, a)", "Conv Sub"),
    "k / x": ("a = Div(two, x) y = Conv(a, w)", "Div Conv"),
    "an activation before the scale": (
        "a = Conv(x, w) c = Relu(a) y = Mul(c, column6)",
        "Conv Mul",
    ),
    "an activation before the sum": (
        "m = ReduceMax(x) a = Conv(x, w) c = Relu(a) y = Add(c, m)",
        "ReduceMax Conv Add",
    ),
    "HardSigmoid with another offset": (
        "a = Conv(x, w) y = HardSigmoid<beta = 0.4>(a)",
        "Conv HardSigmoid",
    ),
    "a hard swish with another slope": ("a = HardSigmoid(x) y = Mul(x, a)", "HardSigmoid Mul"),
    "a hard swish of something else": (
        "a = Add(x, three) c = Clip(a, zero, six) d = Mul(a, c) y = Div(d, six)",
        "Add Clip Mul Div",
    ),
    "a clip between other bounds": ("a = Conv(x, w) y = Clip(a, zero, five)", "Conv Clip"),
    "a gelu with another root": (
        "a = Div(x, near_root) c = Erf(a) d = Add(c, one) e = Mul(x, d) y = Mul(e, half)",
        "Div Erf Add Mul Mul",
    ),
    "Resize by a fraction": ("y = Resize(x, , by_a_fraction)", "Resize"),
    "Resize to corners": (
        'y = Resize<coordinate_transformation_mode = "align_corners">(x, , by_2_3)',
        "Resize",
    ),
    "Resize by rounding": (
        'y = Resize<coordinate_transformation_mode = "asymmetric">(x, , by_2_3)',
        "Resize",
    ),
    "linear Resize": ('y = Resize<mode = "linear">(x, , by_2_3)', "Resize"),
    "blocks that overlap": (
        "y = ConvTranspose<strides = [1, 2]>(x, w_transposed)",
        "ConvTranspose",
    ),
    "gaps between blocks": (
        "y = ConvTranspose<strides = [3, 3]>(x, w_transposed)",
        "ConvTranspose",
    ),
    "blocks that are cut": (
        "y = ConvTranspose<strides = [2, 2], pads = [0, 1, 0, 0]>(x, w_transposed)",
        "ConvTranspose",
    ),
    "blocks of groups": (
        "y = ConvTranspose<strides = [2, 2], group = 2>(x, w_transposed)",
        "ConvTranspose",
    ),
    "a convolution across blocks": (
        "a = ConvTranspose<strides = [2, 2]>(x, w_transposed) y = Conv(a, w_across)",
        "Conv SplitBlocks PlaceBlocks Conv",
    ),
    "a large constant": ("a = Expand(two, large) y = Mul(x, a)", "Expand Mul"),
}


def operators(model):
    return " ".join(node.op_type for node in model.nodes)


def same(proto, x=X):
    """Check that a network computes the same optimised, not optimised, and by ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    model = Model(proto)
    results = model.run({"x": x})
    plain = Model(proto, optimise=False).run({"x": x})
    for (name, y), expected in zip(results.items(), runtime(proto, {"x": x}), strict=True):
        # An output sums at most 37 products, and some more roundings follow.
        atol = 64 * 2.0**-24 * max(1.0, float(np.abs(expected).max()))
        for other in (expected, plain[name]):
            assert (y.dtype, y.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(y, other, rtol=0, atol=atol)
    return model


def test_every_rewrite_has_a_case():
    assert {rewrite.apply.__name__ for rewrite in _optimise.REWRITES} == set(CASES)


@pytest.mark.parametrize(
    ("rewrite", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_rewrite(rewrite, case, monkeypatch):
    body, expected = case
    proto = network(body)
    model = same(proto)
    assert operators(model) == expected
    # It was this one that did it.
    others = [r for r in _optimise.REWRITES if r.apply.__name__ != rewrite]
    monkeypatch.setattr(_optimise, "REWRITES", others)
    other = Model(proto)
    assert [node.inputs for node in other.nodes] != [node.inputs for node in model.nodes]


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case):
    body, expected = LEFT_ALONE[case]
    assert operators(same(network(body))) == expected


def test_outputs_of_the_network_stay():
    body = "z = Conv(x, w) y = Mul(z, column6) i = Identity(y)"
    model = same(network(body, "float[] y, float[] z, float[] i"))
    assert operators(model) == "Conv Mul Identity"


def test_weights_are_not_made_infinite():
    """The scaled sum is finite or not as before; ONNX Runtime folds this, and gives NaN."""
    proto = network("a = Conv(x, w) c = Mul(a, huge) y = Atan(c)".replace("Atan", "Sigmoid"))
    model = Model(proto)
    assert operators(model) == "Conv Mul Sigmoid"
    plain = Model(proto, optimise=False)
    np.testing.assert_array_equal(model.run({"x": X})["y"], plain.run({"x": X})["y"])


def test_non_finite_data_stays_where_it_is():
    x = X.copy()
    x[0, 0, 2, 3], x[1, 2, 4, 4] = np.nan, np.inf
    proto = network(f"a = Conv{SAME}(x, w) c = Mul(a, column6) y = Relu(c)")
    model = Model(proto)
    assert operators(model) == "Conv"
    y, plain = (m.run({"x": x})["y"] for m in (model, Model(proto, optimise=False)))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(plain))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(plain))


def test_dropout_that_trains_is_still_refused():
    proto = network("a = Dropout(x, , training) y = Relu(a)")
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "training"))
    with pytest.raises(NotImplementedError, match="training") as caught:
        Model(proto).run({"x": X})
    (note,) = caught.value.__notes__
    assert "(Dropout)" in note


def test_a_constant_that_cannot_be_computed_fails_in_the_run():
    model = Model(network("a = Add(row, column6) c = Add(a, large) y = Add(x, w)"))
    assert operators(model) == "Add"
    model = Model(network("a = Add(w, w_grouped) y = Add(x, a)"))
    with pytest.raises(ValueError, match="broadcast") as caught:
        model.run({"x": X})
    assert caught.value.__notes__ == ["in node 'a' (Add)"]


def test_repeated_images_of_other_shapes_are_not_joined():
    proto = network(
        "p = GlobalMaxPool(x) g = Conv(p, w_1x1) r = Resize(g, , by_2_3) s = Resize(g, , by_6_1)"
        " y = Concat<axis = 1>(r, s)"
    )
    with pytest.raises(ValueError, match="must match exactly"):
        Model(proto).run({"x": X})


def test_unread_nodes_are_removed():
    assert operators(same(network("y = Relu(x) a = Exp(x) c = Conv(a, w)"))) == "Relu"


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(dtype):
    proto = network(f"a = Conv{SAME}(x, w) c = Mul(a, column6) y = Relu(c)", dtype=dtype)
    x = X.astype(dtype)
    y, plain = (Model(proto, optimise=o).run({"x": x})["y"] for o in (True, False))
    assert y.dtype == plain.dtype == dtype
    limit = 64 * np.finfo(dtype).eps * np.abs(plain).max()
    np.testing.assert_allclose(y, plain, rtol=0, atol=limit)


def test_threads_share_a_model():
    """Runs in several threads at once, of several shapes, do not see each other."""
    proto = network(
        f"a = Conv{SAME}(x, w) c = HardSwish(a) d = Conv(c, w_back) e = Add(d, x)"
        " y = Resize(e, , by_2_3)"
    )
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    model = Model(proto, threads=1)
    inputs = [weights(1 + i % 2, 4, 20 + i, 24) for i in range(4)]
    expected = [model.run({"x": x})["y"] for x in inputs]
    right = [[] for _ in inputs]

    def work(i):
        for _ in range(20):
            right[i].append(np.array_equal(model.run({"x": inputs[i]})["y"], expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [[True] * 20] * len(inputs)
