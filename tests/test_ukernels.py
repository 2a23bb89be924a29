"""The microkernels of every instruction set that this processor can run, one by one."""

import subprocess
import sys

import numpy as np
import pytest

import cyconv
from cyconv.kernels import _ukernels

DTYPES = {"f32": np.float32, "f64": np.float64}


@pytest.fixture(params=cyconv.isas())
def isa(request):
    before = cyconv.active_isa()
    _ukernels.select(request.param)
    yield request.param
    _ukernels.select(before)


def _tiles(dtype):
    rows, lanes = _ukernels.tile(dtype)
    return [(m, nv * lanes) for m in range(1, rows + 1) for nv in (1, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity_on_either_side_gives_the_other_factor(isa, dtype):
    rng = np.random.default_rng(0)
    vector = _ukernels.tile(dtype)[1]
    for m, lanes in _tiles(dtype):
        start = np.zeros(lanes, DTYPES[dtype])
        offset = np.arange(m)
        b = rng.standard_normal((m, lanes)).astype(DTYPES[dtype])
        c = np.full((m, lanes), np.nan, DTYPES[dtype])
        eye = np.eye(m, dtype=DTYPES[dtype])
        _ukernels.sum_of_products("outer", eye, offset, b, start, c, lanes // vector)
        np.testing.assert_array_equal(c, b)

        offset = np.arange(lanes)
        a = rng.standard_normal((m, lanes)).astype(DTYPES[dtype])
        c = np.full((m, lanes), np.nan, DTYPES[dtype])
        eye = np.eye(lanes, dtype=DTYPES[dtype])
        _ukernels.sum_of_products("outer", a, offset, eye, start, c, lanes // vector)
        np.testing.assert_array_equal(c, a)


def _product(form, a, offset, b, lanes):
    """What a microkernel sums, and the sum of absolute values, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if form == "outer":
        return a[:, offset] @ b, np.abs(a[:, offset]) @ np.abs(b)
    if form == "across":
        a, gathered = a[:, : len(offset)], b[0, offset[:, None] + np.arange(lanes)]
        return a @ gathered, np.abs(a) @ np.abs(gathered)
    gathered = a[:, offset[:, None] + np.arange(lanes)]
    return (gathered * b).sum(1), np.abs(gathered * b).sum(1)


def _second(form, depth, lanes, rng):
    """Return b as a microkernel wants it."""
    if form == "across":
        return rng.standard_normal((1, 3 * depth + lanes))
    return rng.standard_normal((depth, 1 if form == "spread" else lanes))


@pytest.mark.parametrize("form", ["outer", "along", "spread", "across"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [1, 2, 7, 64, 449])
def test_sums_gather_start_and_accumulate(isa, form, dtype, depth):
    rng = np.random.default_rng(depth)
    vector = _ukernels.tile(dtype)[1]
    for m, lanes in _tiles(dtype):
        a = rng.standard_normal((m, 3 * depth + lanes)).astype(DTYPES[dtype])
        b = _second(form, depth, lanes, rng).astype(DTYPES[dtype])
        start = rng.standard_normal(m if form == "across" else lanes).astype(DTYPES[dtype])
        added = start[:, None] if form == "across" else start
        offset = rng.integers(0, 3 * depth, depth)
        product, magnitude = _product(form, a, offset, b, lanes)
        bound = (depth + 2) * np.finfo(DTYPES[dtype]).eps * (magnitude + np.abs(added))
        c = np.full((m, lanes + 3), 7.0, DTYPES[dtype])
        _ukernels.sum_of_products(form, a, offset, b, start, c, lanes // vector)
        assert np.all(np.abs(c[:, :lanes] - (product + added)) <= bound)
        np.testing.assert_array_equal(c[:, lanes:], 7.0)
        first = c.copy()
        _ukernels.sum_of_products(form, a, offset, b, None, c, lanes // vector)
        assert np.all(np.abs(c[:, :lanes] - (first[:, :lanes] + product)) <= 2 * bound)


@pytest.mark.parametrize("form", ["outer", "along", "spread", "across"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_other_rows(isa, form, dtype):
    """What a tile's height is, is the caller's business: results must be bitwise the same."""
    rng = np.random.default_rng(1)
    rows, vector = _ukernels.tile(dtype)
    width = 2 * vector
    a = rng.standard_normal((rows, 100 + width)).astype(DTYPES[dtype])
    b = _second(form, 100, width, rng).astype(DTYPES[dtype])
    start, offset = np.zeros(max(rows, width), DTYPES[dtype]), np.arange(100)
    whole = np.empty((rows, width), DTYPES[dtype])
    _ukernels.sum_of_products(form, a, offset, b, start, whole, 2)
    for m in range(1, rows):
        part = np.empty((m, width), DTYPES[dtype])
        _ukernels.sum_of_products(form, a[:m].copy(), offset, b, start, part, 2)
        np.testing.assert_array_equal(part, whole[:m])


@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(isa, dtype):
    for rows in (1, 2, 3, 4, 7, 8, 9, 16, 17, 33):
        for cols in (1, 2, 3, 5, 8, 15, 16, 19, 32):
            source = np.arange(rows * cols, dtype=DTYPES[dtype]).reshape(rows, cols)
            target = np.full((cols, rows), np.nan, DTYPES[dtype])
            _ukernels.transposed(source, target)
            np.testing.assert_array_equal(target, source.T)
            # As a part of wider matrices, whose other elements stay as they are.
            wide = np.full((rows, cols + 5), np.nan, DTYPES[dtype])
            wide[:, 2:-3] = source
            around = np.full((cols, rows + 4), 7.0, DTYPES[dtype])
            _ukernels.transposed(wide[:, 2:-3], around[:, 1:-3])
            np.testing.assert_array_equal(around[:, 1:-3], source.T)
            around[:, 1:-3] = 7.0
            assert np.all(around == 7.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_move(isa, dtype):
    rng = np.random.default_rng(0)
    for cols in (1, 2, 3, 7, 8, 9, 16, 17, 40):
        for source_step, target_step in ((1, 1), (2, 1), (3, 1), (1, 2), (1, 5), (2, 3)):
            source = rng.standard_normal((3, cols * source_step + 2)).astype(DTYPES[dtype])
            source = source[:, : cols * source_step : source_step]
            target = np.full((3, cols * target_step + 2), np.nan, DTYPES[dtype])
            view = target[:, : cols * target_step : target_step]
            _ukernels.moved(source, view)
            np.testing.assert_array_equal(view, source)
            assert np.isfinite(target).sum() == source.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_zip(isa, dtype):
    rng = np.random.default_rng(0)
    for cols in (1, 2, 3, 7, 15, 16, 17, 33, 64):
        even, odd = rng.standard_normal((2, 3, (cols + 1) // 2)).astype(DTYPES[dtype])
        target = np.full((3, cols), np.nan, DTYPES[dtype])
        _ukernels.zipped(even, odd, target)
        np.testing.assert_array_equal(target[:, ::2], even)
        np.testing.assert_array_equal(target[:, 1::2], odd[:, : cols // 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_unzip(isa, dtype):
    rng = np.random.default_rng(0)
    for cols in (1, 2, 3, 7, 15, 16, 17, 33, 64):
        source = rng.standard_normal((3, cols)).astype(DTYPES[dtype])
        even, odd = np.full((2, 3, (cols + 1) // 2), np.nan, DTYPES[dtype])
        _ukernels.unzipped(source, even, odd)
        np.testing.assert_array_equal(even, source[:, ::2])
        np.testing.assert_array_equal(odd[:, : cols // 2], source[:, 1::2])
        assert np.isnan(odd[:, cols // 2 :]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_streams(isa, dtype):
    rng = np.random.default_rng(0)
    lanes = _ukernels.tile(dtype)[1]
    for m in (1, 2, 3):
        for n in (1, 2, 3):
            a = rng.standard_normal((m, 9 * lanes)).astype(DTYPES[dtype])
            b = rng.standard_normal((n, 9 * lanes)).astype(DTYPES[dtype])
            c = rng.standard_normal((m, n, lanes)).astype(DTYPES[dtype])
            parts = (a[:, None] * b.astype(np.float64)).reshape(m, n, 9, lanes)
            bound = 11 * np.finfo(DTYPES[dtype]).eps * (np.abs(parts).sum(2) + np.abs(c))
            want = c + parts.sum(2)
            _ukernels.products(a, b, c)
            assert np.all(np.abs(c - want) <= bound)


STRIPS = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (3, 2), (5, 2), (7, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("taps", "step"), STRIPS)
def test_slide(isa, dtype, taps, step):
    """Columns outside lo .. hi are left out, and never read: they are NaN here."""
    rng = np.random.default_rng(taps)
    lanes = _ukernels.tile(dtype)[1]
    for pixels in range(1, _ukernels.strip() + 1):
        span = (pixels - 1) * step + taps
        for lo, hi in {(0, span), (min(2, span - 1), span), (0, max(1, span - 2)), (0, 0)}:
            x = rng.standard_normal((4, span + 3, lanes)).astype(DTYPES[dtype])
            x[:, : 1 + lo] = x[:, 1 + hi :] = np.nan
            row = np.array([2, 0, 3])
            w = rng.standard_normal((3, taps, lanes)).astype(DTYPES[dtype])
            start = rng.standard_normal(lanes).astype(DTYPES[dtype])
            y = np.full((pixels, lanes), np.nan, DTYPES[dtype])
            _ukernels.slid(x, row, w, step, 1, lo, hi, start, y)
            want = np.repeat(start[None].astype(np.float64), pixels, 0)
            bound = np.abs(want)
            for j in range(pixels):
                for k in range(max(0, lo - j * step), min(taps, hi - j * step)):
                    parts = x[row, 1 + j * step + k].astype(np.float64) * w[:, k]
                    want[j] += parts.sum(0)
                    bound[j] += np.abs(parts).sum(0)
            eps = np.finfo(DTYPES[dtype]).eps
            assert np.all(np.abs(y - want) <= (3 * taps + 2) * eps * bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("taps", "step"), [(3, 1), (5, 1), (7, 1), (3, 2), (5, 2), (7, 2)])
def test_slide_gradient(isa, dtype, taps, step):
    rng = np.random.default_rng(taps)
    lanes, most = _ukernels.tile(dtype)[1], {3: 3, 5: 2, 7: 1}[taps]
    for height in range(1, most + 1):
        for pixels in (1, 2, 9):
            span = (pixels - 1) * step + taps
            for lo, hi in {(0, span), (min(2, span - 1), span), (0, max(1, span - 2))}:
                x = rng.standard_normal((height, span + 3, lanes)).astype(DTYPES[dtype])
                x[:, : 1 + lo] = x[:, 1 + hi :] = np.nan
                dy = rng.standard_normal((pixels, lanes)).astype(DTYPES[dtype])
                dw = rng.standard_normal((height, taps, lanes)).astype(DTYPES[dtype])
                want, bound = dw.astype(np.float64), np.abs(dw.astype(np.float64))
                _ukernels.slid_gradient(x, dy, step, 1, lo, hi, dw)
                for j in range(pixels):
                    for k in range(max(0, lo - j * step), min(taps, hi - j * step)):
                        parts = x[:, 1 + j * step + k].astype(np.float64) * dy[j]
                        want[:, k] += parts
                        bound[:, k] += np.abs(parts)
                eps = np.finfo(DTYPES[dtype]).eps
                assert np.all(np.abs(dw - want) <= (pixels + 2) * eps * bound)


_PROOF = """
import numpy as np, cyconv
x = np.random.default_rng(0).standard_normal((1, 64, 20, 20)).astype('f4')
w = np.random.default_rng(1).standard_normal((16, 64, 3, 3)).astype('f4')
y = cyconv.conv2d(x, w, strategy='implicit_gemm')
print(cyconv.active_isa(), y.sum(dtype='f8').hex())
"""


def test_the_environment_forces_an_instruction_set():
    """The forced one really ran: fused and unfused sums round differently."""
    answers = {}
    for name in cyconv.isas():
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", _PROOF],
            env={"CYCONV_ISA": name, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        active, answers[name] = run.stdout.split()
        assert active == name
    if "avx2" in answers:
        assert answers["baseline"] != answers["avx2"]


def test_an_unknown_instruction_set_warns_and_is_ignored():
    run = subprocess.run(
        [sys.executable, "-c", _PROOF],
        env={"CYCONV_ISA": "quantum", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split()[0] == cyconv.isas()[0]
    assert run.stderr.count("CYCONV_ISA='quantum'") == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_collect(isa, dtype):
    lanes = _ukernels.tile(dtype)[1]
    for rows in (1, 2, 7):
        for columns in (lanes, 2 * lanes):
            source = np.random.default_rng(rows).standard_normal((rows, columns + 3))
            source = source.astype(DTYPES[dtype])
            target = np.full((rows, columns), np.nan, DTYPES[dtype])
            _ukernels.collected(source, target)
            np.testing.assert_array_equal(target, source[:, :columns])
