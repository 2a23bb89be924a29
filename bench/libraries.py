"""How each library is called: the operands it is given, and the call that is timed.

A library is a class with ``name``, ``version``, ``prepare(problem, operands)`` and ``sample``;
``worker.py`` owns one of them in a process of its own. Problems come as the plain dictionaries of
`cells.Cell.description`, so that a peer's process never imports cyconv.

Operands are made in channels-first order from fixed seeds, so every library computes the same
numbers, and are then brought into the order that the cell's layout asks for, outside the timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version

import numpy as np

# Operands of each operator in the order of the calls, and what it yields.
ROLES = {"fwd": ("x", "w", "y"), "dx": ("y", "w", "x"), "dw": ("x", "y", "w")}
SAMPLES = 256
LONG_KERNEL = 64


class UnsupportedError(Exception):
    """The library cannot do this problem; the message says why."""


def shapes(problem: dict) -> dict[str, tuple[int, ...]]:
    """Give the channels-first shapes of x, w and y."""
    return {
        "x": (problem["batch"], problem["c_in"], *problem["in_size"]),
        "w": (problem["c_out"], problem["c_in"] // problem["groups"], *problem["kernel"]),
        "y": (problem["batch"], problem["c_out"], *problem["out_size"]),
    }


def draw_operands(problem: dict) -> dict[str, np.ndarray]:
    """Draw normal x, w and y (y stands for dy), channels first, float32 or float64."""
    real = np.float64 if problem["dtype"] == "f64" else np.float32
    return {
        role: np.random.default_rng(seed).standard_normal(shape, dtype=real)
        for seed, (role, shape) in enumerate(shapes(problem).items())
    }


def symmetric_padding(problem: dict) -> list[int]:
    """Give one padding per axis."""
    if any(low != high for low, high in problem["padding"]):
        raise UnsupportedError("asymmetric padding")
    return [low for low, _ in problem["padding"]]


def plain(values: list) -> object:
    """Give one number where all axes agree, as a user writes it."""
    return values[0] if all(value == values[0] for value in values) else tuple(values)


def warm_seconds(call: Callable[[], object]) -> float:
    """Time the second call."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(result: np.ndarray) -> list[float]:
    """Take up to `SAMPLES` values, at the same places of a channels-first result everywhere."""
    places = np.linspace(0, result.size - 1, min(SAMPLES, result.size)).astype(np.intp)
    return result[np.unravel_index(places, result.shape)].astype(np.float64).tolist()


PREPARED = "-prepared"


class Cyconv:
    """The functions as a user calls them: arrays in, a fresh array out.

    A strategy with PREPARED at its end is that of weights packed once, ahead of all calls.
    """

    def __init__(self, threads: int, strategy: str) -> None:
        import cyconv

        self.cyconv = cyconv
        self.threads = threads
        self.strategy = strategy.removesuffix(PREPARED)
        self.prepared = strategy.endswith(PREPARED)
        try:
            self.version = version("cyconv")
        except PackageNotFoundError:  # run from a source tree
            self.version = getattr(cyconv, "__version__", "source tree")

    @staticmethod
    def arrays(problem: dict, operands: dict) -> dict[str, np.ndarray]:
        """Bring the operands into the problem's layout and type."""
        last = problem["layout"] == "nhwc"
        dtype = np.dtype({"f32": "f4", "f64": "f8", "f16": "f2"}.get(problem["dtype"], "f4"))
        if problem["dtype"] == "bf16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        return {
            role: np.ascontiguousarray(np.moveaxis(a, 1, -1) if last else a, dtype=dtype)
            for role, a in operands.items()
        }

    def prepare(self, problem: dict, operands: dict) -> tuple[Callable[[], object], dict]:
        """Make the call, and tell what the plan says of itself."""
        call, explanation = self.call_on(problem, self.arrays(problem, operands))
        told = {key: getattr(explanation, key) for key in ("strategy", "reason")}
        return call, told | {"workspace_nbytes": explanation.workspace_nbytes}

    def call_on(self, problem: dict, arrays: dict[str, np.ndarray]):
        """Make the call on arrays that are ready, and the package's explanation of it."""
        cyconv, operator = self.cyconv, problem["operator"]
        first, second, result = ROLES[operator]
        a, b, result_shape = arrays[first], arrays[second], arrays[result].shape
        options = {
            "stride": plain(problem["stride"]),
            "padding": self._padding(problem),
            "dilation": plain(problem["dilation"]),
            "groups": problem["groups"],
            "layout": "channels_last" if problem["layout"] == "nhwc" else "channels_first",
            "strategy": self.strategy,
            "threads": self.threads,
        }
        if self.prepared:
            if operator != "fwd":
                raise UnsupportedError("weights are prepared for forward")
            layer = cyconv.prepare(b, **options)
            return lambda: layer(a), layer.explain(a)
        if operator == "fwd":
            function = cyconv.conv_forward

            def call() -> np.ndarray:
                return function(a, b, **options)

            return call, cyconv.explain(a, b, operator="forward", **options)

        name = {"dx": "data_backward", "dw": "weight_backward"}[operator]
        function = getattr(cyconv, f"conv_{name}")

        def call() -> np.ndarray:
            return function(a, b, result_shape, **options)

        return call, cyconv.explain(a, b, result_shape, operator=name, **options)

    @staticmethod
    def _padding(problem: dict) -> object:
        try:
            return plain(symmetric_padding(problem))
        except UnsupportedError:
            return tuple(tuple(pair) for pair in problem["padding"])

    def sample(self, problem: dict, result: np.ndarray) -> list[float]:
        """Take values of a result at places that do not depend on the layout."""
        return spread(np.moveaxis(result, -1, 1) if problem["layout"] == "nhwc" else result)


