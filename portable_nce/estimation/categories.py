"""Categories of a third variable, and rows measured relative to the others of their category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._core.namespace import device_of, is_array, namespace_of
from .._core.protocol import Array
from .features import indices
from .folds import by_label
from .host import MOST_INDICATORS, is_missing, labels_of

__all__ = ["LEAST_OF_CATEGORY", "PairedRows", "Within", "category_codes", "category_labels"]

LEAST_OF_CATEGORY = 12
"""Fewest rows of a category, so that a fold has about four."""
WIDEST = 3.0
"""Deviations beyond which values do not move the mean of a category further."""
POOLED = 5.0
"""Rows that the geometric mean of all deviations counts as, next to the rows of one category."""


class PairedRows(NamedTuple):
    """Some rows of x and of y, and the codes of their categories, if a third variable has categories."""

    x: Array
    y: Array
    categories: Array | None


def category_labels(given: Any) -> list[Any] | None:
    """Label of each row of a third variable of integers, truth values or names; None for other numbers."""
    if isinstance(given, str) or not (is_array(given) or hasattr(given, "__iter__")):
        raise TypeError(f"given: expected a value of each row, got {type(given).__name__}")
    rows = labels_of("given", given)
    cells = [cell for row in rows for cell in (row if isinstance(row, (list, tuple)) else [row])]
    if any(map(is_missing, cells)):
        raise ValueError("given: expected a value in each row, got some that are missing; leave these rows out")
    if not rows or not cells:
        raise ValueError("given: expected a value of each row, got none")
    if not all(isinstance(cell, (int, str, bytes)) for cell in cells):  # truth values are integers, too
        return None
    return [tuple(row) if isinstance(row, list) else row for row in rows]


def category_codes(labels: Sequence[Any], like: Array) -> Array:
    """Number of the category of each row, as an array like another; categories of few rows are refused."""
    if len(labels) != like.shape[0]:
        raise ValueError(f"given: expected {like.shape[0]} rows, as in x, got {len(labels)}")
    rows = by_label(labels)
    smallest = min(rows, key=len)
    if len(smallest) < LEAST_OF_CATEGORY:
        raise ValueError(
            f"given: expected at least {LEAST_OF_CATEGORY} rows of each category, got {len(smallest)} of "
            f"{labels[smallest[0]]!r}; merge rare categories or leave their rows out; numbers that are no categories "
            f"are passed as floats: a difference of two estimates, without a lower limit"
        )
    codes = [0.0] * len(labels)
    for code, chosen in enumerate(rows):
        for row in chosen:
            codes[row] = float(code)
    return namespace_of(like).asarray(codes, dtype=like.dtype, device=device_of(like))


class Within(NamedTuple):
    """Centre and scale of each column in each category, of the training rows.

    Mutual information given the category does not change by them, whatever they are. One critic suits all categories
    better if they have the same centre and scale.
    """

    centres: Array
    scales: Array

    @classmethod
    def fitted(cls, x: Array, codes: Array, number: int) -> Within:
        """Centres and scales of `number` categories; a category without rows has those of all rows."""
        xp = namespace_of(x)
        rows: list[list[int]] = [[] for _ in range(number)]
        for i, code in enumerate(codes.tolist() if hasattr(codes, "tolist") else map(float, codes)):
            rows[int(code)].append(i)
        parts = [xp.take(x, indices(some or range(x.shape[0]), x), axis=0) for some in rows]
        found = [_location(part) for part in parts]
        centres, deviations = (xp.stack(arrays, axis=0) for arrays in zip(*found, strict=True))
        counts = xp.asarray([[float(len(some))] for some in rows], dtype=x.dtype, device=device_of(x))
        known = xp.where(deviations > 0, counts, xp.zeros_like(deviations))
        logs = xp.log(xp.where(known > 0, deviations, xp.ones_like(deviations)))
        usual = xp.sum(known * logs, axis=0) / xp.maximum(xp.sum(known, axis=0), xp.ones_like(known[0, :]))
        return cls(centres, xp.exp((known * logs + POOLED * usual) / (known + POOLED)))

    def __call__(self, x: Array, codes: Array) -> Array:
        """Columns relative to the centre and scale of each row's category."""
        xp = namespace_of(x)
        numbers = xp.astype(codes, xp.int32)
        return (x - xp.take(self.centres, numbers, axis=0)) / xp.take(self.scales, numbers, axis=0)

    def indicators(self, codes: Array) -> Array:
        """Indicators (n, C) of the categories: one column tells two, and none tells more than `MOST_INDICATORS`."""
        xp, number = namespace_of(codes), self.centres.shape[0]
        columns = {1: 0, 2: 1}.get(number, number if number <= MOST_INDICATORS else 0)
        known = xp.arange(columns, dtype=codes.dtype, device=device_of(codes))
        return xp.astype(codes[:, None] == known[None, :], codes.dtype)


def _location(x: Array) -> tuple[Array, Array]:
    """Centre and deviation of columns: of values cut off at three deviations from the median (Huber 1964, one step)."""
    xp = namespace_of(x)
    middle = xp.sort(x, axis=0)[x.shape[0] // 2, :]
    size = 1.4826 * xp.sort(xp.abs(x - middle), axis=0)[x.shape[0] // 2, :]  # the deviation, of normal numbers
    limit = WIDEST * xp.where(size > 0, size, xp.sqrt(xp.mean((x - middle) ** 2, axis=0)))
    centre = middle + xp.mean(xp.maximum(xp.minimum(x - middle, limit), -limit), axis=0)
    apart = xp.maximum(xp.minimum(x - centre, limit), -limit)
    return centre, xp.sqrt(xp.mean(apart * apart, axis=0))
