"""The published losses: each names its similarity, pairing and objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._contrast import contrast_embeddings, contrast_scores, inverse, same_width
from ._namespace import device_of, enter, is_array, is_number
from ._numerics import accumulate
from ._protocol import Array
from ._registry import adapter_of
from ._validate import block_size_of, boolean, floating, positive_scalar, same_shape, shape_of
from .from_scores import pairing_of
from .objectives import Objective
from .objectives import flat_nce as flat_nce_objective
from .objectives import info_nce as info_nce_objective
from .pairings import Pairing, Tile, diagonal, queue, two_views
from .similarities import Similarity, resolve

__all__ = ["clip", "dcl", "flat_nce", "info_nce", "nt_xent"]


def info_nce(
    query: Array,
    positive_key: Array,
    negative_keys: Array | None = None,
    /,
    *,
    temperature: float | Array = 0.07,
    symmetric: bool = False,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    positives: Array | None = None,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    multi_positive: str = "each",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the InfoNCE loss of queries and keys.

    .. math:: \ell_i = \log(1 + e^{u_i}), \qquad u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{ii},
        \qquad g_{ij} = s(q_i, k_j) / \tau,

    which is the cross-entropy :math:`-\log \mathrm{softmax}(g_i)_i`, computed so that neither the value nor the
    gradient cancels when the positive wins by far.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    positive_key : array, shape (N, D), or (K, D) with `positives`
        Embeddings of the keys; key i belongs to query i.
    negative_keys : array, shape (M, D) or (N, M, D), optional
        Negatives shared by all queries, or of each query. None takes the other rows of `positive_key`.
    temperature : float or array of one entry, default: 0.07
        Temperature τ > 0; differentiable as an array.
    symmetric : bool, default: False
        Whether to average the losses of queries against keys and of keys against queries.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`. With negatives of each query, a callable gets
        arrays (N, 1, D) and (N, M, D) and returns (N, 1, M).
    positives : array of int (N,) or of bool (N, K), optional
        Which rows of `positive_key` belong to each query, in place of the row of the same number.
    mask : array of bool, shape (N, K), or (N, M) with `negative_keys`, optional
        Pairs (with `negative_keys`: negatives) that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive, weighted sum, or the weighted losses of the queries.
    multi_positive : {"each", "pooled"}, default: "each"
        What several positives mean; see `portable_nce.objectives.info_nce`.
    block_size : int, None or "auto", default: "auto"
        Keys per tile of the streamed execution; None holds the whole score matrix; ``"auto"`` does so up to about four
        million entries. Negatives of each query are never streamed: their scores are smaller than they are.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit, or one query alone has no negatives.

    References
    ----------
    van den Oord, Li and Vinyals (2018), "Representation Learning with Contrastive Predictive Coding",
    arXiv:1807.03748, equation 4.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> query = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> key = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.info_nce(query, key, temperature=0.1)
    array(0.12692...)
    """
    objective = info_nce_objective(multi_positive=multi_positive)
    shared: dict[str, Any] = {
        "objective": objective,
        "similarity": similarity,
        "temperature": temperature,
        "weights": weights,
        "reduction": reduction,
    }
    if negative_keys is None:
        embeddings = {"query": query, "positive_key": positive_key}
        pairing = diagonal()
        if positives is not None:
            xp, (query, positive_key, positives) = enter(**embeddings, positives=positives)
            shape = (shape_of("query", query, "(N, D)")[0], shape_of("positive_key", positive_key, "(K, D)")[0])
            pairing = pairing_of(xp, positives, shape)
        else:
            enter(**embeddings)
            rows, _ = shape_of("query", query, "(N, D)")
            same_shape("positive_key", positive_key, (rows, *positive_key.shape[1:]))
        return contrast_embeddings(
            embeddings, pairing=pairing, mask=mask, symmetric=symmetric, block_size=block_size, **shared
        )
    for name, value, default in (("symmetric", symmetric, False), ("positives", positives, None)):
        if value is not default:
            message = f"{name}: expected {default} with negative_keys, got {value!r}; it needs in-batch negatives"
            raise ValueError(message)
    xp, (query, positive_key, negatives, mask, weights) = enter(
        query=query, positive_key=positive_key, negative_keys=negative_keys, mask=mask, weights=weights
    )
    shared["weights"] = weights
    floating(xp, query=query, positive_key=positive_key, negative_keys=negatives)
    n_rows, _ = shape_of("query", query, "(N, D)")
    _, width = shape_of("positive_key", positive_key, "(N, D)")
    same_shape("positive_key", positive_key, (n_rows, width))
    if len(negatives.shape) not in {2, 3}:
        message = f"negative_keys: expected shape (M, D) or (N, M, D), got {tuple(negatives.shape)}"
        raise ValueError(message)
    axes = "(M, D)" if len(negatives.shape) == 2 else "(N, M, D)"  # noqa: PLR2004  (a matrix)
    *leading, n_negatives, _ = shape_of("negative_keys", negatives, axes)
    same_shape("negative_keys", negatives, (*([n_rows] if leading else []), n_negatives, width))
    if mask is not None:
        boolean(xp, "mask", mask, (n_rows, n_negatives))
    if leading:
        return _own_negatives(query, positive_key, negatives, mask=mask, block_size=block_size, **shared)
    if mask is not None:
        own = xp.ones((n_rows, n_rows), dtype=mask.dtype, device=device_of(mask))
        mask = xp.concat([own, mask], axis=1)
    keys = xp.concat([positive_key, negatives], axis=0)
    return contrast_embeddings(
        {"query": query, "keys": keys}, pairing=queue(), mask=mask, symmetric=False, block_size=block_size, **shared
    )


