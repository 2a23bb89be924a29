"""Whether operations are recorded: `no_grad` and its opposite."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Self

recording: ContextVar[bool] = ContextVar("cyconv.recording", default=True)


class no_grad(ContextDecorator):  # noqa: N801 - named as PyTorch names it
    """Context manager and decorator within which operations on tensors are not recorded.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> x = cyconv.Tensor(np.ones(3), requires_grad=True)
    >>> with cyconv.no_grad():
    ...     y = 2 * x
    >>> y.requires_grad
    False
    """

    _value = False

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> Self:
        self._tokens.append(recording.set(self._value))
        return self

    def __exit__(self, *exception: object) -> None:
        recording.reset(self._tokens.pop())

    def _recreate_cm(self) -> Self:
        """Let each call of a decorated function have its own, as threads may share the function."""
        return type(self)()


class record(no_grad):  # noqa: N801
    """The opposite of `no_grad`: a reverse pass that is itself to be differentiated."""

    _value = True
