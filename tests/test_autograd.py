"""The tape: which nodes exist, in which order and how often gradients are computed, what is shared
with the caller, and what stays in memory.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from itertools import product

import numpy as np
import pytest

import cyconv
from cyconv import Tensor, autograd
from cyconv.autograd import Operator, grad


def leaf(*shape, seed=0):
    return Tensor(np.random.default_rng((seed, *shape)).standard_normal(shape), requires_grad=True)


def counted(monkeypatch, *operators):
    """Count what is computed: the names of operators, in order."""
    calls = []

    def watch(operator):
        original = operator.forward

        def forward(*inputs, **parameters):
            calls.append(operator.name)
            return original(*inputs, **parameters)

        monkeypatch.setattr(operator, "forward", forward)

    for operator in operators:
        watch(operator)
    return calls


# --- what is recorded -----------------------------------------------------------------------------


def test_a_node_exists_iff_an_input_requires_grad():
    x = Tensor(np.ones((1, 1, 4)))
    w = leaf(1, 1, 3)
    assert cyconv.conv1d(x, np.ones((1, 1, 3))).node is None
    assert not cyconv.conv1d(x, x[:, :, :3]).requires_grad
    assert cyconv.conv1d(x, w).node.operator.name == "conv_forward"
    assert cyconv.conv1d(x.numpy(), w).requires_grad
    assert isinstance(cyconv.conv1d(x.numpy(), w.numpy()), np.ndarray)
    bias = leaf(1)
    y = cyconv.conv1d(x.numpy(), w.numpy(), bias)
    y.backward(np.ones(y.shape))
    np.testing.assert_array_equal(bias.grad.numpy(), [2])


def test_no_grad_records_nothing_and_ends():
    x = leaf(3)

    @cyconv.no_grad()
    def twice(value):
        with cyconv.no_grad():
            pass
        return 2 * value

    assert twice(x).node is None
    assert (2 * x).node is not None
    with pytest.raises(KeyError), cyconv.no_grad():
        raise KeyError
    assert (2 * x).requires_grad


def test_no_grad_holds_in_its_own_thread_only():
    x, seen = leaf(3), []
    with cyconv.no_grad():
        thread = threading.Thread(target=lambda: seen.append((2 * x).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_requires_grad_can_be_set_on_tensors_without_a_node():
    x = Tensor(np.ones(2))
    x.requires_grad = True
    y = x * 3
    with pytest.raises(ValueError, match="detach"):
        y.requires_grad = False
    y.backward(np.ones(2))
    np.testing.assert_array_equal(x.grad.numpy(), [3, 3])
    x.requires_grad = False
    assert not (x * 3).requires_grad


def test_a_number_has_a_truth_value_and_rows_are_walked():
    assert (leaf(1) * 0 + 1).sum()
    assert not Tensor(np.zeros(()))
    rows = list(leaf(3, 2))
    assert [row.shape for row in rows] == [(2,)] * 3
    assert rows[0].requires_grad


def test_the_graph_as_text():
    x, w = Tensor(np.ones((2, 4, 8, 8))), leaf(6, 2, 3, 3)
    y = cyconv.conv2d(x, w, groups=2)
    lines = str((y * y).sum().node).splitlines()
    assert lines[0].startswith(
        "%1 = conv_forward(array (2, 4, 8, 8), leaf (6, 2, 3, 3)) -> float64"
    )
    assert lines[0].endswith("fwd f64 nchw n2 g2 ci4 co6 i8x8 k3x3 s1 p0 d1: direct")
    assert lines[1] == "%2 = multiply(%1, %1) -> float64 (2, 6, 6, 6)"
    assert lines[2] == "%3 = sum(%2) -> float64 ()"
    assert "conv_forward" in repr(y.node)
    assert "node=conv_forward" in repr(y)
    back = cyconv.conv_transpose2d(leaf(1, 2, 3, 3), leaf(2, 3, 3, 3), leaf(3), stride=2)
    assert "dx f64 nchw n1 g1 ci3 co2 i7x7 k3x3 s2 p0 d1: direct" in str(back.node)
    dw = cyconv.conv_weight_backward(x, y.detach(), w.shape, groups=2)
    assert dw.node is None
    dw = cyconv.conv_weight_backward(x, y, w.shape, groups=2)
    assert "dw f64 nchw n2 g2" in repr(dw.node)


# --- the reverse pass -----------------------------------------------------------------------------


def test_backward_seeds_ones_for_a_scalar_only():
    x = leaf(2, 3)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        (2 * x).backward()
    (2 * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 2.0))
    with pytest.raises(cyconv.ShapeError, match=r"gradient has shape \(3,\), should be \(2, 3\)"):
        (2 * x).backward(np.ones(3))
    with pytest.raises(ValueError, match="does not require a gradient"):
        Tensor(np.ones(())).backward()


def test_diamonds_reuse_and_leaves():
    x = leaf(3)
    a = x * 2
    y = a * a + a + x  # 4x² + 3x
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 8 * x.numpy() + 3, rtol=1e-14)
    x.grad = None
    x.backward(np.arange(3.0))  # a leaf is its own result
    np.testing.assert_array_equal(x.grad.numpy(), [0, 1, 2])


def test_a_ladder_of_diamonds_visits_each_node_once(monkeypatch):
    """60 diamonds have 2**60 paths."""
    calls = []
    twice = Operator(
        "twice", lambda a, b: a + b, [lambda g, y, a, b: calls.append(0) or g, lambda g, *_: g]
    )
    x = leaf(2)
    y = x
    for _ in range(60):
        y = twice(y, y)
    y.backward(np.ones(2))
    assert len(calls) == 60
    np.testing.assert_array_equal(x.grad.numpy(), [2.0**60] * 2)


MASKS = list(product((False, True), repeat=3))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_only_wanted_gradients_are_computed(mask, transposed, monkeypatch):
    from cyconv.autograd import convolution as rows

    calls = counted(
        monkeypatch, rows.forward, rows.data_backward, rows.weight_backward, rows.bias_gradient
    )
    arrays = [np.ones((2, 3, 5, 5)), np.ones((3, 3, 3, 3)), np.ones(3)]
    x, w, bias = (Tensor(a, requires_grad=on) for a, on in zip(arrays, mask, strict=True))
    y = (cyconv.conv_transpose2d if transposed else cyconv.conv2d)(x, w, bias)
    own, other = ("conv_data_backward", "conv_forward")[:: 1 if transposed else -1]
    expected = [own]
    if any(mask):
        y.backward(np.ones(y.shape))
        names = (other, "conv_weight_backward", "bias_backward")  # input before weight
        expected += [name for name, on in zip(names, mask, strict=True) if on]
    assert calls == expected
    assert [t.grad is not None for t in (x, w, bias)] == list(mask)


def test_grad_computes_what_leads_to_its_inputs_only(monkeypatch):
    from cyconv.autograd import convolution as rows

    x, w, v = leaf(1, 2, 6), leaf(2, 2, 3), leaf(2, 2, 3, seed=1)
    hidden = cyconv.conv1d(x, w)
    y = cyconv.conv1d(hidden, v)
    calls = counted(monkeypatch, rows.forward, rows.data_backward, rows.weight_backward)
    inner, _ = grad(y, [hidden, v], np.ones(y.shape))
    assert calls == ["conv_data_backward", "conv_weight_backward"]
    assert inner.shape == hidden.shape
    assert x.grad is w.grad is v.grad is None
    (unrelated,) = grad(y, [leaf(1)], np.ones(y.shape))
    assert unrelated is None
    with pytest.raises(ValueError, match=r"inputs\[0\]"):
        grad(y, [Tensor(np.ones(1))], np.ones(y.shape))


def test_10000_nodes_deep(python):
    """Neither the reverse pass, nor the text, nor the end of such a graph needs Python's stack."""
    code = """
import numpy as np, cyconv, sys
x = cyconv.Tensor(np.ones(2), requires_grad=True)
y = x
for _ in range(100_000):
    y = y + 1
    if _ == 10_000: text = str(y.node)
y.backward(np.ones(2), create_graph=True)
print(x.grad.numpy().tolist(), len(text.splitlines()), sys.getrecursionlimit() < 10_000)
del y
x.grad = None
print("ended")
"""
    assert python(code).split("\n")[:2] == ["[1.0, 1.0] 10001 True", "ended"]


