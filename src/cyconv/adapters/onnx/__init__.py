"""ONNX: the two convolution operators with ONNX's attributes, and a small graph runner.

``conv`` and ``conv_transpose`` translate attributes and call cyconv; they need nothing but NumPy.
``Model`` runs whole convolutional networks on NumPy arrays and needs the ``onnx`` package to read
the file::

    _graph          Model: run, release, trace
    _reader         parse and check a file
    _operators      the table: operator and version -> function
    _math  _movement  _pooling  _resize     its functions, in NumPy
    _conv           its Conv and ConvTranspose, by cyconv
    _attributes     what their attributes mean to cyconv
"""

from __future__ import annotations

from ._conv import conv, conv_transpose, explain
from ._graph import Model
from ._operators import OPERATORS
from ._reader import Node, Value

__all__ = ["OPERATORS", "Model", "Node", "Value", "conv", "conv_transpose", "explain"]
