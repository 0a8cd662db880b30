"""Late interaction of tokens: against ColBERT's scoring written with torch, and what it does at its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import portable_nce as pnce
from portable_nce._core.namespace import namespace_of
from portable_nce.similarities import max_sim
from portable_nce.testing import run_ranks

pytestmark = [
    pytest.mark.usefixtures("jax_x64"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
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


def ours(convert: Any = np.asarray, columns: int = K, **options: Any) -> tuple[Any, list[np.ndarray]]:
    masks: Any = {"query_mask": convert(QUERY_MASK), "document_mask": convert(DOCUMENT_MASK[:columns])}
    similarity = max_sim(**masks, normalize=options.pop("normalize", True))

    def loss(query: Any, document: Any) -> Any:
        settings: Any = {"objective": "info_nce", "similarity": similarity, "temperature": TEMPERATURE}
        return pnce.contrast(query, document, **settings, **options)

    arrays = (convert(QUERY), convert(DOCUMENT[:columns]))
    value, gradients = pnce.value_and_grad(loss, argnums=(0, 1))(*arrays)
    return float(value), [np.asarray(x) for x in gradients]


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
    if convert is np.asarray:  # the columns are judged by the same scores
        both = ours(convert, columns=N, symmetric=True, normalize=normalize, block_size=block_size)
        assert_same(both, reference(normalize=normalize, symmetric=True))


@blocks
@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_of_equal_maxima_the_first_has_the_gradient(library: Any, block_size: Any) -> None:
    document = library.asarray([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    query = library.asarray([[[1.0, 0.0]], [[0.0, 1.0]]])

    def loss(query: Any, document: Any) -> Any:
        return pnce.info_nce(
            query, document, similarity=max_sim(normalize=False), temperature=1.0, block_size=block_size
        )

    _, (of_query, of_document) = pnce.value_and_grad(loss, argnums=(0, 1))(query, document)
    assert float(abs(of_query).sum()) == 0.0  # all documents are the same to each query
    half = [[[-0.25, 0.0], [0.0, 0.25], [0.0, 0.0]], [[0.0, -0.25], [0.0, 0.0], [0.25, 0.0]]]
    np.testing.assert_allclose(np.asarray(of_document), half, atol=1e-15)


@blocks
def test_rows_without_tokens_take_no_part(block_size: Any) -> None:
    """Nor what tokens hold that are not valid, NaN too."""
    query, document = QUERY.copy(), DOCUMENT.copy()
    query_mask, document_mask = QUERY_MASK.copy(), DOCUMENT_MASK.copy()
    query_mask[1], document_mask[[3, 7]] = False, False
    query[~query_mask], document[~document_mask] = np.nan, np.inf

    def loss(query: Any, document: Any, masks: Any, **options: Any) -> Any:
        similarity = max_sim(query_mask=masks[0], document_mask=masks[1])
        return pnce.contrast(
            query, document, objective="info_nce", similarity=similarity, block_size=block_size, **options
        )

    masks = (query_mask, document_mask)
    value, gradients = pnce.value_and_grad(lambda q, d: loss(q, d, masks), argnums=(0, 1))(query, document)
    rows = loss(query, document, masks, reduction="none")
    assert np.all(rows[[1, 3]] == 0.0)  # an empty query, and one whose document is empty
    counted = [0, 2, 4, 5]
    assert float(value) == pytest.approx(rows[counted].mean(), rel=1e-13)
    assert all(np.all(np.isfinite(x)) for x in gradients)
    assert all(np.all(x[~mask] == 0.0) for x, mask in zip(gradients, masks, strict=True))
    left = [*counted, 1, 6, 8]  # without these rows and columns, the same
    alone = loss(
        np.nan_to_num(query[counted]),
        np.nan_to_num(document[left], posinf=0.0),
        (query_mask[counted], document_mask[left]),
    )
    assert float(value) == pytest.approx(float(alone), rel=1e-13)


def test_losses_that_take_tokens() -> None:
    query, document, further = QUERY, DOCUMENT[:N], DOCUMENT[N:]
    scores = colbert(torch.asarray(QUERY), torch.asarray(DOCUMENT)) * TEMPERATURE
    masks: Any = {"query_mask": QUERY_MASK, "document_mask": DOCUMENT_MASK}
    every, square = max_sim(**masks), max_sim(query_mask=QUERY_MASK, document_mask=DOCUMENT_MASK[:N])
    given, own = scores.numpy(), scores.numpy()[:, :N]
    in_scores = pnce.from_scores
    found = pnce.info_nce(query, document, temperature=0.5, similarity=square)
    assert found == pytest.approx(in_scores.info_nce(own / 0.5), rel=1e-13)
    shared = pnce.info_nce(query, document, further, temperature=0.5, similarity=every)
    mask = np.eye(N, K, dtype=bool) | (np.arange(K) >= N)
    assert shared == pytest.approx(in_scores.info_nce(given / 0.5, mask=mask), rel=1e-13)
    bare = max_sim()
    each = pnce.info_nce(query, document, np.stack([further] * N), temperature=0.5, similarity=bare)
    assert each == pytest.approx(pnce.info_nce(query, document, further, temperature=0.5, similarity=bare), rel=1e-13)
    clip = pnce.clip(query, document, logit_scale=2.0, similarity=square)
    assert clip == pytest.approx(in_scores.clip(2.0 * own), rel=1e-13)
    pairs = pnce.siglip(query, document, logit_scale=2.0, logit_bias=-1.0, similarity=square)
    assert pairs == pytest.approx(in_scores.logistic(2.0 * own - 1.0), rel=1e-13)
    log_q = RNG.normal(size=K)
    tower = pnce.two_tower(
        query, document, further, log_q=log_q[:N], negative_log_q=log_q[N:], temperature=0.5, similarity=every
    )
    assert tower == pytest.approx(in_scores.info_nce(given / 0.5 - log_q), rel=1e-13)
    labels = np.arange(2 * N) % 3
    among = np.concatenate([QUERY, QUERY[::-1]])
    alone = pnce.contrast(among, objective="info_nce", pairing=pnce.pairings.labels(labels), similarity=bare)
    both = pnce.contrast(
        among, among.copy(), objective="info_nce", pairing=pnce.pairings.labels(labels), similarity=bare
    )
    assert np.isfinite(alone)
    assert np.isfinite(both)


@blocks
def test_an_objective_that_couples_rows_sees_them_all(block_size: Any) -> None:
    """Documents have more tokens than queries, and blocks of rows are chosen by the longer of both."""
    query, document = RNG.normal(size=(16, 1, 64)), RNG.normal(size=(16, 256, 64))

    def loss(block_size: Any, *, symmetric: bool) -> float:
        coupled: Any = lambda row: row.log_odds * row.log_odds.sum()  # noqa: E731
        options: dict[str, Any] = {"objective": coupled, "similarity": max_sim()}
        return float(pnce.contrast(query, document, **options, symmetric=symmetric, block_size=block_size))

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
    similarity = max_sim(query_mask=convert(QUERY_MASK), document_mask=convert(DOCUMENT_MASK))
    options: dict[str, Any] = {"similarity": similarity, "temperature": TEMPERATURE, "block_size": block_size}

    def squares_of_gradients(query: Any, document: Any) -> Any:
        slopes = pnce.grad(lambda q, d: pnce.contrast(q, d, objective="info_nce", **options), argnums=(0, 1))
        xp = namespace_of(query)
        return sum(xp.sum(x * x) for x in slopes(query, document))

    found = pnce.grad(squares_of_gradients, argnums=(0, 1))(convert(QUERY), convert(DOCUMENT))
    for x, y in zip(found, second, strict=True):
        np.testing.assert_allclose(np.asarray(x), y.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    query, document = (torch.asarray(x).to(dtype) for x in (QUERY, DOCUMENT))
    narrow = pnce.contrast(query, document, objective="info_nce", similarity=max_sim())
    wide = pnce.contrast(query.double(), document.double(), objective="info_nce", similarity=max_sim())
    assert narrow.dtype == dtype
    assert float(narrow) == pytest.approx(float(wide), rel=torch.finfo(dtype).eps)


def test_compiled_and_mapped() -> None:
    def loss(query: Any, document: Any, mask: Any) -> Any:
        similarity = max_sim(document_mask=mask)
        return pnce.info_nce(query, document, similarity=similarity, temperature=TEMPERATURE, block_size=2)

    arrays = QUERY, DOCUMENT[:N], DOCUMENT_MASK[:N]
    value, slopes = pnce.value_and_grad(loss, argnums=(0, 1))(*arrays)
    q, d, m = map(jnp.asarray, arrays)
    found, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(q, d, m)
    assert_same((float(found), gradients), (float(value), slopes))
    many = jax.vmap(loss)(jnp.stack([q, q[::-1]]), jnp.stack([d, d]), jnp.stack([m, m]))
    assert float(many[0]) == pytest.approx(float(value), rel=1e-12)
    query, document, mask = map(torch.asarray, arrays)
    query.requires_grad_()
    torch.compiler.reset()
    result: Any = torch.compile(loss, fullgraph=True, backend="aot_eager")(query, document, mask)
    assert result.item() == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(result, query)[0].numpy(), slopes[0], rtol=1e-12, atol=1e-14)
    by_function = torch.func.grad(loss)(query.detach(), document, mask)
    np.testing.assert_allclose(by_function.numpy(), slopes[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("symmetric", [False, True])
def test_ranks_have_the_loss_of_one_process(*, symmetric: bool) -> None:
    """Masks are those of the rows and columns of each rank."""
    cut = 2

    def loss(query: Any, document: Any, query_mask: Any, document_mask: Any, **options: Any) -> Any:
        similarity = max_sim(query_mask=query_mask, document_mask=document_mask)
        return pnce.info_nce(query, document, similarity=similarity, symmetric=symmetric, **options)

    arrays = (QUERY, DOCUMENT[:N], QUERY_MASK, DOCUMENT_MASK[:N])
    value, slopes = pnce.value_and_grad(loss, argnums=(0, 1))(*arrays)

    def on_rank(group: Any) -> Any:
        part = slice(0, cut) if group.rank == 0 else slice(cut, None)
        across = pnce.across(group, gradients="summed")
        own = [x[part] for x in arrays]
        return pnce.value_and_grad(lambda q, d: loss(q, d, *own[2:], across=across), argnums=(0, 1))(*own[:2])

    results = run_ranks(2, on_rank)
    for k, whole in enumerate(slopes):
        np.testing.assert_allclose(np.concatenate([found[k] for _, found in results]), whole, rtol=1e-12, atol=1e-14)
    assert all(float(found) == pytest.approx(float(value), rel=1e-12) for found, _ in results)


def info_nce(query: Any = QUERY, document: Any = DOCUMENT[:N], *further: Any, **masks: Any) -> Any:
    """Give the InfoNCE of tokens."""
    return pnce.info_nce(query, document, *further, similarity=max_sim(**masks))


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
    (
        ValueError,
        "document_mask",
        lambda: pnce.contrast(QUERY, objective="info_nce", similarity=max_sim(document_mask=QUERY_MASK)),
    ),
    (ValueError, "similarity", lambda: pnce.n_tuple(QUERY[:, 0], DOCUMENT[:N, 0], similarity=max_sim())),
]


@pytest.mark.parametrize(("error", "name", "call"), REFUSED)
def test_what_is_refused(error: type[Exception], name: str, call: Any) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        call()


MASKED: dict[str, Any] = {
    "contrast": lambda x, y, _, m, **own: pnce.contrast(x, y, objective="info_nce", mask=m, **own),
    "info_nce": lambda x, y, _, m, **own: pnce.info_nce(x, y, mask=m, symmetric=True, **own),
    "info_nce, shared negatives": lambda x, y, z, m, **own: pnce.info_nce(x, y, z, mask=m, **own),
    "info_nce, own negatives": lambda x, y, z, m, **own: pnce.info_nce(
        x, y, namespace_of(z).stack([z, 2.0 * z, -z, z + 1.0]), mask=m, **own
    ),
    "clip": lambda x, y, _, m, **own: pnce.clip(x, y, logit_scale=2.0, mask=m, **own),
    "siglip": lambda x, y, _, m, **own: pnce.siglip(x, y, logit_scale=2.0, logit_bias=-1.0, mask=m, **own),
    "two_tower": lambda x, y, _, m, **own: pnce.two_tower(x, y, mask=m, **own),
    "two_tower, further": lambda x, y, z, m, **own: pnce.two_tower(
        x, y, z, mask=namespace_of(m).concat([m, m], axis=1), **own
    ),
}


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray])
@pytest.mark.parametrize("name", MASKED)
def test_masked_losses_of_one_token_are_those_of_cosines(convert: Any, name: str) -> None:
    """The second row has nothing left; the third nothing but its own column, if that is one of the mask."""
    mask = np.ones((4, 4), dtype=bool)
    mask[1], mask[2], mask[:, 3] = False, np.eye(4, dtype=bool)[2], False
    arrays, tokens = ([convert(x) for x in (QUERY[:4, part], DOCUMENT[:4, part], QUERY[2:, part])] for part in (0, [0]))

    def results(given: list[Any], **options: Any) -> tuple[float, list[np.ndarray]]:
        value, slopes = pnce.value_and_grad(
            lambda x, y, z: MASKED[name](x, y, z, convert(mask), **options), argnums=(0, 1, 2)
        )(*given)
        return float(value), [np.reshape(np.asarray(x), (4, D)) for x in slopes]

    value, slopes = results(tokens, similarity=max_sim())
    wanted, expected = results(arrays, similarity="cosine")
    assert value == pytest.approx(wanted, rel=1e-13)
    for found, slope in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(found, slope, rtol=1e-12, atol=1e-14)
    if name != "siglip":  # which divides by the number of rows
        valid = np.asarray([True, False, True, True])
        weighted = results(arrays, similarity="cosine", weights=convert(valid.astype(float)))[0]
        empty = results(tokens, similarity=max_sim(query_mask=convert(valid[:, None])))[0]
        assert empty == pytest.approx(weighted, rel=1e-13)  # a row without tokens does not count
