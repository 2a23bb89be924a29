"""Reverse-mode differentiation of convolution and of what a network needs around it.

``cyconv.Tensor`` records what is computed from it; the public functions of cyconv take tensors and
return them. The rooms, from the ground up::

    recording       whether anything is recorded: no_grad
    sums            sums that half types survive
    tape            variables, operators and nodes
    reverse         the reverse pass; neither knows any operator
    arithmetic  activations  convolution  normalisation  losses  padding  pooling
                    the table: an operator a row, with its rules
    tensor          the arithmetic of a tensor
    check           gradients against differences
"""

from __future__ import annotations

from .activations import ACTIVATIONS, gelu, relu, silu
from .arithmetic import erf, exp, log, sigmoid, tanh
from .check import GradientError, gradcheck, gradgradcheck
from .convolution import linear
from .losses import cross_entropy, log_softmax, mse_loss
from .normalisation import Moments, batch_norm, moments
from .padding import pad
from .pooling import avg_pool, max_pool
from .recording import no_grad
from .reverse import grad
from .tape import Leaf, Node, Operator, raw
from .tensor import Tensor

__all__ = [
    "ACTIVATIONS",
    "GradientError",
    "Leaf",
    "Moments",
    "Node",
    "Operator",
    "Tensor",
    "avg_pool",
    "batch_norm",
    "cross_entropy",
    "erf",
    "exp",
    "gelu",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "linear",
    "log",
    "log_softmax",
    "max_pool",
    "moments",
    "mse_loss",
    "no_grad",
    "pad",
    "raw",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]
