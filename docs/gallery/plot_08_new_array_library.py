"""
A new array library
===================

The losses accept arrays of any library that follows the Python array API. This script defines such a library: NumPy
arrays in a box that records the size of the largest result. It shows that ``block_size`` limits memory.
"""

import operator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import portable_nce as pnce


def unboxed(x: Any) -> Any:
    """Return the NumPy arrays in boxes, also in tuples and lists."""
    if isinstance(x, Array):
        return x.data
    return type(x)(map(unboxed, x)) if isinstance(x, (tuple, list)) else x


def boxed(function: Any) -> Any:
    """Return a function from boxes to boxes."""

    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*map(unboxed, arguments), **{key: unboxed(value) for key, value in options.items()})
        return Array(result) if isinstance(result, (np.ndarray, np.generic)) else result

    return call


class Namespace:
    """Functions of the standard are boxed NumPy functions; dtypes and constants are NumPy's."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return boxed(found) if callable(found) and not isinstance(found, type) else found


class Array:
    """An array of the new library."""

    largest = 0  # elements
    device = "cpu"

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)
        Array.largest = max(Array.largest, self.data.size)

    def __array_namespace__(self, api_version: str | None = None) -> Namespace:
        return Namespace()


for name in ("shape", "dtype", "ndim", "size", "T", "mT"):
    setattr(Array, name, property(boxed(operator.attrgetter(name))))
for kind in (bool, int, float):
    setattr(Array, f"__{kind.__name__}__", lambda self, kind=kind: kind(self.data))
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
for name in (*BINARY, "lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert", "index", "getitem", "setitem"):
    setattr(Array, f"__{name}__", boxed(getattr(operator, f"__{name}__")))
for name in BINARY:
    setattr(Array, f"__r{name}__", boxed(getattr(np.ndarray, f"__r{name}__")))

# %%
# One line registers the module in which the array type is defined. Gradients come from the tape of this package
# (:doc:`../tape`). :doc:`../conformance` explains adapters, and the conformance suite for your own library.

pnce.register_backend(__name__)

value_and_gradients: Any = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))
x, y = np.random.default_rng(0).normal(size=(2, 2048, 16))
loss, (gradient, _) = value_and_gradients(Array(x), Array(y))
expected_loss, (expected, _) = value_and_gradients(x, y)
print(f"{type(loss).__name__} {float(loss):.6f}, NumPy {expected_loss:.6f}")

assert np.allclose(gradient.data, expected, rtol=1e-10, atol=1e-14)

# %%
# Memory
# ------
#
# The largest array of one loss with gradients. With ``block_size=None`` it is the whole score matrix.

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
sizes = (64, 128, 256, 512, 1024, 2048)
for block_size, style in ((None, "o-"), ("auto", "^-"), (64, "s-")):
    largest = []
    for n in sizes:
        Array.largest = 0
        value_and_gradients(Array(x[:n]), Array(y[:n]), block_size=block_size)
        largest.append(Array.largest)
    axes.loglog(sizes, largest, style, label=f"block_size={block_size!r}")
    print(f"block_size={block_size!r}: {largest[-1]} elements of {sizes[-1] ** 2}")
axes.set(xlabel="batch size", ylabel="elements of the largest array")
axes.legend(frameon=False)
plt.show()
