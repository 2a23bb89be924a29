"""The operators that the graph runner knows: name and version -> function.

A version is the opset in which ONNX last changed an operator, so ``Clip`` in a model of opset 17
is version 13. A function is listed for the versions whose meaning it has; whatever is not listed
is refused when a model is loaded. A function takes the node's inputs in order (None for one left
out) and its attributes by name, and returns the node's only output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _math, _movement, _pooling, _resize
from ._conv import conv, conv_transpose

Array = NDArray[Any]
Function = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Operator:
    """A function, the versions of the operator that it implements, and its limits.

    ``allowed`` maps an attribute to the values that the function implements, where those are
    fewer than ONNX has.
    """

    function: Function
    versions: tuple[int, ...]
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


_NUMERIC_TYPES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)  # TensorProto's codes, no float8
_REDUCTION = (1, 11, 13, 18)
_REDUCTION_OF_INTEGERS = (1, 11, 12, 13, 18, 20)
_STORAGE = (13, 21, 23, 24, 25, 28)  # versions that only ever allowed more types
_RESIZE = {
    "mode": ("nearest", "linear"),
    "coordinate_transformation_mode": tuple(_resize.COORDINATES),
    "nearest_mode": tuple(_resize.ROUNDING),
    "antialias": (0,),
    "exclude_outside": (0,),
    "keep_aspect_ratio_policy": ("stretch",),
}

OPERATORS: dict[str, tuple[Operator, ...]] = {
    # convolution
    "Conv": (Operator(conv, (1, 11, 22)),),
    "ConvTranspose": (Operator(conv_transpose, (1, 11, 22)),),
    # pooling and sampling
    "AveragePool": (Operator(_pooling.average_pool, (7, 10, 11, 19, 22)),),
    "GlobalAveragePool": (Operator(_pooling.global_average_pool, (1, 22)),),
    "GlobalMaxPool": (Operator(_pooling.global_max_pool, (1, 22)),),
    "MaxPool": (Operator(_pooling.max_pool, (1, 8, 10, 11, 12, 22)),),
    "Resize": (Operator(_resize.resize, (11, 13, 18, 19), _RESIZE),),
    # activations and normalisation
    "BatchNormalization": (
        Operator(
            _math.batch_normalization, (7, 9, 14, 15), {"training_mode": (0,), "spatial": (1,)}
        ),
    ),
    "Clip": (Operator(_math.clip, (6, 11, 12, 13)),),
    "Dropout": (Operator(_math.dropout, (7, 10, 12, 13, 22)),),
    "Elu": (Operator(_math.elu, (6, 22)),),
    "HardSigmoid": (Operator(_math.hard_sigmoid, (6, 22)),),
    "HardSwish": (Operator(_math.hard_swish, (14, 22)),),
    "LeakyRelu": (Operator(_math.leaky_relu, (6, 16)),),
    "PRelu": (Operator(_math.prelu, (7, 9, 16)),),
    "Relu": (Operator(_math.relu, (6, 13, 14)),),
    "Sigmoid": (Operator(_math.sigmoid, (6, 13)),),
    "Softmax": (
        Operator(_math.softmax_flattened, (1, 11)),
        Operator(_math.softmax, (13,)),
    ),
    "Softplus": (Operator(_math.softplus, (1, 22)),),
    # element by element
    "Abs": (Operator(np.abs, (6, 13)),),
    "Add": (Operator(np.add, (7, 13, 14)),),
    "And": (Operator(np.logical_and, (7,)),),
    "Cast": (Operator(_movement.cast, (6, 9, 13, 19, 21, 23, 24, 25, 28), {"to": _NUMERIC_TYPES}),),
    "Ceil": (Operator(np.ceil, (6, 13)),),
    "Cos": (Operator(np.cos, (7, 22)),),
    "Div": (Operator(_math.divide, (7, 13, 14)),),
    "Equal": (Operator(np.equal, (7, 11, 13, 19)),),
    "Erf": (Operator(_math.erf, (9, 13)),),
    "Exp": (Operator(np.exp, (6, 13)),),
    "Floor": (Operator(np.floor, (6, 13)),),
    "Greater": (Operator(np.greater, (7, 9, 13)),),
    "GreaterOrEqual": (Operator(np.greater_equal, (12, 16)),),
    "Identity": (Operator(_movement.identity, (1, 13, 14, 16, 19, 21, 23, 24, 25, 28)),),
    "Less": (Operator(np.less, (7, 9, 13)),),
    "LessOrEqual": (Operator(np.less_equal, (12, 16)),),
    "Log": (Operator(np.log, (6, 13)),),
    "Max": (Operator(_math.maximum, (6, 8, 12, 13)),),
    "Min": (Operator(_math.minimum, (6, 8, 12, 13)),),
    "Mul": (Operator(np.multiply, (7, 13, 14)),),
    "Neg": (Operator(np.negative, (6, 13)),),
    "Not": (Operator(np.logical_not, (1,)),),
    "Or": (Operator(np.logical_or, (7,)),),
    "Pow": (Operator(_math.power, (7, 12, 13, 15)),),
    "Reciprocal": (Operator(np.reciprocal, (6, 13)),),
    "Sin": (Operator(np.sin, (7, 22)),),
    "Sqrt": (Operator(np.sqrt, (6, 13)),),
    "Sub": (Operator(np.subtract, (7, 13, 14)),),
    "Tanh": (Operator(np.tanh, (6, 13)),),
    "Where": (Operator(_math.where, (9, 16)),),
    # along axes
    "ArgMax": (Operator(_math.arg_max, (1, 11, 12, 13)),),
    "ReduceMax": (Operator(_math.reduce_max, _REDUCTION_OF_INTEGERS),),
    "ReduceMean": (Operator(_math.reduce_mean, _REDUCTION),),
    "ReduceMin": (Operator(_math.reduce_min, _REDUCTION_OF_INTEGERS),),
    "ReduceSum": (Operator(_math.reduce_sum, (1, 11, 13)),),
    # matrices
    "Gemm": (Operator(_math.gemm, (7, 9, 11, 13)),),
    "MatMul": (Operator(np.matmul, (1, 9, 13)),),
    # shapes
    "Concat": (Operator(_movement.concat, (4, 11, 13)),),
    "ConstantOfShape": (Operator(_movement.constant_of_shape, (9, 20, 21, 23, 24, 25)),),
    "Expand": (Operator(_movement.expand, (8, 13)),),
    "Flatten": (Operator(_movement.flatten, (1, 9, 11, *_STORAGE)),),
    "Gather": (Operator(_movement.gather, (1, 11, 13)),),
    "GatherElements": (Operator(_movement.gather_elements, (11, 13)),),
    "Pad": (
        Operator(
            _movement.pad,
            (2, 11, 18, 19, *_STORAGE),
            {"mode": ("constant", "reflect", "edge", "wrap")},
        ),
    ),
    "Reshape": (Operator(_movement.reshape, (5, 14, 19, *_STORAGE)),),
    "ScatterElements": (
        Operator(_movement.scatter_elements, (11, 13, 16, 18), {"reduction": ("none",)}),
    ),
    "Shape": (Operator(_movement.shape, (1, 15, 19, *_STORAGE)),),
    "Slice": (Operator(_movement.slice_, (1, 10, 11, 13)),),
    "Squeeze": (Operator(_movement.squeeze, (1, 11, *_STORAGE)),),
    "Transpose": (Operator(_movement.transpose, (1, *_STORAGE)),),
    "Unsqueeze": (Operator(_movement.unsqueeze, (1, 11, *_STORAGE)),),
}
