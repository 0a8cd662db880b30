"""Late interaction of tokens: against ColBERT's scoring in torch, and edge cases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch
from torch.nn import functional

import portable_nce as pnce
from portable_nce import similarities
from portable_nce._core.namespace import namespace_of
from portable_nce.similarities import max_sim
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import LOSSES, example

pytestmark = [
    pytest.mark.usefixtures("jax_x64"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

N, T, K, U, D = 6, 3, 9, 5, 4
RNG = np.random.default_rng(7)
QUERY, DOCUMENT = RNG.normal(size=(N, T, D)), RNG.normal(size=(K, U, D))
QUERY_MASK, DOCUMENT_MASK = RNG.random((N, T)) < 0.7, RNG.random((K, U)) < 0.6
QUERY_MASK[:, 0] = DOCUMENT_MASK[:, 2] = True
TEMPERATURE = 0.4

libraries = pytest.mark.parametrize("convert", [np.asarray, array_api_strict.asarray, torch.asarray, jnp.asarray])
blocks = pytest.mark.parametrize("block_size", [None, "auto", 2])


def colbert(query: torch.Tensor, document: torch.Tensor, *, normalize: bool = True) -> torch.Tensor:
    """Sum over query tokens of the maximum over document tokens, of cosines or products; masked, and over τ."""
    if normalize:
        query, document = functional.normalize(query, dim=-1), functional.normalize(document, dim=-1)
    products = torch.einsum("ntd,kud->nktu", query, document)
    products = products.masked_fill(~torch.asarray(DOCUMENT_MASK)[None, :, None, :], -torch.inf)
    best = products.max(dim=-1).values.masked_fill(~torch.asarray(QUERY_MASK)[:, None, :], 0.0)
    return best.sum(dim=-1) / TEMPERATURE


def reference(*, normalize: bool = True, symmetric: bool = False) -> tuple[float, list[np.ndarray]]:
    """The cross-entropy of ColBERT's scores and its gradients."""
    query, document = (torch.asarray(x).requires_grad_() for x in (QUERY, DOCUMENT))
    scores, own = colbert(query, document, normalize=normalize), torch.arange(N)
    loss = functional.cross_entropy(scores, own)
    if symmetric:
        square = scores[:, :N]
        loss = (functional.cross_entropy(square, own) + functional.cross_entropy(square.T, own)) / 2
    return loss.item(), [x.numpy() for x in torch.autograd.grad(loss, (query, document))]


def of_tokens(query: Any, document: Any, masks: Any = (None, None), *, normalize: bool = True, **options: Any) -> Any:
    """Give the InfoNCE of tokens."""
    similarity = max_sim(query_mask=masks[0], document_mask=masks[1], normalize=normalize)
    return pnce.contrast(query, document, objective="info_nce", similarity=similarity, **options)


def slopes_of(loss: Callable[..., Any], *arrays: Any) -> tuple[Any, list[Any]]:
    """Give value and gradients of a function of arrays."""
    value, slopes = pnce.value_and_grad(loss, argnums=tuple(range(len(arrays))))(*arrays)
    return float(value), [np.asarray(x) for x in slopes]


def ours(convert: Any = np.asarray, columns: int = K, **options: Any) -> tuple[Any, list[np.ndarray]]:
    masks = [convert(QUERY_MASK), convert(DOCUMENT_MASK[:columns])]
    arrays = [convert(QUERY), convert(DOCUMENT[:columns])]
    return slopes_of(lambda q, d: of_tokens(q, d, masks, temperature=TEMPERATURE, **options), *arrays)


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=tolerance)
    for x, y in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(x, y[: len(x)], rtol=tolerance, atol=tolerance)


@libraries
@blocks
@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_of_colbert(convert: Any, block_size: Any, *, normalize: bool) -> None:
    found = ours(convert, normalize=normalize, block_size=block_size)
    assert_same(found, reference(normalize=normalize))
    if convert is np.asarray:  # the columns use the same scores
        both = ours(convert, columns=N, symmetric=True, normalize=normalize, block_size=block_size)
        assert_same(both, reference(normalize=normalize, symmetric=True))


