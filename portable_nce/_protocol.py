"""What the core knows of an array, a namespace and an adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

__all__ = ["Adapter", "Array", "Namespace"]

# The standard publishes no type for arrays or namespaces; these names say what is meant.
Array: TypeAlias = Any
Namespace: TypeAlias = Any


@runtime_checkable
class Adapter(Protocol):
    """What an array library must bring: a way to differentiate, and facts for the listing.

    See Also
    --------
    register_backend : Registers an adapter for the arrays of a module.
    """

    name: str
    version: str

    @property
    def devices(self) -> Sequence[str]:
        """Names of the devices that arrays can live on, the default first."""
        ...

    @property
    def dtypes(self) -> Sequence[str]:
        """Names of the real floating-point dtypes that the losses accept."""
        ...

    def stop_gradient(self, x: Array) -> Array:
        """Return `x` as a constant."""
        ...

    def value_and_grad(
        self, fn: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
    ) -> Callable[..., Any]:
        """Return the function of value and gradient; the conventions are those of ``jax.value_and_grad``."""
        ...

    def full_precision(self, x: Array) -> AbstractContextManager[Any]:
        """Return a context in which products of arrays like `x` are not rounded to fewer bits than they have."""
        ...

    def custom_vjp(
        self, forward: Callable[..., tuple[Array, ...]], backward: Callable[..., Sequence[Array]]
    ) -> Callable[..., tuple[Array, ...]]:
        """Bind a closed-form gradient.

        ``forward(static, *arrays)`` returns a tuple of arrays; ``backward(static, arrays, outputs, cotangents)``
        returns the cotangents of the first arrays (those left out at the end have none). `static` is hashable. Both
        are array-API code, so that the backward pass can be differentiated again.
        """
        ...

    def scan(
        self,
        step: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[tuple[Array, ...], tuple[Array, ...]]],
        init: tuple[Array, ...],
        xs: tuple[Array, ...],
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Fold `step` over the leading axis of `xs`; return the last carry and the stacked outputs of the steps."""
        ...
