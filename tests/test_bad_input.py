"""Bad calls: the exception's type, and a message that names the argument.  None ends the process.

Types are as the contract divides them: a wrong value or shape is a ValueError, a wrong type a
TypeError, integer and complex data a DTypeError, an impossible geometry a ShapeError.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

import cyconv

X1, W1 = np.ones((2, 4, 9)), np.ones((6, 4, 3))
X, W = np.ones((2, 4, 9, 8)), np.ones((6, 4, 3, 3))
X3, W3 = np.ones((1, 2, 5, 5, 5)), np.ones((3, 2, 3, 3, 3))
Y = np.ones((2, 6, 7, 6))
SHAPE, W_SHAPE = X.shape, W.shape
READ_ONLY = np.ones((2, 6, 7, 6))
READ_ONLY.flags.writeable = False

conv1d, conv2d, conv3d = cyconv.conv1d, cyconv.conv2d, cyconv.conv3d
forward, turn1d, turn2d, turn = (
    cyconv.conv_forward,
    cyconv.conv_transpose1d,
    cyconv.conv_transpose2d,
    cyconv.conv_transpose,
)
dx, dw, db = cyconv.conv_data_backward, cyconv.conv_weight_backward, cyconv.bias_backward
problem, explain, plan = cyconv.ConvProblem.parse, cyconv.explain, cyconv.plan
STRING = "fwd f32 nchw n1 g1 ci1 co1 i5x5 k3x3 s1 p0 d1"


def settings(**values):
    with cyconv.config(**values):
        pass


def _numbers():
    """Every operator with every number of the geometry out of range or of a wrong type."""
    calls = {
        "conv2d": (conv2d, X, W),
        "conv_forward": (forward, X, W),
        "conv_transpose2d": (turn2d, Y, W),
        "conv_transpose": (turn, Y, W),
        "conv_data_backward": (dx, Y, W, SHAPE),
        "conv_weight_backward": (dw, X, Y, W_SHAPE),
    }
    wrong = [
        ("stride", 0, ValueError),
        ("stride", -1, ValueError),
        ("stride", (1, 0), ValueError),
        ("stride", True, TypeError),
        ("stride", 1.5, TypeError),
        ("stride", None, TypeError),
        ("stride", (1, 1, 1), ValueError),
        ("stride", "2", TypeError),
        ("stride", (1, 1.5), TypeError),
        ("dilation", 0, ValueError),
        ("dilation", -3, ValueError),
        ("dilation", True, TypeError),
        ("dilation", 1.0, TypeError),
        ("dilation", None, TypeError),
        ("dilation", (2,) * 3, ValueError),
        ("padding", -1, ValueError),
        ("padding", (0, -1), ValueError),
        ("padding", ((0, -2), (0, 0)), ValueError),
        ("padding", True, TypeError),
        ("padding", 0.5, TypeError),
        ("padding", None, TypeError),
        ("padding", (1, 1, 1), ValueError),
        ("padding", ((1, 1, 1), (0, 0)), ValueError),
        ("padding", "reflect", ValueError),
        ("padding", "", ValueError),
        ("padding", ((1, 2),), ValueError),
        ("groups", 0, ValueError),
        ("groups", -1, ValueError),
        ("groups", -(2**63), ValueError),
        ("groups", 5, ValueError),
        ("groups", True, TypeError),
        ("groups", 1.0, TypeError),
        ("groups", None, TypeError),
        ("groups", (1, 1), TypeError),
        ("groups", 2**70, ValueError),
        ("layout", "NCDHW", ValueError),
        ("layout", "NCW", ValueError),
        ("layout", "CHWN", ValueError),
        ("layout", None, TypeError),
        ("layout", 1, TypeError),
        ("strategy", "wonograd", ValueError),
        ("strategy", "", ValueError),
        ("strategy", 3, TypeError),
        ("threads", 0, ValueError),
        ("threads", -2, ValueError),
        ("threads", 1.5, TypeError),
        ("threads", True, TypeError),
        ("threads", "2", TypeError),
        ("out", np.ones((1, 1, 1, 1)), ValueError),
        ("out", [[1.0]], TypeError),
    ]
    for call, (function, *operands) in calls.items():
        for name, value, kind in wrong:
            yield (
                f"{call} {name}={value if name != 'out' else type(value)}",
                (lambda f=function, o=operands, k={name: value}: f(*o, **k)),
                kind,
                name,
            )


OTHERS = [
    # operands
    ("x is None", lambda: conv2d(None, W), TypeError, "x"),
    ("w is None", lambda: conv2d(X, None), TypeError, "w"),
    ("x is text", lambda: conv2d("abc", W), TypeError, "x"),
    ("x is an object array", lambda: conv2d(X.astype(object), W), TypeError, "x"),
    ("x is ragged", lambda: conv2d([[1.0], [1.0, 2.0]], W), (TypeError, ValueError), "x"),
    ("x of rank 2", lambda: conv2d(np.ones((3, 3)), W), ValueError, "x"),
    ("x of rank 5", lambda: conv2d(X3, W), ValueError, "x"),
    ("w of rank 3", lambda: conv2d(X, W1), ValueError, "w"),
    ("w of rank 5", lambda: conv2d(X, W3), ValueError, "w"),
    ("1-D function, 2-D arrays", lambda: conv1d(X, W), ValueError, "conv1d|w"),
    ("3-D function, 2-D arrays", lambda: conv3d(X, W), ValueError, "conv3d|w"),
    ("more axes in w than in x", lambda: forward(X1, W), ValueError, "x"),
    ("w of rank 2", lambda: forward(np.ones((2, 3)), np.ones((4, 3))), ValueError, "w"),
    ("w of rank 6", lambda: forward(np.ones((1,) * 6), np.ones((1,) * 6)), ValueError, "w"),
    ("w without axes", lambda: forward(X, np.float64(3)), ValueError, "w"),
    ("x without axes", lambda: forward(np.float64(3), W), ValueError, "x"),
    ("channels", lambda: conv2d(X, np.ones((6, 5, 3, 3))), ValueError, "(?i)channels"),
    ("channels under groups", lambda: conv2d(X, W, groups=2), ValueError, "(?i)channels"),
    (
        "groups do not divide c_out",
        lambda: conv2d(X, np.ones((3, 2, 3, 3)), groups=2),
        ValueError,
        "groups",
    ),
    (
        "groups do not divide c_in",
        lambda: conv2d(np.ones((1, 3, 5, 5)), np.ones((4, 1, 3, 3)), groups=2),
        ValueError,
        "groups",
    ),
    ("transposed channels", lambda: turn2d(X, W), ValueError, "(?i)channels"),
    # types
    ("both integer", lambda: conv2d(X.astype(int), W.astype(int)), cyconv.DTypeError, "int64"),
    ("both bool", lambda: conv2d(X > 0, W > 0), cyconv.DTypeError, "bool"),
    ("complex x", lambda: conv2d(X * 1j, W), cyconv.DTypeError, "complex128"),
    ("complex w", lambda: conv2d(X, W * 1j), cyconv.DTypeError, "complex128"),
    ("complex bias", lambda: conv2d(X, W, np.ones(6) * 1j), cyconv.DTypeError, "complex128"),
    (
        "long double",
        lambda: conv2d(X.astype(np.longdouble), W),
        cyconv.DTypeError,
        "longdouble|float128",
    ),
    ("datetime", lambda: conv2d(X.astype("M8[s]"), W), TypeError, "datetime64"),
    ("structured", lambda: conv2d(X.astype([("a", "f4")]), W), TypeError, "x|dtype"),
    (
        "integer gradients",
        lambda: dx(Y.astype(int), W.astype(int), SHAPE),
        cyconv.DTypeError,
        "int64",
    ),
    (
        "integer weight gradient",
        lambda: dw(X.astype(int), Y.astype(int), W_SHAPE),
        cyconv.DTypeError,
        "int64",
    ),
    # bias
    ("bias of length 1", lambda: conv2d(X, W, np.ones(1)), cyconv.ShapeError, "bias"),
    ("bias too short", lambda: conv2d(X, W, np.ones(5)), cyconv.ShapeError, "bias"),
    ("bias of rank 2", lambda: conv2d(X, W, np.ones((6, 1))), cyconv.ShapeError, "bias"),
    ("bias without axes", lambda: conv2d(X, W, np.ones(())), cyconv.ShapeError, "bias"),
    ("bias is a number", lambda: conv2d(X, W, 1.0), cyconv.ShapeError, "bias"),
    ("bias is text", lambda: conv2d(X, W, "zero"), TypeError, "bias"),
    ("bias of w's outputs", lambda: turn2d(Y, W, np.ones(6)), cyconv.ShapeError, "bias"),
    # sizes
    ("kernel above input", lambda: conv2d(X, np.ones((6, 4, 10, 3))), cyconv.ShapeError, "kernel"),
    ("dilated kernel above input", lambda: conv2d(X, W, dilation=5), cyconv.ShapeError, "kernel"),
    ("kernel of 0", lambda: conv1d(X1, np.ones((6, 4, 0))), cyconv.ShapeError, "kernel"),
    ("input axis of 0", lambda: conv2d(np.ones((2, 4, 0, 8)), W), cyconv.ShapeError, "input"),
    (
        "transposed below 1",
        lambda: turn2d(Y[:, :, :1, :1], W, padding=2),
        cyconv.ShapeError,
        "padding",
    ),
    (
        "transposed of exactly 0",
        lambda: turn1d(np.ones((1, 1, 1)), np.ones((1, 1, 2)), padding=1),
        cyconv.ShapeError,
        "padding",
    ),
    (
        "huge padding",
        lambda: conv2d(X, W, padding=2**55),
        (ValueError, MemoryError, OverflowError),
        "padding|allocate|memory|large",
    ),
    (
        "padding beyond 64 bits",
        lambda: conv2d(X, W, padding=2**70),
        (ValueError, OverflowError, MemoryError),
        "padding|large",
    ),
    (
        "stride beyond 64 bits",
        lambda: turn2d(Y, W, stride=2**70),
        (ValueError, OverflowError, MemoryError),
        "stride|large",
    ),
    (
        "dilation beyond 64 bits",
        lambda: conv2d(X, W, dilation=2**64),
        (ValueError, OverflowError),
        "dilation|kernel",
    ),
    (
        "huge transposed",
        lambda: turn2d(Y, W, stride=2**40),
        (ValueError, MemoryError, OverflowError),
        "",
    ),
    # transposed
    (
        "output_padding at stride 1",
        lambda: turn2d(Y, W, output_padding=1),
        ValueError,
        "output_padding",
    ),
    (
        "output_padding = stride",
        lambda: turn2d(Y, W, stride=2, output_padding=2),
        ValueError,
        "output_padding",
    ),
    (
        "output_padding of one axis",
        lambda: turn2d(Y, W, stride=2, output_padding=(0, 2)),
        ValueError,
        "output_padding",
    ),
    (
        "output_padding of an empty batch",
        lambda: turn2d(Y[:0], W, stride=2, output_padding=2),
        ValueError,
        "output_padding",
    ),
    (
        "negative output_padding",
        lambda: turn2d(Y, W, stride=2, output_padding=-1),
        ValueError,
        "output_padding",
    ),
    (
        "output_padding of 3 axes",
        lambda: turn2d(Y, W, stride=2, output_padding=(0, 0, 0)),
        ValueError,
        "output_padding",
    ),
    (
        "output_padding True",
        lambda: turn2d(Y, W, stride=2, output_padding=True),
        TypeError,
        "output_padding",
    ),
    (
        "output_padding 0.5",
        lambda: turn2d(Y, W, stride=2, output_padding=0.5),
        TypeError,
        "output_padding",
    ),
    (
        "output_size too small",
        lambda: turn2d(Y, W, stride=2, output_size=(14, 13)),
        ValueError,
        "output_size.*15.*16",
    ),
    (
        "output_size too large",
        lambda: turn2d(Y, W, stride=2, output_size=(17, 13)),
        ValueError,
        "output_size.*15.*16",
    ),
    (
        "output_size of 3 axes",
        lambda: turn2d(Y, W, stride=2, output_size=(15, 13, 1)),
        ValueError,
        "output_size",
    ),
    (
        "output_size of floats",
        lambda: turn2d(Y, W, stride=2, output_size=(15.0, 13)),
        TypeError,
        "output_size",
    ),
    (
        "both output arguments",
        lambda: turn2d(Y, W, stride=2, output_padding=1, output_size=(16, 14)),
        ValueError,
        "output_padding.*output_size",
    ),
    (
        "same and output_padding",
        lambda: turn2d(Y, W, stride=2, padding="same", output_padding=1),
        ValueError,
        "output_padding",
    ),
    (
        "same and output_size",
        lambda: turn2d(Y, W, stride=2, padding="same", output_size=(14, 12)),
        ValueError,
        "output_size",
    ),
    # shapes of the gradients
    ("input_shape of rank 2", lambda: dx(Y, W, (2, 4)), ValueError, "input_shape"),
    ("input_shape is None", lambda: dx(Y, W, None), TypeError, "input_shape"),
    ("input_shape negative", lambda: dx(Y, W, (2, 4, -9, 8)), ValueError, "input_shape"),
    ("input_shape of floats", lambda: dx(Y, W, (2, 4, 9.0, 8)), TypeError, "input_shape"),
    ("input_shape of another size", lambda: dx(Y, W, (2, 4, 10, 8)), ValueError, "dy"),
    ("input_shape of another batch", lambda: dx(Y, W, (3, 4, 9, 8)), ValueError, "dy|batch"),
    (
        "input_shape of other channels",
        lambda: dx(Y, W, (2, 5, 9, 8)),
        ValueError,
        "(?i)channels|input_shape",
    ),
    ("dy of other channels", lambda: dx(Y[:, :5], W, SHAPE), ValueError, "dy"),
    ("unbatched dy, batched input_shape", lambda: dx(Y[0], W, SHAPE), ValueError, "dy|input_shape"),
    ("weight_shape of rank 2", lambda: dw(X, Y, (6, 4)), ValueError, "weight_shape"),
    ("weight_shape is None", lambda: dw(X, Y, None), TypeError, "weight_shape"),
    ("weight_shape of another kernel", lambda: dw(X, Y, (6, 4, 5, 5)), ValueError, "dy"),
    (
        "weight_shape of other outputs",
        lambda: dw(X, Y, (7, 4, 3, 3)),
        ValueError,
        "dy|weight_shape",
    ),
    (
        "weight_shape of other inputs",
        lambda: dw(X, Y, (6, 3, 3, 3)),
        ValueError,
        "(?i)channels|weight_shape",
    ),
    ("dy of another batch", lambda: dw(X, Y[:1], W_SHAPE), ValueError, "dy"),
    ("dy is None", lambda: dw(X, None, W_SHAPE), TypeError, "dy"),
    ("db of a vector", lambda: db(np.ones(3)), ValueError, "dy"),
    ("db of integers", lambda: db(np.ones((2, 3, 4), int)), TypeError, "int64"),
    ("db of no array", lambda: db(None), TypeError, "dy"),
    ("db layout", lambda: db(Y, layout="NCW"), ValueError, "layout"),
    # out=
    ("out of another shape", lambda: conv2d(X, W, out=np.ones((2, 6, 7, 7))), ValueError, "out"),
    (
        "out with an axis more",
        lambda: conv2d(X, W, out=np.ones((1, 2, 6, 7, 6))),
        ValueError,
        "out",
    ),
    (
        "out that would broadcast",
        lambda: conv2d(X[:1], W, out=np.ones((2, 6, 7, 6))),
        ValueError,
        "out",
    ),
    (
        "out of another type",
        lambda: conv2d(X, W, out=np.ones((2, 6, 7, 6), "f4")),
        cyconv.DTypeError,
        "out",
    ),
    (
        "out of foreign order",
        lambda: conv2d(X, W, out=np.ones((2, 6, 7, 6), ">f8")),
        cyconv.DTypeError,
        "out",
    ),
    ("out read-only", lambda: conv2d(X, W, out=READ_ONLY), ValueError, "out"),
    # settings, problems, plans
    ("unknown setting", lambda: settings(colour=1), TypeError, "colour"),
    ("setting strategy", lambda: settings(strategy="wonograd"), ValueError, "wonograd"),
    ("setting threads", lambda: settings(threads=0), ValueError, "threads"),
    ("setting threads True", lambda: settings(threads=True), TypeError, "threads"),
    ("setting precision", lambda: settings(precision="best"), ValueError, "precision"),
    (
        "setting workspace_limit",
        lambda: settings(workspace_limit=-1),
        ValueError,
        "workspace_limit",
    ),
    (
        "setting workspace_limit 1.5",
        lambda: settings(workspace_limit=1.5),
        TypeError,
        "workspace_limit",
    ),
    ("setting strict", lambda: settings(strict=1.5), TypeError, "strict"),
    ("setting reproducible", lambda: settings(reproducible="yes"), TypeError, "reproducible"),
    ("problem of nothing", lambda: problem(""), ValueError, ""),
    ("problem of junk", lambda: problem("convolve this"), ValueError, ""),
    ("problem operator", lambda: problem(STRING.replace("fwd", "bwd")), ValueError, "bwd"),
    ("problem type", lambda: problem(STRING.replace("f32", "i32")), ValueError, "i32"),
    ("problem layout", lambda: problem(STRING.replace("nchw", "chwn")), ValueError, "chwn"),
    ("problem groups", lambda: problem(STRING.replace("g1", "g0")), ValueError, "groups"),
    ("problem stride", lambda: problem(STRING.replace("s1", "s0")), ValueError, "stride"),
    (
        "problem kernel",
        lambda: problem(STRING.replace("k3x3", "k6x3")),
        cyconv.ShapeError,
        "kernel",
    ),
    ("problem ranks", lambda: problem(STRING.replace("k3x3", "k3x3x3")), ValueError, ""),
    ("problem token twice", lambda: problem(STRING.replace("s1", "s1 s2")), ValueError, ""),
    ("problem without kernel", lambda: problem(STRING.replace("k3x3 ", "")), ValueError, ""),
    ("problem with more", lambda: problem(STRING + " z3"), ValueError, "z3"),
    ("problem of None", lambda: problem(None), TypeError, ""),
    ("plan of a number", lambda: plan(3), TypeError, "problem"),
    (
        "explain operator",
        lambda: explain(SHAPE, W_SHAPE, operator="sideways"),
        ValueError,
        "operator",
    ),
    ("explain shapes", lambda: explain(SHAPE, (6, 5, 3, 3)), ValueError, "(?i)channels"),
    (
        "plan called with another shape",
        lambda: plan(problem(STRING))(np.ones((1, 1, 6, 5), "f4"), np.ones((1, 1, 3, 3), "f4")),
        ValueError,
        "x",
    ),
    (
        "plan called with another type",
        lambda: plan(problem(STRING))(np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3))),
        TypeError,
        "x|dtype|float",
    ),
]
TABLE = [*OTHERS, *_numbers()]


def test_the_table_is_long_enough():
    assert len(OTHERS) >= 60


@pytest.mark.parametrize(
    ("call", "kind", "fragment"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_refused(call, kind, fragment):
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    word = rf"(?s)(?<!\w)(?:{fragment})(?!\w)" if fragment.isidentifier() else f"(?s){fragment}"
    assert re.search(word, message), f"does not name {fragment}: {message}"
    assert len(message) > 10, message
    if isinstance(caught.value, cyconv.CyconvError):
        assert isinstance(caught.value, (ValueError, TypeError, NotImplementedError))


def test_no_bad_call_ends_the_process(python):
    """All of them in one process, which then still convolves."""
    python(f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_bad_input import *
for name, call, kind, fragment in TABLE:
    try:
        call()
    except Exception:
        continue
    raise SystemExit(f"accepted: {{name}}")
assert conv2d(X, W)[0, 0, 0, 0] == 36
""")