# --- sharing with the caller ----------------------------------------------------------------------


def test_gradients_never_alias():
    """B42 c: neither the given gradient, nor each other, nor an input."""
    seed = np.ones((1, 1, 4))
    x, z = leaf(1, 1, 4), leaf(1, 1, 4, seed=1)
    identity = np.ones((1, 1, 1))
    y = cyconv.conv1d(x, identity) + z + x.reshape(1, 1, 4)
    y.backward(seed)
    np.testing.assert_array_equal(x.grad.numpy(), np.full((1, 1, 4), 2.0))
    arrays = [x.grad.numpy(), z.grad.numpy(), seed, x.numpy(), z.numpy()]
    for i, a in enumerate(arrays):
        assert not any(np.may_share_memory(a, b) for b in arrays[i + 1 :])
    seed[...] = 7
    z.grad.numpy()[...] = 5
    np.testing.assert_array_equal(x.grad.numpy(), np.full((1, 1, 4), 2.0))


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_of_a_sum_do_not_alias(create_graph):
    x, z = leaf(3), leaf(3, seed=1)
    seed = Tensor(np.ones(3))
    (x + z).backward(seed, create_graph=create_graph)
    assert not np.may_share_memory(x.grad.numpy(), z.grad.numpy())
    assert not np.may_share_memory(x.grad.numpy(), seed.numpy())
    x.backward(seed, create_graph=create_graph)
    np.testing.assert_array_equal(x.grad.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(z.grad.numpy(), [1, 1, 1])


def test_a_stored_gradient_does_not_change():
    x = leaf(3)
    (2 * x).backward(np.ones(3))
    first = x.grad
    (2 * x).backward(np.ones(3))
    np.testing.assert_array_equal(first.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(x.grad.numpy(), [4, 4, 4])


def test_read_only_and_broadcast_gradients():
    x, w = leaf(2, 3, 6), leaf(4, 3, 3)
    y = cyconv.conv1d(x, w)
    y.backward(np.broadcast_to(1.0, y.shape))
    other = Tensor(x.numpy(), requires_grad=True)
    cyconv.conv1d(other, w.detach()).backward(np.ones(y.shape))
    np.testing.assert_array_equal(x.grad.numpy(), other.grad.numpy())
    x.grad.numpy()[...] += 1  # writable


def test_arrays_are_kept_by_reference():
    """B42 d: an array that is written to between the passes is read as it then is."""
    array = np.ones((1, 1, 5))
    w = leaf(1, 1, 3)
    y = cyconv.conv1d(array, w)
    array *= 2
    y.backward(np.ones(y.shape))
    np.testing.assert_array_equal(w.grad.numpy(), np.full((1, 1, 3), 6.0))


def test_assign_between_the_passes_is_detected():
    x, w = leaf(1, 1, 5), leaf(1, 1, 3)
    for changed in (x, w, x.detach()):
        y = cyconv.conv1d(x, w)
        changed.assign(changed.numpy() * 2)
        with pytest.raises(cyconv.CyconvError, match="conv_forward was changed in place"):
            y.backward(np.ones(y.shape))
    y = x * x
    z = y.reshape(5)  # a view, changed with what it views
    total = (z * z).sum()
    y.assign(0)
    with pytest.raises(cyconv.CyconvError, match="changed in place"):
        total.backward()
    y = autograd.exp(x)
    y.assign(1)  # the rule needs the result
    with pytest.raises(cyconv.CyconvError, match="exp was changed in place"):
        y.backward(np.ones(y.shape))
    assert x.grad is None


# --- dtypes and broadcasting ----------------------------------------------------------------------


def test_gradients_have_the_shape_and_dtype_of_their_input():
    a = Tensor(np.ones((3, 1, 2), np.float32), requires_grad=True)
    b = leaf(4, 1)
    (a * b).sum().backward()
    assert (a.grad.dtype, a.grad.shape) == (np.float32, (3, 1, 2))
    assert (b.grad.dtype, b.grad.shape) == (np.float64, (4, 1))
    np.testing.assert_array_equal(b.grad.numpy(), np.full((4, 1), 6.0))
    half = Tensor(np.ones((1, 2, 6), np.float16), requires_grad=True)
    y = cyconv.conv1d(half, np.ones((3, 2, 3), np.float16))
    assert y.dtype == np.float16
    y.backward(np.ones(y.shape, np.float16))
    assert half.grad.dtype == np.float16
    image = Tensor(np.full((1, 1, 4, 4), 200, np.uint8))
    w = Tensor(np.ones((1, 1, 3, 3), np.float32), requires_grad=True)
    cyconv.conv2d(image, w).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), np.full((1, 1, 3, 3), 800.0))


