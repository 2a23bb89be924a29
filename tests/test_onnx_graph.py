"""The graph runner: each operator against ONNX's cases and ONNX Runtime, and the runner itself."""

from __future__ import annotations

import pkgutil
import weakref

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_cases import (  # noqa: E402
    array,
    chain,
    converted,
    generated,
    load_converted,
    node_cases,
    one_node_model,
    runtime,
    single_node,
)

import cyconv  # noqa: E402
from cyconv.adapters.onnx import OPERATORS, Model  # noqa: E402

MODULES = {m.name.replace("_", ""): m.name for m in pkgutil.iter_modules(node_cases.__path__)}

# The cases that are refused, by a part of their name, and what the message says. Every other case
# of an operator in the table must run, and each of these parts must occur.
REFUSED = {
    "BatchNormalization": {"training_mode": "training_mode=1"},
    "Cast": {
        f"to_{kind}": "to=" for kind in ("FLOAT8", "UINT4", "INT4", "FLOAT4", "UINT2", "INT2")
    },
    "Dropout": {"mask": "only the first", "training_dropout": "training mode"},
    "Identity": {"sequence": "not declared as a tensor", "opt": "not declared as a tensor"},
    "MaxPool": {"argmax": "only the first"},
    "Resize": {
        "cubic": "mode='cubic'",
        "tf_crop_and_resize": "tf_crop_and_resize",
        "antialias": "antialias=1",
        "not_larger": "not_larger",
        "not_smaller": "not_smaller",
    },
    "ScatterElements": {"duplicate_indices": "reduction='add'", "with_reduction": "reduction="},
}


def run_case(model, inputs, optimise=True):
    runner = Model(model, optimise=optimise)
    names = [value.name for value in runner.inputs]
    results = runner.run(dict(zip(names, map(array, inputs), strict=True)))
    return [results[value.name] for value in runner.outputs]


def compare(results, expected, rtol=1e-3, atol=1e-7):
    for y, e in zip(results, expected, strict=True):
        assert y.dtype == e.dtype
        assert y.shape == e.shape
        # Half types and booleans have no comparison of their own.
        np.testing.assert_allclose(y.astype(np.float64), e.astype(np.float64), rtol, atol)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_operator_on_the_generated_cases(op_type):
    refusals = REFUSED.get(op_type, {})
    ran, refused = [], set()
    for case in generated(MODULES[op_type.lower()]):
        node = single_node(case)
        if node is None or node.op_type != op_type:
            continue
        part = next((part for part in refusals if part in case.name), None)
        for inputs, outputs in case.data_sets:
            if part is not None:
                with pytest.raises(cyconv.UnsupportedError, match=refusals[part]):
                    run_case(case.model, inputs)
                refused.add(part)
            else:
                for optimise in (False, True):
                    results = run_case(case.model, inputs, optimise)
                    compare(results, map(array, outputs), case.rtol, case.atol)
                ran.append(case.name)
    assert ran
    assert refused == set(refusals)


# Converted from PyTorch, at opset 6. By prefix: what stands in the way.
UNSUPPORTED_CONVERTED = {
    "test_AvgPool": "AveragePool.: version 1",
    "test_BatchNorm": "BatchNormalization.: version 6",
    "test_GLU": "Split.: this operator",
    "test_Linear": "Gemm.: version 6",
    "test_LogSoftmax": "LogSoftmax.: this operator",
    "test_PReLU": "PRelu.: version 6",
    "test_PoissonNLLLLoss": "Mul.: version 6",
    "test_SELU": "Selu.: this operator",
    "test_Softsign": "Add.: version 6",
    "test_log_softmax": "LogSoftmax.: this operator",
}


@pytest.mark.parametrize("name", converted())
def test_converted_case(name):
    model, inputs, outputs = load_converted(name)
    refusal = next((m for part, m in UNSUPPORTED_CONVERTED.items() if name.startswith(part)), None)
    if refusal and name != "test_Linear_no_bias":
        with pytest.raises(cyconv.UnsupportedError, match=refusal):
            Model(model)
        return
    for optimise in (False, True):
        compare(run_case(model, inputs, optimise), outputs)


# Versions before the newest, which the generated cases do not have, against ONNX Runtime.

X = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
I64 = np.int64
OLD = {
    "Clip-6": (6, "Clip", [X], {"min": -0.5, "max": 0.25}, ()),
    "Clip-6 half": (6, "Clip", [X], {"max": 0.25}, ()),
    "Clip-11": (11, "Clip", [X, None, np.float32(0.5)], {}, (2,)),
    "Pad-2": (2, "Pad", [X], {"pads": [0, 1, 2, 0, 0, 0, 1, 3], "value": 1.5}, ()),
    "Pad-2 crop": (2, "Pad", [X], {"pads": [0, 0, -1, 1, 0, 0, 2, -2]}, ()),
    "Pad-2 edge": (2, "Pad", [X], {"pads": [0, 0, 1, 0, 0, 0, 1, 3], "mode": "edge"}, ()),
    "Pad-11": (11, "Pad", [X, np.array([0, 0, 1, 2, 0, 0, 2, 0], I64)], {"mode": "reflect"}, (1,)),
    "ReduceMean-11": (11, "ReduceMean", [X], {"axes": [-1, 1], "keepdims": 0}, ()),
    "ReduceMean-11 all": (11, "ReduceMean", [X], {}, ()),
    "ReduceMean-18": (18, "ReduceMean", [X, np.array([2], I64)], {}, (1,)),
    "ReduceMax-11": (11, "ReduceMax", [X], {"axes": [2]}, ()),
    "ReduceMin-11": (11, "ReduceMin", [X], {"axes": [0, 3]}, ()),
    "ReduceSum-11": (11, "ReduceSum", [X], {"axes": [1]}, ()),
    "ReduceSum-13": (13, "ReduceSum", [X, np.array([1], I64)], {}, (1,)),
    "Squeeze-11": (11, "Squeeze", [X[:1, :, :1]], {"axes": [0, -2]}, ()),
    "Squeeze-11 all": (11, "Squeeze", [X[:1, :, :1]], {}, ()),
    "Unsqueeze-11": (11, "Unsqueeze", [X], {"axes": [0, 3]}, ()),
    "Slice-1": (9, "Slice", [X], {"starts": [1, -3], "ends": [9, 5], "axes": [1, 3]}, ()),
    "Slice-10": (
        10,
        "Slice",
        [X, np.array([-1, -9]), np.array([-99, 5]), np.array([3, 2]), np.array([-2, 1])],
        {},
        (),
    ),
    "Slice-10 start beyond": (
        10,
        "Slice",
        [X, np.array([-99]), np.array([-99]), np.array([3]), np.array([-1])],
        {},
        (),
    ),
    "Softmax-11": (11, "Softmax", [X], {}, ()),
    "Softmax-11 axis": (11, "Softmax", [X], {"axis": -2}, ()),
    "Softmax-13": (13, "Softmax", [X], {"axis": 1}, ()),
    "Reshape-5": (5, "Reshape", [X, np.array([0, -1, 3], I64)], {}, (1,)),
    "Dropout-7": (7, "Dropout", [X], {"ratio": 0.3}, ()),
    "Dropout-12": (12, "Dropout", [X, np.float32(0.3)], {}, (1,)),
    "BatchNormalization-9": (
        9,
        "BatchNormalization",
        [X, *(np.array(v, np.float32) for v in ((1, 2, 3), (0, 1, -1), (0.5, 0, 2), (1, 4, 9)))],
        {"epsilon": 1e-3},
        (),
    ),
    "Gemm-7": (
        7,
        "Gemm",
        [X[0, 0], X[1, 0], X[0, 0, :, :1]],
        {"transB": 1, "alpha": 0.5, "beta": 2.0},
        (),
    ),
    "Gemm-11 without C": (11, "Gemm", [X[0, 0], X[1, 0]], {"transA": 1}, ()),
    "AveragePool-7": (
        7,
        "AveragePool",
        [X],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 1},
        (),
    ),
    "AveragePool-10 ceil": (
        10,
        "AveragePool",
        [X],
        {"kernel_shape": [2, 4], "strides": [2, 3], "ceil_mode": 1, "pads": [0, 1, 0, 1]},
        (),
    ),
    "MaxPool-8": (8, "MaxPool", [X], {"kernel_shape": [3, 3], "strides": [2, 2]}, ()),
    "MaxPool-10 dilated": (
        10,
        "MaxPool",
        [X],
        {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [1, 1, 0, 1]},
        (),
    ),
    "MaxPool-11 lower": (
        11,
        "MaxPool",
        [X],
        {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2]},
        (),
    ),
    "Pow-7": (7, "Pow", [np.abs(X), np.float32(1.5)], {}, ()),
    "Div-7 integers": (7, "Div", [np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])], {}, ()),
    "Concat-4": (4, "Concat", [X, X[:, :1]], {"axis": 1}, ()),
    "PRelu-7": (7, "PRelu", [X, X[0, :, :1, :1]], {}, ()),
    "Flatten-9": (9, "Flatten", [X], {"axis": 2}, ()),
    "ArgMax-11": (11, "ArgMax", [X], {"axis": 2, "keepdims": 0}, ()),
    "Gather-1": (10, "Gather", [X, np.array([[0, 2], [1, 1]])], {"axis": 1}, ()),
    "Max-8": (8, "Max", [X, X[:1], X[0, 0]], {}, ()),
    "Upsampling by Resize-11": (
        11,
        "Resize",
        [X, np.zeros(0, np.float32), np.array([1, 1, 2, 3], np.float32)],
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        (1, 2),
    ),
    "Resize-13 linear": (
        13,
        "Resize",
        [X, None, None, np.array([2, 3, 8, 4], I64)],
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        (3,),
    ),
    "Resize-18 align": (
        18,
        "Resize",
        [X, None, np.array([1, 1, 1.6, 0.5], np.float32)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        (2,),
    ),
    "Cast-9": (9, "Cast", [10 * X], {"to": TensorProto.INT32}, ()),
}


