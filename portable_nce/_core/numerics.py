"""Guarded elementary functions, safe normalisation, and the upcast of 16-bit arrays."""

from __future__ import annotations

import math
from typing import Any

from .autodiff import stop_gradient
from .checks import is_empty, is_half, is_readable, largest, least, readable_entries, readable_entry
from .namespace import device_of, is_array, is_being_compiled, lift_to_tape, namespace_of
from .protocol import Array, Namespace
from .registry import adapter_of


def upcast(xp: Namespace, x: Array) -> Array:
    """`x` in float32 if it has 16 bits, else unchanged."""
    return xp.astype(x, xp.float32) if x.dtype not in (xp.float32, xp.float64) and is_half(x.dtype) else x


def as_scores(xp: Namespace, x: Array) -> Array:
    """Scores in at least float32, `rounded` as in memory: what follows subtracts them from one another."""
    scores: Array = adapter_of(x).rounded(upcast(xp, x))
    return scores


def zeros(xp: Namespace, shape: tuple[int, ...], like: Array) -> Array:
    """Zeros of the dtype and device of `like`."""
    return xp.zeros(shape, dtype=like.dtype, device=device_of(like))


def continued(x: Array, count: int) -> Array:
    """The first `count` entries of an array (N,); entries beyond the last repeat the first."""
    number = x.shape[0]
    if number >= count:
        return x if number == count else x[:count]
    xp = namespace_of(x)
    return xp.concat([x, xp.broadcast_to(x[:1], (count - number,))], axis=0)


def nan_of(guide: Array, x: Array) -> Array:
    """Copy the NaN rows of `guide` into `x`: comparisons with NaN are False, so choosing pairs would hide them."""
    xp = namespace_of(x)
    guide = stop_gradient(guide)
    invalid = xp.any(namespace_of(guide).isnan(guide), axis=1, keepdims=True)
    return xp.where(invalid, math.nan, x)


def entries_at(x: Array, columns: Array) -> Array:
    """Entries of each row of `x` (N, K) in the columns (N, M)."""
    return adapter_of(x).entries_at(x, columns)


def place_of_largest(x: Array) -> Array:
    """Column (N, 1) of the first largest entry of each row of `x` (N, K), constant; of the first NaN, if there is one.

    XLA's `argmax` takes forty times as long as a maximum on CPUs. A column as a float32 number is exact up to 2^24.
    """
    xp, n_columns = namespace_of(x), x.shape[1]
    # The number of columns of an exported program may be a symbol, which has no order.
    if adapter_of(x).mode != "traced" or not isinstance(n_columns, int) or n_columns > LARGEST_WHOLE:
        return xp.argmax(x, axis=1, keepdims=True)
    x = stop_gradient(x)
    number = xp.arange(n_columns, dtype=xp.float32, device=device_of(x))[None, :]
    first = xp.where(x == xp.max(x, axis=1, keepdims=True), number, LARGEST_WHOLE)
    first = xp.min(xp.where(xp.isnan(x), number - LARGEST_WHOLE, first), axis=1, keepdims=True)
    return xp.astype(xp.where(first < 0, first + LARGEST_WHOLE, first), xp.int32)


LARGEST_WHOLE = 2.0**24
"""The float32 numbers up to this hold all integers."""


def reciprocal(x: Array) -> Array:
    """``1 / x``.

    Dynamo refuses a number on the left of ``/``, ``-`` and ``**`` if the tensor on the right is a user's subclass
    ("All __torch_function__ overrides returned NotImplemented"); hence also ``-x + 1.0`` for ``1.0 - x``.
    """
    return namespace_of(x).ones_like(x) / x if is_being_compiled(x) else 1.0 / x


def clipped(xp: Namespace, x: Array, low: Any, high: Any) -> Array:
    """Limit entries to a range of numbers, which JAX's compiler may know only as arrays; NaN stays NaN.

    Not by array-api-compat's `clip`, which torch.compile cannot trace, and which waits for the device on CuPy.
    """
    kernel = adapter_of(x).clipped(x, low, high)
    if kernel is not None:
        return kernel
    x = x if not is_array(low) and low == -math.inf else xp.where(x < low, xp.full_like(x, low), x)
    return x if not is_array(high) and high == math.inf else xp.where(x > high, xp.full_like(x, high), x)


