"""Scores that are functions of inner products or of distances, and their pullbacks.

Tiles are computed by products of matrices (`distances`); rows with their own columns, and tiles that are small or whose
squares overflow, from differences of features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .autodiff import stop_gradient
from .checks import all_entries, is_empty, is_readable, largest, least, readable_entry
from .distances import Near, negative_squares, pull_squares
from .equality import Record
from .namespace import is_array, is_number, namespace_of
from .numerics import (
    LARGEST_SQUARE,
    SMALLEST_SQUARE,
    clipped,
    largest_entry,
    largest_length,
    largest_score,
    products_of_rows,
    reciprocal,
    safe_sqrt,
)
from .protocol import Array, Namespace
from .registry import adapter_of
from .returned import as_slope, returned
from .tracing import of_number

Operands = tuple[Array, ...]


class Elementwise(Record):
    """Function f of an inner product, or of minus a squared distance, and its derivative.

    Functions of this package have a `name`, and `bound`, their largest magnitude at squared distances up to a number.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    name: str
    bound: Callable[[float], float] | None

    def of_differences(self, differences: Array) -> tuple[Array, Array, Array]:
        """Values ``f(-|d|²)`` of differences d (..., D), and factors w, d of their derivative by d, ``w d``."""
        squares = _sum_of_squares(differences)
        return self.value(-squares), self.slope(-squares) * -2.0, differences

    def slopes(self, products: Array, *, own: bool) -> Array:
        """Derivatives of a tile; `own`: of rows with themselves, so that the caller sets those of the diagonal to 0."""
        del own  # only the slope of a root is infinite there
        return self.slope(products)


class OwnFunction(Record):
    """A user's function of each entry, whose results are checked; a slope may be a number, an integer or a flag."""

    name: str
    function: Callable[[Array], Any]

    def __call__(self, products: Array) -> Array:
        found, shape = self.function(products), tuple(products.shape)
        if self.name == "slope" and (is_number(found) or is_array(found)):
            found = as_slope(self.name, found, products)
            found = namespace_of(found).broadcast_to(found, shape) if tuple(found.shape) == () else found
        return returned(self.name, found, shape, products, "a function of each entry,")


class _Scalable(Elementwise):
    """Function that is also known of distances whose squares overflow."""

    def of_scaled(self, squares: Array, unit: Array) -> Array:
        """Values from minus squared distances of rows times a unit, with which they do not overflow."""
        raise NotImplementedError


class _Root(_Scalable):
    """``-|d|``, also of distances whose squares overflow or are subnormal."""

    def slopes(self, products: Array, *, own: bool) -> Array:
        return _root_slope(products, own=own)

    def of_scaled(self, squares: Array, unit: Array) -> Array:
        return self.value(squares) / unit

    def of_differences(self, differences: Array) -> tuple[Array, Array, Array]:
        """Values and factors; differences whose squares may be out of range are divided by their largest entry."""
        squares = _sum_of_squares(differences)
        greatest = readable_entry(squares, largest)
        if is_empty(differences) or (greatest is not None and SMALLEST_SQUARE < greatest < LARGEST_SQUARE):
            return self.value(-squares), self.slope(-squares) * -2.0, differences
        xp = namespace_of(differences)
        limit = 2.0**50 if float(xp.finfo(differences.dtype).max) < 1e39 else 2.0**480  # noqa: PLR2004
        longest = xp.max(xp.abs(stop_gradient(differences)), axis=-1)
        huge = xp.logical_and(longest > limit, longest < math.inf)
        tiny = xp.logical_and(longest > 0, longest < 1.0 / limit)
        unit = xp.where(xp.logical_or(huge, tiny), longest, xp.ones_like(longest))
        divided = differences / xp.expand_dims(unit, axis=-1)
        squares = _sum_of_squares(divided)
        return self.value(-squares) * unit, self.slope(-squares) * -2.0, divided


class _Cauchy(_Scalable):
    """``-log(1 + |d|²)``, also of distances whose squares overflow."""

    def of_scaled(self, squares: Array, unit: Array) -> Array:
        xp = namespace_of(squares, unit)
        whole = -squares / unit / unit
        far = whole > 2.0**60
        logs = xp.log(xp.where(far, -squares, xp.ones_like(squares))) - xp.log(unit) * 2.0
        return -xp.where(far, logs, xp.log1p(xp.where(far, xp.zeros_like(whole), whole)))

    def of_differences(self, differences: Array) -> tuple[Array, Array, Array]:
        """Values and factors.

        Where squared distances could overflow, differences are scaled by a small power of 2, t: the logarithm is ``log
        |t d|² - 2 log t``, and the derivative ``-2 t / |t d|²`` times ``t d``.
        """
        xp = namespace_of(differences)
        if largest_score(differences, differences) < math.inf:
            return super().of_differences(differences)
        t, limit = (2.0**-70, 2.0**-80) if float(xp.finfo(differences.dtype).max) < 1e39 else (2.0**-520, 2.0**-560)  # noqa: PLR2004
        small = differences * t
        small_squares = _sum_of_squares(small)
        far = small_squares > limit  # the distance is beyond 2^30, or 2^240
        apart = xp.expand_dims(far, axis=-1)
        differences = xp.where(apart, xp.zeros_like(small), differences)
        squares = _sum_of_squares(differences)
        small_squares = xp.where(far, small_squares, xp.ones_like(small_squares))
        logs = xp.where(far, xp.log(small_squares) - 2.0 * math.log(t), xp.log1p(squares))
        weights = xp.where(far, t * reciprocal(small_squares), reciprocal(1.0 + squares))
        return -logs, weights * -2.0, xp.where(apart, small, differences)


