from ..operands import Array

def forward(
    x: Array,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    pad: tuple[int, ...],
    lowest: float,
    y: Array,
    place: Array,
    threads: int,
) -> None: ...
def scatter(dy: Array, place: Array, dx: Array, threads: int) -> None: ...
