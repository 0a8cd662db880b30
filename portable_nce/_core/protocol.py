"""Interfaces of arrays, namespaces and adapters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

# The standard publishes no types for arrays and namespaces.
Array: TypeAlias = Any
Namespace: TypeAlias = Any

Method = TypeVar("Method", bound=Callable[..., Any])


VARIES = 2
"""State of an array that needs a gradient: see `Adapter.observed`."""


class Kernel(NamedTuple):
    """Facts of a method of adapters.

    `overwrites`: positions of arrays whose memory it may use. `may_decline`: it may return None.
    """

    overwrites: tuple[int, ...] = ()
    may_decline: bool = False


KERNELS: dict[str, Kernel] = {}
"""The methods of adapters that `kernel` declares."""


def kernel(*overwrites: int, may_decline: bool = False) -> Callable[[Method], Method]:
    """Declare a method of adapters that programs replay: a function of arrays."""

    def declare(method: Method) -> Method:
        KERNELS[method.__name__] = Kernel(overwrites, may_decline)
        return method

    return declare


class Differentiation(Protocol):
    """Required part of an adapter: a name and differentiation."""

    name: str

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` as a constant."""
        ...

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        """Return the function of value and gradient, with the conventions of ``jax.value_and_grad``."""
        ...

    def custom_vjp(
        self,
        forward: Callable[..., tuple[Array, ...]],
        backward: Callable[..., Sequence[Array]],
        *,
        exact: bool = True,
        kept: int = 0,
    ) -> Callable[..., tuple[Array, ...]]:
        """Return a function with a closed-form gradient.

        ``forward(static, *arrays)`` returns a tuple of arrays; ``backward(static, arrays, outputs, cotangents)``
        returns the cotangents of the first arrays; the remaining arrays have none. `static` is hashable. Both are
        array-API code, so that the backward pass can be differentiated again. `exact`: `backward` is the derivative of
        `forward`, which an adapter may differentiate instead. An adapter may compile both, and keep the result.

        `kept`: how many last arrays of `forward` are kept for `backward` alone: the returned function does not return
        them. `outputs` may lack them, as in a backward pass that is differentiated: they are constants.
        """
        ...

    def value_and_vjp(self, function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, Array]]:
        """Return a differentiable function from one whose forward pass also computes the gradient.

        ``function(static, *arrays, need_grad=...)`` returns ``(value, constant, *gradients)``: an array of one entry, a
        constant, and, if `need_grad`, the gradients of the value with respect to the first arrays; the remaining arrays
        have none. Or an array (N,) of values of which value i depends on row i of the arrays alone, and the gradients
        of their sum: row i of a gradient is that of value i.

        `need_grad` may also be a tuple of flags, one for each array, at least one True; gradients of other arrays may
        then be None. The returned function ``bound(static, *arrays)`` gives the pair of value and constant.
        `static` is hashable. The function is array-API code; its gradients are differentiated for higher derivatives.
        """
        ...