def _first_column(tile: Tile) -> tuple[Array, Array]:
    return tile.j == 0, tile.j > 0


def _own_negatives(
    query: Array,
    positive_key: Array,
    negative_keys: Array,
    *,
    objective: Objective,
    similarity: str | Similarity | Callable[[Array, Array], Array],
    temperature: Any,
    mask: Array | None,
    weights: Array | None,
    reduction: str,
    block_size: int | str | None,
) -> Array:
    """InfoNCE with negatives (N, M, D) of each query: a score matrix (N, 1 + M) with the positives in front."""
    block_size_of(block_size)
    parameter = {"temperature": temperature} if is_array(temperature) and not is_number(temperature) else {}
    xp, (query, positive_key, negative_keys, *found) = enter(
        query=query, positive_key=positive_key, negative_keys=negative_keys, **parameter
    )
    dtype = query.dtype
    x, y, z = (accumulate(xp, embedding) for embedding in (query, positive_key, negative_keys))
    scale = inverse(xp, positive_scalar(xp, "temperature", found[0] if found else temperature, x), x)
    chosen = resolve(similarity)
    same_width(similarity, "query", x, "positive_key", y)
    x, y = xp.expand_dims(x, axis=1), xp.expand_dims(y, axis=1)
    with adapter_of(x).full_precision(x):
        scores = xp.concat([chosen.scores(*chosen.prepare(x, keys, scale)) for keys in (y, z)], axis=2)
    scores = xp.reshape(scores, (scores.shape[0], scores.shape[2]))
    if mask is not None:
        mask = xp.concat([xp.ones((mask.shape[0], 1), dtype=mask.dtype, device=device_of(mask)), mask], axis=1)
    pairing = Pairing(_first_column, one_per_row=True)
    result = contrast_scores(
        xp, scores, objective=objective, pairing=pairing, mask=mask, weights=weights, reduction=reduction
    )
    return result if result.dtype == dtype else xp.astype(result, dtype)


def _two_views(view_a: Array, view_b: Array, objective: Objective, weights: Array | None, **options: Any) -> Array:
    """A loss of 2N views, each positive with its partner and negative to all others but itself."""
    xp, (view_a, view_b, weights) = enter(view_a=view_a, view_b=view_b, weights=weights)
    floating(xp, view_a=view_a, view_b=view_b)
    n_pairs, _ = shape_of("view_a", view_a, "(N, D)")
    same_shape("view_b", view_b, tuple(view_a.shape))
    if n_pairs == 1:
        message = "view_a: expected at least 2 rows, got 1: with one pair there are no negatives; use a larger batch"
        raise ValueError(message)
    if weights is not None and tuple(weights.shape) == (n_pairs,):
        weights = xp.concat([weights, weights], axis=0)
    # Accumulated before they are joined: a 16-bit gradient is rounded once, not once for each use.
    views = xp.concat([accumulate(xp, view_a), accumulate(xp, view_b)], axis=0)
    return contrast_embeddings(
        {"views": views},
        dtype=view_a.dtype,
        objective=objective,
        pairing=two_views(),
        symmetric=False,
        weights=weights,
        **options,
    )