def sum_to_scalar(xp: Namespace, x: Array) -> Array:
    """Sum of all entries, of shape (1,): NumPy's sum over all axes is a scalar and no array."""
    return xp.sum(x if len(x.shape) == 1 else xp.reshape(x, (-1,)), axis=0, keepdims=True)


def softplus(xp: Namespace, t: Array) -> Array:
    """``log(1 + exp(t))``, with derivatives of every order that neither cancel nor overflow."""
    return softplus_and_sigmoid(xp, t, need_slope=False)[0]


def sigmoid(xp: Namespace, t: Array) -> Array:
    """``1 / (1 + exp(-t))``, with a small relative error on both sides."""
    return softplus_and_sigmoid(xp, t, need_value=False)[1]


def softplus_and_sigmoid(
    xp: Namespace, t: Array, *, bounded: bool = False, need_value: bool = True, need_slope: bool = True
) -> tuple[Array, Array]:
    """Softplus and its derivative, None if not needed; `bounded`: no exponential overflows."""
    kernels = adapter_of(t).softplus_and_sigmoid(t, bounded=bounded, need_value=need_value, need_slope=need_slope)
    if kernels is not None:
        return kernels
    if bounded:
        odds = xp.exp(t)
        return xp.log1p(odds) if need_value else None, odds / (odds + 1.0) if need_slope else None
    positive = t > 0
    small = xp.exp(xp.where(positive, -t, t))
    value = xp.where(positive, t, xp.zeros_like(t)) + xp.log1p(small) if need_value else None
    return value, xp.where(positive, xp.ones_like(t), small) / (small + 1.0) if need_slope else None


def relu(xp: Namespace, x: Array) -> Array:
    """``max(x, 0)``, with derivative 0 at 0; NaN stays NaN."""
    if adapter_of(x).is_plain((x,)):
        return clipped(xp, x, 0.0, math.inf)
    return xp.where(x <= 0, xp.zeros_like(x), x)


def relu_slope(xp: Namespace, x: Array) -> Array:
    """Derivative of `relu`, 0 at 0; NaN stays NaN."""
    return xp.where(x > 0, xp.ones_like(x), relu(xp, x))


def safe_sqrt(xp: Namespace, x: Array) -> Array:
    """Square root, with derivative 0 at 0."""
    zero = x == 0
    return xp.where(zero, xp.zeros_like(x), xp.sqrt(xp.where(zero, xp.ones_like(x), x)))


def safe_quotient(xp: Namespace, x: Array, divisor: Array) -> Array:
    """``x / divisor``; 0, with gradient 0, where the divisor is 0."""
    zero = divisor == 0
    return xp.where(zero, xp.zeros_like(x), x) / xp.where(zero, xp.ones_like(divisor), divisor)


def largest_entry(x: Array) -> float | None:
    """Largest magnitude of an array's entries, or None if they cannot be read without waiting."""
    low, high = readable_entries(x, least, largest)
    return None if low is None or high is None else max(-low, high)


def products_of_rows(rows: Array, columns: Array) -> Array:
    """Inner products; a wide matrix is the transpose of a tall product: up to twice as fast in OpenBLAS."""
    return (columns @ rows.T).T if is_wide(rows, columns) else rows @ columns.T


def is_wide(rows: Array, columns: Array) -> bool:
    """Whether a tile has more columns than rows; False unless eager, since a compiler chooses the memory order."""
    return adapter_of(rows).mode == "eager" and bool(rows.shape[0] < columns.shape[0])


LARGEST_SQUARED = 1e9
"""Largest number whose squares can be summed without overflow, in float32 too."""


def largest_score(rows: Array, *columns: Array, factor: float = 1.0) -> float:
    """Bound ``factor max |x| max |y|`` of the magnitude of scaled inner products.

    It is infinite if entries cannot be read, or squares of lengths, also times the factor, might overflow.
    """
    lengths: list[float] = []
    limit = LARGEST_SQUARED / max(1.0, factor)
    for x in (rows, *[y for y in columns if y is not rows]):
        square = readable_entry(x, _largest_square)
        if square is None or not square <= limit**2:  # also for NaN
            return math.inf
        lengths.append(square**0.5)
    return factor * lengths[0] * max(lengths[1:] or lengths)


