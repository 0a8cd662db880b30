"""Ranking losses of pairs with graded similarities.

`cosent`, the plain formula: one logarithm over all pairs of pairs whose grades differ.

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 4, 3))
>>> grades = np.asarray([0.1, 0.9, 0.5, 0.9])
>>> a, b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
>>> s = (a * b).sum(axis=1)
>>> terms = [np.exp(20 * (s[j] - s[i])) for i in range(4) for j in range(4) if grades[i] > grades[j]]
>>> bool(np.isclose(np.log(1 + sum(terms)), pnce.cosent(x, y, grades)))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._call import Call, LossOptions, enter_embeddings, pair_scores, same_width, shards_of_rows
from .._core.autodiff import stop_gradient
from .._core.checks import cast_hint, check_mask, check_shape, is_floating, positive_scalar, refuse_negative
from .._core.namespace import device_of, lift_to_tape, namespace_of
from .._core.numerics import normalize, softplus, sum_to_scalar, upcast, zeros
from .._core.protocol import Array, Namespace
from .._core.ranks import Ranks, end_exchange, propagates_errors, widened
from .._core.reduction import finish
from .._core.registry import adapter_of
from .._core.types import AnyArray, ArrayOf, ArrayT
from .._execution.live import counted_by
from ..similarities import AnySimilarity

__all__ = ["angle", "cosent", "enter_graded", "loss_of_graded"]


@propagates_errors
def cosent(
    x: ArrayOf[ArrayT],
    y: AnyArray,
    grades: AnyArray,
    /,
    *,
    scale: float | AnyArray = 20.0,
    similarity: AnySimilarity = "cosine",
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the CoSENT loss: pairs with a higher grade should be more similar.

    .. math:: \ell = \log\Big(1 + \sum_{i, j :\, l_i > l_j} w_i w_j\, e^{\alpha (s_j - s_i)}\Big), \qquad
        s_i = s(x_i, y_i)

    The sum is over all rows i, j with grades :math:`l_i > l_j`. Equal grades are not compared; if all grades are equal,
    loss and gradient are 0. Sorting the rows by grade makes it O(N log N).

    Parameters
    ----------
    x, y : array, shape (N, D)
        Embeddings of N pairs.
    grades : array of real numbers, shape (N,)
        Target similarity of each pair, in any unit; only the order matters. No gradient. A pair whose grade is NaN is
        ignored.
    scale : float or array of one entry, default: 20.0
        Scale α > 0 of the similarities, the inverse of a temperature; differentiable if an array.
    similarity : str, Similarity or callable, default: "cosine"
        How the embeddings of a pair are compared; see `portable_nce.similarities` and :doc:`/options`. A similarity of
        -inf masks its pair.
    mask : array of bool, shape (N,), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Multiplicity w ≥ 0 of each pair: weight 2 counts the pair twice, weight 0 ignores it.
    across : Ranks, optional
        Ranks that hold the other pairs of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, of the library, dtype and device of `x`. It is one logarithm for the whole batch, so there is
        no `reduction`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    angle : With the similarity of AnglE.
    portable_nce.from_scores.cosent : From the similarities.

    References
    ----------
    Huang et al. (2024), "CoSENT: Consistent Sentence Embedding via Similarity Ranking", IEEE/ACM Transactions on Audio,
    Speech, and Language Processing, doi:10.1109/TASLP.2024.3402087.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.asarray([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> y = np.asarray([[1.0, 0.0], [3.0, 4.0], [4.0, 3.0]])
    >>> pnce.cosent(x, y, np.asarray([5, 1, 3]), scale=5.0)
    array(0.62652...)
    """
    entered, graded = enter_graded({"x": x, "y": y}, "(N, D)", grades=grades, scale=scale, mask=mask, weights=weights)
    x, y = entered.arrays
    same_width(similarity, "x", x, "y", y)
    return _of_pairs(entered, graded, lambda x, y: pair_scores(similarity, x, y)[:, 0], across)


