"""The logic beside the kernels, without a GPU and without the emulator: counting, division by
constants, phases, and what is launched for which problem.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

import cyconv
from cyconv import ConvProblem, devices
from cyconv.gpu import depthwise, direct, im2col, module, params, strategies, sums
from cyconv.gpu.module import Device
from cyconv.gpu.params import CONVP, Sizes, counts_fit, divisor
from cyconv.gpu.phases import phases
from cyconv.settings import Config

SOURCES = Path(module.__file__).parent / "src"
DEVICE = Device(0, "GPU", 90, 132, 232448)
SMALL = Device(0, "GPU", 75, 2, 65536)


# --- what kernels are told ------------------------------------------------------------------------


def test_the_struct_has_the_fields_of_the_dtype():
    """Names and order, as C lays them out: 8-byte members first, so without gaps."""
    text = (SOURCES / "prims.cuh").read_text()
    body = re.search(r"struct ConvP \{(.*?)\n\};", text, re.DOTALL)[1]
    body = re.sub(r"//.*", "", body)
    names = []
    for declaration in filter(str.strip, body.split(";")):
        _, _, declared = declaration.strip().replace("long long", "long").partition(" ")
        names += [name.strip().split("[")[0] for name in declared.split(",")]
    assert tuple(names) == CONVP.names
    assert int(re.search(r"sizeof\(ConvP\) == (\d+)", text)[1]) == CONVP.itemsize


def test_activations_are_numbered_alike():
    text = (SOURCES / "prims.cuh").read_text()
    listed = re.search(r"enum Activation \{(.*?)\}", text, re.DOTALL)[1]
    assert tuple(name.strip().lower() for name in listed.split(",")) == params.ACTIVATIONS


@pytest.mark.parametrize("value", [1, 2, 3, 5, 7, 9, 12, 56, 224, 641, 65535, 2**20, 2**31 - 1])
def test_division_by_a_constant_is_exact(value):
    d, multiplier, shift = divisor(value)
    assert max(d, multiplier) < 2**32
    edges = [q * value + r for q in (0, 1, 2, (2**31 - 1) // value) for r in (-1, 0, 1, value - 1)]
    rng = np.random.default_rng(value)
    for n in {*edges, 2**31 - 1, *map(int, rng.integers(0, 2**31, 200))}:
        if 0 <= n < 2**31:
            assert (n if d == 1 else (n * multiplier >> 32) >> shift) == n // value


def test_strides_and_axes_are_padded_to_three():
    problem = ConvProblem.parse("fwd f32 nchw n2 g2 ci6 co4 i7 k3 s2 p2:1 d2")
    record = params.pack(Sizes.of(problem), (70, 10, 1), (9, 3, 1), (8, 2, 5), last=True)[0]
    assert record["xs"].tolist() == [70, 10, 0, 0, 1]
    assert record["in"].tolist() == [1, 1, 7]
    assert record["stride"].tolist() == [1, 1, 2]
    assert record["pad"].tolist() == [0, 0, 2]
    assert (record["ci"], record["co"], record["groups"], record["taps"]) == (3, 2, 2, 3)
    assert (record["in_pixels"], record["out_pixels"], record["last"]) == (14, 2 * 3, 1)


# --- counting -------------------------------------------------------------------------------------


def test_pixels_and_terms_are_counted_in_31_bits():
    assert counts_fit(ConvProblem.parse("fwd n1 ci1 co1 i46340x46340 k1x1"))
    assert not counts_fit(ConvProblem.parse("fwd n1 ci1 co1 i46341x46341 k1x1"))
    assert not counts_fit(ConvProblem.parse("fwd n32768 ci1 co1 i256x256 k1x1"))
    assert not counts_fit(ConvProblem.parse(f"dw n1 ci{2**28} co1 i3x3 k3x3"))


def test_offsets_beyond_31_bits_are_no_reason_to_refuse():
    """2**31 elements and more, of few pixels each: strides are 64 bits."""
    problem = ConvProblem.parse("fwd f16 nhwc n4096 ci1024 co1024 i32x32 k1x1")
    assert min(prod(problem.x_shape), prod(problem.y_shape)) == 2**32
    assert counts_fit(problem)
    record = params.pack(Sizes.of(problem), (2**20, 1, 2**15, 2**10), (1,) * 4, (2**40,) * 4)[0]
    assert record["ys"].tolist() == [2**40, 2**40, 0, 2**40, 2**40]


def test_grids_are_one_dimensional_and_fit(monkeypatch):
    """No kernel has more than 2**31 blocks, however many planes, groups and splits there are."""
    asked = []
    monkeypatch.setattr(
        depthwise, "launch", lambda kernel, blocks, *_: asked.append((kernel, blocks))
    )
    problem = ConvProblem.parse("fwd f32 nchw n64 g2048 ci2048 co2048 i128x128 k3x3 p1")

    class Array:
        size, itemsize, shape = prod(problem.y_shape), 4, problem.y_shape
        strides = tuple(4 * n for n in (2048 * 128 * 128, 128 * 128, 128, 1))

    call = strategies.GPU[0]
    from cyconv.gpu.base import Run

    call.run(Run(problem, Array, Array, Array, None, DEVICE, Config()))
    ((kernel, blocks),) = asked
    assert kernel.expression == "depthwise_fwd_rows<float>"
    assert 65535 < blocks == 64 * 2048 * 16 * 4 < 2**31


# --- phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "i9 k3 s2 p1 d1", "i10 k3 s2 p1 d1", "i17 k3 s3 p2 d2", "i26 k5 s4 p3:0 d6",
        "i5 k1 s3 p0 d1", "i7 k2 s5 p4 d1", "i6 k3 s2 p4 d4", "i13 k4 s6 p2 d3",
        "i4 k3 s9 p9 d1", "i11 k1 s2 p3 d1",
    ],
)  # fmt: skip
def test_phases_meet_the_pairs_of_the_definition(text):
    """Every (input, tap, output) with p s + t d - l = i is in one phase, once, and no other is."""
    problem = ConvProblem.parse(f"dx f32 nchw n1 ci1 co1 {text}")
    (size,), (k,), (out,) = problem.in_size, problem.kernel, problem.out_size
    (step,), ((low, _),), (dilation,) = problem.stride, problem.padding, problem.dilation
    expected = [
        (i, t, p)
        for i, t, p in product(range(size), range(k), range(out))
        if p * step + t * dilation - low == i
    ]
    found = []
    for phase in phases(problem):
        inputs, taps = range(size)[phase.x[2]], range(k)[phase.w[2]]
        assert phase.sizes.in_size == (1, 1, len(inputs))
        assert phase.sizes.kernel[2] == len(taps)
        assert phase.sizes.stride == (1, 1, 1)
        for (j, i), (u, t) in product(enumerate(inputs), enumerate(taps)):
            p = j + phase.sizes.pad[2] - u * phase.sizes.dilation[2]
            if 0 <= p < out:
                found.append((i, t, p))
    assert sorted(found) == sorted(expected)


# --- splits and tiles -----------------------------------------------------------------------------


def test_splits_fill_the_device_but_not_more_than_there_is():
    few = ConvProblem.parse("dw f32 nchw n32 ci4 co4 i64x64 k3x3 p1")
    many = ConvProblem.parse("dw f32 nchw n32 ci512 co512 i8x8 k3x3 p1")
    for strategy in strategies.GPU:
        if strategy.supports(few, DEVICE):
            continue
        for problem, limit in product((few, many), (2**26, 2**20)):
            if strategy.name == "im2col" and problem is many:
                continue
            assert strategy.workspace(problem, DEVICE, Config(workspace_limit=limit)) <= max(
                limit, 4 * 2 * prod(problem.w_shape)
            ), (strategy.name, str(problem))
    assert direct._splits(few, DEVICE, 2**30) > direct._splits(few, SMALL, 2**30) >= 1
    assert direct._splits(many, SMALL, 2**30) == 1
    assert direct._splits(few, DEVICE, 0) == 1


def test_tiles_of_columns_keep_to_the_limit():
    problem = ConvProblem.parse("fwd f32 nchw n16 ci64 co64 i56x56 k3x3 p1")
    for limit in (2**22, 2**24, 2**28):
        assert im2col.Im2col().workspace(problem, DEVICE, Config(workspace_limit=limit)) <= limit
    assert im2col._columns(problem, 2**24) < 16 * 56 * 56
    assert im2col._columns(problem, 2**40) <= 16 * 56 * 56
    assert im2col.Im2col().workspace(problem, DEVICE, Config(workspace_limit=1000)) > 1000, (
        "so it is refused"
    )


@pytest.mark.parametrize("channels", [1, 7, 2048])
def test_channel_sums_have_blocks_for_all(channels):
    assert sums._channel_splits(10, channels, DEVICE) == 1
    splits = sums._channel_splits(10**7, channels, DEVICE)
    assert 1 <= splits * channels <= max(2 * DEVICE.processors * 8, channels)


def test_rows_that_would_not_fit_shared_memory_go_by_lanes():
    wide = ConvProblem.parse("fwd f64 nchw n1 g2 ci2 co2 i200x200 k3x3 d60")
    narrow = ConvProblem.parse("fwd f64 nchw n1 g2 ci2 co2 i200x200 k3x3 d1")
    limit = depthwise._MOST_TILE_NBYTES
    assert depthwise._tile_nbytes(wide, Sizes.of(wide)) > limit
    assert depthwise._tile_nbytes(narrow, Sizes.of(narrow)) == 10 * 34 * 8


# --- the table of kernels -------------------------------------------------------------------------


def test_every_source_file_is_used_and_shipped():
    named = {name for kernel in strategies.KERNELS for name in kernel.files}
    assert named == {path.stem for path in SOURCES.glob("*.cuh")}
    assert len(set(strategies.KERNELS)) == len(strategies.KERNELS)


def test_sources_stand_alone():
    """No includes, and inline assembly in two files only."""
    for path in SOURCES.glob("*.cuh"):
        code = re.sub(r"//.*", "", path.read_text())
        assert "#include" not in code
        assert path.stem in ("ptx", "mma") or "asm" not in re.findall(r"\w+", code)


def test_cupy_is_never_imported():
    """Only `devices` looks for it."""
    package = Path(cyconv.__file__).parent
    importing = re.compile(r"^\s*(import|from)\s+cupy", re.MULTILINE)
    looking = set()
    for path in package.rglob("*.py"):
        text = path.read_text()
        assert not importing.search(text), path
        if 'modules.get("cupy")' in text:
            looking.add(path.stem)
    assert looking == {"devices"}
    assert devices.cupy() is None


def test_import_does_not_load_cupy(python):
    python(
        "import sys, numpy as np, cyconv\n"
        "cyconv.conv1d(np.ones((1, 1, 4)), np.ones((1, 1, 2)))\n"
        "assert 'cupy' not in sys.modules and 'cyconv.gpu' not in sys.modules"
    )