def largest_length(x: Array) -> float:
    """Largest length of a row; infinite if entries cannot be read, or squares might overflow."""
    square = readable_entry(x, _largest_square)
    return math.inf if square is None or not square <= LARGEST_SQUARED**2 else square**0.5


def _largest_square(xp: Namespace, x: Array) -> Array:
    """Largest squared length of a row."""
    return xp.max(adapter_of(x).row_dots(x, x))


def in_range(xp: Namespace, rows: Array, *columns: Array, scale: Any = 1.0) -> tuple[list[Array] | None, float]:
    """Factors (n, 1) of rows and matrices of columns, and a bound of their scaled inner products.

    With the factors (None: 1), the products and their sums are finite: an overflow could become inf - inf = NaN. With
    the largest entries X and Y of rows and columns and ``f = sqrt(limit / (X Y)) < 1``, vectors whose largest entry
    exceeds ``X f`` or ``Y f`` have a factor that scales them down to that. All others, almost always all, have 1.
    """
    number = largest_entry(scale) if is_array(scale) else abs(scale)
    arrays, bound = [rows, *columns], math.inf if number is None else largest_score(rows, *columns, factor=number)
    if bound < math.inf:
        return None, bound
    known = [largest_entry(x) for x in arrays]
    vectors = rows.shape[-2] + sum(y.shape[-2] for y in columns)
    limit: Any = float(xp.finfo(rows.dtype).max) / (16.0 * rows.shape[-1] * vectors)
    if number is not None:
        limit /= max(1.0, number)
        if None not in known and known[0] * max(known[1:]) <= limit:  # type: ignore[operator,type-var]
            return None, math.inf
    entries = [xp.max(xp.abs(stop_gradient(x)), axis=-1, keepdims=True) for x in arrays]
    entries = [xp.where(x < math.inf, x, xp.zeros_like(x)) for x in entries]  # vectors with NaN or infinity stay
    of_rows, *of_columns = (_largest_of_all(xp, x) for x in entries)
    while len(of_columns) > 1:
        of_columns = [xp.maximum(*of_columns[:2]), *of_columns[2:]]
    most = (of_rows, *of_columns * len(columns))
    # The quotients min(1, limit / (X Y)) and min(1, X f / entry), without overflow and division by 0.
    divisor = clipped(xp, of_rows, 2.0 * limit / float(xp.finfo(rows.dtype).max), math.inf)
    if number is None:
        most_of_scale = xp.max(xp.abs(xp.reshape(stop_gradient(scale), (-1,))), axis=0, keepdims=True)
        limit = limit / clipped(xp, most_of_scale, 1.0, math.inf)
    most_of_columns = limit / divisor
    factor = xp.sqrt(most_of_columns / xp.maximum(most_of_columns, of_columns[0]))
    tiny = float(xp.finfo(rows.dtype).smallest_normal)
    kept = [clipped(xp, x * factor, tiny, math.inf) for x in most]
    kept = [xp.reshape(x, (1,) * len(entry.shape)) for x, entry in zip(kept, entries, strict=True)]
    return [x / xp.maximum(x, entry) for x, entry in zip(kept, entries, strict=True)], math.inf


def _largest_of_all(xp: Namespace, x: Array) -> Array:
    """Largest entry, of shape (1,); 0 if there is none, as on a rank without rows."""
    flat = xp.reshape(x, (-1,))
    return (xp.sum if is_empty(x) else xp.max)(flat, axis=0, keepdims=True)


def itemsize(x: Array) -> int:
    """Bytes of an entry."""
    xp = namespace_of(x)
    if xp.isdtype(x.dtype, "real floating"):
        return int(xp.finfo(x.dtype).bits) // 8
    most = 1 if xp.isdtype(x.dtype, "bool") else int(xp.iinfo(x.dtype).max)
    return (most.bit_length() + 7) // 8