@pytest.mark.parametrize("case", OLD)
def test_older_versions_against_onnxruntime(case):
    pytest.importorskip("onnxruntime")
    opset, op_type, inputs, attributes, constants = OLD[case]
    inputs = [x if x is None else np.asarray(x) for x in inputs]
    # ONNX Runtime begins at opset 7; the operator's version is the same there.
    model, feeds = one_node_model(op_type, inputs, max(opset, 7), attributes, constants)
    (expected,) = runtime(model, feeds)
    for optimise in (False, True):
        (y,) = Model(model, optimise=optimise).run(feeds).values()
        compare([y], [expected], rtol=1e-5, atol=1e-6)


# The runner.


ROW = np.array([[-1, 0, 2]], np.float32)


def test_model_from_path_bytes_and_proto(tmp_path):
    proto = chain(("Relu", "x", "y", {}))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    for source in (path, str(path), path.read_bytes(), proto):
        model = Model(source)
        np.testing.assert_array_equal(model.run({"x": ROW})["y"], [[0, 0, 2]])
    assert [(v.name, v.dtype, v.shape) for v in model.inputs] == [("x", np.float32, ("n", 3))]
    assert [v.name for v in model.outputs] == ["y"]
    assert [(n.name, n.op_type) for n in model.nodes] == [("Relu_0", "Relu")]


