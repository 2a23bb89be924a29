"""The skins of PyTorch, JAX and HIPS autograd: their own checkers, and the numbers of cyconv."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

import cyconv

# name -> (spatial size, kernel, keywords); channels 4 -> 6.
CASES = {
    "1-D": ((9,), (3,), {"stride": 2, "padding": ((1, 2),), "groups": 2}),
    "2-D": ((6, 5), (3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    "2-D same": ((6, 5), (3, 2), {"stride": 2, "padding": "same"}),
    "3-D": ((4, 5, 3), (2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 1, 0)}),
}
TRANSPOSED = {
    "1-D": ((5,), (3,), {"stride": 2, "output_padding": 1, "groups": 2}),
    "1-D size": ((5,), (3,), {"stride": 2, "padding": 1, "output_size": 10}),
    "2-D": ((3, 4), (3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (3, 2), "groups": 2,
                             "output_padding": (2, 1)}),
    "1-D cut at the end": ((4,), (2,), {"padding": ((1, 2),), "dilation": 3, "output_padding": 2}),
    "1-D out of reach": ((2,), (1,), {"padding": ((4, 0),), "dilation": 5, "output_padding": 4}),
    "3-D": ((2, 3, 2), (2, 3, 1), {"stride": (1, 2, 1), "padding": "valid"}),
}  # fmt: skip
BOTH = [
    *(("conv_forward", *case) for case in CASES.values()),
    *(("conv_transpose", *case) for case in TRANSPOSED.values()),
]
IDS = [*(f"forward {n}" for n in CASES), *(f"transposed {n}" for n in TRANSPOSED)]
all_calls = pytest.mark.parametrize(("name", "size", "kernel", "keywords"), BOTH, ids=IDS)


def operands(name, size, kernel, keywords, layout, dtype=np.float64):
    """Return x, w, bias and the keywords of a case in a layout."""
    rng = np.random.default_rng(len(size))
    ends = (4, 6) if name == "conv_transpose" else (6, 4)
    shapes = (2, 4, *size), (ends[0], ends[1] // keywords.get("groups", 1), *kernel)
    x, w = (
        np.ascontiguousarray(oracle.to_layout(rng.standard_normal(shape), layout), dtype)
        for shape in shapes
    )
    more = {**keywords, "layout": oracle.layout_name(layout, len(size))}
    return x, w, rng.standard_normal(6).astype(dtype), more


# --- PyTorch --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_skin():
    pytest.importorskip("torch")
    from cyconv.adapters import torch

    return torch


@all_calls
def test_torch(name, size, kernel, keywords, layout, torch_skin):
    import torch

    *arrays, more = operands(name, size, kernel, keywords, layout)
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]

    def call(*t):
        return getattr(torch_skin, name)(*t, **more)

    np.testing.assert_allclose(
        call(*tensors).detach().numpy(), getattr(cyconv, name)(*arrays, **more), rtol=1e-13
    )
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)
    unbatched = call(tensors[0][0], *tensors[1:])
    np.testing.assert_allclose(unbatched.detach(), call(*tensors)[0].detach(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_opcheck(dtype, layout, torch_skin):
    import torch

    x, w, bias, more = operands("conv_forward", *CASES["2-D"], layout, dtype)
    y = cyconv.conv_forward(x, w, bias, **more)
    x, w, bias, y = (torch.from_numpy(a).requires_grad_() for a in (x, w, bias, y))
    channels = "channels_last" if layout == "nhwc" else "channels_first"
    parameters = ([2, 1], [1, 1, 0, 0], [1, 2], 2, channels, None)
    ops = torch.ops.cyconv
    for operator, inputs in (
        (ops.conv_forward, (x, w, bias)),
        (ops.conv_forward, (x, w, None)),
        (ops.conv_data_backward, (y, w, list(x.shape))),
        (ops.conv_weight_backward, (x, y, list(w.shape))),
    ):
        results = torch.library.opcheck(operator.default, (*inputs, *parameters))
        assert set(results.values()) == {"SUCCESS"}


@all_calls
def test_torch_fake_and_compiled(name, size, kernel, keywords, layout, torch_skin):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    *arrays, more = operands(name, size, kernel, keywords, layout, np.float32)
    expected = getattr(cyconv, name)(*arrays, **more)
    with FakeTensorMode():
        fakes = [torch.empty(a.shape) for a in arrays]
        assert getattr(torch_skin, name)(*fakes, **more).shape == expected.shape

    def model(*t):
        return torch.relu(getattr(torch_skin, name)(*t, **more))

    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    torch.compiler.reset()
    y = torch.compile(model, backend="aot_eager", fullgraph=True)(*tensors)
    np.testing.assert_allclose(y.detach().numpy(), np.maximum(expected, 0), rtol=1e-5, atol=1e-6)
    y.sum().backward()
    compiled = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    model(*tensors).sum().backward()
    for t, gradient in zip(tensors, compiled, strict=True):
        torch.testing.assert_close(t.grad, gradient)


def test_torch_only_wanted_gradients_and_dtypes(torch_skin, monkeypatch):
    import torch

    calls = []
    for name in ("conv_data_backward", "conv_weight_backward"):
        real = getattr(cyconv, name)
        monkeypatch.setattr(
            cyconv, name, lambda *a, n=name, f=real, **k: calls.append(n) or f(*a, **k)
        )
    x, w = torch.ones(1, 2, 6), torch.ones(3, 2, 3, requires_grad=True)
    torch_skin.conv_forward(x, w).sum().backward()
    assert calls == ["conv_weight_backward"]
    mixed = torch_skin.conv_forward(x, w.detach().double().requires_grad_())
    assert mixed.dtype == torch.float64
    pytest.importorskip("ml_dtypes")
    narrow = torch_skin.conv_forward(x.bfloat16(), w.detach().bfloat16())
    assert narrow.dtype == torch.bfloat16
    assert (narrow == 6).all()
    last = torch.ones(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    assert (torch_skin.conv_forward(last, torch.ones(1, 2, 3, 3)) == 18).all()
    with pytest.raises(ValueError, match="stride"):
        torch_skin.conv_forward(x, w, stride=0)


# --- JAX ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jax():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@all_calls
def test_jax(name, size, kernel, keywords, layout, jax):
    from jax.test_util import check_grads

    from cyconv.adapters import jax as skin

    *arrays, more = operands(name, size, kernel, keywords, layout)
    expected = getattr(cyconv, name)(*arrays, **more)

    def call(*a):
        return getattr(skin, name)(*a, **more)

    np.testing.assert_allclose(jax.jit(call)(*arrays), expected, rtol=1e-12, atol=1e-12)
    check_grads(call, arrays, order=2, modes=["rev"])
    x, w, bias = arrays
    stacked = jax.vmap(call, in_axes=(0, None, None))(np.stack([x, 2 * x]), w, 0 * bias)
    np.testing.assert_allclose(stacked[1], 2 * stacked[0], rtol=1e-12)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x, w: call(x, w).sum(), argnums=1), (0, None)))
    assert gradient(np.stack([x, 2 * x]), w).shape == (2, *w.shape)


def test_jax_dtypes_and_errors(jax):
    from cyconv.adapters import jax as skin

    x, w = jax.numpy.ones((1, 2, 6), "bfloat16"), jax.numpy.ones((3, 2, 3), "bfloat16")
    y = skin.conv_forward(x, w)
    assert y.dtype == "bfloat16"
    assert (y == 6).all()
    assert skin.conv_forward(x, w.astype("float32")).dtype == "float32"
    with pytest.raises(ValueError, match="stride"):
        skin.conv_forward(x, w, stride=0)
    with pytest.raises(TypeError, match="groups"):
        jax.jit(skin.conv_forward)(x, w, groups=1.5)


# --- HIPS autograd --------------------------------------------------------------------------------


@all_calls
def test_hips(name, size, kernel, keywords, layout):
    check_grads = pytest.importorskip("autograd.test_util").check_grads
    from cyconv.adapters import hips

    *arrays, more = operands(name, size, kernel, keywords, layout)

    def call(*a):
        return getattr(hips, name)(*a, **more)

    np.testing.assert_allclose(
        call(*arrays), getattr(cyconv, name)(*arrays, **more), rtol=1e-12, atol=1e-12
    )
    check_grads(call, modes=["rev"], order=2)(*arrays)


# --- all of them ----------------------------------------------------------------------------------


def test_none_is_loaded_by_the_package(python):
    code = """
import sys, numpy as np, cyconv, cyconv.adapters, cyconv.nn
cyconv.Tensor(np.ones(1))
print([name for name in ("torch", "jax", "autograd", "safetensors") if name in sys.modules])
"""
    assert python(code).strip() == "[]"
