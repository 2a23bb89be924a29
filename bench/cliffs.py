"""Sizes at which convolution libraries are known to fall off a cliff: the curves of curves.py.

Each curve is a list of points (a label, a place on the axis, a call) and of claims: the time of one
point divided by that of another stays below a bound. The bounds are those that the users of other
libraries asked for in their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import scipy.fft
from cells import LAYOUTS, OPERATORS, Cell
from libraries import Cyconv, draw_operands

import cyconv
from cyconv import ConvProblem

Call = Callable[[], object]


@dataclass(frozen=True)
class Point:
    """A call to time: where on the axis, and how many multiply-adds it stands for."""

    label: str
    size: float
    macs: int
    call: Call


@dataclass(frozen=True)
class Claim:
    """time(subject) / time(reference) is at most `bound`, per multiply-add or per call."""

    subject: str
    reference: str
    bound: float
    per_mac: bool = False


@dataclass(frozen=True)
class Curve:
    """Points that are timed together, and what is claimed of them."""

    title: str
    points: list[Point]
    claims: list[Claim] = field(default_factory=list)


def ours(text: str, threads: int, strategy: str = "auto", **change: Callable) -> tuple[int, Call]:
    """Make a call of a problem string; `change` maps a role (x, w, y) to new values for it."""
    cell = Cell("", ConvProblem.parse(text), threads)
    problem = cell.description()
    operands = draw_operands(problem)
    for role, function in change.items():
        operands[role] = function(operands[role])
    call, _ = Cyconv(threads, strategy).call_on(problem, Cyconv.arrays(problem, operands))
    return cell.problem.macs, call


def point(label: str, size: float, text: str, threads: int, **more) -> Point:
    """Make a point of a problem string."""
    macs, call = ours(text, threads, **more)
    return Point(label, size, macs, call)


# --- the curves -----------------------------------------------------------------------------------


def subnormals(threads: int) -> Iterator[Curve]:
    """Yield weights that are normal, and all subnormal: the same work should take the same time."""

    def tiny(w: np.ndarray) -> np.ndarray:
        return np.random.default_rng(0).uniform(-1e-41, 1e-41, w.shape).astype(w.dtype)

    for name, sizes in (
        ("1x1, 64 to 128", "n1 g1 ci64 co128 i1000x15 k1x1 s1 p0 d1"),
        ("3x3, 16 to 16", "n1 g1 ci16 co16 i56x56 k3x3 s1 p1 d1"),
    ):
        for layout in LAYOUTS:
            text = f"fwd f32 {layout} {sizes}"
            yield Curve(
                f"subnormal weights: {name}, {layout.upper()}",
                [
                    point("normal", 0, text, threads, x=np.abs),
                    point("subnormal", 1, text, threads, x=np.abs, w=tiny),
                ],
                [Claim("subnormal", "normal", 5)],
            )


def groups(threads: int) -> Iterator[Curve]:
    """Yield dense, grouped and depthwise of the same channels."""
    for operator in OPERATORS:
        for layout in LAYOUTS:
            for channels, counts in ((256, (1, 32, 256)), (16, (1, 16))):
                yield _groups(operator, layout, channels, counts, threads)


def _groups(operator: str, layout: str, channels: int, counts: tuple, threads: int) -> Curve:
    def text(groups: int, of: int = channels) -> str:
        return f"{operator} f32 {layout} n1 g{groups} ci{of} co{of} i56x56 k3x3 s1 p1 d1"

    points = [point(f"groups {g}", g, text(g), threads) for g in counts]
    # What depthwise has to move: an image in, and a fresh one out.
    image = np.ones((1, channels, 56, 56), np.float32)
    points.append(Point("copy", channels, 0, image.copy))
    depthwise = f"groups {channels}"
    claims = [
        Claim(depthwise, "groups 1", 1 / 4),
        Claim(depthwise, "copy", 1 / 0.3),  # 30 % of the bandwidth of a copy
    ]
    if 32 in counts:
        macs, one = ours(text(1, channels // 32), threads)

        def loop() -> None:
            for _ in range(32):
                one()

        points.append(Point("32 calls", 32, 32 * macs, loop))
        claims.append(Claim("groups 32", "32 calls", 1))
    return Curve(
        f"groups of {channels} channels: {OPERATORS[operator]}, {layout.upper()}", points, claims
    )


def thin(threads: int) -> Iterator[Curve]:
    """Yield the same samples as one axis, as an image of one row, and of one column."""
    for operator in OPERATORS:
        for layout in LAYOUTS:
            start, channels = f"{operator} f32 {layout}", "n32 g1 ci128 co128"
            points = [
                point("1-D", 0, f"{start} {channels} i400 k3 s1 p1 d1", threads),
                point("row", 1, f"{start} {channels} i1x400 k1x3 s1 p0x1 d1", threads),
                point("column", 2, f"{start} {channels} i400x1 k3x1 s1 p1x0 d1", threads),
            ]
            pairs = [(a.label, b.label) for a in points for b in points if a is not b]
            yield Curve(
                f"one axis as two: {OPERATORS[operator]}, {layout.upper()}",
                points,
                [Claim(a, b, 1.5) for a, b in pairs],
            )


def strided_pointwise(threads: int) -> Iterator[Curve]:
    """Yield a 1x1 kernel of stride 2, and of stride 1 on every second pixel, a view or copied."""
    sizes = "n1 g1 ci1024 co2048 i14x14 k1x1 s2 p0 d1"
    for layout in LAYOUTS:
        x, w = np.ones((1, 1024, 14, 14), np.float32), np.ones((2048, 1024, 1, 1), np.float32)
        name, sliced = "NCHW", x[:, :, ::2, ::2]
        if layout == "nhwc":
            x, w = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w))
            name, sliced = "NHWC", x[:, ::2, ::2]

        def on_slice(sliced=sliced, w=w, name=name) -> np.ndarray:
            return cyconv.conv2d(sliced, w, layout=name, threads=threads)

        def on_copy(sliced=sliced, w=w, name=name) -> np.ndarray:
            return cyconv.conv2d(sliced.copy(), w, layout=name, threads=threads)

        strided = point("stride 2", 0, f"fwd f32 {layout} {sizes}", threads)
        yield Curve(
            f"1x1 of stride 2: forward, {name}",
            [
                strided,
                Point("of a slice", 1, strided.macs, on_slice),
                Point("of a copy", 2, strided.macs, on_copy),
            ],
            [Claim("stride 2", "of a copy", 1.3), Claim("of a slice", "of a copy", 1.3)],
        )


def overlap_save(x: np.ndarray, w: np.ndarray, n: int = 4096) -> np.ndarray:
    """Correlate x (c, length) with w (o, c, k) by FFT in blocks: what an FFT would take."""
    (channels, length), kernel = x.shape, w.shape[-1]
    step = n - kernel + 1
    blocks = -(-(length - kernel + 1) // step)
    padded = np.zeros((channels, blocks * step + kernel - 1), x.dtype)
    padded[:, :length] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, n, axis=1)[:, ::step]
    spectra = scipy.fft.rfft(windows).transpose(2, 1, 0)
    filters = scipy.fft.rfft(w, n).conj().transpose(2, 1, 0)
    products = (spectra @ filters).transpose(2, 1, 0)
    y = scipy.fft.irfft(products, n)[..., :step]
    return y.reshape(len(w), -1)[:, : length - kernel + 1]


def long_kernels(threads: int) -> Iterator[Curve]:
    """Yield 64 filters over 64 channels of 64000 samples: ever longer kernels, against an FFT."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64000), np.float32)
    for layout in LAYOUTS:
        points, claims = [], []
        for kernel in (4, 16, 64, 256, 1024):
            w = rng.standard_normal((64, 64, kernel), np.float32)
            text = f"fwd f32 {layout} n1 g1 ci64 co64 i64000 k{kernel} s1 p0 d1"
            made = point(f"auto k{kernel}", kernel, text, threads)
            fft = Point(f"fft k{kernel}", kernel, made.macs, lambda w=w: overlap_save(x, w))
            if points:  # four times the taps: smooth is at most four times the time, and some noise
                claims.append(Claim(made.label, points[-2].label, 5))
            points += [made, fft]
            claims.append(Claim(made.label, fft.label, 2))
        yield Curve(f"long kernels: forward, {layout.upper()}", points, claims)