def normalize(x: Array) -> Array:
    """Rows of unit length; a zero row stays zero, with gradient 0."""
    return adapter_of(x).custom_vjp(_unit_rows, _pull_unit_rows)(None, x)[0]


def unit_rows(*arrays: Array) -> list[tuple[Array, Array]]:
    """Unit rows of each array, and their lengths; a row of zeros stays zero, with infinite length.

    If squares may be out of range, rows are first divided by a power of 2, which is exact.
    """
    if not is_readable(arrays[0]):
        found = [adapter_of(x).unit_rows(x) for x in arrays]
        return [_unit_rows_by_powers(x) if pair is None else pair for x, pair in zip(arrays, found, strict=True)]
    squares = [adapter_of(x).row_dots(x, x) for x in arrays]
    low, high = readable_entries(_joined(squares), least, largest)
    known = low is not None and high is not None and low > SMALLEST_SQUARE and high < LARGEST_SQUARE
    if not known:
        return [_unit_rows_by_powers(x) for x in arrays]
    lengths = [namespace_of(x).sqrt(x)[..., None] for x in squares]
    return [(x / length, length) for x, length in zip(arrays, lengths, strict=True)]


def _joined(arrays: list[Array]) -> Array:
    """All entries of some arrays, in one axis."""
    if len(arrays) == 1:
        return arrays[0]
    xp = namespace_of(*arrays)
    return xp.concat([x if len(x.shape) == 1 else xp.reshape(x, (-1,)) for x in arrays])


def _unit_rows_by_powers(x: Array) -> tuple[Array, Array]:
    xp = namespace_of(x)
    most = stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
    zero = most == 0
    # Less than the logarithm to base 2: the inverse of 2^127, by which XLA multiplies, is subnormal, and then 0.
    power = xp.floor(xp.log(xp.where(zero, 1.0, most)) * (0.99 / math.log(2.0)))
    unit = xp.pow(xp.full_like(power, 2.0), power)
    scaled = x / unit
    length = xp.sqrt(xp.where(zero, math.inf, adapter_of(x).row_dots(scaled, scaled)[..., None]))
    return scaled / length, length * unit


SMALLEST_SQUARE, LARGEST_SQUARE = 1e-20, 1e30
"""Range in which sums of squares neither overflow nor lose digits to underflow, in float32 too."""


def pulled_unit_rows(unit: Array, divisor: Array, to_unit: Array, along: Array | None = None) -> Array:
    """Cotangent ``(g - u (g·u)) / |x|`` of rows x from the cotangent g of ``u = x / |x|``; `along` replaces g·u."""
    if along is None:
        along = adapter_of(unit).row_dots(to_unit, unit)[..., None]
    return (to_unit - unit * along) / divisor


def _unit_rows(static: None, x: Array) -> tuple[Array, ...]:
    del static
    return unit_rows(x)[0]


def _pull_unit_rows(
    static: None, arrays: tuple[Array, ...], outputs: tuple[Array, ...], cotangents: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Cotangent ``(g - u (g·u - h |x|)) / |x|`` for cotangents g of u and h of |x|; h is ignored for rows of zeros."""
    del static, arrays
    (unit, length), (to_unit, to_length) = outputs, cotangents
    xp = namespace_of(unit, to_unit)
    along = xp.sum(to_unit * unit, axis=-1, keepdims=True)
    along = along - to_length * xp.where(length == math.inf, xp.zeros_like(length), length)
    return (pulled_unit_rows(unit, length, to_unit, along),)


def inside_range(xp: Namespace, index: Array, count: int) -> tuple[Array, Array]:
    """Mask of indices from 0 to `count` - 1, and the indices with 0 in place of the others."""
    inside = xp.logical_and(index >= 0, index < count)
    return inside, xp.where(inside, index, xp.zeros_like(index))


def nan_outside(x: Array, inside: Array) -> Array:
    """Copy `x` (N, D) with NaN in the rows whose index is not `inside` its range, as JAX's `take` has.

    The factor is 0/0: an array of NaN would raise under JAX's `jax_debug_nans` wherever the indices are.
    """
    ((x, inside),) = lift_to_tape((x, inside))
    one = namespace_of(inside).astype(inside, x.dtype)[:, None]
    return x * (one / one)