@blocks
@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_the_first_of_equal_maxima_has_the_gradient(library: Any, block_size: Any) -> None:
    document = library.asarray([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    query = library.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])

    options: Any = {"normalize": False, "temperature": 1.0, "block_size": block_size}
    _, (of_query, of_document) = slopes_of(lambda q, d: of_tokens(q, d, **options), query, document)
    assert not of_query.any()  # all documents have equal scores
    half = [[[-0.25, 0.0], [0.0, 0.25], [0.0, 0.0]], [[0.0, -0.25], [0.0, 0.0], [0.25, 0.0]]]
    np.testing.assert_allclose(of_document, half, atol=1e-15)


@blocks
def test_rows_without_tokens_take_no_part(block_size: Any) -> None:
    """Invalid tokens have no effect, even if NaN."""
    query, document = QUERY.copy(), DOCUMENT.copy()
    query_mask, document_mask = QUERY_MASK.copy(), DOCUMENT_MASK.copy()
    query_mask[1], document_mask[[3, 7]] = False, False
    query[~query_mask], document[~document_mask] = np.nan, np.inf

    masks = (query_mask, document_mask)
    value, gradients = slopes_of(lambda q, d: of_tokens(q, d, masks, block_size=block_size), query, document)
    rows = of_tokens(query, document, masks, block_size=block_size, reduction="none")
    assert np.all(rows[[1, 3]] == 0.0)  # an empty query, and one whose document is empty
    counted = [0, 2, 4, 5]
    assert value == pytest.approx(rows[counted].mean(), rel=1e-13)
    assert all(np.all(np.isfinite(x)) for x in gradients)
    assert all(np.all(x[~mask] == 0.0) for x, mask in zip(gradients, masks, strict=True))
    left = [*counted, 1, 6, 8]  # equal without these rows and columns
    kept, others = np.nan_to_num(query[counted]), np.nan_to_num(document[left], posinf=0.0)
    alone = of_tokens(kept, others, (query_mask[counted], document_mask[left]), block_size=block_size)
    assert value == pytest.approx(float(alone), rel=1e-13)


def test_losses_that_take_tokens() -> None:
    two, three, in_scores = (QUERY, DOCUMENT[:N]), (QUERY, DOCUMENT[:N], DOCUMENT[N:]), pnce.from_scores
    given = (colbert(torch.asarray(QUERY), torch.asarray(DOCUMENT)) * TEMPERATURE).numpy()
    own, log_q, mask = given[:, :N], RNG.normal(size=K), np.eye(N, K, dtype=bool) | (np.arange(K) >= N)
    masks: dict[str, Any] = {"query_mask": QUERY_MASK, "document_mask": DOCUMENT_MASK[:N]}
    further = np.stack([DOCUMENT_MASK[N:]] * N)
    every, own_every = (max_sim(**masks, negative_mask=x) for x in (DOCUMENT_MASK[N:], further))
    square = max_sim(**masks)
    info_nce = partial(pnce.info_nce, temperature=0.5)
    two_tower = partial(pnce.two_tower, temperature=0.5, log_q=log_q[:N], negative_log_q=log_q[N:])
    rows: list[tuple[Any, tuple[Any, ...], Any, Any]] = [
        (info_nce, two, square, in_scores.info_nce(own / 0.5)),
        (info_nce, three, every, in_scores.info_nce(given / 0.5, mask=mask)),
        (info_nce, (*two, np.stack([DOCUMENT[N:]] * N)), own_every, info_nce(*three, similarity=every)),
        (partial(pnce.clip, logit_scale=2.0), two, square, in_scores.clip(2.0 * own)),
        (partial(pnce.siglip, logit_scale=2.0, logit_bias=-1.0), two, square, in_scores.logistic(2.0 * own - 1.0)),
        (two_tower, three, every, in_scores.info_nce(given / 0.5 - log_q)),
    ]
    for loss, arrays, similarity, wanted in rows:
        assert loss(*arrays, similarity=similarity) == pytest.approx(wanted, rel=1e-13), loss
    among, pairing = np.concatenate([QUERY, QUERY[::-1]]), pnce.pairings.labels(np.arange(2 * N) % 3)
    for document_rows in (None, among.copy()):
        assert np.isfinite(of_tokens(among, document_rows, pairing=pairing))


