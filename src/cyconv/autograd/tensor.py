"""`Tensor`: an array that remembers how it was computed, with the arithmetic of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import convolution
from .arithmetic import (
    add,
    astype,
    divide,
    getitem,
    matmul,
    mean,
    multiply,
    negative,
    power,
    reshape,
    subtract,
    total,
    transpose,
)
from .reverse import backward
from .tape import Variable


class Tensor(Variable):
    """An array that remembers how it was computed, so that it can be differentiated.

    Arithmetic (``+ - * / ** @``), indexing and the methods below work as those of arrays; arrays
    and numbers beside a tensor are constants. The functions of `cyconv` take tensors as well.

    Parameters
    ----------
    array : array_like
        Kept by reference, not copied.
    requires_grad : bool
        Whether to record what is computed from this tensor.

    Attributes
    ----------
    data : numpy.ndarray
    grad : Tensor or None
        What `backward` has added up.
    node : Node or None
        The operation that made this tensor; ``print(y.node)`` shows the graph.

    Notes
    -----
    A graph keeps arrays by reference. If an array is written to between an operation and
    `backward`, gradients are computed from the new values; `assign`, which optimisers use, makes
    `backward` raise instead.

    Examples
    --------
    >>> import numpy as np, cyconv
    >>> x = cyconv.Tensor(np.ones((1, 1, 4, 4)))
    >>> w = cyconv.Tensor(np.ones((1, 1, 3, 3)), requires_grad=True)
    >>> loss = (cyconv.conv2d(x, w) ** 2).mean()
    >>> loss.backward()
    >>> float(loss), w.grad.numpy()[0, 0, 0]
    (81.0, array([18., 18., 18.]))
    """

    __slots__ = ()

    # NumPy's own operators leave ``array + tensor`` to the tensor.
    __array_ufunc__ = None

    __cyconv_call__ = staticmethod(convolution.call)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Let NumPy see the values, unless that would lose track of a gradient."""
        if self.requires_grad:
            raise TypeError(
                "a tensor that requires a gradient is not turned into an array silently; "
                "use its numpy()"
            )
        return np.array(self.data, dtype=dtype, copy=copy)

    def backward(self, gradient: Any = None, create_graph: bool = False) -> None:
        """Add to the ``grad`` of every leaf the gradient of this tensor.

        Parameters
        ----------
        gradient : array_like or Tensor, optional
            Gradient with respect to this tensor, of its shape; by default one, for a single number.
        create_graph : bool
            Record the reverse pass, so that gradients can be differentiated again.

        Raises
        ------
        ValueError
            If no gradient is given for more than one number, or nothing requires one.
        ShapeError
            If `gradient` is of another shape.
        CyconvError
            If an array of the graph was changed by `assign` since.
        """
        backward(self, gradient, create_graph)

    def __add__(self, other: Any) -> Tensor:
        return add(self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: Any) -> Tensor:
        return add(other, self)  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Tensor:
        return subtract(self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Tensor:
        return subtract(other, self)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Tensor:
        return multiply(self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: Any) -> Tensor:
        return multiply(other, self)  # type: ignore[no-any-return]

    def __truediv__(self, other: Any) -> Tensor:
        return divide(self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: Any) -> Tensor:
        return divide(other, self)  # type: ignore[no-any-return]

    def __pow__(self, other: Any) -> Tensor:
        return power(self, other)  # type: ignore[no-any-return]

    def __rpow__(self, other: Any) -> Tensor:
        return power(other, self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Tensor:
        return matmul(self, other)  # type: ignore[no-any-return]

    def __rmatmul__(self, other: Any) -> Tensor:
        return matmul(other, self)  # type: ignore[no-any-return]

    def __neg__(self) -> Tensor:
        return negative(self)  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Tensor:
        return getitem(self, index=index)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __float__(self) -> float:
        return float(self.item())

    def item(self) -> Any:
        """Return the only element, as a Python number."""
        return self.data.item()

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Sum over axes, by default all."""
        return total(self, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Average over axes, by default all."""
        return mean(self, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same elements in another shape, given as numbers or as a tuple."""
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        return reshape(self, shape=shape)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> Tensor:
        """Permute the axes, given as numbers or as a tuple; by default reverse them."""
        if len(axes) == 1 and isinstance(axes[0], tuple | list):
            axes = tuple(axes[0])
        return transpose(self, axes=axes or tuple(reversed(range(self.ndim))))  # type: ignore[no-any-return]

    @property
    def T(self) -> Tensor:  # noqa: N802 - as NumPy names it
        """The axes reversed."""
        return self.transpose()

    def astype(self, dtype: Any) -> Tensor:
        """Convert to another float dtype; the gradient comes back in this one."""
        return astype(self, dtype=dtype)  # type: ignore[no-any-return]


Tensor.result_class = Tensor