def flat_nce(
    view_a: Array,
    view_b: Array,
    /,
    *,
    temperature: float | Array = 0.1,
    include_positive: bool = False,
    form: str = "log",
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the FlatNCE loss of two views (FlatCLR): the log-odds of the negatives.

    .. math:: \ell_i = u_i = \mathrm{lse}_{j \in Q(i)}\, g_{ij} - g_{i p(i)}, \qquad
        g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i) and negative to the other 2(N - 1). Unlike InfoNCE's, its
    gradient does not vanish when the positive wins. The value is no measure of progress; watch `nt_xent` beside it.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    temperature : float or array of one entry, default: 0.1
        Temperature τ > 0; differentiable as an array.
    include_positive : bool, default: False
        Whether the positive stands in the denominator (FlatNCE⊕, whose gradient is InfoNCE's).
    form : {"log", "detach"}, default: "log"
        ``"log"`` is :math:`u_i`, with `include_positive` :math:`\log(1 + e^{u_i})`. ``"detach"`` is
        :math:`e^{u_i - \mathrm{sg}\,u_i}`, with `include_positive`
        :math:`(1 + e^{u_i}) / (1 + \mathrm{sg}\,e^{u_i})`: always 1, with the same gradient.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), optional
        Pairs that take part; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive and a negative, weighted sum, or the weighted losses of the
        views.
    block_size : int, None or "auto", default: "auto"
        Columns per tile of the streamed execution; None holds the whole score matrix; ``"auto"`` does so up to
        about four million entries.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of
        `view_a`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit, or there is only one pair.

    References
    ----------
    Chen et al. (2021), "Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE",
    arXiv:2107.01152.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.flat_nce(view_a, view_b)
    array(-0.18528...)
    """
    return _two_views(
        view_a,
        view_b,
        flat_nce_objective(include_positive=include_positive, form=form),
        weights,
        temperature=temperature,
        similarity=similarity,
        mask=mask,
        reduction=reduction,
        block_size=block_size,
    )


def nt_xent(
    view_a: Array,
    view_b: Array,
    /,
    *,
    temperature: float | Array = 0.1,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the NT-Xent loss of two views (SimCLR): InfoNCE over all 2N views.

    .. math:: \ell_i = -\log \frac{e^{g_{i p(i)}}}{\sum_{j \ne i} e^{g_{ij}}}, \qquad g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i); a view's pair with itself takes no part.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    temperature : float or array of one entry, default: 0.1
        Temperature τ > 0; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), optional
        Pairs that take part; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the 2N views (the sum over both views, divided by N, is twice this), weighted sum, or the
        weighted losses of the views.
    block_size : int, None or "auto", default: "auto"
        Columns per tile of the streamed execution; None holds the whole score matrix; ``"auto"`` does so up to
        about four million entries.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of `view_a`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit, or there is only one pair.

    References
    ----------
    Chen, Kornblith, Norouzi and Hinton (2020), "A Simple Framework for Contrastive Learning of Visual
    Representations", arXiv:2002.05709, section 2.1.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.nt_xent(view_a, view_b)
    array(0.96680...)
    """
    return _two_views(
        view_a,
        view_b,
        info_nce_objective(),
        weights,
        temperature=temperature,
        similarity=similarity,
        mask=mask,
        reduction=reduction,
        block_size=block_size,
    )