@libraries
@pytest.mark.parametrize("padding", [0.0, 5.0, np.nan, np.inf])
@pytest.mark.parametrize("own", [False, True])
def test_padding_of_negatives_has_no_effect(convert: Any, padding: float, *, own: bool) -> None:
    """The first negative has some valid tokens, the second none."""
    shape = (N, 2) if own else (2,)
    negatives = np.random.default_rng(1).normal(size=(*shape, U, D))
    valid = np.concatenate([np.arange(U) <= np.arange(N)[:, None, None] % U, np.zeros((N, 1, U), dtype=bool)], axis=1)
    valid = valid if own else valid[2]
    query, document, first = (torch.asarray(x).requires_grad_() for x in (QUERY, DOCUMENT[:N], negatives[..., 0, :, :]))
    q, d, n = (functional.normalize(x, dim=-1) for x in (query, document, first))
    pairs = torch.stack([d, n.expand(N, U, D)], dim=1)
    of_both = torch.stack([torch.ones(N, U, dtype=torch.bool), torch.asarray(valid[..., 0, :]).expand(N, U)], dim=1)
    products = torch.einsum("ntd,nmud->nmtu", q, pairs).masked_fill(~of_both[:, :, None, :], -torch.inf)
    scores = products.amax(dim=-1).sum(dim=-1) / TEMPERATURE
    loss = functional.cross_entropy(scores, torch.zeros(N, dtype=torch.int64))
    slopes = [x.numpy() for x in torch.autograd.grad(loss, (query, document, first))]
    slopes[2] = np.stack([slopes[2], np.zeros_like(slopes[2])], axis=-3)

    padded, similarity = np.where(valid[..., None], negatives, padding), max_sim(negative_mask=convert(valid))
    ours = partial(pnce.info_nce, similarity=similarity, temperature=TEMPERATURE)
    assert_same(slopes_of(ours, *(convert(x) for x in (QUERY, DOCUMENT[:N], padded))), (loss.item(), slopes))


@pytest.mark.parametrize("name", ["query_mask", "document_mask", "negative_mask"])
def test_a_rank_without_rows_has_masks_without_rows(name: str) -> None:
    masks: Any = {name: np.ones((0, U), dtype=bool)}
    assert max_sim(**masks).wide


@blocks
def test_an_objective_that_couples_rows_sees_them_all(block_size: Any) -> None:
    """Documents have more tokens than queries, and blocks of rows are chosen by the longer of both."""
    query, document = RNG.normal(size=(16, 1, 64)), RNG.normal(size=(16, 256, 64))

    def coupled(row: Any) -> Any:
        return row.log_odds * row.log_odds.sum()

    def loss(block_size: Any, *, symmetric: bool) -> float:
        options: dict[str, Any] = {"symmetric": symmetric, "block_size": block_size}
        return float(pnce.contrast(query, document, objective=coupled, similarity=max_sim(), **options))

    for symmetric in (False, True):
        wanted = loss(None, symmetric=symmetric)
        assert loss(block_size, symmetric=symmetric) == pytest.approx(wanted, rel=1e-12)


