"""Arrays and numbers enter: checked, of one library, upcast."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._core.checks import (
    check_block_size,
    check_bool,
    check_choice,
    check_floating,
    check_precision,
    check_rows,
    check_scale_of_cosines,
    common_dtype,
    positive_scalar,
    row_weights,
    scalar,
    shape_of,
    temperature_of,
)
from .._core.namespace import common_namespace, device_of, is_array, is_number, namespace_of
from .._core.numerics import reciprocal, upcast
from .._core.protocol import Array, Namespace
from .._core.ranks import RankReport, Ranks, Shards, agree, end_exchange
from .._core.reduction import REDUCTIONS, Reduction
from .._core.registry import adapter_of
from ..similarities import (
    AnySimilarity,
    operands,
)
from ..similarities import resolve as resolve_similarity
from .records import ColumnLayout, Embedding, LossOptions, is_per_row
from .results import finish


def scale_in(xp: Namespace, parameters: dict[str, Any], options: LossOptions, x: Array) -> Any:
    """Factor of the scores: the logit scale, or the inverse temperature."""
    value = parameters[options.scaled_by]
    return scale_of(xp, value, x) if options.scaled_by == "temperature" else value


def checked_parameters(
    xp: Namespace, parameters: dict[str, Any], options: LossOptions, layout: ColumnLayout, x: Array
) -> dict[str, Any]:
    """Parameters as Python numbers, or as upcast arrays."""
    checked, shared = {}, options.across is not None
    for name, value in parameters.items():
        if name == "temperature":
            checked[name] = temperature_of(xp, value, x.shape[0], x, views=layout.views, shared=shared)
        else:
            checked[name] = (positive_scalar if name == "logit_scale" else scalar)(xp, name, value, x)
    return checked


def repeat_for_views(parameters: dict[str, Any], rows: int) -> dict[str, Any]:
    """Parameters, with per-sample temperatures repeated for each view."""
    temperature: Any = parameters.get("temperature")
    if not is_per_row(temperature) or temperature.shape[0] == rows:
        return parameters
    copies = [temperature] * (rows // temperature.shape[0])
    return {**parameters, "temperature": namespace_of(temperature).concat(copies, axis=0)}


class Entered(NamedTuple):
    """Checked arguments of a loss that computes with its embeddings: of one library and device; embeddings upcast.

    `others`: other arrays and numbers by name. `dtype`: dtype of the result.
    """

    xp: Namespace
    embeddings: dict[str, Embedding]
    others: dict[str, Any]
    options: LossOptions
    dtype: Any

    @property
    def arrays(self) -> list[Array]:
        """Upcast arrays of the embeddings."""
        return [embedding.array for embedding in self.embeddings.values()]

    def with_arrays(self, *arrays: Array) -> dict[str, Embedding]:
        """Embeddings by name, with the arrays replaced."""
        named = zip(self.embeddings.items(), arrays, strict=True)
        return {name: embedding._replace(array=array) for (name, embedding), array in named}

    def reduced(self, values: Array, counted: Array, shards: Shards | None, number: Array | None = None) -> Array:
        """Reduced row losses, in the dtype of the result."""
        options = self.options
        result = Reduction(options.reduction, options.weights, shards).of_values(values, counted, number)
        end_exchange(options.across)
        return finish(self.xp, result, self.dtype, options.reduction)


def enter_embeddings(
    embeddings: dict[str, Array],
    options: LossOptions,
    others: dict[str, Array] | None = None,
    *,
    axes: str | None = "(N, D)",
    numbers: dict[str, Any] | None = None,
) -> Entered:
    """Check the options and the named arrays, and upcast 16-bit ones once, so that gradients are rounded once.

    Embeddings must have the shape that `axes` names and as many rows as the first. If `axes` is None, neither this nor
    the temperature and the row weights are checked. `numbers` may be arrays of one entry.
    """
    options = checked_options(options)
    warn_of_scale(options, next(iter(embeddings.values())))
    entered = entered_from(embeddings, options, {**(numbers or {}), options.scaled_by: options.temperature}, others)
    xp, arrays, weights = entered.xp, entered.arrays, entered.options.weights
    scale = entered.others.pop(options.scaled_by)
    if axes is None:
        scale = upcast(xp, scale) if is_array(scale) and not is_number(scale) else scale
        weights = None if weights is None else upcast(xp, weights)
    else:
        n_rows = shape_of(next(iter(embeddings)), arrays[0], axes)[0]
        for name, x in zip(embeddings, arrays, strict=True):
            adapter_of(x).check(x)
            shape_of(name, x, axes)
            check_rows(name, x, arrays[0])
        if options.scaled_by == "temperature":
            scale = temperature_of(xp, scale, n_rows, arrays[0], shared=options.across is not None)
        weights = row_weights(xp, weights, n_rows, arrays[0])
    return entered._replace(options=entered.options._replace(temperature=scale, weights=weights))


def warn_of_scale(options: LossOptions, x: Any) -> None:
    """Warn if the temperature or scale of cosines is a number that looks like its inverse or its logarithm."""
    if isinstance(options.similarity, str) and options.similarity == "cosine":
        check_scale_of_cosines(options.scaled_by, options.temperature, x.array if isinstance(x, Embedding) else x)


def checked_options(options: LossOptions) -> LossOptions:
    """LossOptions with those checked that are not arrays."""
    check_choice("reduction", options.reduction, REDUCTIONS)
    symmetric = check_bool("symmetric", options.symmetric)
    block_size = check_block_size(options.block_size)
    check_precision(options.precision)
    return options._replace(symmetric=symmetric, block_size=block_size)


def entered_from(
    embeddings: dict[str, Any], options: LossOptions, numbers: dict[str, Any], others: dict[str, Array] | None = None
) -> Entered:
    """Check that all arrays, with mask and weights, are of one library and device; upcast the embeddings.

    Upcast arrays are passed as `Embedding`.
    """
    bare = {name: x.array if isinstance(x, Embedding) else x for name, x in embeddings.items()}
    arrays = {name: x for name, x in numbers.items() if is_array(x) and not is_number(x)} | (others or {})
    xp, (*converted, mask, weights) = common_namespace(**bare, **arrays, mask=options.mask, weights=options.weights)
    bare = dict(zip(bare, converted, strict=False))
    check_floating(xp, **bare)
    upcasted = {}
    for name, x in embeddings.items():
        embedding = x if isinstance(x, Embedding) else Embedding(x, (bare[name].dtype,))
        upcasted[name] = embedding._replace(array=upcast(xp, bare[name]))
    entered = numbers | dict(zip(arrays, converted[len(bare) :], strict=True))
    options = options._replace(mask=mask, weights=weights)
    return Entered(xp, upcasted, entered, options, common_dtype(xp, *bare.values()))


def result_dtype(xp: Namespace, *embeddings: Embedding) -> Any:
    """Dtype that all arrays of embeddings had before the upcast, or float32 if they differ."""
    first, *others = (dtype for embedding in embeddings for dtype in embedding.dtypes)
    return first if all(dtype == first for dtype in others) else xp.float32


def pair_scores(similarity: AnySimilarity, x: Array, keys: Array, scale: Any = 1.0) -> Array:
    """Scores (N, M) of row i of `x` (N, D) with ``keys[i]``; the keys are (N, M, D), or (N, D) for M = 1."""
    chosen, xp = resolve_similarity(similarity), namespace_of(x, keys)
    keys = keys if len(keys.shape) > len(x.shape) else xp.expand_dims(keys, axis=1)
    if not is_number(scale) and len(scale.shape) > 0:  # one entry per row
        scale = namespace_of(scale).expand_dims(scale, axis=2)
    with adapter_of(x).full_precision(x):
        scores = chosen.scores(*operands(chosen, xp.expand_dims(x, axis=1), keys, scale))
    return namespace_of(scores).reshape(scores, (scores.shape[0], scores.shape[2]))


def shards_of_rows(across: Ranks | None, x: Array, temperature: Any = None) -> Shards | None:
    """Shards of the rows `x`, for losses that gather no rows; None without ranks."""
    if across is None:
        return None
    return agree(across, RankReport(x.shape[0], x.shape[0], {"features": x.shape[-1]}, temperature), x)


def inverse(xp: Namespace, temperature: Any, like: Array) -> Array:
    """``1 / temperature`` in the precision of `like`, which may exceed that of a Python float."""
    if is_number(temperature):
        if like.dtype == xp.float32:
            return 1.0 / float(temperature)
        temperature = xp.full((), temperature, dtype=like.dtype, device=device_of(like))
    return reciprocal(temperature)


def scale_of(xp: Namespace, temperature: Any, like: Array, shards: Shards | None = None) -> Any:
    """Factor of the scores of embeddings `like`: one number, which ranks share, or an array (N, 1, ...)."""
    if shards is not None:
        temperature = shards.shared(temperature)
    scale = inverse(xp, temperature, like)
    return xp.reshape(scale, (-1, *[1] * (len(like.shape) - 1))) if is_per_row(temperature) else scale


def has_own_column(xp: Namespace, mask: Array, first: Any = 0) -> Array:
    """Boolean array (N,) of rows i whose column ``first + i`` a mask (N, K) keeps."""
    n_rows, n_columns = mask.shape
    column, row = (xp.arange(n, device=device_of(mask)) for n in (n_columns, n_rows))
    return xp.any(xp.logical_and(mask, (row + first)[:, None] == column[None, :]), axis=1)


def same_width(similarity: object, row_name: str, x: Array, column_name: str, y: Array) -> None:
    """Check that embeddings for a named similarity have the same width; other similarities check themselves."""
    if isinstance(similarity, str) and x.shape[-1] != y.shape[-1]:
        remedy = "project one of them, or use similarity=bilinear(weight)"
        remedy = f"pass {column_name}.T" if tuple(y.shape[:-1]) == (x.shape[-1],) else remedy
        raise ValueError(
            f"{column_name}: expected {x.shape[-1]} features as in {row_name}, got shape {tuple(y.shape)}; {remedy}"
        )
