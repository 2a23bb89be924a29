from ..problem import ConvProblem

class Geometry:
    double_precision: bool
    by_image: bool
    prepared: bool
    def __init__(
        self,
        problem: ConvProblem,
        x_strides: tuple[int, ...],
        w_strides: tuple[int, ...],
        y_strides: tuple[int, ...],
        merge_batch: bool = True,
        prepared: bool = False,
    ) -> None: ...