@libraries
@pytest.mark.parametrize("block_size", [None, 2])
def test_second_derivatives(convert: Any, block_size: Any) -> None:
    query, document = (torch.asarray(x).requires_grad_() for x in (QUERY, DOCUMENT))
    loss = functional.cross_entropy(colbert(query, document), torch.arange(N))
    first = torch.autograd.grad(loss, (query, document), create_graph=True)
    squares = (first[0] ** 2).sum() + (first[1] ** 2).sum()
    second = torch.autograd.grad(squares, (query, document))
    options: Any = {"masks": [*map(convert, (QUERY_MASK, DOCUMENT_MASK))], "temperature": TEMPERATURE}

    def squares_of_gradients(query: Any, document: Any) -> Any:
        slopes = pnce.grad(partial(of_tokens, block_size=block_size, **options), argnums=(0, 1))
        xp = namespace_of(query)
        return sum(xp.sum(x * x) for x in slopes(query, document))

    found = pnce.grad(squares_of_gradients, argnums=(0, 1))(convert(QUERY), convert(DOCUMENT))
    for x, y in zip(found, second, strict=True):
        np.testing.assert_allclose(np.asarray(x), y.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    query, document = (torch.asarray(x).to(dtype) for x in (QUERY, DOCUMENT))
    narrow, wide = of_tokens(query, document), of_tokens(query.double(), document.double())
    assert narrow.dtype == dtype
    assert float(narrow) == pytest.approx(float(wide), rel=torch.finfo(dtype).eps)


def test_compiled_and_mapped() -> None:
    def loss(query: Any, document: Any, mask: Any) -> Any:
        similarity = max_sim(document_mask=mask)
        return pnce.info_nce(query, document, similarity=similarity, temperature=TEMPERATURE, block_size=2)

    arrays = QUERY, DOCUMENT[:N], DOCUMENT_MASK[:N]
    value, slopes = slopes_of(lambda q, d: loss(q, d, arrays[2]), *arrays[:2])
    q, d, m = map(jnp.asarray, arrays)
    found, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(q, d, m)
    assert_same((float(found), gradients), (value, slopes))
    many = jax.vmap(loss)(jnp.stack([q, q[::-1]]), jnp.stack([d, d]), jnp.stack([m, m]))
    assert float(many[0]) == pytest.approx(value, rel=1e-12)
    query, document, mask = map(torch.asarray, arrays)
    query.requires_grad_()
    torch.compiler.reset()
    result: Any = torch.compile(loss, fullgraph=True, backend="aot_eager")(query, document, mask)
    assert result.item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(result, query)[0].numpy(), slopes[0], rtol=1e-12, atol=1e-14)
    by_function = torch.func.grad(loss)(query.detach(), document, mask)
    np.testing.assert_allclose(by_function.numpy(), slopes[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("symmetric", [False, True])
def test_ranks_have_the_loss_of_one_process(*, symmetric: bool) -> None:
    """Masks are per rank, for its rows and columns."""
    cut = 2

    def loss(query: Any, document: Any, query_mask: Any, document_mask: Any, **options: Any) -> Any:
        similarity = max_sim(query_mask=query_mask, document_mask=document_mask)
        return pnce.info_nce(query, document, similarity=similarity, symmetric=symmetric, **options)

    arrays = (QUERY, DOCUMENT[:N], QUERY_MASK, DOCUMENT_MASK[:N])
    value, slopes = slopes_of(lambda q, d: loss(q, d, *arrays[2:]), *arrays[:2])

    def on_rank(group: Any) -> Any:
        part = slice(0, cut) if group.rank == 0 else slice(cut, None)
        across = pnce.across(group, gradients="summed")
        own = [x[part] for x in arrays]
        return slopes_of(lambda q, d: loss(q, d, *own[2:], across=across), *own[:2])

    results = run_ranks(2, on_rank)
    for k, whole in enumerate(slopes):
        np.testing.assert_allclose(np.concatenate([found[k] for _, found in results]), whole, rtol=1e-12, atol=1e-14)
    assert all(float(found) == pytest.approx(value, rel=1e-12) for found, _ in results)


def info_nce(query: Any = QUERY, document: Any = DOCUMENT[:N], *further: Any, **masks: Any) -> Any:
    """Give the InfoNCE of tokens."""
    return pnce.info_nce(query, document, *further, similarity=max_sim(**masks))


OWN = np.stack([DOCUMENT] * N)
REFUSED: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "query", lambda: info_nce(QUERY[:, 0])),
    (ValueError, "query", lambda: pnce.n_tuple(QUERY, DOCUMENT[:N])),
    (ValueError, "query", lambda: pnce.info_nce(QUERY, DOCUMENT[:N])),
    (ValueError, "positive_key", lambda: info_nce(QUERY, DOCUMENT[:N, 0])),
    (ValueError, "positive_key", lambda: info_nce(QUERY, DOCUMENT[:N, :, :2])),
    (ValueError, "negative_keys", lambda: info_nce(QUERY, DOCUMENT[:N], DOCUMENT[:, :3])),
    (ValueError, "query_mask", lambda: info_nce(query_mask=DOCUMENT_MASK)),
    (TypeError, "query_mask", lambda: info_nce(*map(torch.asarray, (QUERY, DOCUMENT[:N])), query_mask=QUERY_MASK)),
    (TypeError, "query_mask", lambda: max_sim(query_mask=QUERY[0])),
    (ValueError, "document_mask", lambda: info_nce(document_mask=DOCUMENT_MASK)),
    (ValueError, "document_mask", lambda: max_sim(document_mask=DOCUMENT_MASK[0])),
    (ValueError, "document_mask", lambda: of_tokens(QUERY, None, (None, QUERY_MASK))),
    (ValueError, "document_mask", lambda: info_nce(QUERY, DOCUMENT[:N], DOCUMENT, document_mask=DOCUMENT_MASK)),
    (ValueError, "negative_mask", lambda: info_nce(negative_mask=DOCUMENT_MASK)),
    (ValueError, "negative_mask", lambda: info_nce(QUERY, DOCUMENT[:N], DOCUMENT, negative_mask=DOCUMENT_MASK[:N])),
    (ValueError, "negative_mask", lambda: info_nce(QUERY, DOCUMENT[:N], OWN, negative_mask=DOCUMENT_MASK)),
    (ValueError, "negative_mask", lambda: info_nce(QUERY, DOCUMENT[:N], OWN, negative_mask=OWN[:, :, :3, 0] > 0)),
    (ValueError, "negative_mask", lambda: max_sim(negative_mask=OWN > 0)),
    (TypeError, "negative_mask", lambda: max_sim(negative_mask=OWN[..., 0])),
    (ValueError, "similarity", lambda: pnce.n_tuple(QUERY[:, 0], DOCUMENT[:N, 0], similarity=max_sim())),
]