def odd_channels(threads: int) -> Iterator[Curve]:
    """Yield channel counts beside the round ones, per multiply-add."""
    for operator in OPERATORS:
        for layout in LAYOUTS:
            start = f"{operator} f32 {layout} n1 g1"
            counts = (3, 4, *range(14, 19), *range(30, 35), 43, 48)
            points = [
                point(f"{c} channels", c, f"{start} ci{c} co43 i56x56 k3x3 s1 p1 d1", threads)
                for c in counts
            ]
            round_ones = (4, 16, 32, 48)
            claims = [
                Claim(f"{c} channels", f"{min(r for r in round_ones if r > c)} channels", 1.5, True)
                for c in counts
                if c not in round_ones
            ]
            yield Curve(f"odd channels: {OPERATORS[operator]}, {layout.upper()}", points, claims)


def odd_images(threads: int) -> Iterator[Curve]:
    """Yield depthwise images beside the round sizes, per multiply-add."""
    for operator in OPERATORS:
        for layout in LAYOUTS:
            points, claims = [], []
            for channels, odd, even in ((384, 60, 64), (768, 30, 32)):
                for size in (odd, even):
                    text = f"n1 g{channels} ci{channels} co{channels} i{size}x{size} k3x3 s1 p1 d1"
                    label = f"{channels} at {size}"
                    points.append(point(label, size, f"{operator} f32 {layout} {text}", threads))
                claims.append(Claim(f"{channels} at {odd}", f"{channels} at {even}", 1.5, True))
            yield Curve(
                f"depthwise image sizes: {OPERATORS[operator]}, {layout.upper()}", points, claims
            )


def kernel_is_image(threads: int) -> Iterator[Curve]:
    """Yield a kernel as large as its image, at growing size: no jump between neighbours."""
    for operator in OPERATORS:
        for layout in LAYOUTS:
            points = [
                point(
                    f"{n}x{n}",
                    n,
                    f"{operator} f32 {layout} n1 g1 ci16 co16 i{n}x{n} k{n}x{n} s1 p{n // 2} d1",
                    threads,
                )
                for n in range(20, 40)
            ]
            claims = [Claim(after.label, before.label, 2) for before, after in pairwise(points)]
            yield Curve(f"kernel is image: {OPERATORS[operator]}, {layout.upper()}", points, claims)


CURVES: dict[str, Callable[[int], Iterator[Curve]]] = {
    "subnormals": subnormals,
    "groups": groups,
    "thin": thin,
    "strided_pointwise": strided_pointwise,
    "long_kernels": long_kernels,
    "odd_channels": odd_channels,
    "odd_images": odd_images,
    "kernel_is_image": kernel_is_image,
}
