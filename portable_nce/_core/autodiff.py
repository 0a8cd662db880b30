"""Differentiation on every backend, with JAX's conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Literal, Protocol, TypeVar, overload

from .checks import as_integer, cast_hint, check_bool, check_callable, is_floating
from .equality import EqualByContents
from .namespace import is_array, namespace_of
from .registry import adapter_of
from .types import ArrayOf, ArrayT, Parameters, Result

First = TypeVar("First")
First_contra = TypeVar("First_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class _FunctionOf(Protocol[First_contra, Parameters, Result_co]):
    """A function of an argument of any type, and of further ones.

    Not a `Callable`: a lambda fits two overloads below. Where their results differ in kind, mypy takes it for Any.
    """

    def __call__(self, first: First_contra, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result_co: ...


def stop_gradient(x: ArrayOf[ArrayT], /) -> ArrayT:
    """Return an array with the same values that is constant to differentiation.

    Parameters
    ----------
    x : array
        Array of any library.

    Returns
    -------
    array
        The same values, without a derivative.

    Raises
    ------
    TypeError
        If no backend is registered for the array's library.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> pnce.grad(lambda x: (x * pnce.stop_gradient(x)).sum())(np.asarray([2.0, 3.0]))
    array([2., 3.])
    """
    return adapter_of(x).stop_gradient(x)


def no_gradient(static: object, arrays: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> tuple[()]:
    """Backward pass of a function of constants. `Adapter.custom_vjp` needs one to compile the function."""
    del static, arrays, outputs, cotangents
    return ()


@overload
def value_and_grad(
    fn: Callable[Concatenate[ArrayOf[ArrayT], Parameters], Result], argnums: Literal[0] = 0, has_aux: bool = False
) -> Callable[Concatenate[ArrayOf[ArrayT], Parameters], tuple[Result, ArrayT]]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[First, Parameters], Result], argnums: Literal[0] = 0, has_aux: bool = False
) -> _FunctionOf[First, Parameters, tuple[Result, First]]: ...
@overload
def value_and_grad(
    fn: Callable[Parameters, Result], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[Parameters, tuple[Result, Any]]: ...
def value_and_grad(
    fn: Callable[Parameters, Result], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[Parameters, tuple[Result, Any]]:
    """Return a function that computes the value of `fn` and its gradient, on any backend.

    NumPy, CuPy and other libraries without autodiff are differentiated by a reverse-mode tape over the array API;
    PyTorch, JAX and MLX by their own transformations, with which the result composes.

    Parameters
    ----------
    fn : callable
        Function of arrays that returns a real 0-d array, or with `has_aux` a pair of that and any object. It may use
        the namespace of its arguments (``xp = x.__array_namespace__()`` or array-api-compat's), operators and
        indexing; on NumPy and CuPy also functions such as ``np.tanh``.
    argnums : int or sequence of int, default: 0
        Which positional arguments to differentiate. Each may be an array or a nested tuple, list or dict of arrays.
        Types of containers and the order of keys stay (JAX sorts the keys of a dict).
    has_aux : bool, default: False
        Whether `fn` returns ``(value, aux)``.

    Returns
    -------
    callable
        Takes the arguments of `fn` and returns ``(value, gradient)``, or ``((value, aux), gradient)``. The gradient
        has the structure of the argument; it is a tuple of gradients if `argnums` is a sequence.

    Raises
    ------
    TypeError
        When called: if a differentiated argument is not made of real floating-point arrays, `fn` does not return a 0-d
        array, or no backend is registered for the arrays' library.
    ValueError
        When called: if `argnums` refers to a missing argument.

    Notes
    -----
    Derivatives of any order: `fn` may itself call `grad`.

    Without autodiff of the library, arrays in the other arguments are recorded as constants, in copies of their
    containers; other objects are passed as they are.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> def energy(w, x):
    ...     return np.sum(np.tanh(x @ w) ** 2)
    >>> value, gradient = pnce.value_and_grad(energy)(np.asarray([0.5, -1.0]), np.asarray([[1.0, 0.0], [0.0, 1.0]]))
    >>> value
    array(0.79357...)
    >>> gradient
    array([ 0.72686..., -0.63970...])
    """
    return _ValueAndGrad(fn, argnums, has_aux)


def grad(
    fn: Callable[Parameters, object], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[Parameters, Any]:
    """Return a function that computes the gradient of `fn`, on any backend.

    Parameters
    ----------
    fn : callable
        As in `value_and_grad`.
    argnums : int or sequence of int, default: 0
        As in `value_and_grad`.
    has_aux : bool, default: False
        Whether `fn` returns ``(value, aux)``.

    Returns
    -------
    callable
        Takes the arguments of `fn` and returns the gradient, or ``(gradient, aux)``.

    Raises
    ------
    TypeError
        As in `value_and_grad`.
    ValueError
        As in `value_and_grad`.

    See Also
    --------
    value_and_grad : The value as well.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> scores = np.asarray([[2.0, 0.0], [0.0, 2.0]])
    >>> pnce.grad(pnce.from_scores.info_nce)(scores).round(3)
    array([[-0.06,  0.06],
           [ 0.06, -0.06]])
    """
    return _Grad(fn, argnums, has_aux)


class _Scalar(EqualByContents):
    """A function that checks that its value is a 0-d array, or with `has_aux` a pair of that and any object."""

    def __init__(self, fn: Callable[..., Any], has_aux: bool) -> None:
        update_wrapper(self, fn)
        self.fn = fn
        self.has_aux = has_aux

    def _contents(self) -> tuple[Any, ...]:
        return (self.fn, self.has_aux)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self.fn(*arguments, **options)
        if self.has_aux and not (isinstance(result, tuple) and len(result) == 2):  # noqa: PLR2004  (a pair)
            raise TypeError(
                f"value_and_grad: with has_aux=True, expected the function to return a pair, got "
                f"{type(result).__name__}"
            )
        value: Any = result[0] if self.has_aux else result
        if not is_array(value) or tuple(value.shape) != ():
            got = f"an array of shape {tuple(value.shape)}" if is_array(value) else type(value).__name__
            raise TypeError(
                f"value_and_grad: expected the function to return a 0-d array, got {got}; reduce it with sum"
            )
        if not namespace_of(value).isdtype(value.dtype, "real floating"):
            raise TypeError(
                f"value_and_grad: expected the function to return a floating-point number, got {value.dtype}"
            )
        return result


class _ValueAndGrad(EqualByContents):
    """Result of `value_and_grad`: a function that can be pickled if `fn` can."""

    def __init__(self, fn: Callable[..., Any], argnums: Any, has_aux: bool) -> None:
        check_callable("fn", fn)
        check_bool("has_aux", has_aux)
        update_wrapper(self, fn)
        self.fn = fn
        self.argnums = argnums
        self.has_aux = has_aux
        self.chosen, self.is_single = _chosen(argnums), as_integer(argnums) is not None
        self.checked = _Scalar(fn, has_aux)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fn, self.argnums, self.has_aux)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # as functions in a class

    def __repr__(self) -> str:
        return f"<gradient of {self.fn!r}>"

    def _contents(self) -> tuple[Any, ...]:
        return (self.fn, self.chosen, self.is_single, self.has_aux)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        positions = _positions(self.chosen, len(arguments))
        leaves = [leaf for position in positions for leaf in _array_leaves(arguments[position])]
        for leaf in leaves:
            _check_leaf(leaf)
        if not leaves:
            raise TypeError("value_and_grad: expected arrays in the differentiated arguments, got none")
        transformed = adapter_of(leaves[0]).value_and_grad(
            self.checked, positions[0] if self.is_single else positions, has_aux=self.has_aux
        )
        return transformed(*arguments, **options)


class _Grad(_ValueAndGrad):
    """Result of `grad`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        value, gradient = super().__call__(*arguments, **options)
        return (gradient, value[1]) if self.has_aux else gradient


def _chosen(argnums: Any) -> tuple[int, ...]:
    chosen = tuple(argnums) if isinstance(argnums, (tuple, list, range)) else (argnums,)
    integers = [as_integer(position) for position in chosen]
    if not chosen or any(position is None for position in integers):
        raise TypeError(f"argnums: expected an integer or a sequence of integers, got {argnums!r}")
    return tuple(position for position in integers if position is not None)


def _positions(chosen: tuple[int, ...], count: int) -> tuple[int, ...]:
    for position in chosen:
        if not -count <= position < count:
            raise ValueError(f"argnums={position}: expected the position of an argument, got a call with {count}")
    positions = tuple([position % count for position in chosen])
    if len(set(positions)) < len(positions):
        raise ValueError(f"argnums: expected different positions, got {chosen} of {count} arguments")
    return positions


def _array_leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _array_leaves(item)
    elif tree is not None:
        yield tree


def _check_leaf(leaf: Any) -> None:
    if not is_array(leaf):
        raise TypeError(
            f"value_and_grad: expected arrays in the differentiated arguments, got {type(leaf).__name__}; convert it "
            f"with asarray"
        )
    adapter_of(leaf)  # raises for an unknown library
    if not is_floating(namespace_of(leaf), leaf.dtype):
        raise TypeError(
            f"value_and_grad: expected real floating-point arrays in the differentiated arguments, got dtype "
            f"{leaf.dtype}; convert it with {cast_hint(leaf)} or leave it out of argnums"
        )
