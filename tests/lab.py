"""Bench for the reports: run a call in any strategy, layout, type and thread count on NCHW
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import oracle

import cyconv


@dataclass
class Lab:
    strategy: str
    layout: str
    dtype: str
    threads: int

    def array(self, a):
        """The array in this lab's type and layout, contiguous."""
        return np.ascontiguousarray(oracle.to_layout(np.asarray(a, self.dtype), self.layout))

    def view(self, a):
        """The same memory under this lab's layout: no copy, whatever the strides."""
        return oracle.to_layout(a, self.layout)

    def shape(self, shape):
        return (shape[0], *shape[2:], shape[1]) if self.layout == "nhwc" else tuple(shape)

    def keywords(self, ndim, more):
        own = {
            "layout": oracle.layout_name(self.layout, ndim),
            "strategy": self.strategy,
            "threads": self.threads,
        }
        return own | more

    def _bias(self, bias):
        return None if bias is None else np.asarray(bias, self.dtype)

    def _back(self, y, dtype=None):
        assert y.dtype == (dtype or self.dtype)
        return oracle.to_first(y, self.layout)

    def conv(self, x, w, bias=None, **more):
        x, w = self.array(x), self.array(w)
        return self._back(
            cyconv.conv_forward(x, w, self._bias(bias), **self.keywords(w.ndim - 2, more))
        )

    def transposed(self, x, w, bias=None, **more):
        x, w = self.array(x), self.array(w)
        return self._back(
            cyconv.conv_transpose(x, w, self._bias(bias), **self.keywords(w.ndim - 2, more))
        )

    def dx(self, dy, w, shape, **more):
        dy, w, shape = self.array(dy), self.array(w), self.shape(shape)
        return self._back(
            cyconv.conv_data_backward(dy, w, shape, **self.keywords(w.ndim - 2, more))
        )

    def dw(self, x, dy, shape, **more):
        x, dy, shape = self.array(x), self.array(dy), self.shape(shape)
        return self._back(
            cyconv.conv_weight_backward(x, dy, shape, **self.keywords(x.ndim - 2, more))
        )

    def db(self, dy):
        return cyconv.bias_backward(
            self.array(dy), layout=oracle.layout_name(self.layout, np.ndim(dy) - 2)
        )

    @property
    def tolerance(self):
        return 1e-5 if self.dtype == "float32" else 1e-13


def near(got, truth, relative):
    assert got.shape == truth.shape
    worst = np.max(np.abs(got - truth), initial=0)
    assert worst <= relative * max(np.max(np.abs(truth), initial=0), 1e-300)


@cache
def random(*shape, dtype="float64", seed=0):
    a = np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)
    a.flags.writeable = False
    return a


def ramp(*shape, start=0):
    return np.arange(start, start + np.prod(shape), dtype=float).reshape(shape)


def exact(got, right, lab):
    """Bit for bit where every order of a sum gives that; transforms round."""
    near(got, right, lab.tolerance if lab.strategy in oracle.TRANSFORMING else 0)


def same(got, right, lab):
    """Bit for bit, or within the report's tolerance where strides change the order of a sum."""
    near(got, right, 1e-6 if lab.dtype == "float32" else 1e-14)