def test_values_are_dropped_after_their_last_use():
    # x -> a -> b -> c -> y, and a is needed again for y.
    model = Model(
        chain(
            ("Exp", "x", "a", {}),
            ("Exp", "a", "b", {}),
            ("Exp", "b", "c", {}),
            ("Add", "ac", "y", {}),
            ("Neg", "y", "unused", {}),
        ),
        optimise=False,
    )
    assert [set(node.releases) for node in model.nodes] == [
        {"x"},
        set(),
        {"b"},
        {"a", "c"},
        {"unused"},
    ]
    seen = {}
    alive = []

    def trace(node, inputs, output, seconds):
        seen[node.output] = weakref.ref(output)
        alive.append({name for name, ref in seen.items() if ref() is not None})

    model.run({"x": ROW}, trace=trace)
    assert alive == [{"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "c", "y"}, {"y", "unused"}]


def test_outputs_share_no_memory():
    constant = np.array([[1, 2, 3]], np.float32)
    model = Model(
        chain(
            ("Identity", "x", "y", {}),
            ("Identity", "k", "z", {}),
            ("Transpose", "x", "t", {"perm": [0, 1]}),
            outputs=("y", "z", "t", "k"),
            initializers=[("k", constant)],
        )
    )
    x = ROW.copy()
    first = model.run({"x": x})
    for value in first.values():
        value += 1
    np.testing.assert_array_equal(x, ROW)
    second = model.run({"x": x})
    np.testing.assert_array_equal(second["z"], constant)
    np.testing.assert_array_equal(second["k"], constant)
    np.testing.assert_array_equal(second["y"], ROW)


def test_trace_gets_every_node():
    calls = []
    model = Model(chain(("Clip", ("x", "", "k"), "a", {}), ("Relu", "a", "y", {}),
                        initializers=[("k", np.float32(1))]))  # fmt: skip
    model.run({"x": ROW}, trace=lambda *call: calls.append(call))
    (clip, clip_inputs, clip_output, seconds), (relu, (relu_input,), _, _) = calls
    assert (clip.op_type, relu.op_type) == ("Clip", "Relu")
    assert clip_inputs[1] is None
    assert clip_inputs[2] == 1
    assert relu_input is clip_output
    assert seconds >= 0


def convolution():
    w = np.ones((2, 3, 3), np.float32)
    return chain(("Conv", "xw", "y", {"pads": [1, 1]}), initializers=[("w", w)], shape=(1, 3, 8))


def test_strategy_and_threads_reach_the_convolutions():
    x = {"x": np.ones((1, 3, 8), np.float32)}

    def settings(model):
        seen = []
        model.run(x, trace=lambda *_: seen.append(cyconv.get_config()))
        return seen[0].strategy, seen[0].threads

    assert settings(Model(convolution(), strategy="direct", threads=1)) == ("direct", 1)
    with cyconv.config(strategy="im2col", threads=2):
        assert settings(Model(convolution())) == ("im2col", 2)
        assert settings(Model(convolution(), threads=1)) == ("im2col", 1)
    with cyconv.config(strict=True), pytest.raises(cyconv.UnsupportedError, match="kernel"):
        Model(convolution(), strategy="pointwise").run(x)
    with pytest.raises(ValueError, match="nonesuch"):
        Model(convolution(), strategy="nonesuch").run(x)


UNSUPPORTED = {
    r"node 'LSTM_0' \(LSTM\): this operator": chain(("LSTM", "xxx", "y", {"hidden_size": 3})),
    r"node 'Relu_1' \(Relu\): domain 'com.example'": chain(
        ("Relu", "x", "a", {}), ("Relu", "a", "y", {"domain": "com.example"})
    ),
    r"'Resize_0' \(Resize\): version 10": chain(("Resize", "xk", "y", {}), inputs="xk", opset=10),
    r"'Resize_0' \(Resize\): mode='cubic'": chain(
        ("Resize", ("x", "", "k"), "y", {"mode": "cubic"}), inputs="xk"
    ),
    r"'Relu_0' \(Relu\): attribute 'consumed_inputs'": chain(
        ("Relu", "x", "y", {"consumed_inputs": [1]}), opset=13
    ),
    r"'Exp_0' \(Exp\): attribute 'base'": chain(("Exp", "x", "y", {"base": 2.0})),
    r"'HardSwish_0' \(HardSwish\): opset 13 has no": chain(("HardSwish", "x", "y", {}), opset=13),
    r"'Add_0' \(Add\): 3 inputs": chain(("Add", "xxx", "y", {})),
    r"'Add_0' \(Add\): version 6": chain(("Add", "xx", "y", {"broadcast": 1}), opset=6),
    r"'If_0' \(If\)": chain(("If", "x", "y", {"then_branch": chain(("Relu", "x", "y", {})).graph})),
    "opset 999": chain(("Relu", "x", "y", {}), opset=999),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_is_refused_at_load_time(message):
    with pytest.raises(cyconv.UnsupportedError, match=message):
        Model(UNSUPPORTED[message])


def test_sparse_initializer_is_refused():
    proto = chain(("Relu", "x", "y", {}))
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    with pytest.raises(cyconv.UnsupportedError, match="'sparse' is sparse"):
        Model(proto)


def test_second_outputs_are_refused():
    proto = chain(("Relu", "x", "y", {}))
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], name="pool", kernel_shape=[1])
    proto.graph.node[0].CopyFrom(node)
    with pytest.raises(cyconv.UnsupportedError, match=r"'pool' \(MaxPool\): outputs"):
        Model(proto)


def test_broken_graphs():
    with pytest.raises(ValueError, match=r"'Relu_0' \(Relu\) reads 'a', which nothing before"):
        Model(chain(("Relu", "a", "y", {}), ("Relu", "x", "a", {})))
    with pytest.raises(ValueError, match="no node computes the output 'y'"):
        Model(chain(("Relu", "x", "a", {})))


def test_inputs_are_checked():
    model = Model(chain(("Relu", "x", "y", {})))
    with pytest.raises(ValueError, match=r"takes the inputs \['x'\]"):
        model.run({})
    with pytest.raises(ValueError, match=r"not \['x', 'z'\]"):
        model.run({"x": ROW, "z": ROW})
    with pytest.raises(cyconv.DTypeError, match="'x' is float64, should be float32"):
        model.run({"x": ROW.astype(np.float64)})
    with pytest.raises(cyconv.ShapeError, match=r"\(1, 2\), should be \('n', 3\)"):
        model.run({"x": ROW[:, :2]})
    with pytest.raises(cyconv.ShapeError, match=r"\(3,\), should be"):
        model.run({"x": ROW[0]})
    assert model.run({"x": np.repeat(ROW, 4, 0)})["y"].shape == (4, 3)


def test_an_error_inside_a_node_names_it():
    model = Model(chain(("Add", "xk", "y", {}), initializers=[("k", np.ones((7, 7), np.float32))]))
    with pytest.raises(ValueError, match="broadcast") as caught:
        model.run({"x": ROW})
    assert caught.value.__notes__ == ["in node 'Add_0' (Add)"]


def test_constants_of_every_kind():
    kinds = {
        "value_float": (2.0, np.float32(2)),
        "value_floats": ([2.0, 3.0, 4.0], np.array([2, 3, 4], np.float32)),
        "value": (numpy_helper.from_array(np.array([1, 2, 3], np.float32)), np.float32([1, 2, 3])),
    }
    for name, (given, expected) in kinds.items():
        model = Model(chain(("Constant", "", "k", {name: given}), ("Add", "xk", "y", {})))
        np.testing.assert_array_equal(model.run({"x": ROW})["y"], ROW + expected)
        assert len(model.nodes) == 1
    shape = chain(("Constant", "", "k", {"value_ints": [3, 1]}), ("Reshape", "xk", "y", {}))
    assert Model(shape).run({"x": ROW})["y"].shape == (3, 1)
    with pytest.raises(cyconv.UnsupportedError, match=r"'Constant_0' \(Constant\).*value_string"):
        Model(chain(("Constant", "", "k", {"value_string": "a"}), ("Relu", "x", "y", {})))


def test_every_function_takes_what_the_newest_schema_has():
    """An attribute that a function lacks would be refused; these are all that are."""
    from cyconv.adapters.onnx._reader import _attribute_names

    newest = onnx.defs.onnx_opset_version()
    lacking = set()
    for op_type, operators in OPERATORS.items():
        schema = onnx.defs.get_schema(op_type, newest, "")
        for operator in operators:
            if schema.since_version in operator.versions:
                lacking |= {(op_type, a) for a in schema.attributes} - {
                    (op_type, a) for a in _attribute_names(operator.function)
                }
    assert lacking == set()


def test_without_the_onnx_package(python):
    out = python(
        "import sys; sys.modules['onnx'] = None\n"
        "import numpy as np\n"
        "from cyconv.adapters.onnx import conv, Model\n"
        "x = np.ones((1, 1, 3), np.float32)\n"
        "print(conv(x, x).shape)\n"
        "try: Model(b'')\n"
        "except ImportError as error: print(error)\n"
    )
    assert out.splitlines()[0] == "(1, 1, 1)"
    assert 'pip install "cyconv[onnx]"' in out


def test_importing_cyconv_imports_none_of_this(python):
    out = python(
        "import sys, cyconv\n"
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('onnx', 'skimage', 'matplotlib', 'rich') "
        "or m.startswith(('cyconv.adapters', 'cyconv.demo', 'cyconv.cli'))])"
    )
    assert out.strip() == "[]"
