"""`Model`: run a convolutional network that is stored as an ONNX graph.

Running walks the nodes in their order and drops each value after its last use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import cyconv
from cyconv import DTypeError, ShapeError

from ._reader import Node, read

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]
Trace = Callable[[Node, tuple[Any, ...], Array, float], None]


class Model:
    """A network from an ONNX file, run on NumPy arrays; convolutions by cyconv.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model, or where its file is.
    strategy, threads
        For every convolution of the model, as in `cyconv.config`; by default what is in force
        where `run` is called.

    Attributes
    ----------
    inputs, outputs : tuple of Value
        Name, dtype and shape of what `run` takes and gives.
    nodes : tuple of Node
        The operators in the order in which they run, constants excluded.

    Raises
    ------
    UnsupportedError
        If a node has an operator, version, attribute or second output that is not implemented.
        The message names the node and the operator.
    ImportError
        If the ``onnx`` package is not installed.

    Examples
    --------
    >>> from cyconv.adapters.onnx import Model
    >>> model = Model("network.onnx", threads=2)  # doctest: +SKIP
    >>> model.run({"x": image})["y"]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | PathLike[str] | bytes | onnx.ModelProto,
        *,
        strategy: str | None = None,
        threads: int | None = None,
    ) -> None:
        options = {"strategy": strategy, "threads": threads}
        self._config = {name: value for name, value in options.items() if value is not None}
        graph = read(model)
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.nodes = graph.nodes
        self._constants = graph.constants

    def run(
        self, inputs: Mapping[str, ArrayLike], *, trace: Trace | None = None
    ) -> dict[str, Array]:
        """Run the network.

        Parameters
        ----------
        inputs : mapping of str to array
            An array for each of `inputs`.
        trace : callable, optional
            Called after each node as ``trace(node, inputs, output, seconds)`` with the arrays that
            the node got (None for an optional one left out) and gave, in the same configuration.

        Returns
        -------
        dict of str to array
            The outputs. None of them shares memory with an input or with the model.

        Raises
        ------
        ValueError
            If an input is missing or unknown.
        ShapeError
            If an input has another shape than the model says.
        DTypeError
            If an input has another dtype than the model says.

        Notes
        -----
        An error inside a node carries a note that names the node.
        """
        borrowed = {**self._constants, **self._checked(inputs)}
        values = dict(borrowed)
        # ONNX computes as IEEE 754 says; a division by zero is no reason to warn.
        with cyconv.config(**self._config), np.errstate(all="ignore"):
            for node in self.nodes:
                operands = tuple(values[name] if name else None for name in node.inputs)
                start = time.perf_counter()
                try:
                    result = np.asarray(node.function(*operands, **node.attributes))
                except Exception as error:
                    error.add_note(f"in node {node.name!r} ({node.op_type})")
                    raise
                seconds = time.perf_counter() - start
                if trace is not None:
                    trace(node, operands, result, seconds)
                values[node.output] = result
                for name in node.releases:
                    del values[name]
                del operands, result  # they would keep released values alive
        protected = {id(array) for array in borrowed.values()}
        outputs = {}
        for value in self.outputs:
            array = values[value.name]
            own = array.flags.owndata and id(array) not in protected
            outputs[value.name] = array if own else array.copy()
        return outputs

    def _checked(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Return the inputs as arrays if they are what the model declares."""
        names = [value.name for value in self.inputs]
        if set(inputs) != set(names):
            raise ValueError(f"the model takes the inputs {names}, not {list(inputs)}")
        arrays = {}
        for value in self.inputs:
            array = arrays[value.name] = np.asarray(inputs[value.name])
            if array.dtype != value.dtype:
                raise DTypeError(f"input {value.name!r} is {array.dtype}, should be {value.dtype}")
            if not value.accepts(array.shape):
                raise ShapeError(
                    f"input {value.name!r} has shape {array.shape}, should be {value.shape}"
                )
        return arrays