class Torch:
    """PyTorch: the functional convolution, and the operator behind its autograd for gradients."""

    def __init__(self, threads: int, strategy: str) -> None:
        import torch

        self.torch = torch
        self.version = torch.__version__
        torch.set_num_threads(threads)
        # For the life of the process: calls carry no autograd bookkeeping.
        self._mode = ExitStack()
        self._mode.enter_context(torch.inference_mode())

    def prepare(self, problem: dict, operands: dict) -> tuple[Callable[[], object], dict]:
        """Make the call; nothing is known of the algorithm that oneDNN takes."""
        torch = self.torch
        half = {"f16": torch.float16, "bf16": torch.bfloat16}.get(problem["dtype"])
        tensors = {role: torch.from_numpy(array) for role, array in operands.items()}
        if half:
            tensors = {role: tensor.to(half) for role, tensor in tensors.items()}
        axes = {"stride": problem["stride"], "padding": symmetric_padding(problem)}
        axes |= {"dilation": problem["dilation"], "groups": problem["groups"]}
        if problem["layout"] == "nchw":
            return self._call(problem["operator"], tensors, axes), {}
        if len(problem["kernel"]) > 1:
            return self._call(problem["operator"], self._channels_last(tensors), axes), {}
        return self._one_axis_channels_last(problem["operator"], tensors, axes), {}

    def _channels_last(self, tensors: dict) -> dict:
        order = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}
        return {role: t.contiguous(memory_format=order[t.ndim]) for role, t in tensors.items()}

    def _one_axis_channels_last(self, operator: str, tensors: dict, axes: dict):
        """Make the call for one axis, for which PyTorch has no channels-last format.

        The two-dimensional call is the faster way to a result. To the weight gradient it can be
        the slower one, and takes minutes for long kernels, so the better of it and the
        one-dimensional call on transposed views is taken.
        """
        calls = []
        if operator != "dw" or tensors["w"].shape[-1] <= LONG_KERNEL:
            planes = self._channels_last({role: t.unsqueeze(2) for role, t in tensors.items()})
            beside = {key: [1, *axes[key]] for key in ("stride", "dilation")}
            beside |= {"padding": [0, *axes["padding"]], "groups": axes["groups"]}
            calls.append(self._call(operator, planes, beside))
        if operator == "dw":
            views = {role: tensors[role].mT.contiguous().mT for role in "xy"}
            calls.append(self._call(operator, tensors | views, axes))
        return calls[0] if len(calls) == 1 else min(calls, key=warm_seconds)

    def _call(self, operator: str, tensors: dict, axes: dict) -> Callable[[], object]:
        torch = self.torch
        x, w, dy = tensors["x"], tensors["w"], tensors["y"]
        stride, padding, dilation = axes["stride"], axes["padding"], axes["dilation"]
        groups, rank = axes["groups"], len(stride)
        if operator == "fwd":
            conv = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
            stride, padding, dilation = plain(stride), plain(padding), plain(dilation)

            def call():
                return conv(x, w, None, stride, padding, dilation, groups)
        else:
            backward = torch.ops.aten.convolution_backward.default
            index = ("dx", "dw").index(operator)
            mask, none = [index == 0, index == 1, False], [0] * rank

            def call():
                return backward(
                    dy, x, w, None, stride, padding, dilation, False, none, groups, mask
                )[index]

        return call

    def sample(self, problem: dict, result) -> list[float]:
        """Take values of a result at places that do not depend on the layout."""
        if result.ndim > len(problem["kernel"]) + 2:
            result = result.squeeze(2)
        return spread(result.to(self.torch.promote_types(result.dtype, self.torch.float32)).numpy())


class OnnxRuntime:
    """ONNX Runtime: a model of one Conv node, its weights an initializer that may be packed ahead.

    It knows the channels-first order only, so it is given that in either layout.
    """

    def __init__(self, threads: int, strategy: str) -> None:
        import onnx
        import onnxruntime

        self.onnx = onnx
        self.onnxruntime = onnxruntime
        self.threads = threads
        self.version = onnxruntime.__version__

    def prepare(self, problem: dict, operands: dict) -> tuple[Callable[[], object], dict]:
        """Make the call of a sequential session with the given number of intra-op threads."""
        if problem["operator"] != "fwd":
            raise UnsupportedError("no gradients")
        if problem["dtype"] not in ("f32", "f64", "f16"):
            raise UnsupportedError(f"no {problem['dtype']} from NumPy")
        helper = self.onnx.helper
        dtype = {"f16": np.float16}.get(problem["dtype"])
        x, w = (operands[role].astype(dtype) if dtype else operands[role] for role in "xw")
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        node = helper.make_node(
            "Conv",
            ["x", "w"],
            ["y"],
            strides=problem["stride"],
            dilations=problem["dilation"],
            pads=[pair[end] for end in (0, 1) for pair in problem["padding"]],
            group=problem["groups"],
        )
        graph = helper.make_graph(
            [node],
            "conv",
            [helper.make_tensor_value_info("x", kind, x.shape)],
            [helper.make_tensor_value_info("y", kind, shapes(problem)["y"])],
            [self.onnx.numpy_helper.from_array(w, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        model.ir_version = 8  # old enough for every runtime that reads opset 13
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.execution_mode = self.onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        try:
            session = self.onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise UnsupportedError(str(error).splitlines()[0]) from error
        feed = {"x": x}

        def call():
            return session.run(None, feed)[0]

        return call, {}

    def sample(self, problem: dict, result: np.ndarray) -> list[float]:
        """Take values of a result at places that do not depend on the layout."""
        return spread(result)


LIBRARIES = {"cyconv": Cyconv, "torch": Torch, "ort": OnnxRuntime}