@propagates_errors
def angle(
    x: ArrayOf[ArrayT],
    y: AnyArray,
    grades: AnyArray,
    /,
    *,
    scale: float | AnyArray = 20.0,
    mask: AnyArray | None = None,
    weights: AnyArray | None = None,
    across: Ranks | None = None,
) -> ArrayT:
    r"""Return the AnglE loss: `cosent` with a similarity that includes the phase between complex embeddings.

    .. math:: \ell = \log\Big(1 + \sum_{i, j :\, l_i > l_j} w_i w_j\, e^{\alpha (s_j - s_i)}\Big), \qquad
        s_i = \left| \mathrm{Re}\, r_i + \mathrm{Im}\, r_i \right|, \quad
        r_i = \frac{\sum_k x_{ik}\, \overline{y_{ik}}}{\lVert x_i \rVert\, \lVert y_i \rVert}

    The first half of an embedding is the real part of D/2 complex numbers, the second half the imaginary part; an odd
    width is padded by one 0. Re r is the cosine. s is 1 for equal embeddings, and at most √2, at a phase of 45°.

    Parameters
    ----------
    x, y : array, shape (N, D)
        Embeddings of N pairs.
    grades : array of real numbers, shape (N,)
        Target similarity of each pair, in any unit; only the order matters. No gradient. A pair whose grade is NaN is
        ignored.
    scale : float or array of one entry, default: 20.0
        Scale α > 0 of the similarities, the inverse of a temperature; differentiable if an array.
    mask : array of bool, shape (N,), optional
        Pairs to include; all by default.
    weights : array, shape (N,), optional
        Multiplicity w ≥ 0 of each pair: weight 2 counts the pair twice, weight 0 ignores it.
    across : Ranks, optional
        Ranks that hold the other pairs of the batch; see `portable_nce.across`.

    Returns
    -------
    array
        Loss in nats: 0-d, of the library, dtype and device of `x`. It is one logarithm for the whole batch, so there is
        no `reduction`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype, or belongs to another library.
    ValueError
        If a shape, device or option is invalid.

    See Also
    --------
    cosent : With any similarity.

    Notes
    -----
    The paper divides x by y, ignores the lengths, and calls the absolute value the angle difference Δθ, smaller for
    pairs of a higher grade. The authors' code sums the real and imaginary parts of all components before it takes the
    absolute value, which gives 1 for equal embeddings and is larger for pairs of a higher grade. sentence-transformers'
    ``AnglELoss`` and this function follow the code. The paper trains on the sum of this loss, `cosent` and `info_nce`;
    here each is separate.

    References
    ----------
    Li and Li (2024), "AoE: Angle-optimized Embeddings for Semantic Textual Similarity", ACL 2024; first as
    "AnglE-optimized Text Embeddings", arXiv:2309.12871.

    Examples
    --------
    >>> import numpy as np
    >>> import portable_nce as pnce
    >>> x = np.asarray([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> y = np.asarray([[1.0, 0.0], [3.0, 4.0], [-4.0, 3.0]])
    >>> pnce.angle(x, y, np.asarray([5, 1, 3]), scale=5.0)
    array(2.12940...)
    """
    entered, graded = enter_graded({"x": x, "y": y}, "(N, D)", grades=grades, scale=scale, mask=mask, weights=weights)
    x, y = entered.arrays
    check_shape("y", y, tuple(x.shape))
    return _of_pairs(entered, graded, _angles, across)


def _angles(x: Array, y: Array) -> Array:
    """``|Re + Im|`` of ``Σ x conj(y)`` for unit rows, whose halves are real and imaginary parts."""
    xp = namespace_of(x, y)
    if x.shape[1] % 2:
        x, y = (xp.concat([z, zeros(xp, (z.shape[0], 1), z)], axis=1) for z in (x, y))
    x, unit = normalize(x), normalize(y)
    half = x.shape[1] // 2
    # With x = a + ib and y = c + id: Re + Im of x times the conjugate of y is a(c - d) + b(c + d).
    c, d = unit[:, :half], unit[:, half:]
    return xp.abs(xp.sum(x * xp.concat([c - d, c + d], axis=1), axis=1))


class Graded(NamedTuple):
    """Grades of N pairs, scale of their similarities, mask and weights."""

    grades: Array
    scale: Any
    live: Array
    weights: Array | None


