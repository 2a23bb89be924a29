"""The cells of a benchmark: which problems are run, read from a shapes file and the command line.

A cell is one problem (operator, layout, dtype and batch size included) on a number of threads.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peaks import available_cores

from cyconv import ConvProblem

SHAPES = Path(__file__).with_name("shapes") / "layers.txt"
OPERATORS = {"fwd": "forward", "dx": "data_backward", "dw": "weight_backward"}
LAYOUTS = ("nchw", "nhwc")
ITEMSIZE = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
DTYPES = tuple(ITEMSIZE)
# The rows that are measured in float64 too unless types are asked for: one of each kind.
DOUBLE = (
    "resnet50.conv1",
    "resnet50.2_3x3",
    "resnet50.4_1x1",
    "mobilenetv2.dw14",
    "resnext50.g32",
    "filter.5x5",
    "unet3d.1",
    "wavenet.d64",
    "tiny.8x8",
)


@dataclass(frozen=True)
class Cell:
    """One problem of the shapes file, on a number of threads."""

    name: str
    problem: ConvProblem
    threads: int

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays: what has to move however the result is computed."""
        return sum(self.problem.elements.values()) * ITEMSIZE[self.problem.dtype]

    def description(self) -> dict:
        """Describe the problem in plain lists and numbers, for a worker without cyconv."""
        p = self.problem
        return {
            "operator": p.op,
            "dtype": p.dtype,
            "layout": p.layout,
            "batch": p.batch,
            "c_in": p.c_in,
            "c_out": p.c_out,
            "groups": p.groups,
            "in_size": list(p.in_size),
            "out_size": list(p.out_size),
            "kernel": list(p.kernel),
            "stride": list(p.stride),
            "padding": [list(pair) for pair in p.padding],
            "dilation": list(p.dilation),
        }


def read_shapes(path: Path = SHAPES) -> dict[str, str]:
    """Read the names and size tokens of a shapes file, in its order.

    Raises
    ------
    ValueError
        A line without tokens, or a name that comes twice.
    """
    shapes: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, tokens = words[0], words[1:]
        if not tokens or name in shapes:
            raise ValueError(f"{path}:{number}: {'no sizes' if not tokens else 'name repeated'}")
        shapes[name] = " ".join(tokens)
    return shapes


def select_cells(
    shapes: dict[str, str],
    *,
    layers: str = "",
    operators: Iterable[str] = tuple(OPERATORS),
    layouts: Iterable[str] = LAYOUTS,
    dtypes: Iterable[str] = ("f32",),
    batches: Iterable[int] = (1,),
    threads: Iterable[int] = (1,),
) -> Iterator[Cell]:
    """Yield every combination asked for, the settings that change least often outermost."""
    wanted = re.compile(layers)
    for n_threads in threads:
        for dtype in dtypes:
            for batch in batches:
                for name, tokens in shapes.items():
                    if not wanted.search(name):
                        continue
                    sizes = re.sub(r"\bn\d+\b", f"n{batch}", tokens, count=1)
                    for operator in operators:
                        for layout in layouts:
                            problem = ConvProblem.parse(f"{operator} {dtype} {layout} {sizes}")
                            yield Cell(name, problem, n_threads)


def add_cell_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose cells; `chosen_cells` reads them."""
    add = parser.add_argument
    add("--shapes", type=Path, default=SHAPES, help="file of problems")
    add("--layers", default="", metavar="REGEX", help="only names in which this is found")
    add("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    add("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    add(
        "--dtype", nargs="+", choices=DTYPES, help="(default f32, and f64 of some rows; quick: f32)"
    )
    add("--batch", nargs="+", type=int, help="batch sizes (default 1 8; quick: 1)")
    add("--threads", nargs="+", help="numbers, or all (default 1 all; quick: 1)")
    add("--quick", action="store_true", help="float32, batch 1, one thread, short rounds")


def chosen_cells(options: argparse.Namespace) -> list[Cell]:
    """List the cells that the options of `add_cell_arguments` ask for."""
    words = options.threads or (["1"] if options.quick else ["1", "all"])
    counts = dict.fromkeys(available_cores() if word == "all" else int(word) for word in words)
    cells = select_cells(
        read_shapes(options.shapes),
        layers=options.layers,
        operators=options.operators,
        layouts=options.layouts,
        dtypes=options.dtype or (["f32"] if options.quick else ["f32", "f64"]),
        batches=options.batch or ([1] if options.quick else [1, 8]),
        threads=counts,
    )
    return [
        cell
        for cell in cells
        if options.dtype or cell.problem.dtype != "f64" or cell.name in DOUBLE
    ]