@pytest.mark.parametrize(("error", "name", "call"), REFUSED)
def test_wrong_calls_of_similarities_are_refused(error: type[Exception], name: str, call: Any) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        call()


MASKED: dict[str, tuple[Callable[..., Any], int]] = {
    "contrast": (partial(pnce.contrast, objective="info_nce"), 2),
    "info_nce": (partial(pnce.info_nce, symmetric=True), 2),
    "info_nce, shared negatives": (pnce.info_nce, 3),
    "info_nce, own negatives": (pnce.info_nce, 3),
    "clip": (partial(pnce.clip, logit_scale=2.0), 2),
    "siglip": (partial(pnce.siglip, logit_scale=2.0, logit_bias=-1.0), 2),
    "two_tower": (pnce.two_tower, 2),
    "two_tower, further": (pnce.two_tower, 3),
}
"""Losses and their numbers of arrays."""


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray])
@pytest.mark.parametrize("name", MASKED)
def test_masked_losses_of_one_token_are_those_of_cosines(convert: Any, name: str) -> None:
    """The second row has no valid token; the third only its own column, if valid."""
    loss, count = MASKED[name]
    mask = np.ones((4, 4), dtype=bool)
    mask[1], mask[2], mask[:, 3] = False, np.eye(4, dtype=bool)[2], False
    further = QUERY[2:] if "own" not in name else np.stack([QUERY[2:] + k for k in (0.0, 1.0, 2.0, -1.0)])
    given = (QUERY[:4], DOCUMENT[:4], further)[:count]
    masks = convert(np.hstack([mask, mask]) if "further" in name else mask)

    def results(part: Any, **options: Any) -> tuple[float, list[np.ndarray]]:
        arrays = [convert(x[..., part, :]) for x in given]
        return slopes_of(lambda *x: loss(*x, mask=masks, **options), *arrays)

    value, slopes = results([0], similarity=max_sim())
    wanted, expected = results(0, similarity="cosine")
    assert value == pytest.approx(wanted, rel=1e-13)
    for found, slope in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(found[..., 0, :], slope, rtol=1e-12, atol=1e-14)
    if name != "siglip":  # which divides by the number of rows
        valid = np.asarray([True, False, True, True])
        weighted = results(0, similarity="cosine", weights=convert(valid.astype(float)))[0]
        empty = results([0], similarity=max_sim(query_mask=convert(valid[:, None])))[0]
        assert empty == pytest.approx(weighted, rel=1e-13)  # a row without tokens does not count


