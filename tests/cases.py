"""Named problems, shared by the tests and the benchmarks.

Each is a problem string without operator, type and layout, which `string` adds:
``n`` batch, ``g`` groups, ``ci``/``co`` channels, ``i`` input size, ``k`` kernel, ``s`` stride,
``p`` padding (``lo:hi`` where the sides differ), ``d`` dilation, and ``bias``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import oracle

import cyconv

# The public functions of the operators.
FUNCTIONS = {
    "fwd": cyconv.conv_forward,
    "dx": cyconv.conv_data_backward,
    "dw": cyconv.conv_weight_backward,
}
GEOMETRY = {
    # the smallest of everything
    "one": "n1 g1 ci1 co1 i1 k1 s1 p0 d1",
    "one_2d": "n1 g1 ci1 co1 i1x1 k1x1 s1 p0 d1 bias",
    "one_3d": "n1 g1 ci1 co1 i1x1x1 k1x1x1 s1 p0 d1",
    "one_pixel_padded": "n2 g1 ci2 co3 i1x1 k3x3 s1 p1 d1 bias",
    "one_pixel_pad_2_stride_2": "n2 g1 ci1 co1 i1x1 k3x3 s2 p2 d1",
    "one_pixel_3d": "n1 g1 ci3 co2 i1x1x1 k3x3x3 s1 p1 d1",
    "two": "n1 g1 ci1 co1 i2 k2 s1 p0 d1",
    # 1-D
    "line": "n2 g1 ci3 co4 i17 k3 s1 p1 d1 bias",
    "line_valid": "n1 g1 ci5 co2 i31 k7 s1 p0 d1",
    "line_stride": "n2 g1 ci3 co5 i20 k4 s3 p2 d1",
    "line_dilation": "n1 g1 ci4 co3 i40 k5 s1 p0 d7",
    "line_everything": "n3 g2 ci4 co6 i23 k3 s2 p3:1 d2 bias",
    "line_long": "n1 g1 ci2 co3 i1000 k25 s1 p12 d1",
    "line_long_kernel": "n1 g1 ci1 co2 i300 k200 s1 p0 d1",
    "line_depthwise": "n2 g7 ci7 co7 i33 k9 s1 p4 d1",
    "line_patch": "n1 g1 ci1 co8 i256 k16 s16 p0 d1",
    "line_skip": "n1 g1 ci2 co2 i29 k2 s5 p0 d1",
    # 2-D, plain
    "plain": "n2 g1 ci3 co4 i8x8 k3x3 s1 p1 d1",
    "plain_bias": "n2 g1 ci3 co4 i9x7 k3x3 s1 p1 d1 bias",
    "valid": "n1 g1 ci4 co5 i7x10 k3x3 s1 p0 d1",
    "full": "n1 g1 ci2 co3 i5x6 k3x3 s1 p2 d1",
    "five": "n1 g1 ci3 co6 i12x11 k5x5 s1 p2 d1",
    "seven": "n1 g1 ci3 co8 i14x15 k7x7 s2 p3 d1 bias",
    "rgb": "n2 g1 ci3 co9 i50x71 k3x3 s1 p1 d1 bias",
    "eleven": "n1 g1 ci3 co4 i23x24 k11x11 s4 p2 d1",
    "even_kernel": "n2 g1 ci2 co3 i9x8 k2x4 s1 p1 d1",
    "flat_kernel": "n1 g1 ci3 co2 i6x9 k1x5 s1 p0x2 d1",
    "tall_kernel": "n1 g1 ci3 co2 i9x6 k5x1 s1 p2x0 d1",
    # kernel against image
    "kernel_is_image": "n2 g1 ci3 co5 i6x7 k6x7 s1 p0 d1 bias",
    "kernel_is_image_dilated": "n1 g1 ci2 co2 i7x5 k3x3 s1 p0 d3x2",
    "kernel_above_image": "n1 g1 ci2 co3 i3x2 k5x5 s1 p2 d1",
    "kernel_reads_padding_only": "n1 g1 ci1 co2 i1x1 k3x3 s2 p4 d1",
    "pad_above_kernel": "n1 g1 ci2 co3 i5x4 k3x3 s1 p4 d1",
    "pad_above_kernel_stride": "n2 g1 ci2 co2 i5x7 k2x2 s3 p5 d1",
    "dilated_beyond_image": "n1 g1 ci2 co2 i4x4 k3x3 s1 p4 d4",
    # 1x1
    "pointwise": "n2 g1 ci5 co7 i6x5 k1x1 s1 p0 d1 bias",
    "pointwise_stride": "n1 g1 ci6 co4 i9x8 k1x1 s2 p0 d1",
    "pointwise_pad": "n1 g1 ci2 co3 i5x5 k1x1 s1 p1 d1 bias",
    "pointwise_pad_stride": "n1 g1 ci2 co3 i5x5 k1x1 s2 p1 d3",
    "pointwise_groups": "n2 g3 ci6 co9 i5x6 k1x1 s1 p0 d1",
    "pointwise_wide": "n1 g1 ci130 co67 i5x5 k1x1 s1 p0 d1",
    "pointwise_line": "n2 g1 ci9 co3 i37 k1 s1 p0 d1",
    "pointwise_3d": "n1 g1 ci5 co6 i3x4x5 k1x1x1 s1x2x1 p0 d1 bias",
    "pointwise_one_row": "n1 g1 ci3 co4 i4x3x2 k1x1x1 s1x3x1 p0 d1",
    # strides and what they leave over
    "stride_2": "n2 g1 ci3 co4 i9x9 k3x3 s2 p1 d1",
    "stride_2_remainder": "n1 g1 ci3 co4 i10x10 k3x3 s2 p1 d1",
    "stride_remainder_rows": "n1 g1 ci2 co2 i13x11 k5x3 s4x3 p0 d1",
    "stride_per_axis": "n1 g1 ci3 co6 i12x12 k3x3 s2x3 p0 d1",
    "stride_above_kernel": "n1 g1 ci2 co3 i11x12 k2x2 s5x4 p0 d1",
    "stride_equals_kernel": "n1 g1 ci3 co4 i12x9 k3x3 s3 p0 d1",
    "stride_leaves_axis": "n1 g1 ci2 co2 i9x9 k3x3 s8 p0 d1",
    # dilation
    "dilation_2": "n2 g1 ci3 co4 i11x10 k3x3 s1 p2 d2",
    "dilation_per_axis": "n1 g1 ci2 co3 i12x13 k3x2 s1 p1x3 d3x4",
    "dilation_stride": "n1 g1 ci2 co3 i13x14 k3x3 s2 p2 d2",
    "dilation_stride_coprime": "n1 g1 ci2 co2 i17x16 k3x3 s3x2 p2 d2x3",
    "report_b01": "n1 g1 ci1 co1 i9x11 k3x5 s2x1 p4x2 d3x1",
    # asymmetric padding
    "asymmetric": "n2 g1 ci3 co4 i8x7 k3x3 s1 p0:1x2:1 d1",
    "asymmetric_low": "n1 g1 ci2 co3 i7x7 k3x3 s2 p2:0 d1 bias",
    "asymmetric_high": "n1 g1 ci2 co3 i7x7 k3x3 s2 p0:2 d1",
    "asymmetric_above_kernel": "n1 g1 ci2 co2 i4x5 k2x2 s2 p5:1x0:6 d1",
    "asymmetric_all": "n2 g2 ci4 co4 i9x8 k3x2 s2x3 p3:0x1:2 d2x1 bias",
    # groups
    "groups": "n2 g2 ci4 co6 i7x6 k3x3 s1 p1 d1 bias",
    "groups_16_out": "n2 g2 ci4 co16 i6x6 k3x3 s1 p1 d1",
    "groups_many": "n1 g16 ci32 co32 i5x5 k3x3 s1 p1 d1",
    "depthwise": "n2 g5 ci5 co5 i9x8 k3x3 s1 p1 d1 bias",
    "depthwise_wide": "n1 g48 ci48 co48 i7x7 k3x3 s1 p1 d1",
    "depthwise_24": "n1 g24 ci24 co24 i6x5 k5x5 s2 p2 d1",
    "depthwise_eleven": "n2 g12 ci12 co12 i14x13 k11x11 s1 p5 d1 bias",
    "depthwise_eleven_strided": "n1 g24 ci24 co24 i17x19 k10x11 s2x3 p4x5 d1x2",
    "depthwise_multiplier": "n2 g3 ci3 co12 i7x8 k3x3 s2 p1 d1",
    "depthwise_dilated": "n1 g9 ci9 co9 i12x12 k3x3 s1 p3 d3",
    "groups_few_out": "n1 g2 ci12 co2 i6x6 k3x3 s1 p0 d1",
    # vector and block remainders
    "channels_1_17": "n1 g1 ci1 co17 i6x17 k3x3 s1 p1 d1",
    "channels_8_16": "n1 g1 ci8 co16 i4x16 k3x3 s1 p1 d1",
    "channels_9_15": "n1 g1 ci9 co15 i5x15 k3x3 s1 p1 d1",
    "channels_31_33": "n1 g1 ci31 co33 i5x9 k3x3 s1 p1 d1 bias",
    "channels_65": "n1 g1 ci65 co66 i4x5 k3x3 s1 p1 d1",
    "many_terms": "n1 g1 ci260 co5 i3x3 k3x3 s1 p1 d1",
    "many_pixels": "n1 g1 ci2 co3 i45x67 k3x3 s1 p1 d1",
    "many_images": "n37 g1 ci2 co3 i4x5 k3x3 s1 p1 d1 bias",
    "batch_5": "n5 g1 ci3 co2 i5x5 k2x2 s1 p0 d1",
    "few_pixels": "n2 g1 ci5 co72 i3x3 k3x3 s1 p1 d1",
    # thin images
    "one_row": "n2 g1 ci3 co4 i1x19 k1x3 s1 p0x1 d1",
    "one_column": "n2 g1 ci3 co4 i19x1 k3x1 s1 p1x0 d1",
    "one_column_square_kernel": "n1 g1 ci2 co3 i7x1 k3x3 s1 p1 d1",
    "two_rows": "n1 g1 ci2 co2 i2x21 k2x2 s1 p1 d1",
    "wide": "n1 g1 ci2 co2 i3x130 k3x3 s1 p1 d1",
    # 3-D
    "volume": "n2 g1 ci2 co3 i5x6x7 k3x3x3 s1 p1 d1 bias",
    "volume_high_pad": "n2 g1 ci3 co2 i8x8x8 k3x3x3 s2 p0:1 d1",
    "volume_per_axis": "n1 g1 ci2 co2 i7x8x9 k2x3x1 s1x2x3 p1x0x2 d2x1x1",
    "volume_groups": "n1 g2 ci4 co2 i4x5x4 k3x2x3 s1 p1:0x0:1x2:2 d1",
    "volume_depthwise_large": "n1 g8 ci8 co8 i7x8x6 k4x5x5 s1x2x1 p2 d1",
    "volume_depthwise": "n1 g4 ci4 co4 i5x5x5 k3x3x3 s2 p1 d1",
    "volume_temporal": "n1 g1 ci3 co3 i9x4x4 k3x1x1 s1 p1x0x0 d1",
    "volume_is_kernel": "n1 g1 ci2 co3 i3x4x5 k3x4x5 s1 p0 d1",
}


def _axes(token, ndim):
    values = token.split("x")
    return tuple(values) if len(values) == ndim else tuple(values) * ndim


@dataclass(frozen=True)
class Case:
    """One geometry; shapes are given for either layout."""

    name: str
    batch: int
    groups: int
    c_in: int
    c_out: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    has_bias: bool

    @classmethod
    def parse(cls, name, text):
        tokens = text.split()
        bias = tokens[-1] == "bias"
        number = {t.rstrip("0123456789x:"): t.lstrip("ngcoikspd") for t in tokens[:9]}
        size = tuple(int(v) for v in number["i"].split("x"))
        ndim = len(size)
        ints = {key: tuple(int(v) for v in _axes(number[key], ndim)) for key in "ksd"}
        padding = tuple(
            (int(p.split(":")[0]), int(p.split(":")[-1])) for p in _axes(number["p"], ndim)
        )
        n, g, ci, co = (int(number[key]) for key in ("n", "g", "ci", "co"))
        return cls(name, n, g, ci, co, size, ints["k"], ints["s"], padding, ints["d"], bias)

    @property
    def ndim(self):
        return len(self.in_size)

    @property
    def out_size(self):
        return tuple(
            map(
                oracle.forward_size,
                self.in_size,
                self.kernel,
                self.stride,
                self.padding,
                self.dilation,
            )
        )

    @property
    def arguments(self):
        """Keywords of the package's functions."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def _shape(self, first, channels, size, layout):
        return (first, *size, channels) if layout == "nhwc" else (first, channels, *size)

    def x_shape(self, layout="nchw"):
        return self._shape(self.batch, self.c_in, self.in_size, layout)

    def w_shape(self, layout="nchw"):
        return self._shape(self.c_out, self.c_in // self.groups, self.kernel, layout)

    def y_shape(self, layout="nchw"):
        return self._shape(self.batch, self.c_out, self.out_size, layout)

    def terms(self, op):
        return oracle.terms(
            op, self.x_shape(), self.w_shape(), self.y_shape(), bias=self.has_bias and op == "fwd"
        )

    def operands(self, op, dtype, layout="nchw"):
        """The operator's two arrays, the bias, and the shape of a gradient (or None)."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        arrays = {}
        for key, shape in (("x", self.x_shape()), ("w", self.w_shape()), ("y", self.y_shape())):
            first = rng.standard_normal(shape).astype(dtype)
            arrays[key] = np.ascontiguousarray(oracle.to_layout(first, layout))
        bias = rng.standard_normal(self.c_out).astype(dtype) if self.has_bias else None
        if op == "fwd":
            return arrays["x"], arrays["w"], bias, None
        if op == "dx":
            return arrays["y"], arrays["w"], None, self.x_shape(layout)
        return arrays["x"], arrays["y"], None, self.w_shape(layout)


CASES = {name: Case.parse(name, text) for name, text in GEOMETRY.items()}


def string(name, op="fwd", dtype="f32", layout="nchw"):
    """The whole problem string of a named case; a gradient has no bias."""
    text = GEOMETRY[name]
    return f"{op} {dtype} {layout} {text if op == 'fwd' else text.removesuffix(' bias')}"
