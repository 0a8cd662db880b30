"""Interfaces of arrays, namespaces and adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

# The standard publishes no type for arrays or namespaces; these names say what is meant.
Array: TypeAlias = Any
Namespace: TypeAlias = Any


class Differentiation(Protocol):
    """The required part of an adapter: a name and the ways to differentiate."""

    name: str

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` as a constant."""

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        """Return the function of value and gradient; the conventions are those of ``jax.value_and_grad``."""

    def custom_vjp(
        self,
        forward: Callable[..., tuple[Array, ...]],
        backward: Callable[..., Sequence[Array]],
        *,
        exact: bool = True,
    ) -> Callable[..., tuple[Array, ...]]:
        """Bind a closed-form gradient.

        ``forward(static, *arrays)`` returns a tuple of arrays; ``backward(static, arrays, outputs, cotangents)``
        returns the cotangents of the first arrays (those left out at the end have none). `static` is hashable. Both
        are array-API code, so that the backward pass can be differentiated again. `exact`: the gradient is that of
        `forward`, which an adapter may differentiate itself instead. An adapter that compiles keeps what it has
        compiled of a function.
        """

    def value_and_vjp(self, function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, Array]]:
        """Bind a function whose forward pass also computes the gradient.

        ``function(static, *arrays, need_grad=...)`` returns ``(value, constant, *gradients)``: an array of one entry,
        one that is constant to differentiation, and, if `need_grad`, the gradients of the value with respect to the
        first arrays (those left out at the end have none). It may be a tuple of flags, one for each array, some True:
        then gradients of others may be None. The result, ``bound(static, *arrays)``, is the pair of value and constant.
        `static` is hashable. The function is array-API code, and its gradients are differentiated as they stand for
        derivatives of higher order.
        """


@runtime_checkable
class Adapter(Differentiation, Protocol):
    """The interface of an array library: differentiation, values, kernels, processes, and facts for the listing.

    See Also
    --------
    register_backend : Registers an adapter for the arrays of a module, which may leave out all but a name,
        `stop_gradient`, `value_and_grad`, `custom_vjp` and `value_and_vjp`.
    """

    version: str

    @property
    def devices(self) -> Sequence[str]:
        """Names of the devices that arrays can live on, the default first."""

    @property
    def dtypes(self) -> Sequence[str]:
        """Names of the real floating-point dtypes that the losses accept."""

    # Values: what is known of the numbers in an array when a loss is called.

    @property
    def mode(self) -> str:
        """The way in which blocks are visited at present.

        - ``"eager"``: one by one; the number of each block is a Python number.
        - ``"traced"``: a step is traced once for all blocks; their numbers are arrays.
        - ``"whole"``: all at once; the program is exported, and lengths may be symbols.
        - ``"compiled"``: a compiler traces the program, one block after another, for lengths that may be symbols.
        """

    @property
    def reads_values(self) -> bool:
        """Whether it costs nothing to look at a number in an array on the processor, where the mode is ``"eager"``."""

    def is_plain(self, arrays: tuple[Array, ...]) -> bool:
        """Return whether array operations on these are known to be neither recorded nor transformed."""

    def check(self, x: Array) -> None:
        """Raise a TypeError that says why, if `x` is of a kind that cannot be computed with."""

    def needs_gradient(self, x: Array) -> bool:
        """Return whether a derivative with respect to something passes through `x`, where that can be told."""

    def concrete_value(self, x: Array) -> float | None:
        """Return the number in an array of one entry; None if it is traced, or on another device than the CPU."""

    def concrete_values(self, x: Array) -> Sequence[float] | None:
        """Return the numbers in a 1-D array likewise."""

    # Kernels: operations that libraries compute in different ways.

    def full_precision(self, x: Array) -> AbstractContextManager[Any]:
        """Return a context in which products of arrays like `x` are not rounded to fewer bits than they have."""

    def loss_dtype(self, x: Array, dtype: Any) -> Any:
        """Return the dtype of a loss of 16-bit arrays like `x`: `dtype`, or what a context such as autocast asks."""

    def exp_in_place(self, x: Array, *, bounded: bool) -> Array:
        """Return the exponential of `x`, which may be overwritten; `bounded`: nearly all entries lie in [-30, 30].

        Of others, subnormal results may be 0: processors compute with them a hundred times more slowly.
        """

    def sum_along(self, x: Array, axis: int) -> Array:
        """Return the sums of a matrix along its axis 0 or 1, in the fastest way that is as exact as any."""

    def row_dots(self, x: Array, y: Array) -> Array:
        """Return the inner products of the rows of two arrays of one shape, without a warning of an overflow."""

    def fill_diagonal(self, x: Array, row: int, column: int, count: int, value: float | Array) -> Array:
        """Return a matrix with `value` at (row, column), (row + 1, column + 1), and so on; `x` may be overwritten.

        The value is a number, or an array of one number for each row of the matrix.
        """

    def fill_columns(self, x: Array, columns: Array, value: float | Array) -> Array:
        """Return a matrix with `value` in one column of each row; `x` may be overwritten.

        Rows whose column the matrix does not have stay. The value is a number, or an array of one for each row.
        """

    def has_half_products(self, x: Array) -> bool:
        """Return whether the library may have, for arrays like `x`, faster products of 16 bits than of 32."""

    def half_product(self, x: Array, y: Array) -> Array:
        """Return the product of two matrices of 16 bits, added up and returned in float32."""

    def by_halves(
        self,
        of_halves: Callable[..., Any],
        plainly: Callable[..., Any],
        *arrays: Array,
        pulls: Mapping[int, Callable[..., Array]] | None = None,
    ) -> Any:
        """Return ``of_halves(*arrays)`` where products of 16 bits are faster, and otherwise ``plainly(*arrays)``.

        The derivatives of both are those of the latter. It may be linear in each array of some places, given those
        of the others: ``pulls[k](cotangent, *arrays)`` is then the cotangent of the array at place k, also computed by
        halves, for libraries that differentiate the loss themselves.
        """

    def scan(
        self,
        step: Callable[[tuple[Array, ...], tuple[Array, ...], Any], tuple[tuple[Array, ...], tuple[Array, ...]]],
        init: tuple[Array, ...],
        xs: tuple[Array, ...],
        block: int | Sequence[tuple[int, int]],
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Fold ``step(carry, blocks, start)`` over blocks of the leading axis of `xs`; the last may be shorter.

        `start` is the number of a block's first row: a Python number where the mode is not ``"traced"``. Where it is
        ``"eager"``, the bounds of all blocks may be given instead of their length. Return the last carry, and the
        concatenated outputs of the steps.
        """

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of nested containers of arrays and numbers, compiled if the library is slow without."""

    # Processes: losses of a batch on several ranks.

    def communicator(self, group: Any) -> Any:
        """Return the `Communicator` of a group of the library's own processes, or None if this is none."""

    def linear_map(self, linear: Any, x: Array) -> Array:
        """Return ``linear(x)`` for a linear map between processes.

        Tangents go through ``linear.derivative()``, and cotangents back through ``linear.transposed()``.
        """