def test_similarities_that_differ_in_one_field_are_not_equal() -> None:
    """Compiled code is cached by equality, so unit rows must differ from rows of any length."""
    dot = similarities.resolve("dot")
    changed = {"unit": True, "symmetric": False, "embedded": (True, False), "beyond": 1, "wide": True}
    for field, value in changed.items():
        other = dot._replace(**{field: value})
        assert other != dot, field
        assert other == dot._replace(**{field: value}), field
        assert hash(other) == hash(dot._replace(**{field: value})), field
    assert dot != similarities.UNIT
    with pytest.raises(AttributeError, match="widths"):
        dot._replace(widths=1)


def far_apart(dtype: Any, length: float) -> tuple[Any, Any]:
    """Rows that are far apart, near or equal."""
    x = np.asarray([[length, 0.0], [0.0, 1.0], [2.0, 3.0]], dtype=dtype)
    y = np.asarray([[-length, length], [0.5, 1.0], [2.0, 3.0]], dtype=dtype)
    return x, y


@pytest.mark.parametrize(("dtype", "length"), [("float32", 1e30), ("float64", 1e250)])
def test_cauchy_of_distances_whose_squares_overflow(dtype: str, length: float) -> None:
    x, y = far_apart(dtype, length)
    scores: Any = pnce.similarities.resolve("cauchy")
    rows, columns = scores.prepare(x, y, 1.0)
    found = scores.scores(rows, columns)
    wide = [[[mp.mpf(float(a)) for a in row] for row in array] for array in (x, y)]
    squares = [[mp.fsum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in wide[1]] for p in wide[0]]
    wanted = np.asarray([[float(-mp.log(1 + square)) for square in row] for row in squares])
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found, wanted, rtol=8 * eps, atol=8 * eps)
    (to_x, to_scale), (to_y,) = scores.pullback(rows, columns, np.ones((3, 3), dtype=dtype))
    assert all(np.all(np.isfinite(pull)) for pull in (to_x, to_scale, to_y))
    slopes = np.asarray(
        [
            [float(mp.fsum(-2 * (p[d] - q[d]) / (1 + s) for q, s in zip(wide[1], row, strict=True))) for d in range(2)]
            for p, row in zip(wide[0], squares, strict=True)
        ]
    )
    np.testing.assert_allclose(to_x, slopes, rtol=16 * eps, atol=1e-37)
    np.testing.assert_allclose(to_scale[:, 0], wanted.sum(axis=1), rtol=16 * eps)


def test_cauchy_under_tracing_is_cauchy() -> None:
    x, y = far_apart("float32", 1e30)
    loss = partial(pnce.info_nce, similarity="cauchy", temperature=1.0)
    wanted = pnce.value_and_grad(loss, argnums=(0, 1))(x, y)
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(jnp.asarray(x), jnp.asarray(y))
    for found, expected in zip(jax.tree.leaves(compiled), [wanted[0], *wanted[1]], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)
    hessian = jax.hessian(lambda x: loss(x, jnp.asarray(y)))(jnp.asarray(x))
    assert np.all(np.isfinite(hessian))


