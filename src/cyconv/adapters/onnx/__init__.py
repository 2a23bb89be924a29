"""ONNX: the two convolution operators with ONNX's attributes, and a small graph runner.

``conv`` and ``conv_transpose`` translate attributes and call cyconv; they need nothing but NumPy.
``Model`` runs whole convolutional networks on NumPy arrays and needs the ``onnx`` package to read
the file::

    _graph          Model: run, release, trace
    _steps          from nodes to calls
    _optimise       the optimiser: a table of rewrites
    _folding  _fusing  _blocks  _draft  its rewrites, and the network while it is rewritten
    _reader         parse and check a file
    _network        what it makes: values, nodes, constants
    _operators      the table: operator and version -> function
    _math  _movement  _pooling  _resize     its functions, in NumPy
    _conv           its Conv and ConvTranspose, by cyconv
    _attributes     what their attributes mean to cyconv
"""

from __future__ import annotations

from ._conv import conv, conv_transpose, explain
from ._graph import Model
from ._network import Node, Value
from ._operators import OPERATORS

__all__ = ["OPERATORS", "Model", "Node", "Value", "conv", "conv_transpose", "explain"]