def dcl(
    view_a: Array,
    view_b: Array,
    /,
    *,
    temperature: float | Array = 0.1,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the decoupled contrastive loss of two views: NT-Xent without the positive in the denominator.

    .. math:: \ell_i = -g_{i p(i)} + \mathrm{lse}_{j \in Q(i)}\, g_{ij}, \qquad g_{ij} = s(z_i, z_j) / \tau,

    over 2N views, each positive with its partner p(i) and negative to the 2(N - 1) views of other pairs. The same
    function as `flat_nce` without the positive.

    Parameters
    ----------
    view_a, view_b : array, shape (N, D)
        Embeddings of two views of a batch; row i of one belongs to row i of the other.
    temperature : float or array of one entry, default: 0.1
        Temperature τ > 0; differentiable as an array.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (2N, 2N), optional
        Pairs that take part; all by default.
    weights : array, shape (N,) or (2N,), optional
        Weights of the pairs, or of the views.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the views that have a positive and a negative, weighted sum, or the weighted losses of the
        views.
    block_size : int, None or "auto", default: "auto"
        Columns per tile of the streamed execution; None holds the whole score matrix; ``"auto"`` does so up to
        about four million entries.

    Returns
    -------
    array
        Loss in nats (may be negative): 0-d, or shape (2N,) for reduction "none", of the library, dtype and device of
        `view_a`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit, or there is only one pair.

    References
    ----------
    Yeh et al. (2022), "Decoupled Contrastive Learning", arXiv:2110.06848.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> view_a = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> view_b = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.dcl(view_a, view_b)
    array(-0.18528...)
    """
    return _two_views(
        view_a,
        view_b,
        flat_nce_objective(),
        weights,
        temperature=temperature,
        similarity=similarity,
        mask=mask,
        reduction=reduction,
        block_size=block_size,
    )


def clip(
    image: Array,
    text: Array,
    /,
    *,
    logit_scale: float | Array,
    max_logit_scale: float | None = 100.0,
    similarity: str | Similarity | Callable[[Array, Array], Array] = "cosine",
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
    block_size: int | str | None = "auto",
) -> Array:
    r"""Return the CLIP loss of images and texts: symmetric InfoNCE with a learned scale.

    .. math:: \tfrac12 \Big(\frac1N \sum_i -\log \mathrm{softmax}_j(g_{ij})_i
        + \frac1N \sum_j -\log \mathrm{softmax}_i(g_{ij})_j\Big), \qquad g_{ij} = \mathrm{scale} \cdot s(x_i, y_j).

    Parameters
    ----------
    image, text : array, shape (N, D)
        Embeddings; row i of one belongs to row i of the other.
    logit_scale : float or array of one entry
        Factor of the similarities, the inverse of a temperature: :math:`e^t` where the model learns t, starting at
        ``1 / 0.07``. Differentiable as an array.
    max_logit_scale : float or None, default: 100.0
        Larger scales are taken for this one (with gradient 0 to the scale); None leaves them.
    similarity : {"cosine", "dot", "neg_sq_euclidean", "neg_euclidean"}, Similarity or callable, default: "cosine"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), optional
        Pairs that take part; all by default.
    weights : array, shape (N,), optional
        Weights of the pairs.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean, weighted sum, or the weighted losses of the pairs; each the mean of both directions.
    block_size : int, None or "auto", default: "auto"
        Columns per tile of the streamed execution; None holds the whole score matrix; ``"auto"`` does so up to
        about four million entries.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `image`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type or dtype, or of another library.
    ValueError
        If a shape, device or option does not fit, or there is only one pair.

    References
    ----------
    Radford et al. (2021), "Learning Transferable Visual Models From Natural Language Supervision",
    arXiv:2103.00020, figure 3.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> image = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> text = np.asarray([[0.8, 0.6], [0.6, 0.8]])
    >>> pnce.clip(image, text, logit_scale=10.0)
    array(0.12692...)
    """
    xp, _ = enter(image=image, text=text)
    rows, _ = shape_of("image", image, "(N, D)")
    same_shape("text", text, (rows, *text.shape[1:]))
    if max_logit_scale is not None:
        limit = positive_scalar(xp, "max_logit_scale", max_logit_scale, image)
        logit_scale = _at_most(logit_scale, limit)
    return contrast_embeddings(
        {"image": image, "text": text},
        objective=info_nce_objective(),
        pairing=diagonal(),
        similarity=similarity,
        scale=logit_scale,
        symmetric=True,
        mask=mask,
        weights=weights,
        reduction=reduction,
        block_size=block_size,
    )


def _at_most(value: Any, limit: Any) -> Any:
    """`value`, or the limit where it is larger; nothing that is no number or array is judged here."""
    if is_number(value):
        return min(value, limit)  # NaN stays, to be refused
    if is_array(value):
        xp, (value,) = enter(logit_scale=value)
        return xp.where(value > limit, xp.zeros_like(value) + limit, value)
    return value
