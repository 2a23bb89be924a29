from typing import Any

from ..settings import Config

def signature(
    kind: str,
    rank: int | None,
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    extra: tuple[Any, ...],
    raw: tuple[Any, ...],
    settings: Config,
) -> tuple[Any, ...] | None: ...