class _SquaredLength(Elementwise):
    """``-|d|²``, at least a number with which scores are finite: an infinite one would mask its pair."""

    def of_differences(self, differences: Array) -> tuple[Array, Array, Array]:
        values, weights, differences = super().of_differences(differences)
        return _saturated(values, differences), weights, differences


def _saturated(values: Array, differences: Array | None = None) -> Array:
    """Values, if any may overflow all of at least a number whose multiples and sums are finite; infinite rows stay."""
    lowest = None if is_empty(values) else readable_entry(values, least)
    if lowest is not None and lowest > -math.inf:
        return values
    xp = namespace_of(values)
    limited = _at_least(values, -float(xp.finfo(values.dtype).max) * 2.0**-40)
    if differences is None or (lowest is None and adapter_of(values).mode == "eager"):  # on an accelerator, in one pass
        return limited
    return xp.where(xp.all(xp.isfinite(stop_gradient(differences)), axis=-1), limited, values)


def _at_least(values: Array, low: float) -> Array:
    """Values limited from below, with the cotangents of the values: a pair far away still has a gradient."""
    if not adapter_of(values).needs_gradient(values):
        return clipped(namespace_of(values), values, low, math.inf)
    result: Array = adapter_of(values).custom_vjp(_limit, _pull_limit, exact=False)(low, values)[0]
    return result


def _limit(low: float, values: Array) -> tuple[Array, ...]:
    return (clipped(namespace_of(values), values, low, math.inf),)


