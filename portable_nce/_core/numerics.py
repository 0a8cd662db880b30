"""The numerics that every loss stands on: shifted exponential sums, softplus, safe normalisation, the 16-bit rule."""

from __future__ import annotations

import math

from .autodiff import stop_gradient
from .checks import entry_at_hand, is_half
from .namespace import device_of, is_being_compiled, namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of

__all__ = [
    "in_range",
    "itemsize",
    "largest_entry",
    "nan_of",
    "normalize",
    "normalize_both",
    "reciprocal",
    "relu",
    "relu_slope",
    "rows_where",
    "safe_sqrt",
    "sigmoid",
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


def nan_of(judge: Array, x: Array) -> Array:
    """The rows of `x`, NaN where those of `judge` hold NaN: its choice, of what to compare, would hide that."""
    xp = namespace_of(x)
    lost = stop_gradient(judge)
    lost = xp.any(namespace_of(lost).isnan(lost), axis=1, keepdims=True)
    return xp.where(lost, math.nan, x)


def reciprocal(x: Array) -> Array:
    """``1 / x``.

    Dynamo refuses a number on the left of ``/``, ``-`` and ``**`` where the tensor on the right is of a subclass of the
    caller's ("All __torch_function__ overrides returned NotImplemented"); hence also ``-x + 1.0`` for ``1.0 - x``.
    """
    return namespace_of(x).ones_like(x) / x if is_being_compiled(x) else 1.0 / x


def sum_to_scalar(xp: Namespace, x: Array) -> Array:
    """The sum of all entries as an array of one entry; NumPy's sum without axes would be a scalar and no array."""
    return xp.sum(x if len(x.shape) == 1 else xp.reshape(x, (-1,)), axis=0, keepdims=True)


def softplus(xp: Namespace, t: Array) -> Array:
    """``log(1 + exp(t))``, with derivatives of every order that neither cancel nor overflow."""
    positive = t > 0
    return xp.where(positive, t, xp.zeros_like(t)) + xp.log1p(xp.exp(xp.where(positive, -t, t)))


def sigmoid(xp: Namespace, t: Array) -> Array:
    """``1 / (1 + exp(-t))``, relatively exact on both sides."""
    positive = t > 0
    small = xp.exp(xp.where(positive, -t, t))
    return xp.where(positive, xp.ones_like(t), small) / (1.0 + small)


def softplus_and_sigmoid(xp: Namespace, t: Array, *, bounded: bool = False) -> tuple[Array, Array]:
    """The softplus and its derivative, of one exponential; with `bounded`, those of all numbers are in range."""
    if bounded:
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


def rows_where(xp: Namespace, live: Array, *arrays: Array) -> list[Array]:
    """Arrays (N, D), 0 in the rows that a boolean array (N,) does not mark: what takes no part may hold anything."""
    return [xp.where(live[:, None], x, xp.zeros_like(x)) for x in arrays]


def largest_entry(x: Array) -> float | None:
    """The largest magnitude of an array's entries, where it costs nothing to look at it."""
    return entry_at_hand(x, lambda xp, x: xp.max(xp.abs(x)))


_LARGEST_SQUARED = 1e9
"""Numbers up to here can be squared, and some squares added up, in any dtype that is computed in."""


def in_range(xp: Namespace, rows: Array, columns: Array) -> tuple[Array, Array, bool]:
    """Vectors whose inner products, and the sums of these along either side, are finite where the vectors are.

    The last of what is returned says whether their squares are known to be, too.

    An inner product that overflows could be the difference of two infinities. With the largest entries X and Y of
    either side, vectors whose largest entry exceeds ``X f`` or ``Y f`` are scaled down to that, with a constant factor,
    where ``f = sqrt(limit / (X Y)) < 1``; all others, and so almost always all, stay as they are.
    """
    known = (largest_entry(rows), largest_entry(columns))
    if all(x is not None and x <= _LARGEST_SQUARED for x in known):
        return rows, columns, True
    limit = float(xp.finfo(rows.dtype).max) / (16.0 * rows.shape[-1] * (rows.shape[-2] + columns.shape[-2]))
    if known[0] is not None and known[1] is not None and known[0] * known[1] <= limit:
        return rows, columns, False
    constants = [xp.abs(stop_gradient(x)) for x in (rows, columns)]
    constants = [xp.where(xp.isfinite(x), x, xp.zeros_like(x)) for x in constants]
    largest = [xp.max(xp.reshape(x, (-1,)), axis=0, keepdims=True) for x in constants]
    a, b = (xp.where(x == 0, xp.ones_like(x), x) for x in largest)
    larger, smaller = xp.where(a > b, a, b), xp.where(a > b, b, a)
    one = xp.ones_like(a)
    room = limit * one / xp.where(larger > 1, larger, one)  # below 1, both are, and so is their product
    long = room < smaller
    factor = xp.where(long, xp.sqrt(room / xp.where(long, smaller, one)), one)
    scaled = []
    for x, entries, most in zip((rows, columns), constants, (a, b), strict=True):
        entry = xp.max(entries, axis=-1, keepdims=True)
        long = entry > most * factor
        scaled.append(xp.where(long, x * (most * factor / xp.where(long, entry, xp.ones_like(entry))), x))
    return scaled[0], scaled[1], False


def itemsize(x: Array) -> int:
    """Bytes of a number in an array."""
    xp = namespace_of(x)
    if xp.isdtype(x.dtype, "real floating"):
        return int(xp.finfo(x.dtype).bits) // 8
    return (int(xp.iinfo(x.dtype).max).bit_length() + 7) // 8


def normalize(x: Array) -> Array:
    """Rows of unit length; a zero row stays zero, with gradient 0."""
    return adapter_of(x).custom_vjp(_unit_rows, _pull_unit_rows)(1.0, x)[0]


def normalize_both(x: Array, y: Array, factor: float) -> tuple[Array, Array]:
    """The rows of both with unit length, those of `x` times a factor, in one step for a tape."""
    found = adapter_of(x).custom_vjp(_unit_rows, _pull_unit_rows)(factor, x, y)
    return found[0], found[3]


def _unit_rows(factor: float, *arrays: Array) -> tuple[Array, ...]:
    """The rows of unit length, the inverse length of rows divided by their largest entry, and that entry.

    Three arrays for each argument; a factor multiplies the unit rows of the first. Dividing by the largest entry first
    keeps the squares in range, whatever the magnitude of the row.
    """
    xp = namespace_of(*arrays)
    found: list[Array] = []
    for x in arrays:
        largest = stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
        zero = largest == 0
        largest = xp.where(zero, 1.0, largest)
        scaled = x / largest
        length = xp.sqrt(xp.where(zero, math.inf, xp.sum(scaled * scaled, axis=-1, keepdims=True)))
        unit = scaled / length
        found += [unit if found or factor == 1.0 else unit * factor, reciprocal(length), largest]
    return tuple(found)


def _pull_unit_rows(
    factor: float, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The adjoint of `_unit_rows`, to which the largest entry is a constant.

    For ``u = f x / |x|`` and its cotangent g it is ``f (g - u (g·u) / f²) / |x|``.
    """
    del arrays
    xp = namespace_of(*outputs)
    found: list[Array] = []
    for k in range(0, len(outputs), 3):
        unit, inverse, largest = outputs[k : k + 3]
        to_unit, to_inverse, _ = cotangents[k : k + 3]
        along = xp.sum(to_unit * unit, axis=-1, keepdims=True) + inverse * to_inverse
        own = inverse / largest
        if k == 0 and factor != 1.0:
            along, own = along / factor**2, own * factor
        found.append((to_unit - unit * along) * own)
    return tuple(found)
