"""Cases that ONNX ships, and one-node models run by ONNX Runtime, for the tests of the adapter."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as node_cases

CONVERTED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted"


def generated(*modules):
    """The node cases of these modules of ``onnx.backend.test.case.node``.

    ``collect_testcases(None)`` gives the cases of all operators, but computes all of them first,
    for a dozen seconds. A case is made when its module is imported: this imports what is asked for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the code that computes the cases
        for name in modules:
            importlib.import_module(f"{node_cases.__name__}.{name}")
    return list(node_cases._NodeTestCases)


def single_node(case):
    """The only node of a case, else None."""
    nodes = case.model.graph.node
    return nodes[0] if len(nodes) == 1 else None


def array(value):
    """Data of a case as an array: some are protocol buffers."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def converted(prefix=""):
    """Names of the cases that were converted from PyTorch."""
    return sorted(p.name for p in CONVERTED.iterdir() if p.name.startswith(prefix))


def load_converted(name):
    """(model, inputs, outputs) of such a case."""
    folder = CONVERTED / name
    data = folder / "test_data_set_0"

    def tensors(kind):
        files = sorted(data.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
        return [numpy_helper.to_array(onnx.load_tensor(str(f))) for f in files]

    return onnx.load(str(folder / "model.onnx")), tensors("input"), tensors("output")


def one_node_model(op_type, inputs, opset, attributes, constants=()):
    """A model of one node.  ``inputs`` are arrays or None (left out); those numbered in
    ``constants`` become initializers."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for i, (name, x) in enumerate(zip(names, inputs, strict=True))
        if x is not None and i not in constants
    ]
    initializers = [numpy_helper.from_array(inputs[i], names[i]) for i in constants]
    node = helper.make_node(op_type, names, ["y"], name="node", **attributes)
    graph = helper.make_graph(
        [node], "graph", declared, [helper.make_empty_tensor_value_info("y")], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    feeds = {
        name: x
        for i, (name, x) in enumerate(zip(names, inputs, strict=True))
        if name and i not in constants
    }
    return model, feeds


def chain(*nodes, inputs=("x",), outputs=("y",), initializers=(), opset=17, shape=("n", 3)):
    """A model of (operator, inputs, output, attributes) nodes over float32 values."""
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    graph = helper.make_graph(
        [
            helper.make_node(op, list(ins), [out], name=f"{op}_{i}", **attributes)
            for i, (op, ins, out, attributes) in enumerate(nodes)
        ],
        "graph",
        [info(name) for name in inputs],
        [info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def runtime(model, inputs, outputs=None, threads=1):
    """What ONNX Runtime gives."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(outputs, inputs)
