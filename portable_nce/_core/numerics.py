"""The numerics that every loss stands on: shifted exponential sums, softplus, safe normalisation, the 16-bit rule."""

from __future__ import annotations

import math
from typing import NamedTuple

from .autodiff import stop_gradient
from .checks import is_half
from .namespace import device_of, namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of

__all__ = [
    "ExpSum",
    "exp_sum",
    "exponentials_summed",
    "normalize",
    "relu",
    "relu_slope",
    "safe_sqrt",
    "sigmoid",
    "single_exp_sum",
    "softplus",
    "softplus_and_sigmoid",
    "sum_to_scalar",
    "upcast",
    "zeros",
]


def upcast(xp: Namespace, x: Array) -> Array:
    """`x` in the dtype to compute in: float32 for 16-bit floats, else its own."""
    return xp.astype(x, xp.float32) if x.dtype not in (xp.float32, xp.float64) and is_half(x.dtype) else x


def zeros(xp: Namespace, shape: tuple[int, ...], like: Array) -> Array:
    """Zeros of the dtype and device of `like`."""
    return xp.zeros(shape, dtype=like.dtype, device=device_of(like))


def sum_to_scalar(xp: Namespace, x: Array) -> Array:
    """The sum of all entries as an array of one entry; NumPy's sum without axes would be a scalar and no array."""
    return xp.sum(x if len(x.shape) == 1 else xp.reshape(x, (-1,)), axis=0, keepdims=True)


class ExpSum(NamedTuple):
    """``Σ exp(g)`` over a set, as ``exp(top) * total``.

    `top` is the largest score, a constant to differentiation; `total` is the sum of ``exp(g - top)``, with gradient.
    Where the set is empty, or its largest score infinite, `total` is 0 and `top` says which: -inf or +inf.
    """

    top: Array
    total: Array

    def log_total(self, xp: Namespace) -> Array:
        """The logarithm of `total`, 0 where it is 0."""
        return xp.log(xp.where(self.total == 0, xp.ones_like(self.total), self.total))  # NaN stays NaN


def single_exp_sum(xp: Namespace, score: Array, present: Array) -> ExpSum:
    """The exponential sum over the one member of each row, whose score it is; nothing where it is not present."""
    top = xp.where(present, stop_gradient(score), xp.full_like(score, -math.inf))
    infinite = xp.isinf(top)
    nothing = xp.zeros_like(score)
    difference = xp.where(infinite, nothing, score) - xp.where(infinite, nothing, top)
    return ExpSum(top, xp.where(infinite, nothing, xp.exp(difference)))


def exp_sum(xp: Namespace, scores: Array, members: Array) -> ExpSum:
    """The exponential sum of each row of `scores` over the entries that the boolean array `members` marks."""
    return exponentials_summed(xp, scores, members)[0]


def exponentials_summed(xp: Namespace, scores: Array, members: Array) -> tuple[ExpSum, Array]:
    """The same, and what it is the sum of: `shifted_exp`."""
    top = stop_gradient(xp.max(xp.where(members, scores, -math.inf), axis=1))
    found = shifted_exp(xp, scores, members, top)
    return ExpSum(top, xp.sum(found, axis=1)), found


def shifted_exp(xp: Namespace, scores: Array, members: Array, top: Array) -> Array:
    """``exp(g - top)`` at the members, 0 elsewhere and in rows whose `top` is infinite.

    What takes no part is -inf before the exponential, whose value and derivatives there are 0 whatever it held.
    """
    infinite = xp.isinf(top)
    shift = xp.expand_dims(xp.where(infinite, xp.zeros_like(top), top), axis=1)
    live = xp.logical_and(members, xp.expand_dims(xp.logical_not(infinite), axis=1))
    return xp.exp(xp.where(live, scores, -math.inf) - shift)


def softplus(xp: Namespace, t: Array) -> Array:
    """``log(1 + exp(t))``, with derivatives of every order that neither cancel nor overflow."""
    positive = t > 0
    return xp.where(positive, t, xp.zeros_like(t)) + xp.log1p(xp.exp(xp.where(positive, -t, t)))


def sigmoid(xp: Namespace, t: Array) -> Array:
    """``1 / (1 + exp(-t))``, relatively exact on both sides."""
    positive = t > 0
    small = xp.exp(xp.where(positive, -t, t))
    return xp.where(positive, xp.ones_like(t), small) / (1.0 + small)


def softplus_and_sigmoid(xp: Namespace, t: Array, *, small: bool = False) -> tuple[Array, Array]:
    """The softplus and its derivative, of one exponential; with `small`, those of all numbers are in range."""
    if small:
        odds = xp.exp(t)
        return xp.log1p(odds), odds / (odds + 1.0)
    positive = t > 0
    small = xp.exp(xp.where(positive, -t, t))
    value = xp.where(positive, t, xp.zeros_like(t)) + xp.log1p(small)
    return value, xp.where(positive, xp.ones_like(t), small) / (small + 1.0)


def relu(xp: Namespace, x: Array) -> Array:
    """``max(x, 0)``; NaN stays NaN."""
    return xp.where(x <= 0, xp.zeros_like(x), x)


def relu_slope(xp: Namespace, x: Array) -> Array:
    """The derivative of `relu`, 0 at 0; NaN stays NaN."""
    return xp.where(x > 0, xp.ones_like(x), relu(xp, x))


def safe_sqrt(xp: Namespace, x: Array) -> Array:
    """The square root, with derivative 0 at 0."""
    zero = x == 0
    return xp.where(zero, xp.zeros_like(x), xp.sqrt(xp.where(zero, xp.ones_like(x), x)))


def normalize(x: Array) -> Array:
    """Rows of unit length; a zero row stays zero, with gradient 0."""
    return adapter_of(x).custom_vjp(_unit_rows, _pull_unit_rows)(None, x)[0]


def _unit_rows(static: object, x: Array) -> tuple[Array, ...]:
    """The rows of unit length, the inverse length of rows divided by their largest entry, and that entry.

    Dividing by the largest entry first keeps the squares in range, whatever the magnitude of the row.
    """
    del static
    xp = namespace_of(x)
    largest = stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
    zero = largest == 0
    largest = xp.where(zero, 1.0, largest)
    scaled = x / largest
    length = xp.sqrt(xp.where(zero, math.inf, xp.sum(scaled * scaled, axis=-1, keepdims=True)))
    return scaled / length, 1.0 / length, largest


def _pull_unit_rows(
    static: object, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The adjoint of `_unit_rows`, to which the largest entry is a constant."""
    del static, arrays
    unit, inverse, largest = outputs
    to_unit, to_inverse, _ = cotangents
    xp = namespace_of(unit)
    along = xp.sum(to_unit * unit, axis=-1, keepdims=True) + inverse * to_inverse
    return ((to_unit - unit * along) * inverse / largest,)
