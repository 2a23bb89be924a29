"""`Model`: run a convolutional network that is stored as an ONNX graph.

Running walks the steps of a program in their order and drops each value after its last use.
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

from ._network import Node
from ._optimise import optimised
from ._reader import read
from ._steps import Program

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
    optimise : bool
        Rewrite the graph so that it computes the same in fewer and faster steps: constants are
        folded, batch normalisation goes into weights, activations into convolutions, and weights
        are prepared once. Results differ by rounding.

    Attributes
    ----------
    inputs, outputs : tuple of Value
        Name, dtype and shape of what `run` takes and gives.
    nodes : tuple of Node
        The operators in the order in which they run, constants excluded; with `optimise` after
        the rewriting.

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
        optimise: bool = True,
    ) -> None:
        options = {"strategy": strategy, "threads": threads}
        self._config = {name: value for name, value in options.items() if value is not None}
        graph = read(model)
        if optimise:
            graph = optimised(graph)
        graph = graph.with_releases()
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.nodes = graph.nodes
        self._program = Program(graph, optimise=optimise)

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
        program = self._program
        values = program.values.copy()
        for name, array in self._checked(inputs).items():
            values[program.slots[name]] = array
        protected = {id(array) for array in values}
        # ONNX computes as IEEE 754 says; a division by zero is no reason to warn.
        with cyconv.config(**self._config), np.errstate(all="ignore"):
            for step in program.steps:
                operands = tuple([values[slot] for slot in step.reads])
                start = time.perf_counter()
                try:
                    result = np.asarray(step.call(*operands))
                except Exception as error:
                    error.add_note(f"in node {step.node.name!r} ({step.node.op_type})")
                    raise
                seconds = time.perf_counter() - start
                if trace is not None:
                    trace(step.node, operands, result, seconds)
                values[step.writes] = result
                for slot in step.releases:
                    values[slot] = None
                del operands, result  # they would keep released values alive
        outputs = {}
        for value in self.outputs:
            array = np.asarray(values[program.slots[value.name]])
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