def _pull_limit(low: float, arrays: Any, outputs: Any, cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
    del low, arrays, outputs
    return (cotangents[0] * 1.0,)  # PyTorch refuses results that are an argument


def _identity(products: Array) -> Array:
    return products


def _ones(products: Array) -> Array:
    return namespace_of(products).ones_like(products)


def _negative_root(squares: Array) -> Array:
    xp = namespace_of(squares)
    adapter, positive = adapter_of(squares), -squares
    # Only a derivative at 0 needs care, which takes more time than the root.
    root = xp.sqrt(positive) if adapter.is_plain((squares,)) else safe_sqrt(xp, positive)
    return adapter.times_in_place(root, -1.0)


def _root_slope(squares: Array, *, own: bool = False) -> Array:
    """Derivative ``1 / (2 d)`` of minus the distance d by minus its square; 0 at 0, where there is no direction.

    `own`: the diagonal is known to be 0.
    """
    xp, adapter, positive, smallest = namespace_of(squares), adapter_of(squares), squares, None
    if is_readable(squares) and not is_empty(squares) and adapter.is_plain((squares,)):
        positive = -squares
        if own:
            positive = adapter.fill_diagonal(positive, 0, 0, squares.shape[0], math.inf)
        smallest = readable_entry(positive, least)
    if smallest is not None:
        if not smallest > 0:
            positive = adapter.put_entries(positive, adapter.places(positive == 0), math.inf)  # few entries
        return (xp.zeros_like(positive[..., :1]) + 0.5) / xp.sqrt(positive)  # in one pass, unlike a number before `/`
    zero = squares == 0
    divisors = xp.sqrt(xp.where(zero, xp.ones_like(squares), -squares)) * 2.0
    return xp.where(zero, xp.zeros_like(squares), reciprocal(divisors))


def _cauchy_value(squares: Array) -> Array:
    return -namespace_of(squares).log1p(-squares)


def _cauchy_slope(squares: Array) -> Array:
    return reciprocal(-squares + 1.0)


# Bounds are functions of this package: with others, calls would not be recorded.


def _bound_of_squares(square: float) -> float:
    return square


def _bound_of_roots(square: float) -> float:
    return math.sqrt(square)


def _bound_of_logarithms(square: float) -> float:
    return math.log1p(square)


EUCLIDEAN = _Root(_negative_root, _root_slope, "neg_euclidean", _bound_of_roots)
CAUCHY = _Cauchy(_cauchy_value, _cauchy_slope, "cauchy", _bound_of_logarithms)
_SQUARED = _SquaredLength(_identity, _ones, "neg_sq_euclidean", _bound_of_squares)


class Kept(NamedTuple):
    """What the pullback of a tile needs of its scores: products, and which pairs are near."""

    products: Array
    near: Near


class PairFunction(Record):
    """Scores ``s f(g)``: a factor s per row, times a function of inner products, or of minus squared distances.

    The operands are the rows x and the factors (N, 1); and the columns y. `function` of None is the identity.
    """

    function: Elementwise | None
    distance: bool

    def __call__(self, rows: Operands, columns: Operands) -> Array:
        """Scores of all rows against all columns; with leading axes, from differences of features."""
        if len(rows[0].shape) == 2:  # noqa: PLR2004
            return self.scored(rows, columns)[0]
        if self.distance:
            return self._function.of_differences(_differences(rows[0], columns[0]))[0] * rows[1]
        xp = namespace_of(rows[0], columns[0])
        return self._value(xp.matmul(rows[0], xp.matrix_transpose(columns[0]))) * rows[1]

    def scored(self, rows: Operands, columns: Operands, *, often: bool = False) -> tuple[Array, Kept]:
        """Scores of a tile, and what `pulled` needs of them; `often`: several operations read the scores."""
        (x, scale), (y,) = rows, columns
        if not self.distance:
            products, near = products_of_rows(x, y), Near()
        else:
            products, near = negative_squares(x, y, scaled=self._scales(x), apart=isinstance(self.function, _Cauchy))
        if often and not near.apart:
            (products,) = adapter_of(products).computed_once(products)
        kept = Kept(products, near)
        values = self._function.of_differences(_differences(x, y))[0] if near.apart else self._of_kept(kept)
        if self.function is None or self.function.bound is None:  # the products, or those of a user's function
            return values * scale, kept
        return adapter_of(values).times_in_place(values, scale), kept

    def pull(self, rows: Operands, columns: Operands, cotangent: Array) -> tuple[Operands, Operands]:
        """Pullback of the scores."""
        _, kept = self.scored(rows, columns)
        copy = cotangent + 0.0  # `pulled` may overwrite it
        return self.pulled(kept, copy, None, rows, columns, need_grad=(True, True), need_scale=True)

    def pulled(
        self,
        kept: Kept,
        cotangent: Array,
        factor: Array | None,
        rows: Operands,
        columns: Operands,
        *,
        need_grad: tuple[bool, bool],
        need_scale: bool,
        turned: bool = False,
    ) -> tuple[Operands, Operands]:
        """Cotangents of the operands; the cotangent (N, K) may be overwritten. `factor` (N, 1): of each row of it.

        With the factors w of rows, the scales s and the cotangents c: to a product ``w s c f'``, to the scale ``w Σ_j c
        f``, which is 0 if `need_scale` is False.
        """
        (x, scale), (y,), xp = rows, columns, namespace_of(cotangent)
        products, near = kept
        if near.apart:
            values, weights, differences = self._function.of_differences(_differences(x, y))
            whole = cotangent if factor is None else cotangent * factor
            (to_x, to_scale), (to_y,) = _pulled(differences, whole * scale * weights, values, whole)
            return (to_x, to_scale), (to_y.T if turned else to_y,)
        to_scale = xp.zeros_like(scale)
        if need_scale:
            to_scale = _row_sums(xp, self._of_kept(kept), cotangent)
            to_scale = to_scale if factor is None else to_scale * factor
        if self.function is not None:
            if near.unit is None:
                slopes = self.function.slopes(products, own=near.own)
            elif isinstance(self.function, _Root):  # d(t x, t y) = t d(x, y): slopes of rows of entries up to 1
                x, y = x / near.longest, y / near.longest
                slopes = self.function.slopes(products, own=near.own) * (near.unit * near.longest)
            else:
                slopes = self.function.slopes(products / near.unit / near.unit, own=near.own)
            cotangent = adapter_of(cotangent).times_in_place(cotangent, slopes)
        weights = scale if factor is None else scale * factor
        if self.distance:
            to_x, to_y = pull_squares(near, cotangent, x, y, factor=weights, need_grad=need_grad, turned=turned)
        else:
            to_x, to_y = (cotangent @ y) * weights if need_grad[0] else None, None
            if need_grad[1]:
                own = x * weights
                to_y = own.T @ cotangent if turned else cotangent.T @ own
        return (to_x, to_scale), (to_y,)

    def bound(self, rows: Operands, columns: Operands, scale: Any) -> float:
        """Bound of the magnitude of scores of a named distance; infinite if it is not known."""
        bound_of = self._function.bound if self.distance else None
        factor = largest_entry(scale) if is_array(scale) and not is_number(scale) else abs(scale)
        if bound_of is None or factor is None:
            return math.inf
        length = largest_length(rows[0]) + (0.0 if columns[0] is rows[0] else largest_length(columns[0]))
        length = 2.0 * length if columns[0] is rows[0] else length
        return factor * of_number(bound_of, length * length) if length < math.inf else math.inf

    def at_places(self, rows: Operands, others: Array) -> Array:
        """Scores (N,) of each row with its own column, from differences."""
        x, scale = rows
        if self.distance:
            return self._function.of_differences(x - others)[0] * scale[:, 0]
        return self._value(adapter_of(x).row_dots(x, others)) * scale[:, 0]

    def pulled_at_places(self, rows: Operands, others: Array, cotangent: Array) -> tuple[Operands, Array]:
        """Cotangents of the operands of rows and of their own columns, from the cotangent (N,) of `at_places`."""
        (x, scale), xp = rows, namespace_of(cotangent)
        if self.distance:
            values, weights, differences = self._function.of_differences(x - others)
            pull = (cotangent * scale[:, 0] * weights)[:, None] * differences
            return (pull, guarded_products(xp, values, cotangent)[:, None]), -pull
        products = adapter_of(x).row_dots(x, others)
        weights = cotangent * scale[:, 0]
        weights = (weights if self.function is None else weights * self.function.slope(products))[:, None]
        return (weights * others, guarded_products(xp, self._value(products), cotangent)[:, None]), weights * x

    def _scales(self, x: Array) -> bool:
        """Whether squared distances of rows whose entries cannot be read are those of rows times a unit."""
        if isinstance(self.function, _Root):  # those of float32 do not overflow in float64
            return not adapter_of(x).is_widened(x)
        return isinstance(self.function, _Scalable)

    def _of_kept(self, kept: Kept) -> Array:
        products, unit = kept.products, kept.near.unit
        if unit is not None and isinstance(self.function, _Scalable):
            return self.function.of_scaled(products, unit)
        if unit is not None:
            products = products / unit / unit
        elif is_readable(products):
            return self._value(products)  # no square overflows
        return _saturated(products) if self.distance and self.function is None else self._value(products)

    def _value(self, products: Array) -> Array:
        return products if self.function is None else self.function.value(products)

    @property
    def _function(self) -> Elementwise:
        return _SQUARED if self.function is None else self.function

    @property
    def name(self) -> str:
        """Name in `repr`; empty if the preparation tells."""
        if not self.distance:
            return "" if self.function is None else "elementwise"
        return self._function.name or "elementwise neg_sq_euclidean"


def _differences(x: Array, y: Array) -> Array:
    """``x - y`` of every pair."""
    xp = namespace_of(x, y)
    x, y = xp.expand_dims(x, axis=-2), xp.expand_dims(y, axis=-3)
    differences = x - y
    if adapter_of(x).mode == "eager":
        return differences
    # A compiler may fuse a product into the difference as fma(a, b, -y), so that equal x and y differ by a rounding
    # error. (XLA does on CPUs, even across its barriers.)
    return differences - stop_gradient(xp.where(x == y, differences, xp.zeros_like(differences)))


def _sum_of_squares(differences: Array) -> Array:
    return namespace_of(differences).sum(differences * differences, axis=-1)


def _pulled(differences: Array, factor: Array, scores: Array, cotangent: Array) -> tuple[Operands, Operands]:
    """Cotangents of x, of the scale and of y; `scores` are without the scale.

    By x: ``Σ_j factor (x - y)``. By y: ``-Σ_i factor (x - y)``. By the scale of a row: ``Σ_j cotangent scores``.
    """
    xp = namespace_of(cotangent)
    pull = xp.expand_dims(factor, axis=-1) * differences
    scale = xp.sum(guarded_products(xp, scores, cotangent), axis=1, keepdims=True)
    return (xp.sum(pull, axis=1), scale), (-xp.sum(pull, axis=0),)


def _row_sums(xp: Namespace, scores: Array, cotangent: Array) -> Array:
    """Sums of each row of scores times their cotangents, as `guarded_products` has them, (N, 1)."""
    sums = adapter_of(cotangent).sum_along(scores * cotangent, 1)[:, None]
    if readable_entry(xp.isfinite(sums), all_entries):
        return sums
    return xp.sum(guarded_products(xp, scores, cotangent), axis=1, keepdims=True)


def guarded_products(xp: Namespace, scores: Array, cotangent: Array) -> Array:
    """Scores times their cotangents; 0 for an overflowed score of cotangent 0, in place of NaN.

    Finite scores stay, since they are the derivative by the cotangent.
    """
    dead = xp.logical_and(cotangent == 0, xp.logical_not(xp.isfinite(scores)))
    return xp.where(dead, xp.zeros_like(scores), scores) * cotangent
