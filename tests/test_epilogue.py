"""The last write: residual and activation in the kernels equal the same steps one by one."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from cases import CASES

import cyconv
from cyconv.arguments import ACTIVATIONS, activation_of
from cyconv.kernels import _run, _ukernels

NAMES = (
    *ACTIVATIONS,
    ("leaky_relu", 0.3),
    ("leaky_relu", -2),
    ("hardsigmoid", 0.2),
)
# Sums by BLAS may take another order in other tiles.
BY_BLAS = ("im2col", "pointwise", "auto")
FORWARD = """
one line_everything line_depthwise plain plain_bias one_pixel_padded pointwise pointwise_groups
pointwise_stride stride_2 dilation_stride asymmetric_all groups groups_many depthwise
depthwise_wide depthwise_24 depthwise_multiplier channels_31_33 channels_65 many_pixels
many_images wide volume volume_groups volume_depthwise
""".split()  # noqa: SIM905
TRANSPOSED = """
line plain stride_2 stride_2_remainder stride_per_axis stride_equals_kernel pointwise
pointwise_stride groups_many depthwise depthwise_wide depthwise_24 channels_31_33 many_pixels
volume volume_depthwise
""".split()  # noqa: SIM905


def _separately(y, residual, activation):
    """Apply both to a copy of an array, by the same microkernel in one go."""
    y = np.array(y, order="C")
    _run.finish_array(y, activation_of(activation), residual, 1)
    return y


def _operation(name, layout, dtype, transposed):
    """A function of the last steps that convolves, and the shape of its result."""
    case = CASES[name]
    x, w, bias, _ = case.operands("dx" if transposed else "fwd", dtype, layout)
    keywords = dict(case.arguments, layout=oracle.layout_name(layout, case.ndim))
    if transposed:
        bias = np.linspace(-1, 1, case.c_in).astype(dtype)
        keywords["output_size"] = case.in_size
        return lambda **last: cyconv.conv_transpose(x, w, bias, **keywords, **last)
    return lambda **last: cyconv.conv_forward(x, w, bias, **keywords, **last)


@cyconv.config(flush_subnormals=False)
def _check_all(name, layout, dtype, transposed, strategy):
    convolve = _operation(name, layout, dtype, transposed)
    plain = convolve(strategy=strategy)
    residual = np.random.default_rng(1).standard_normal(plain.shape).astype(dtype)
    for activation in (None, *NAMES):
        for added in (None, residual):
            expected = _separately(plain, added, activation)
            for threads in (1, 2):
                got = convolve(
                    strategy=strategy, activation=activation, residual=added, threads=threads
                )
                if strategy in BY_BLAS:
                    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
                else:
                    np.testing.assert_array_equal(got, expected, str(activation))


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name, layout, dtype, any_strategy):
    _check_all(name, layout, dtype, False, any_strategy)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name, layout, dtype, any_strategy):
    _check_all(name, layout, dtype, True, any_strategy)


# --- the functions themselves ---------------------------------------------------------------------


@pytest.fixture(params=cyconv.isas())
def isa(request):
    before = cyconv.active_isa()
    _ukernels.select(request.param)
    yield request.param
    _ukernels.select(before)


# Errors in units in the last place, as docs/concepts.md has them.
MOST_ULP = {
    "relu": 0, "relu6": 0, "leaky_relu": 0.5, "hardswish": 3, "sigmoid": 3, "silu": 4, "tanh": 3,
    "gelu": 7,
}  # fmt: skip


def _exact(name, alpha, x):
    """The value to 40 digits."""
    import mpmath as mp

    x = mp.mpf(float(x))
    return {
        "relu": lambda: max(x, 0),
        "relu6": lambda: min(max(x, 0), 6),
        "leaky_relu": lambda: x if x >= 0 else x * mp.mpf(alpha),
        "hardsigmoid": lambda: min(max(x * mp.mpf(alpha) + mp.mpf(0.5), 0), 1),
        "hardswish": lambda: x * min(max(x + 3, 0), 6) / 6,
        "sigmoid": lambda: 1 / (1 + mp.exp(-x)),
        "silu": lambda: x / (1 + mp.exp(-x)),
        "tanh": lambda: mp.tanh(x),
        "gelu": lambda: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    }[name]()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name, dtype, isa):
    mp = pytest.importorskip("mpmath")
    mp.mp.dps = 40
    rng = np.random.default_rng(0)
    # Beyond `far` exponentials leave the normal numbers.
    far = 87 if dtype == "float32" else 708
    x = np.concatenate([
        rng.uniform(-6, 6, 400), rng.uniform(-1, 1, 100) * 1e-3, rng.uniform(-far, far, 100),
        rng.uniform(-13, -4, 200), [-3, 0, 3, 6],
    ]).astype(dtype)  # fmt: skip
    alpha = float(np.dtype(dtype).type(activation_of(name).alpha))
    got = _separately(x, None, (name, alpha) if alpha else name)
    tiny, unit = np.finfo(dtype).tiny * 2.0**10, np.finfo(dtype).eps
    for value, result in zip(x, got, strict=True):
        right = _exact(name, alpha, value)
        error = float(abs(mp.mpf(float(result)) - right))
        if name == "hardsigmoid":
            assert error <= unit, value
        elif abs(right) > tiny:
            ulp = float(np.spacing(np.dtype(dtype).type(abs(right))))
            assert error <= MOST_ULP[name] * ulp, (value, result)
        else:
            assert error <= 2 * tiny, (value, result)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_do_not_depend_on_their_place(name, dtype, isa):
    x = np.random.default_rng(0).standard_normal((6, 37)).astype(dtype)
    flat = _separately(x, None, name)
    for i in range(37):
        np.testing.assert_array_equal(_separately(x[:, i:], None, name), flat[:, i:])


THEIRS = {
    "relu": lambda f, x: f.relu(x),
    "relu6": lambda f, x: f.relu6(x),
    "leaky_relu": lambda f, x: f.leaky_relu(x, 0.01),
    "hardsigmoid": lambda f, x: f.hardsigmoid(x),
    "hardswish": lambda f, x: f.hardswish(x),
    "sigmoid": lambda f, x: f.sigmoid(x),
    "silu": lambda f, x: f.silu(x),
    "tanh": lambda f, x: f.tanh(x),
    "gelu": lambda f, x: f.gelu(x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_special_values_are_those_of_pytorch(name, dtype, isa):
    torch = pytest.importorskip("torch")
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 100, -100], dtype)
    right = THEIRS[name](torch.nn.functional, torch.from_numpy(x)).numpy()
    got = _separately(x, None, name)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-36)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_end_to_end_against_pytorch(name, layout, dtype, transposed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 6, 12, 13)), rng.standard_normal((6, 6, 3, 3))
    b = rng.standard_normal(6)
    kind = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    right = kind(*(torch.from_numpy(a) for a in (x, w, b)), stride=2, padding=1)
    r = rng.standard_normal(right.shape)
    right = THEIRS[name](torch.nn.functional, right + torch.from_numpy(r)).numpy()
    x, w, r = (np.ascontiguousarray(oracle.to_layout(a.astype(dtype), layout)) for a in (x, w, r))
    ours = cyconv.conv_transpose2d if transposed else cyconv.conv2d
    y = ours(
        x, w, b.astype(dtype), stride=2, padding=1, layout=oracle.layout_name(layout, 2),
        activation=name, residual=r,
    )  # fmt: skip
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(oracle.to_first(y, layout), right, rtol=tolerance, atol=tolerance)


# --- what a residual may be -----------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
R = np.random.default_rng(2).standard_normal((2, 4, 9, 8)).astype(np.float32)
EXPECTED = np.maximum(cyconv.conv2d(X, W, padding=1, strategy="direct") + R, 0)


@pytest.mark.parametrize(
    "residual",
    [
        np.repeat(R, 2, -1)[..., ::2],
        np.ascontiguousarray(R[..., ::-1])[..., ::-1],
        np.asfortranarray(R),
        R.astype(">f4"),
        np.frombuffer(b"\0" + R.tobytes(), np.float32, offset=1).reshape(R.shape),
        R.tolist(),
    ],
    ids=["strided", "backwards", "fortran", "big-endian", "misaligned", "list"],
)
@pytest.mark.parametrize("limit", [2**26, 2**12])
def test_residuals_of_any_form(residual, limit):
    with cyconv.config(workspace_limit=limit):
        y = cyconv.conv2d(X, W, padding=1, activation="relu", residual=residual, strategy="direct")
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("limit", [2**26, 2**12])
@pytest.mark.parametrize("transposed", [False, True])
def test_copies_in_parts(limit, transposed, any_strategy):
    """Operands that are copied, in halves where memory is short: each part is finished once."""
    x, w, r = X.astype(">f4"), W, R
    kind = cyconv.conv2d
    if transposed:
        x, w, kind = R.astype(">f4"), W, cyconv.conv_transpose2d
        r = X
    plain = kind(x, w, padding=1, strategy="direct")
    with cyconv.config(workspace_limit=limit):
        y = kind(x, w, padding=1, activation="silu", residual=r, strategy=any_strategy)
    np.testing.assert_allclose(y, _separately(plain, r, "silu"), rtol=1e-4, atol=1e-5)


def test_half_types_are_rounded_once():
    for name in ("float16", "bfloat16"):
        if name == "bfloat16":
            pytest.importorskip("ml_dtypes")
        x, w, r = (a.astype(name) for a in (X, W, R))
        y = cyconv.conv2d(x, w, padding=1, activation="gelu", residual=r)
        wide = cyconv.conv2d(
            *(a.astype(np.float32) for a in (x, w)), padding=1, activation="gelu",
            residual=r.astype(np.float32),
        )  # fmt: skip
        assert y.dtype == name
        np.testing.assert_array_equal(y, wide.astype(name))


def test_promotion_follows_the_residual():
    assert cyconv.conv2d(X, W, padding=1, residual=R.astype(np.float64)).dtype == np.float64
    image = (100 * abs(X)).astype(np.uint8)
    y = cyconv.conv2d(image, W, padding=1, residual=R, activation="relu")
    right = cyconv.conv2d(image.astype(np.float32), W, padding=1, residual=R, activation="relu")
    np.testing.assert_array_equal(y, right)


def test_without_a_batch_or_anything_to_sum():
    y = cyconv.conv2d(X[0], W, padding=1, activation="relu", residual=R[0])
    np.testing.assert_allclose(y, EXPECTED[0], rtol=1e-6, atol=1e-6)
    y = cyconv.conv2d(X[:0], W, padding=1, activation="relu", residual=R[:0])
    assert y.shape == (0, 4, 9, 8)
    bias = np.array([-1, 2, -3, 4], np.float32)
    y = cyconv.conv2d(X[:, :0], W[:, :0], bias, padding=1, activation="relu", residual=R)
    np.testing.assert_array_equal(y, np.maximum(bias.reshape(4, 1, 1) + R, 0))


def test_result_over_the_residual():
    for _ in range(2):  # the second call is remembered
        out = R.copy()
        y = cyconv.conv2d(X, W, padding=1, activation="relu", residual=out, out=out)
        assert y is out
        np.testing.assert_allclose(out, EXPECTED, rtol=1e-6, atol=1e-6)


def test_remembered_calls_keep_activations_apart():
    for activation in ("relu", ("leaky_relu", 0.1), None, ("leaky_relu", 0.5), "relu"):
        for _ in range(2):
            got = cyconv.conv2d(X, W, padding=1, activation=activation)
            plain = cyconv.conv2d(X, W, padding=1)
            np.testing.assert_array_equal(got, _separately(plain, None, activation))


def test_non_finite_sums_are_finished_where_they_are_handed_over(any_strategy):
    x = X.copy()
    x[0, 1, 4, 4] = np.nan
    x[1, 2, 0, 0] = np.inf
    plain = cyconv.conv2d(x, W, padding=1, strategy="direct")
    y = cyconv.conv2d(x, W, padding=1, strategy=any_strategy, activation="relu", residual=R)
    right = _separately(plain, R, "relu")
    np.testing.assert_array_equal(np.isnan(y), np.isnan(right))
    np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-5)


def test_profile_finishes_the_winners_result():
    cyconv.clear_cache()
    for _ in range(2):  # measured, then remembered
        y = cyconv.conv2d(X, W, padding=1, activation="relu", residual=R, strategy="profile")
        np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"activation": "elu"}, ValueError, "activation 'elu' is unknown; it may be relu, relu6"),
        ({"activation": True}, TypeError, "activation must be a name"),
        ({"activation": ("relu", 1)}, ValueError, "takes no alpha"),
        ({"activation": ("leaky_relu", "x")}, TypeError, "alpha of activation 'leaky_relu'"),
        ({"activation": ("leaky_relu", True)}, TypeError, "must be a number"),
        ({"activation": ("leaky_relu", np.inf)}, ValueError, "finite"),
        ({"activation": ("leaky_relu", 1, 2)}, TypeError, "a pair"),
        ({"residual": R[:1]}, cyconv.ShapeError, r"residual has shape \(1, 4, 9, 8\), should be"),
        ({"residual": R[0]}, cyconv.ShapeError, "residual"),
        ({"residual": R.astype(complex)}, cyconv.DTypeError, "residual has dtype complex128"),
    ],
)
def test_bad_arguments(keywords, error, message):
    for _ in range(2):
        with pytest.raises(error, match=message):
            cyconv.conv2d(X, W, padding=1, **keywords)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("activation", NAMES, ids=str)
def test_gradients_are_those_of_separate_steps(activation, transposed):
    kind = cyconv.conv_transpose2d if transposed else cyconv.conv2d
    arrays = (R, W, X) if transposed else (X, W, R)
    bias = np.linspace(-1, 1, arrays[2].shape[1])

    def leaves():
        return [cyconv.Tensor(a.astype(np.float64), requires_grad=True) for a in (*arrays, bias)]

    x, w, r, b = one = leaves()
    y = kind(x, w, b, padding=1, activation=activation, residual=r)
    (y * y).sum().backward()
    x, w, r, b = two = leaves()
    name, _, _ = (activation, None, None) if isinstance(activation, str) else (*activation, None)
    parameters = {}
    if name in ("leaky_relu", "hardsigmoid"):
        parameters["alpha"] = activation_of(activation).alpha
    z = cyconv.autograd.ACTIVATIONS[name](kind(x, w, b, padding=1) + r, **parameters)
    (z * z).sum().backward()
    np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-12, atol=1e-13)
    for got, right in zip(one, two, strict=True):
        np.testing.assert_allclose(got.grad.numpy(), right.grad.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("activation", NAMES, ids=str)
def test_gradients_by_differences(activation):
    """Of first and second order, with a residual that is a tensor beside arrays."""
    x, w, r = X[:1, :1, :4, :4], W[:2, :1], R[:1, :2, :4, :4]

    def of_all(x, w, r):
        return cyconv.conv2d(x, w, padding=1, activation=activation, residual=r)

    tensors = [cyconv.Tensor(a.astype(np.float64), requires_grad=True) for a in (x, w, r)]
    cyconv.autograd.gradcheck(of_all, tensors)
    cyconv.autograd.gradgradcheck(of_all, tensors)
    alone = cyconv.Tensor(r.astype(np.float64), requires_grad=True)
    cyconv.autograd.gradcheck(lambda r: of_all(x.astype(float), w.astype(float), r), [alone])


def test_without_gradients_tensors_are_convolved_in_one_go():
    x, w = cyconv.Tensor(X, requires_grad=True), cyconv.Tensor(W)
    with cyconv.no_grad():
        y = cyconv.conv2d(x, w, padding=1, activation="gelu", residual=cyconv.Tensor(R))
    assert y.node is None
    right = cyconv.conv2d(X, W, padding=1, activation="gelu", residual=R)
    np.testing.assert_array_equal(y.numpy(), right)