def enter_graded(
    arrays: dict[str, Array], axes: str, *, grades: Array, scale: Any, mask: Array | None, weights: Array | None
) -> tuple[Call, Graded]:
    """Check the arguments of a loss of graded pairs."""
    refuse_negative("weights", weights)
    options = LossOptions(scale, "cosine", mask, weights, "mean", "auto", None, None, scaled_by="scale")
    entered = enter_embeddings(arrays, options, {"grades": grades}, axes=axes)
    xp, x, grades, options = entered.xp, entered.arrays[0], entered.numbers["grades"], entered.options
    if not (is_floating(xp, grades.dtype) or xp.isdtype(grades.dtype, ("integral", "bool"))):
        hint = f"convert it with grades.{cast_hint(grades)}"
        raise TypeError(f"grades: expected a real dtype, got {grades.dtype}; {hint}")
    check_shape("grades", grades, x.shape[:1])
    if options.mask is not None:
        check_mask(xp, "mask", options.mask, x.shape[:1])
    scale = positive_scalar(xp, "scale", options.temperature, x)
    grades = xp.astype(grades, xp.int32) if xp.isdtype(grades.dtype, "bool") else widened(upcast(xp, grades))
    grades = stop_gradient(grades)
    live = counted_by(options.weights, grades == grades, options.mask)  # noqa: PLR0124  (NaN is not)
    return entered, Graded(grades, scale, live, options.weights)


def _of_pairs(
    entered: Call, graded: Graded, similarity: Callable[[Array, Array], Array], across: Ranks | None
) -> Array:
    """Loss of the pairs of all ranks.

    Each rank gathers the similarities and grades, a few numbers per pair, and computes the loss of all pairs. It
    returns that loss divided by the number of ranks, since results and gradients are summed over ranks.
    """
    xp, shards = entered.xp, shards_of_rows(across, entered.arrays[0])
    scores = similarity(*entered.without_idle(graded.live).arrays)
    if shards is None:
        return finish(xp, loss_of_graded(xp, scores, graded), entered.dtype, "mean")
    grades, scale, live, weights = graded
    (numbers,) = lift_to_tape((scores, xp.astype(live, scores.dtype), *(() if weights is None else (weights,))))
    space = namespace_of(*numbers)
    result = shards.gather(space.stack(list(numbers), axis=1), own_first=False)
    scores, live = result[:, 0], stop_gradient(result[:, 1]) > 0
    weights = None if weights is None else result[:, 2]
    of_all = Graded(shards.replicated(widened(grades)), shards.shared(scale), live, weights)
    loss = shards.total(loss_of_graded(xp, scores, of_all) / float(shards.communicator.size))
    end_exchange(across)
    return finish(xp, loss, entered.dtype, "mean")


def loss_of_graded(xp: Namespace, scores: Array, graded: Graded) -> Array:
    r"""``log(1 + Σ w_i w_j exp(α (s_j - s_i)))`` over pairs with ``l_j < l_i``; shape (1,).

    With :math:`h_i = \max s_j` over the rows of lower grades, and :math:`d = \max_i (h_i - s_i)`, the sum is

    .. math:: e^{\alpha d} \sum_i w_i\, T_i\, e^{\alpha (h_i - s_i - d)}, \qquad
        T_i = \sum_{j :\, l_j < l_i} w_j\, e^{\alpha (s_j - h_i)} \ge w_{\arg\max}

    No exponent is positive, so nothing overflows, and only negligible terms underflow. :math:`h` and :math:`T` are
    running maxima and sums in the order of the grades, taken at the last row of a lower grade.

    The order and the maxima are constants. The derivatives enter through a factor ``exp(±α (s - sg s)) = 1`` of each
    row, so that the running sums are linear in the differentiated terms, and their gradient reuses the exponentials.
    """
    scale, live = graded.scale, xp.logical_and(graded.live, scores != -math.inf)
    grades = xp.where(live, graded.grades, xp.zeros_like(graded.grades))  # NaN cannot be sorted
    order = xp.argsort(grades, stable=True)
    grades = xp.take(grades, order, axis=0)
    scores, live = xp.take(scores, order, axis=0), xp.take(live, order, axis=0)
    weight = xp.astype(live, scores.dtype)
    if graded.weights is not None:
        weight = xp.where(live, xp.take(graded.weights, order, axis=0), weight)
    known = xp.logical_and(live, xp.isfinite(scores))
    finite = xp.where(known, scores, xp.zeros_like(scores))
    exponent = scale * (finite - stop_gradient(finite))  # 0
    # Masked rows have weight 0 and are never the maximum.
    lowest = xp.min(xp.where(known, stop_gradient(scores), math.inf), axis=0, keepdims=True)
    lowest = xp.where(xp.isinf(lowest), xp.zeros_like(lowest), lowest)
    constant = xp.where(live, stop_gradient(scores), lowest)

    highest, total = _running_sums(xp, constant, weight * xp.exp(exponent), scale)
    lower = _number_below(xp, grades)
    last = xp.where(lower > 0, lower - 1, lower)
    highest, total = xp.take(highest, last, axis=0), xp.take(total, last, axis=0)
    counted = xp.logical_and(xp.logical_and(lower > 0, live), stop_gradient(total) != 0)
    lead = _difference(xp, highest, constant)
    counted = xp.logical_and(counted, lead != -math.inf)
    largest = xp.max(xp.where(counted, lead, -math.inf), axis=0, keepdims=True)
    behind = _distance(xp, largest, xp.where(counted, lead, largest))
    factor = weight * xp.exp(-exponent) * xp.exp(-scale * behind)
    sums = sum_to_scalar(xp, xp.where(counted, total, xp.zeros_like(total)) * factor)
    nothing = largest == -math.inf
    log_sum = xp.log(xp.where(nothing, xp.ones_like(sums), sums))
    log_sum = scale * xp.where(nothing, xp.zeros_like(largest), largest) + log_sum
    return xp.where(nothing, xp.zeros_like(sums), softplus(xp, log_sum))


