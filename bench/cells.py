"""The cells of a benchmark: which problems are run, read from a shapes file and the command line.

A cell is one problem (operator, layout, dtype and batch size included) on a number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cyconv import ConvProblem

SHAPES = Path(__file__).with_name("shapes") / "layers.txt"
OPERATORS = {"fwd": "forward", "dx": "data_backward", "dw": "weight_backward"}
LAYOUTS = ("nchw", "nhwc")
DTYPES = ("f32", "f64", "f16", "bf16")


@dataclass(frozen=True)
class Cell:
    """One problem of the shapes file, on a number of threads."""

    name: str
    problem: ConvProblem
    threads: int

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