def test_integers_cannot_require_a_gradient():
    with pytest.raises(cyconv.DTypeError, match="int64"):
        Tensor(np.arange(3), requires_grad=True)
    with pytest.raises(TypeError, match="tensor already"):
        Tensor(leaf(2))


def test_arrays_and_numbers_beside_tensors():
    x, a = leaf(3), np.arange(3.0)
    for y in (a + x, a - x, a * x, x / (a + 1), a @ x, 2.0**x, 1 / (x * x + 1), x - 1):
        assert isinstance(y, Tensor)
        assert y.requires_grad
    np.testing.assert_array_equal((a - x).numpy(), a - x.numpy())
    assert (Tensor(np.ones(2, np.float32)) * 2.0).dtype == np.float32
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(x)
    np.testing.assert_array_equal(np.asarray(x.detach()), x.numpy())


# --- the extension point --------------------------------------------------------------------------


def test_an_operator_in_five_lines():
    sin = Operator("sin", np.sin, [lambda g, y, x: g * cos(x)])
    cos = Operator("cos", np.cos, [lambda g, y, x: -g * sin(x)])
    x = leaf(4)
    assert autograd.gradcheck(sin, [x])
    assert autograd.gradgradcheck(sin, [x])
    np.testing.assert_array_equal(sin(x.numpy()), np.sin(x.numpy()))


