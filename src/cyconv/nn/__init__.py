"""Layers and optimisers: thin, over `cyconv.autograd`, in PyTorch's names and shapes.

::

    module          Module, Sequential, Parameter, Buffer: state and its names
    initialisation  initial weights
    convolution     Conv1d ... ConvTranspose3d
    layers          linear maps, activations, Flatten
    normalisation  pooling
    optimisers      SGD, Adam
    files           weights in files

Losses are functions: `cyconv.autograd.cross_entropy`, `cyconv.autograd.mse_loss`.
"""

from __future__ import annotations

from .convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from .files import load, save
from .initialisation import kaiming_uniform
from .layers import GELU, Flatten, Linear, ReLU, Sigmoid, SiLU, Tanh
from .module import Buffer, Module, Parameter, Sequential
from .normalisation import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .optimisers import SGD, Adam
from .pooling import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Flatten",
    "GlobalAvgPool",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "kaiming_uniform",
    "load",
    "save",
]