def test_errors_have_the_stated_parents():
    for error, parent in (
        (cyconv.ShapeError, ValueError),
        (cyconv.UnsupportedError, NotImplementedError),
        (cyconv.DTypeError, TypeError),
    ):
        assert issubclass(error, cyconv.CyconvError)
        assert issubclass(error, parent)
    assert issubclass(cyconv.CyconvWarning, UserWarning)


def test_a_shape_error_quotes_input_padding_and_effective_kernel():
    with pytest.raises(cyconv.ShapeError) as caught:
        conv2d(
            np.ones((1, 1, 23, 9)),
            np.ones((1, 1, 14, 3)),
            dilation=(3, 1),
            padding=((5, 7), (0, 0)),
        )
    for number in ("23", "5", "7", "40"):
        assert re.search(rf"(?<!\d){number}(?!\d)", str(caught.value)), str(caught.value)


def test_an_unknown_strategy_lists_the_names():
    for call in (lambda: conv2d(X, W, strategy="wonograd"), lambda: settings(strategy="wonograd")):
        with pytest.raises(ValueError, match="wonograd") as caught:
            call()
        for name in ("wonograd", "auto", "profile", *cyconv.strategies()):
            assert name in str(caught.value)


def test_the_library_is_usable_after_a_memory_error():
    with pytest.raises((MemoryError, ValueError)):
        conv1d(np.ones((1, 1, 3)), np.ones((1, 1, 1)), padding=2**44)
    assert conv2d(X, W)[0, 0, 0, 0] == 36
