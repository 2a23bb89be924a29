"""What an import costs and promises: nothing but NumPy and scipy.linalg, no warning, a true
__all__.
"""

from __future__ import annotations

import inspect
import json

import pytest

import cyconv

LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
PUBLIC = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_forward",
    "conv_data_backward",
    "conv_weight_backward",
    "conv_transpose",
    "bias_backward",
    "config",
    "get_config",
    "ConvProblem",
    "plan",
    "Plan",
    "explain",
    "tuned",
    "clear_cache",
    "show_config",
    "strategies",
    "CyconvError",
    "ShapeError",
    "UnsupportedError",
    "DTypeError",
    "CyconvWarning",
}


def test_import_loads_numpy_scipy_linalg_and_itself(python):
    base = set(json.loads(python("import numpy, scipy.linalg\n" + LOADED)))
    more = set(json.loads(python("import numpy, scipy.linalg, cyconv\n" + LOADED))) - base
    standard = json.loads(
        python("import json, sys; print(json.dumps(sorted(sys.stdlib_module_names)))")
    )
    foreign = {name.split(".")[0] for name in more} - {"cyconv"} - set(standard)
    assert not {name for name in foreign if not name.startswith(("_cython", "cython_runtime"))}


def test_a_call_loads_nothing_foreign_either(python):
    base = set(json.loads(python("import numpy, scipy.linalg\n" + LOADED)))
    call = """
import numpy as np, cyconv
x, w = np.ones((1, 2, 9, 9)), np.ones((3, 2, 3, 3))
for strategy in (*cyconv.strategies(), "auto", "profile"):
    y = cyconv.conv2d(x, w, strategy=strategy)
    cyconv.conv_data_backward(y, w, x.shape, strategy=strategy)
    cyconv.conv_weight_backward(x, y, w.shape, strategy=strategy)
cyconv.explain(x, w)
"""
    more = set(json.loads(python(call + LOADED))) - base
    heavy = ("cupy", "torch", "onnx", "matplotlib", "jax", "dask", "rich", "tensorflow", "autograd")
    assert not {name for name in more if name.split(".")[0] in heavy}


def test_importing_is_silent(python):
    assert python("import cyconv", arguments=("-W", "error", "-X", "dev")) == ""


def test_all_is_true():
    """Each name exists, once, sorted or grouped; nothing public is missing; no module leaks in."""
    assert len(set(cyconv.__all__)) == len(cyconv.__all__)
    for name in cyconv.__all__:
        assert hasattr(cyconv, name), name
    assert set(cyconv.__all__) >= PUBLIC
    scope = {}
    exec("from cyconv import *", scope)
    assert set(cyconv.__all__) <= set(scope)


def test_every_public_name_is_documented():
    for name in cyconv.__all__:
        value = getattr(cyconv, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), name
            assert value.__module__.startswith("cyconv"), name


COMMON = {"stride", "padding", "dilation", "groups", "layout", "strategy", "out", "threads"}
PLAIN = ("conv1d", "conv2d", "conv3d", "conv_forward")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv_transpose")
BACKWARD = ("conv_data_backward", "conv_weight_backward")


@pytest.mark.parametrize("name", [*PLAIN, *TRANSPOSED, *BACKWARD])
def test_functions_share_their_keywords(name):
    """Three operands, and the keywords of the contract, keyword-only."""
    parameters = inspect.signature(getattr(cyconv, name)).parameters
    keywords = {p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    of_output = {"output_padding", "output_size"} if name in TRANSPOSED else set()
    following = set() if name in BACKWARD else {"activation", "residual"}
    assert keywords == COMMON | of_output | following
    assert len(parameters) - len(keywords) == 3


def test_show_config_speaks(capsys):
    text = cyconv.show_config() or capsys.readouterr().out
    assert cyconv.__version__ in str(text)
    assert "thread" in str(text).lower()


def test_version_is_a_version():
    parts = cyconv.__version__.split(".")
    assert len(parts) >= 2
    assert parts[0].isdigit()