def test_a_joint_rule_sees_what_is_wanted():
    seen = []

    def rules(wanted, g, y, a, b, *, factor):
        seen.append(list(wanted))
        return [g * factor, g * 2 * factor]

    scaled = Operator("scaled", lambda a, b, *, factor: factor * (a + 2 * b), rules)
    a, b = leaf(2), leaf(2, seed=1)
    scaled(a, b.detach(), factor=3).backward(np.ones(2))
    scaled(a, b, factor=3).backward(np.ones(2))
    assert seen == [[True, False], [True, True]]
    np.testing.assert_array_equal(b.grad.numpy(), [6, 6])


def test_faulty_operators_are_told():
    wrong = Operator("wrong", lambda x: x, [lambda g, y, x: np.ones((2, 5))])
    with pytest.raises(cyconv.ShapeError, match=r"wrong for its argument 0 .*\(2, 5\)"):
        wrong(leaf(2)).backward(np.ones(2))
    constant = Operator("constant", lambda x, y: x, [lambda g, y, a, b: g, None])
    with pytest.raises(TypeError, match="constant has no gradient for its argument 1"):
        constant(leaf(2), leaf(2))


# --- copies ---------------------------------------------------------------------------------------


def test_leaves_are_copied_and_pickled_graphs_are_not():
    x = leaf(3)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        np.testing.assert_array_equal(other.numpy(), x.numpy())
        assert other.requires_grad
        (2 * other).sum().backward()
    assert x.grad is None
    with pytest.raises(TypeError, match="detach"):
        copy.deepcopy(2 * x)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
def test_memory_goes_without_the_collector(create_graph):
    gc.collect()
    gc.disable()
    try:
        x, w = leaf(1, 2, 8), leaf(2, 2, 3)
        y = cyconv.conv1d(x, w)
        loss = (y * y).sum()
        loss.backward(create_graph=create_graph)
        nodes = [weakref.ref(t) for t in (x, w, y, loss)]
        arrays = [weakref.ref(t.numpy()) for t in (x, w, y, w.grad)]
        del x, w, y, loss
        assert not any(ref() is not None for ref in (*nodes, *arrays))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_rss_stays_flat_over_1000_steps(python):
    code = """
import gc, numpy as np, cyconv
from cyconv import nn, autograd
gc.disable()
def rss():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith("VmRSS"))
model = nn.Sequential(nn.Conv2d(1, 8, 3, rng=0), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(8 * 49, 10, rng=0))
optimiser = nn.Adam(model.parameters())
x, target = np.ones((8, 1, 16, 16), np.float32), np.arange(8)
def step():
    optimiser.zero_grad()
    autograd.cross_entropy(model(x), target).backward()
    optimiser.step()
for _ in range(100): step()
before = rss()
for _ in range(1000): step()
print(rss() - before)
"""
    assert int(python(code)) < 2048  # KiB; one step's arrays that stayed would be 150 MiB
