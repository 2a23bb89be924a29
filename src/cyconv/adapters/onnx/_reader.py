"""From an ONNX file to a checked list of calls.

Every node is looked up in the table of operators here, so that a model is either refused when it
is loaded or known to have functions for all of its nodes. The ``onnx`` package parses the file and
says which version of an operator an opset means; it is imported on use.
"""

from __future__ import annotations

import inspect
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cyconv import UnsupportedError

from ._network import Graph, Node, Value
from ._operators import OPERATORS, Function, Operator

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

_DEFAULT_DOMAINS = ("", "ai.onnx")
# Parameters of conv and conv_transpose that are cyconv's, not ONNX's.
_NOT_ATTRIBUTES = {"activation", "residual", "strategy", "threads"}


def read(model: str | PathLike[str] | bytes | onnx.ModelProto) -> Graph:
    """Parse and check a model.

    Raises
    ------
    UnsupportedError
        For whatever the table of operators does not cover.
    ImportError
        If the ``onnx`` package is not installed.
    """
    proto = _parse(model)
    opset = _opset(proto)
    constants = _initializers(proto.graph)
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.domain in _DEFAULT_DOMAINS:
            constants[node.output[0]] = _constant(node)
        else:
            nodes.append(_bind(node, opset))
    for array in constants.values():
        array.setflags(write=False)
    # Old files list initializers among the inputs too.
    inputs = tuple(_value(info) for info in proto.graph.input if info.name not in constants)
    outputs = tuple(_value(info) for info in proto.graph.output)
    _check_order(nodes, outputs, {*constants, *(value.name for value in inputs)})
    return Graph(inputs, outputs, constants, tuple(nodes))


def _parse(model: str | PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            'reading a model needs the onnx package: pip install "cyconv[onnx]"'
        ) from error
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return onnx.load_model_from_string(model)
    return onnx.load_model(fspath(model))


def _opset(proto: onnx.ModelProto) -> int:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    versions = [o.version for o in proto.opset_import if o.domain in _DEFAULT_DOMAINS]
    if max(versions, default=1) > newest:
        raise UnsupportedError(
            f"the model has opset {max(versions)}; the installed onnx package knows up to {newest}"
        )
    return max(versions, default=1)


def _initializers(graph: onnx.GraphProto) -> dict[str, Array]:
    from onnx import numpy_helper

    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise UnsupportedError(f"initializer {name!r} is sparse, which is not supported")
    return {tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in graph.initializer}


def _constant(node: onnx.NodeProto) -> Array:
    """Return the value of a Constant node; the name of its one attribute tells the type."""
    types = {
        "value": None,
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    (attribute,) = node.attribute
    if attribute.name not in types:
        raise _unsupported(node, f"attribute {attribute.name!r} is not supported")
    return np.array(_attribute(node, attribute), types[attribute.name])


def _bind(node: onnx.NodeProto, opset: int) -> Node:
    """Find the function of a node, and check the node's attributes and outputs against it."""
    operator = _operator(node, opset)
    attributes = {a.name: _attribute(node, a) for a in node.attribute}
    unknown = attributes.keys() - _attribute_names(operator.function)
    if unknown:
        raise _unsupported(node, f"attribute {min(unknown)!r} is not supported")
    for name, values in operator.allowed.items():
        if name in attributes and attributes[name] not in values:
            listed = ", ".join(map(repr, values))
            raise _unsupported(node, f"{name}={attributes[name]!r} is not supported, only {listed}")
    if [bool(name) for name in node.output].count(True) != 1 or not node.output[0]:
        raise _unsupported(node, f"outputs {list(node.output)}: only the first is supported")
    return Node(
        name=_name(node),
        op_type=node.op_type,
        function=operator.function,
        attributes=attributes,
        inputs=tuple(node.input),
        output=node.output[0],
    )


def _operator(node: onnx.NodeProto, opset: int) -> Operator:
    import onnx

    if node.domain not in _DEFAULT_DOMAINS:
        raise _unsupported(node, f"domain {node.domain!r} is not supported")
    if node.op_type not in OPERATORS:
        raise _unsupported(node, "this operator is not supported")
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        raise _unsupported(node, f"opset {opset} has no such operator") from None
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise _unsupported(node, f"{len(node.input)} inputs, which opset {opset} does not have")
    for operator in OPERATORS[node.op_type]:
        if schema.since_version in operator.versions:
            return operator
    raise _unsupported(node, f"version {schema.since_version} (opset {opset}) is not supported")


def _attribute_names(function: Function) -> set[str]:
    """Return the attributes that a function takes; NumPy's ufuncs stand for operators without."""
    if isinstance(function, np.ufunc):
        return set()
    return set(inspect.signature(function).parameters) - _NOT_ATTRIBUTES


def _attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> Any:
    from onnx import AttributeProto, helper, numpy_helper

    value: Any = helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.FLOAT | AttributeProto.INT:
            return value
        case AttributeProto.FLOATS | AttributeProto.INTS:
            return tuple(value)
        case AttributeProto.STRING:
            return value.decode()
        case AttributeProto.TENSOR:
            return numpy_helper.to_array(value)
    raise _unsupported(node, f"attribute {attribute.name!r} is of a kind that is not supported")


def _value(info: onnx.ValueInfoProto) -> Value:
    from onnx import helper

    tensor = info.type.tensor_type
    if not tensor.elem_type:
        raise UnsupportedError(f"{info.name!r} is not declared as a tensor with a type")
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_size(dim) for dim in tensor.shape.dim)
    return Value(info.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    # Some exporters write -1 for an open size.
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    return dim.dim_param or None


def _check_order(nodes: list[Node], outputs: tuple[Value, ...], known: set[str]) -> None:
    for node in nodes:
        missing = {name for name in node.inputs if name} - known
        if missing:
            raise ValueError(
                f"node {node.name!r} ({node.op_type}) reads {min(missing)!r}, "
                "which nothing before it computes"
            )
        known.add(node.output)
    for value in outputs:
        if value.name not in known:
            raise ValueError(f"no node computes the output {value.name!r}")


def _unsupported(node: onnx.NodeProto, reason: str) -> UnsupportedError:
    return UnsupportedError(f"node {_name(node)!r} ({node.op_type}): {reason}")


def _name(node: onnx.NodeProto) -> str:
    """Return the node's name, or where it has none that of its output."""
    return node.name or node.output[0]
