"""The strategies, in the order in which ``auto`` considers them; ``reference`` is always last."""

from .base import Algorithm
from .depthwise import Depthwise
from .direct import Direct
from .fft import Fft
from .im2col import Im2col
from .implicit_gemm import ImplicitGemm
from .pointwise import Pointwise
from .reference import Reference
from .winograd import Winograd

DIRECT = Direct()
CPU: tuple[Algorithm, ...] = (
    Pointwise(),
    Depthwise(),
    Winograd(),
    Fft(),
    ImplicitGemm(),
    Im2col(),
    DIRECT,
    Reference(),
)

__all__ = ["CPU", "DIRECT", "Algorithm"]