KEYS = RNG.normal(size=(K, D))
KEYS[3] = 0.0
CATALOGUE_CALLS: dict[str, Any] = {
    "index": lambda x, y, **k: pnce.info_nce(x, y, positives=like(np.arange(N) * 5 % K, x), **k),
    "weights": lambda x, y, **k: pnce.info_nce(x, y, positives=like(RNG.uniform(size=(N, K)), x), **k),
    "labels": lambda x, y, **k: pnce.contrast(x, y, objective="info_nce", pairing=labelled(x), **k),
    "top_k": lambda x, y, **k: pnce.diagnostics.top_k(x, y, 3, similarity=k["similarity"]).scores,
}


def like(array: np.ndarray, x: Any) -> Any:
    """Give an array of the library of another."""
    return namespace_of(x).asarray(array.astype(np.int64) if array.dtype.kind == "i" else array)


def labelled(x: Any) -> Any:
    """Give a pairing by labels."""
    return pnce.pairings.labels(like(np.arange(N) % 3, x), like(np.arange(K) % 3, x))


@libraries
@pytest.mark.parametrize("named", ["cosine", "dot", similarities.normalized("dot")])
@pytest.mark.parametrize("name", CATALOGUE_CALLS)
def test_prepared_columns_give_the_same(convert: Any, named: Any, name: str) -> None:
    x, y, call = convert(RNG.normal(size=(N, D))), convert(KEYS), CATALOGUE_CALLS[name]
    catalogue, similarity = pnce.prepare(y, similarity=named)
    state = RNG.bit_generator.state

    def loss(x: Any, y: Any, similarity: Any) -> Any:
        RNG.bit_generator.state = state
        found = (
            call(x, y, similarity=similarity, temperature=0.4) if name != "top_k" else call(x, y, similarity=similarity)
        )
        return namespace_of(found).sum(found)

    wanted, found = (pnce.value_and_grad(loss)(x, *both) for both in ((y, named), (catalogue, similarity)))
    for ours, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(other), rtol=1e-13, atol=1e-14)