@runtime_checkable
class Adapter(Differentiation, Protocol):
    """Interface to an array library: differentiation, values, kernels, processes, and properties for the listing.

    See Also
    --------
    register_backend : Registers an adapter for the arrays of a module. All members have defaults but the name,
        `stop_gradient`, `value_and_grad`, `custom_vjp` and `value_and_vjp`.
    """

    version: str

    @property
    def devices(self) -> Sequence[str]:
        """Names of the devices that arrays can live on, the default first."""
        ...

    @property
    def dtypes(self) -> Sequence[str]:
        """Names of the real floating-point dtypes that the losses accept."""
        ...

    def replayed(
        self,
        forward: Callable[..., tuple[Array, ...]],
        backward: Callable[..., Sequence[Array | None]],
        *,
        kept: int,
    ) -> Callable[..., tuple[Array, ...]]:
        """Return ``custom_vjp(forward, backward, kept=kept)``, of arrays that `observed` has described."""
        ...

    def repeated(
        self, function: Callable[..., Any], options: dict[str, Any], values: Sequence[Any]
    ) -> tuple[Callable[..., Any], dict[str, Any], Sequence[Any]]:
        """Return the function, options and values by which a program computes ``function(*values, **options)``.

        The results have the same bits, for all arrays of these shapes and dtypes that nothing observes. Numbers among
        the values may become 0-d arrays: libraries convert Python numbers in each operation.
        """
        ...

    # Values: properties of the entries of an array when a loss is called.

    @property
    def mode(self) -> str:
        """Current way of visiting blocks.

        - ``"eager"``: one by one; block indices are Python integers.
        - ``"traced"``: one step is traced for all blocks; block indices are arrays.
        - ``"whole"``: all rows in one block; the program is exported, and lengths may be symbolic.
        - ``"compiled"``: a compiler traces all blocks; lengths may be symbolic.
        """
        ...

    @property
    def reads_values(self) -> bool:
        """Whether entries of arrays on the CPU can be read at no cost while the mode is ``"eager"``."""
        ...

    def is_plain(self, arrays: tuple[Array, ...]) -> bool:
        """Return whether operations on these arrays are known to be neither recorded nor transformed."""
        ...

    def observed(self, arrays: tuple[Array, ...]) -> tuple[Hashable, tuple[int, ...]] | None:
        """Return the kind of arrays of a call, and how each is observed; None if the call cannot be a program.

        The kind is all that operations depend on but entries: types, shapes, dtypes, devices, settings. An array is
        plain (0), a constant of the tape (1), or needs a gradient (2).
        """
        ...

    def entering(self, arrays: Sequence[Array], states: Sequence[int]) -> Sequence[Array]:
        """Return the arrays of a call that is no program, with those that need a gradient as results of an operation.

        Their cotangents in this call are added before they leave it, as those of a program are.
        """
        ...

    def leaving(self, result: Array, arrays: Sequence[Array]) -> Array:
        """Return a result of a call that is no program, whose backward pass holds the arrays of the call.

        An array that was written into before this pass is an error, as for a program.
        """
        ...

    def check(self, x: Array) -> None:
        """Raise a TypeError if `x` is an unsupported kind of array."""
        ...

    def needs_gradient(self, x: Array) -> bool:
        """Return whether `x` is known to depend on arrays that need a gradient."""
        ...

    def concrete_value(self, x: Array) -> float | None:
        """Return the entry of an array of one entry; None if it is traced, or not on the CPU."""
        ...

    def concrete_values(self, x: Array) -> Sequence[float] | None:
        """Return the entries of a 1-D array; None if it is traced, or not on the CPU."""
        ...

    # Kernels: operations with library-specific fast implementations.

    def full_precision(self, x: Array, *, high: bool = False) -> AbstractContextManager[Any]:
        """Return a context in which products of arrays like `x` have the full precision of their dtype.

        `high`: float32 products may be computed faster, with fewer digits, if the library offers that.
        """
        ...

    def loss_dtype(self, x: Array, dtype: Any) -> Any:
        """Return the dtype of a loss of 16-bit arrays like `x`: `dtype`, or the dtype of a context such as autocast."""
        ...

    @kernel(0)
    def exp_in_place(self, x: Array, *, bounded: bool) -> Array:
        """Return the exponential of `x`, which may be overwritten; `bounded`: nearly all entries lie in [-30, 30].

        Otherwise subnormal results may be 0: processors are a hundred times slower with them.
        """
        ...

    @kernel()
    def exp_bounded(self, x: Array) -> Array:
        """Return the exponential of `x`, of which nearly all entries lie in [-30, 30]."""
        ...

    @kernel()
    def extremes(self, x: Array) -> tuple[Array, Array]:
        """Return the smallest and the largest entry of an array with entries, NaN if it has one."""
        ...

    @kernel()
    def sum_along(self, x: Array, axis: int) -> Array:
        """Return the sums of a matrix along its axis 0 or 1, in the fastest way without loss of precision."""
        ...

    @kernel()
    def count_along(self, x: Array, axis: int, dtype: Any) -> Array:
        """Return the numbers of true entries of a boolean matrix along its axis 0 or 1, in a floating-point `dtype`."""

    @kernel(0, 1)
    def plus_product(self, x: Array, y: Array, z: Array) -> Array:
        """Return ``x + y * z``; `x` and `y` have one shape, and may be overwritten unless `y` is boolean."""

    @kernel(0)
    def times_in_place(self, x: Array, y: Array | float) -> Array:
        """Return ``x * y``, which has the shape of `x`; `x` may be overwritten, also if `y` is `x`."""
        ...

    @kernel(0)
    def times_sum(self, x: Array, y: Array, z: Array) -> Array:
        """Return ``x * (y + z)`` of a matrix (n, k), an array (n, 1) and an array (1, k); `x` may be overwritten."""
        ...

    @kernel(1)
    def where_in_place(self, condition: Array, x: Array, value: float) -> Array:
        """Return `x` where a boolean array of its shape is true, and a number elsewhere; `x` may be overwritten."""

    def computed_once(self, *arrays: Array) -> tuple[Array, ...]:
        """Return arrays that several operations read, which a compiler shall not compute again for each of them."""
        ...

    def rounded(self, x: Array) -> Array:
        """Return `x` as it would be read from memory.

        A compiler that computes a product ``c d`` again where it is used contracts ``c d - top`` into one operation
        without the rounding of ``c d``: of the largest of many scores of 10^10, minus that largest, hundreds are left
        in place of 0, and an exponential of it overflows.
        """
        ...

    @kernel()
    def turned(self, x: Array) -> Array:
        """Return the transpose of a matrix, in the memory order of a matrix that is none."""
        ...

    @kernel()
    def row_dots(self, x: Array, y: Array) -> Array:
        """Return the inner products of the rows of two arrays of equal shape, without overflow warnings."""
        ...

    @kernel(0)
    def fill_diagonal(self, x: Array, row: int, column: int, count: int, value: float | Array) -> Array:
        """Return a matrix with `value` at `count` entries from (row, column) along a diagonal; `x` may be overwritten.

        The value is a number, or an array with one entry per row of the matrix.
        """
        ...

    @kernel(0)
    def fill_columns(self, x: Array, columns: Array, value: float | Array, *, inside: bool = False) -> Array:
        """Return a matrix with `value` in one column of each row; `x` may be overwritten.

        Rows whose column is out of range are unchanged; `inside`: there are none. The value is a number, or an array
        with one entry per row.
        """
        ...

    @kernel()
    def entries_at(self, x: Array, columns: Array) -> Array:
        """Return the entries of each row of a matrix (n, K) in the `columns` (n, M), from 0 to K - 1."""
        ...

    @kernel(0)
    def add_rows(self, x: Array, numbers: Array, rows: Array) -> Array:
        """Return a matrix with each of the `rows` (n, D) added to the row with its number; `x` may be overwritten.

        The numbers (n,) are from 0 to the number of rows of `x` - 1, and may repeat.
        """
        ...

    @kernel(0)
    def add_columns(self, x: Array, columns: Array, values: Array) -> Array:
        """Return a matrix (n, K) with `values` (n, M) added in the `columns` (n, M) of their rows.

        The columns are from 0 to K - 1, and may repeat; `x` may be overwritten.
        """
        ...

    @kernel()
    def order_of_rows(self, x: Array) -> Array:
        """Return the columns of the entries of each row in ascending order, equal entries in the order of columns.

        `x` is constant; the place of NaN is arbitrary.
        """
        ...

    @kernel(may_decline=True)
    def highest_of_rows(self, x: Array, count: int) -> Array | None:
        """Return the columns of the `count` largest entries of each row, descending, equal ones in order of columns.

        `x` is constant; NaN counts as infinity. None for the core's passes, one for each of the `count`.
        """
        ...

    def has_half_products(self, x: Array) -> bool:
        """Return whether 16-bit products may be faster than float32 products for arrays like `x`."""
        ...

    @kernel()
    def half_product(self, x: Array, y: Array) -> Array:
        """Return the product of two 16-bit matrices, accumulated and returned in float32."""
        ...

    @kernel()
    def rounded_product(self, x: Array, y: Array, dtype: Any) -> Array:
        """Return the product of two arrays that broadcast to the shape of the first, rounded to a 16-bit `dtype`."""
        ...

    @kernel(may_decline=True)
    def clipped(self, x: Array, low: float, high: float) -> Array | None:
        """Return `x` limited to a range, NaN staying NaN; None for the core's formula."""
        ...

    @kernel(may_decline=True)
    def softplus_and_sigmoid(
        self, x: Array, *, bounded: bool, need_value: bool = True, need_slope: bool = True
    ) -> tuple[Array, Array] | None:
        """Return ``log(1 + exp(x))`` and its derivative with small relative errors; None for the core's formula.

        `bounded`: no exponential overflows. What is not needed is ignored.
        """
        ...

    @kernel(may_decline=True)
    def softmax(self, x: Array) -> tuple[Array, Array, Array, Array] | None:
        """Return of each row of a matrix the largest entry m, the sum of ``exp(x - m)``, and two factors of these.

        ``exp(x - m)`` is the first factor, a matrix such as the softmax, times the second, a number for each row. None
        for the core's formula, also if m of a row is infinite.
        """
        ...

    @kernel(may_decline=True)
    def unit_rows(self, x: Array) -> tuple[Array, Array] | None:
        """Return unit rows of any finite rows, and lengths, infinite for rows of zeros; None for the core's formula."""
        ...

    def by_halves(
        self,
        of_halves: Callable[..., Any],
        plainly: Callable[..., Any],
        *arrays: Array,
        pulls: Mapping[int, Callable[..., Array]] | None = None,
    ) -> Any:
        """Return ``of_halves(*arrays)`` if 16-bit products are faster, else ``plainly(*arrays)``.

        Derivatives of both are those of `plainly`. If it is linear in array k, ``pulls[k](cotangent, *arrays)`` may
        give the cotangent of that array by 16-bit products, for libraries that differentiate the loss themselves.
        """
        ...

    def memory(self, x: Array) -> int | None:
        """Return the bytes of memory of the accelerator that holds an array; None if they are not known."""
        ...

    def is_widened(self, x: Array) -> bool:
        """Return whether `in_wide` computes with more digits than arrays like `x` have."""
        ...

    def in_wide(
        self,
        function: Callable[..., Any],
        *arrays: Array,
        maps: Mapping[int, tuple[Callable[..., Array], Callable[..., Array]]] | None = None,
    ) -> Any:
        """Return ``function(*arrays)``, of float32 arrays computed in float64 and rounded, where float64 is fast.

        ``maps[k] = (forth, back)`` are the derivative along a tangent of array k, ``forth(tangent, *arrays)``, and its
        transpose, ``back(cotangent, *arrays)``, for libraries that cannot differentiate the change of dtype. The other
        arrays are constants.
        """
        ...

    def places(self, x: Array) -> tuple[Array, ...]:
        """Return an index per axis of the True entries of a boolean array, whose entries can be read."""
        ...

    def put_entries(self, x: Array, places: tuple[Array, ...], values: float | Array) -> Array:
        """Return an array with values at some places; `x` may be overwritten, and is neither recorded nor traced."""
        ...

    def scan(
        self,
        step: Callable[[tuple[Array, ...], tuple[Array, ...], Any], tuple[tuple[Array, ...], tuple[Array, ...]]],
        init: tuple[Array, ...],
        xs: tuple[Array, ...],
        block: int | Sequence[tuple[int, int]],
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Fold ``step(carry, blocks, start)`` over blocks of the leading axis of `xs`; the last may be shorter.

        `start` is the index of a block's first row: a Python integer unless the mode is ``"traced"``. If it is
        ``"eager"``, `block` may be the bounds of all blocks instead of their length. Return the last carry, and the
        concatenated outputs of the steps.
        """
        ...

    def branch(self, place: Array, functions: Sequence[Callable[..., Any]], *arrays: Array) -> Any:
        """Return the result of the function at a place, an integer array (), chosen in each run of a compiled program.

        Results of all functions have the same structure, shapes and dtypes. None where no compiled program branches.
        """
        ...

    def obstacle_to_fusing(self, x: Array) -> str | None:
        """Return why `fused` does not compile steps on arrays like `x`; None if each pass would go through memory."""
        ...

    def fused(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a pure function of nested tuples of arrays, numbers and None, compiled for any shapes and numbers."""
        ...

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of nested containers of arrays and numbers, compiled if that is faster."""
        ...

    # Processes: losses of a batch on several ranks.

    def communicator(self, group: Any) -> Any:
        """Return the `Communicator` of a process group of the library, or None if `group` is not one."""
        ...

    def linear_map(self, linear: Any, x: Array) -> Array:
        """Return ``linear(x)`` for a linear map between processes.

        Tangents are mapped by ``linear.derivative()``, cotangents by ``linear.transposed()``.
        """
        ...
