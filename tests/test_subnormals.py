"""Subnormal numbers: flushed where that is permitted, and nowhere else."""

import numpy as np
import pytest

import cyconv

TINY = np.float32(1e-42)  # subnormal in float32
FLUSHING = ("depthwise", "implicit_gemm", "winograd")
KEEPING = ("direct", "reference")


def _subnormal_survives():
    return np.multiply(np.array([TINY]), np.float32(1))[0] != 0


def _calls(strategy, threads):
    """The three operators on subnormal data, whose results are subnormal."""
    x = np.full((2, 4, 9, 9), TINY)
    w = np.ones((4, 4, 3, 3), np.float32)
    keywords = {"padding": 1, "strategy": strategy, "threads": threads}
    return (
        cyconv.conv2d(x, w, **keywords),
        cyconv.conv_data_backward(x, w, x.shape, **keywords),
        cyconv.conv_weight_backward(x, w[0, 0, 0, 0] * np.ones_like(x), w.shape, **keywords),
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", KEEPING)
def test_accurate_strategies_never_flush(name, threads):
    for result in _calls(name, threads):
        assert result.min() > 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FLUSHING)
def test_the_setting_decides(name, threads):
    with cyconv.config(flush_subnormals=False):
        for result in _calls(name, threads):
            assert result.min() > 0
    flushed = _calls(name, threads)
    kept = _calls("direct", threads)
    for result, exact, terms in zip(flushed, kept, (36, 36, 162), strict=True):
        assert np.all(result == 0)
        assert np.abs(exact - result).max() <= terms * 2.0**-126


@pytest.mark.parametrize("name", cyconv.strategies())
def test_the_mode_never_leaks(name):
    """Not into the calling thread, nor into the team's threads, which NumPy cannot see: `direct`
    runs on the same team and keeps subnormals.
    """
    x = np.random.default_rng(0).standard_normal((4, 8, 40, 40)).astype(np.float32)
    w = np.ones((8, 8, 3, 3), np.float32)
    for _ in range(3):
        cyconv.conv2d(x, w, padding=1, strategy=name, threads=2)
        assert _subnormal_survives()
        y = cyconv.conv2d(x * 0 + TINY, w, padding=1, strategy="direct", threads=2)
        assert y.min() > 0