def test_a_catalogue_is_constant_and_takes_offsets_and_16_bits() -> None:
    x, y = torch.tensor(RNG.normal(size=(N, D)), requires_grad=True), torch.tensor(KEYS, requires_grad=True)
    catalogue, similarity = pnce.prepare(y)
    assert not catalogue.requires_grad
    offsets = torch.tensor(RNG.normal(size=K))
    positives = torch.arange(N)
    found, wanted = (
        pnce.info_nce(x, columns, positives=positives, similarity=similarities.shifted_columns(named, offsets))
        for columns, named in ((catalogue, similarity), (y, similarities.resolve("cosine")))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    half = y.detach().bfloat16()
    catalogue, similarity = pnce.prepare(half)
    assert catalogue.dtype == torch.float32
    options: Any = {"positives": positives, "temperature": 0.3}
    found, wanted = (
        pnce.info_nce(x.float(), catalogue, similarity=similarity, **options),
        pnce.info_nce(x.float(), half, **options),
    )
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_catalogue_in_compiled_and_traced_functions_and_on_ranks() -> None:
    x = RNG.normal(size=(N, D))
    catalogue, similarity = pnce.prepare(KEYS)
    wanted = pnce.info_nce(x, KEYS, positives=np.arange(N))
    compiled = torch.compile(
        lambda x, y, i: pnce.info_nce(x, y, positives=i, similarity=similarity), fullgraph=True, backend="aot_eager"
    )
    np.testing.assert_allclose(compiled(torch.tensor(x), torch.tensor(catalogue), torch.arange(N)), wanted, rtol=1e-13)
    traced = jax.jit(lambda x, y, i: pnce.info_nce(x, *pnce.prepare(y)[:1], positives=i, similarity=similarity))
    np.testing.assert_allclose(traced(x, KEYS, np.arange(N)), wanted, rtol=1e-13)

    def on_a_rank(group: Any) -> Any:
        own, here = slice(*[(0, 2), (2, N)][group.rank]), slice(*[(0, 5), (5, K)][group.rank])
        ranks = pnce.across(group, gradients="summed")
        return pnce.info_nce(x[own], catalogue[here], positives=np.arange(N)[own], similarity=similarity, across=ranks)

    np.testing.assert_allclose(run_ranks(2, on_a_rank), wanted, rtol=1e-13)


OF_EMBEDDINGS = [
    name
    for name, loss in LOSSES.items()
    if loss.similarity is not None and not {"similarity", "bilinear"} & {*loss.options, *loss.keywords}
]
OF_EMBEDDINGS = [name for name in OF_EMBEDDINGS if name not in {"angle", "matryoshka", "n_tuple"}]
WITH_OWN_ROWS = "contrastive nca nt_xent flat_nce dcl dclw hcl soft_nearest_neighbor triplet_from_labels joint_info_nce"


@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_prepared_columns_are_those_of_the_loss_or_refused(name: str) -> None:
    """Where rows are columns too, there are no prepared columns; embeddings that are not prepared are recognised."""
    case = example(name)
    arrays = {key: np.asarray(x) for key, x in {**case.arguments, **case.constants}.items()}
    embeddings = [key for key in LOSSES[name].arguments if arrays[key].ndim > 1 and arrays[key].dtype == float]
    embeddings = [key for key in embeddings if not key.startswith(("teacher", "guide", "projections"))]
    embeddings += [key for key in ("keys", "key", "queue") if key in arrays and key not in embeddings]
    similarity = pnce.prepare(arrays[embeddings[0]])[1]
    with pytest.raises(ValueError, match="similarity: expected"):
        case.call(arrays, similarity=similarity)

    whole = {
        key: pnce.prepare(x.reshape(-1, x.shape[-1]))[0].reshape(x.shape)
        for key, x in arrays.items()
        if key in embeddings
    }
    columns = {key: x for key, x in whole.items() if key != embeddings[0]}
    own = name.partition(" ")[0] in {*WITH_OWN_ROWS.split()} or name in {"supcon", "supcon separate", "relic keys"}
    own = own or name == "nnclr queue, views"
    for prepared in (whole, columns):
        if own:
            with pytest.raises(ValueError, match=r"similarity: .*are rows and columns .*similarity='cosine'"):
                case.call({**arrays, **prepared}, similarity=similarity)
            continue
        found, wanted = case.call({**arrays, **prepared}, similarity=similarity), case.call(arrays, similarity="cosine")
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    for key in () if own else [key for key in columns if not key.startswith("query")]:  # one that was not prepared
        with pytest.raises(ValueError, match="similarity: expected the columns that prepare returned"):
            case.call({**arrays, **columns, key: arrays[key]}, similarity=similarity)


@pytest.mark.parametrize("similarity", ["neg_euclidean", similarities.scaled_columns("dot", np.ones(K))])
def test_prepare_refuses_other_similarities(similarity: Any) -> None:
    with pytest.raises(ValueError, match=r'similarity: expected "cosine" or "dot", got .*; offsets'):
        pnce.prepare(KEYS, similarity=similarity)


def _critic(x: Any, y: Any) -> Any:
    return x @ y.T


def test_a_similarity_prints_what_it_is() -> None:
    of, weight = pnce.similarities, np.eye(3)
    printed = {
        of.resolve("cosine"): "cosine: inner products",
        of.resolve("dot"): "dot: inner products",
        of.resolve("neg_euclidean"): "neg_euclidean: scores with a pullback",
        of.resolve("cauchy").transposed(): "transposed cauchy: scores with a pullback",
        of.resolve(_critic): "_critic: a plain function",
        of.bilinear(weight): "bilinear: inner products",
        of.normalized(of.bilinear(weight)): "normalized bilinear: inner products",
        of.max_sim(): "max_sim: a plain function",
        of.scaled_columns("cosine", np.ones(3)): "scaled or shifted cosine: inner products",
        of.scaled_columns("neg_sq_euclidean", np.ones(3)): "scaled or shifted neg_sq_euclidean: scores with a pullback",
        of.soft_capped("dot", 30.0): "dot soft-capped: scores with a pullback",
        pnce.prepare(weight)[1]: "prepared cosine: inner products",
    }
    for similarity, text in printed.items():
        assert repr(similarity) == f"<similarity {text}>"
