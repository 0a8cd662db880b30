"""Forms of scores that come from matrix products of a tile: inner products, and functions of them or of distances.

Sweeps whose positives are known columns ask a form for scores and cotangents, of a tile and of rows with their own
columns. The law of both: ``⟨pulled(c), d⟩ = ⟨c, derivative of the scores along d⟩``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .._core.equality import Record
from .._core.namespace import namespace_of
from .._core.pair_functions import PairFunction
from .._core.protocol import Array
from .._core.registry import adapter_of
from . import products as p
from .inputs import Arrays
from .products import Operand


class Form(Protocol):
    """Scores of tiles of products.

    `n_rows`: number of operands of the rows that have a gradient.
    """

    n_rows: int

    def rows(self, operands: Arrays) -> Operand:
        """The operand of rows."""
        ...

    def tile(self, rows: Operand, columns: Operand) -> tuple[Array, Any]:
        """Scores of a tile, in a new array, and what `pullback` needs of them."""
        ...

    def pullback(
        self,
        kept: Any,
        cotangent: Array,
        factor: Array | None,
        rows: Operand,
        columns: Operand,
        *,
        need_grad: tuple[bool, bool],
        need_scale: bool,
        sums: Array | None,
        turned: bool,
    ) -> tuple[Arrays, Arrays]:
        """Cotangents of the operands of rows and of columns, as by `products.pullback`; none where not needed."""
        ...

    def of_partner(self, rows: Operand, partner: Array) -> Array:
        """Scores (n,) of rows with their own columns."""
        ...

    def pull_partner(
        self, rows: Operand, partner: Array, cotangent: Array, *, need_grad: tuple[bool, bool]
    ) -> tuple[Arrays, Array | None]:
        """Cotangents of the operands of rows, and of their own columns, from the cotangent (n,) of `of_partner`."""
        ...


class InnerProducts(Record):
    """Inner products, of 16-bit operands too."""

    n_rows = 1

    def rows(self, operands: Arrays) -> Operand:
        return Operand(*operands)

    def tile(self, rows: Operand, columns: Operand) -> tuple[Array, None]:
        return p.product(rows, columns), None

    def pullback(
        self,
        kept: None,
        cotangent: Array,
        factor: Array | None,
        rows: Operand,
        columns: Operand,
        *,
        need_grad: tuple[bool, bool],
        need_scale: bool,
        sums: Array | None,
        turned: bool,
    ) -> tuple[Arrays, Arrays]:
        del kept, need_scale
        pulled = p.pullback(cotangent, factor, rows, columns, need_grad=need_grad, sums=sums, turned=turned)
        to_rows, to_columns = pulled
        return (to_rows,) if need_grad[0] else (), (to_columns,) if need_grad[1] else ()

    def of_partner(self, rows: Operand, partner: Array) -> Array:
        scores: Array = adapter_of(rows.x).row_dots(rows.x, partner)
        return scores

    def pull_partner(
        self, rows: Operand, partner: Array, cotangent: Array, *, need_grad: tuple[bool, bool]
    ) -> tuple[Arrays, Array | None]:
        cotangent = cotangent[:, None]
        return (cotangent * partner,) if need_grad[0] else (), cotangent * rows.x if need_grad[1] else None


class PairFunctions(Record):
    """Functions of inner products or of distances, times a factor per row."""

    scores: PairFunction

    n_rows = 2

    def rows(self, operands: Arrays) -> Operand:
        x, scale = operands
        return Operand(x, scale=scale)

    def tile(self, rows: Operand, columns: Operand) -> tuple[Array, Any]:
        scores, kept = self.scores.scored((rows.x, rows.scale), (columns.x,))
        return scores if columns.added is None else scores + columns.added[None, :], kept

    def pullback(
        self,
        kept: Any,
        cotangent: Array,
        factor: Array | None,
        rows: Operand,
        columns: Operand,
        *,
        need_grad: tuple[bool, bool],
        need_scale: bool,
        sums: Array | None,
        turned: bool,
    ) -> tuple[Arrays, Arrays]:
        del sums
        factor = None if factor is None else factor[:, None]
        both = (rows.x, rows.scale), (columns.x,)
        to_rows, to_columns = self.scores.pulled(
            kept, cotangent, factor, *both, need_grad=need_grad, need_scale=need_scale, turned=turned
        )
        return to_rows if need_grad[0] else (), to_columns if need_grad[1] else ()

    def of_partner(self, rows: Operand, partner: Array) -> Array:
        return self.scores.at_places((rows.x, rows.scale), partner)

    def pull_partner(
        self, rows: Operand, partner: Array, cotangent: Array, *, need_grad: tuple[bool, bool]
    ) -> tuple[Arrays, Array | None]:
        to_rows, to_partner = self.scores.pulled_at_places((rows.x, rows.scale), partner, cotangent)
        return to_rows if need_grad[0] else (), to_partner


INNER_PRODUCTS = InnerProducts()


def form_of(scores: Any) -> Form:
    """The form of the scores of a channel of products."""
    return PairFunctions(scores) if isinstance(scores, PairFunction) else INNER_PRODUCTS


def partner_scores(form: Form, rows: Operand, partners: Sequence[Array]) -> Array:
    """Scores of rows and their partners: (n,), or (n, P) for several."""
    scores = [adapter_of(rows.x).rounded(form.of_partner(rows, partner)) for partner in partners]
    return scores[0] if len(scores) == 1 else namespace_of(*scores).stack(scores, axis=1)


def pull_partners(
    form: Form,
    rows: Operand,
    partners: Sequence[Array],
    cotangents: Sequence[Array],
    to_rows: Arrays,
    *,
    need_grad: tuple[bool, bool],
) -> tuple[Arrays, list[Array | None]]:
    """Cotangents of the operands of rows with those by `partner_scores` added, and the cotangents of the partners."""
    to_partners = []
    for partner, cotangent in zip(partners, cotangents, strict=True):
        of_rows, of_partner = form.pull_partner(rows, partner, cotangent, need_grad=need_grad)
        to_rows = tuple(map(p.plus, to_rows, of_rows))
        to_partners.append(of_partner)
    return to_rows, to_partners
