"""Two-tower retrieval loss with in-batch candidates and the logQ correction.

`two_tower`, the plain formula: frequent candidates are too often negatives, so that log q is subtracted.

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 6, 4))
>>> log_q = np.log(np.asarray([0.1, 0.2, 0.3, 0.1, 0.2, 0.1]))
>>> scores = x @ y.T - log_q
>>> p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
>>> bool(np.isclose(-np.log(p.diagonal()).mean(), pnce.two_tower(x, y, log_q=log_q)))
True
"""

from __future__ import annotations

from collections.abc import Mapping

from .._call import LossOptions, contrast_embeddings, enter_embeddings, same_width
from .._core.checks import check_floating, check_integers, check_log_probabilities, check_shape, check_width, shape_of
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks, propagates_errors
from .._core.types import AnyArray, ArrayOf, ArrayT, BlockSize, Precision, ReductionName
from ..objectives import info_nce
from ..pairings import comparable, diagonal
from ..pairings import ids as pairing_of_ids
from ..similarities import AnySimilarity, shifted_columns, takes_tokens

__all__ = ["two_tower"]


@propagates_errors
@takes_tokens
def two_tower(
    query: ArrayOf[ArrayT],
    candidate: AnyArray,
    /,
    negative_candidates: AnyArray | None = None,
    *,
    ids: AnyArray | None = None,
    negative_ids: AnyArray | None = None,
    log_q: AnyArray | None = None,
    negative_log_q: AnyArray | None = None,
    temperature: float | AnyArray = 1.0,
    similarity: AnySimilarity = "dot",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    reduction: ReductionName = "mean",
    block_size: BlockSize = "auto",
    precision: Precision | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the sampled softmax of queries over the candidates of a batch, with the logQ correction.

    .. math:: \ell_i = -\log \frac{e^{g_{ii}}}{e^{g_{ii}} + \sum_{j \in Q(i)} e^{g_{ij}}}, \qquad
        g_{ij} = s(q_i, c_j) / \tau - \log q_j

    A candidate is in a batch with probability :math:`q_j`, so popular ones are negatives more often; the last term
    corrects that. Candidates with the id of the positive (accidental hits) are not negatives.

    Parameters
    ----------
    query : array, shape (N, D)
        Embeddings of the queries.
    candidate : array, shape (N, D)
        Embeddings of their candidates; candidate i belongs to query i.
    negative_candidates : array, shape (M, D), optional
        Further candidates, negatives of all queries, for example drawn uniformly (mixed negative sampling).
    ids : array of int, shape (N,), optional
        Ids of the candidates; None treats all as different.
    negative_ids : array of int, shape (M,), optional
        Ids of the further candidates; needed with `ids` and `negative_candidates`.
    log_q : array, shape (N,), optional
        Natural logarithm of the probability that the batch contains each candidate; take ``.log()`` of probabilities
        or counts. A constant added to all has no effect, so the probabilities need not be normalised. None applies no
        correction.
    negative_log_q : array, shape (M,), optional
        Logarithm of the sampling probability of each further candidate, up to the same constant; needed with `log_q`
        and `negative_candidates`.
    temperature : float, or array of one entry or of shape (N,), default: 1.0
        Temperature τ > 0, shared or one per row; differentiable if an array.
    similarity : {"dot", "cosine", "neg_sq_euclidean", ...}, Similarity or callable, default: "dot"
        How embeddings are compared; see `portable_nce.similarities`.
    mask : array of bool, shape (N, N), or (N, N + M) with `negative_candidates`, optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Weights of the queries.
    reduction : {"mean", "sum", "none"}, default: "mean"
        Weighted mean over the queries that have a positive (0 if none has), weighted sum, or the weighted losses of the
        queries.
    block_size : int, None or "auto", default: "auto"
        Rows per block, or None for the whole score matrix; see :doc:`/options`.
    precision : {"high", "highest"}, optional
        Precision of matrix products; see :doc:`/options`.
    across : Ranks, optional
        Ranks that hold the other rows of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, or shape (N,) for reduction "none", of the library, dtype and device of `query`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    portable_nce.density.sampled_softmax : From scores, with separate noise samples for each row.

    References
    ----------
    Yi et al. (2019), "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019,
    equations 4 and 5; Yang et al. (2020), "Mixed Negative Sampling for Learning Two-tower Neural Networks in
    Recommendations", WWW 2020.

    Examples
    --------
    PyTorch, with the ids of the items and the logarithms of the probabilities with which the batch draws them. Counts
    in place of probabilities give the same loss, since a constant does not matter:

    >>> import torch
    >>> import portable_nce as pnce
    >>> user = torch.randn(256, 64, requires_grad=True)
    >>> tower, popularity = torch.nn.Linear(32, 64), torch.rand(1000).softmax(dim=0)
    >>> ids = torch.multinomial(popularity, 256, replacement=True)
    >>> item = tower(torch.randn(1000, 32)[ids])
    >>> loss = pnce.two_tower(user, item, ids=ids, log_q=popularity[ids].log(), temperature=0.1)
    >>> loss.backward()
    >>> user.grad.shape, tower.weight.grad.shape
    (torch.Size([256, 64]), torch.Size([64, 32]))

    NumPy, with 512 further items, drawn uniformly:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q, noise = rng.standard_normal((2, 256, 64))
    >>> pnce.two_tower(q, q + noise, rng.standard_normal((512, 64)), similarity="cosine", temperature=0.1)
    array(0.95985...)
    """
    options = LossOptions(temperature, similarity, mask, weights, reduction, block_size, precision, across)
    others = {
        "ids": ids,
        "negative_ids": negative_ids,
        "log_q": log_q,
        "negative_log_q": negative_log_q,
    }
    others = {name: x for name, x in others.items() if x is not None}
    further = {} if negative_candidates is None else {"negative_candidates": negative_candidates}
    entered = enter_embeddings({"query": query, "candidate": candidate}, options, others, columns=further)
    xp, (rows, columns, *negatives) = entered.xp, entered.embeddings.values()
    n_rows, sizes = rows.array.shape[0], [rows.array.shape[0]]
    same_width(similarity, "query", rows.array, "candidate", columns.array)
    for negative in negatives:
        if across is not None:
            raise ValueError("negative_candidates: expected None, as it is not supported together with across=")
        sizes.append(shape_of("negative_candidates", negative.array, "(M, D)")[0])
        check_width("negative_candidates", negative.array, columns.array.shape[1])
        columns = columns.joined(negative)
    numbers, corrections = (_joined(xp, name, entered.numbers, sizes) for name in ("ids", "log_q"))
    pairing = diagonal()
    if numbers is not None:
        check_integers(xp, "ids", numbers, (sum(sizes),))
        pairing = pairing_of_ids(numbers[:n_rows], numbers)
    options = entered.options
    if corrections is not None:
        check_floating(xp, log_q=corrections)
        for name in ("log_q", "negative_log_q"):
            if name in entered.numbers:
                check_log_probabilities(name, entered.numbers[name])
        options = options._replace(similarity=shifted_columns(similarity, -corrections))
    embeddings = {"query": rows, "candidate": columns}
    return contrast_embeddings(embeddings, info_nce(), pairing, options, dtype=entered.dtype)


def _joined(xp: Namespace, name: str, arrays: Mapping[str, Array], sizes: list[int]) -> Array:
    """Concatenation of an array of the candidates and one of the further candidates; None if absent."""
    own, extra = arrays.get(name), arrays.get(f"negative_{name}")
    if own is not None:
        check_shape(name, own, (sizes[0],), _of_catalogue(name, own, sizes[0], "ids"))
    if own is None or len(sizes) == 1:
        if extra is not None:
            raise ValueError(f"negative_{name}: expected None without {name} and negative candidates, got an array")
        return own
    if extra is None:
        raise ValueError(
            f"negative_{name}: expected the {name} of the negative candidates, got None; they are given for others"
        )
    remedy = _of_catalogue(f"negative_{name}", extra, sizes[1], "negative_ids")
    check_shape(f"negative_{name}", extra, (sizes[1],), remedy)
    if extra.dtype != own.dtype and all(xp.isdtype(x.dtype, "integral") for x in (own, extra)):
        own, extra = comparable(own, extra)
    elif extra.dtype != own.dtype:
        raise TypeError(f"negative_{name}: expected the dtype of {name}, {own.dtype}, got {extra.dtype}")
    return xp.concat([own, extra], axis=0)


def _of_catalogue(name: str, x: Array, count: int, ids: str) -> str:
    """Remedy for more entries than candidates: those of a whole catalogue."""
    return f"pass {name}[{ids}], the entries of the candidates in this batch" if tuple(x.shape) > (count,) else ""