def _number_below(xp: Namespace, grades: Array) -> Array:
    """Number of rows with a lower grade, of sorted grades."""
    rows = grades.shape[0]
    if isinstance(rows, int):
        return xp.searchsorted(grades, grades)
    # JAX does not search in a symbolic number of rows: the first rows of all grades, by the number of the grade.
    places = xp.arange(rows, device=device_of(grades))
    is_first = xp.logical_or(places == 0, grades != xp.roll(grades, 1))
    firsts = xp.sort(xp.where(is_first, places, xp.zeros_like(places) + rows))
    return xp.take(firsts, xp.cumulative_sum(xp.astype(is_first, places.dtype)) - 1, axis=0)


def _running_sums(xp: Namespace, highest: Array, total: Array, scale: Any) -> tuple[Array, Array]:
    """Running maxima of constants s, and sums ``Σ t exp(α (s - maximum))``.

    Prefix sums by doubling (Hillis and Steele 1986, "Data parallel algorithms", CACM 29): after k steps an entry holds
    the sum of up to 2^k terms. If the number of rows is symbolic, all `_MOST_STEPS` steps are taken.
    """
    rows = highest.shape[0]
    known = isinstance(rows, int) and adapter_of(total).mode != "compiled"
    places = xp.arange(rows, device=device_of(total))

    def before(x: Array, reach: int) -> Array:
        """Array shifted by `reach` entries; the first `reach` entries stay in place."""
        if known:
            return xp.concat([x[:reach], x[:-reach]], axis=0)
        return xp.take(x, xp.where(places < reach, places, places - reach), axis=0)

    for step in range((rows - 1).bit_length() if known else _MOST_STEPS):
        reach = 2**step
        previous, earlier = before(highest, reach), before(total, reach)
        earlier = xp.where(places < reach, xp.zeros_like(earlier), earlier)
        factor = xp.exp(-scale * _distance(xp, highest, previous))
        own = highest >= previous
        total = xp.where(own, total, total * factor) + xp.where(own, earlier * factor, earlier)
        highest = xp.maximum(highest, previous)
    return highest, total


_MOST_STEPS = 31
"""Steps of a prefix sum of 2^31 terms."""


def _difference(xp: Namespace, x: Array, y: Array) -> Array:
    """Difference of constants; 0 for equal infinities."""
    same = x == y
    x, y = (xp.where(same, xp.zeros_like(y), z) for z in (x, y))
    return x - y


def _distance(xp: Namespace, x: Array, y: Array) -> Array:
    """Absolute difference of constants, capped so that multiplying by a scale cannot overflow; NaN stays NaN."""
    distance = xp.abs(_difference(xp, x, y))
    most = float(xp.finfo(y.dtype).max) ** 0.75
    return xp.where(distance > most, xp.full_like(distance, most), distance)
