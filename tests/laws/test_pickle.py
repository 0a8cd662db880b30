"""The parts of a loss can be pickled, as data loaders and job schedulers do, and are equal to what they were."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce import objectives, pairings, similarities
from portable_nce.pairings import Pairing, Tile

X, Y = np.random.default_rng(5).normal(size=(2, 6, 3))
LABELS = np.asarray([0, 0, 1, 1, 2, 2])
MASK = np.arange(36).reshape(6, 6) % 5 == 0


def near(tile: Tile) -> tuple[Any, Any]:
    """Pair rows whose numbers are apart by one."""
    gap = abs(tile.rows[0] - tile.columns[0])
    return gap == 1, gap > 2


def critic(x: Any, y: Any) -> Any:
    """Score by inner products."""
    return 0.5 * x @ y.T


def hinge(row: objectives.RowStatistics) -> Any:
    """Give the loss of a row."""
    return row.log_odds**2


def square(score: Any) -> Any:
    """Give the term of a pair."""
    return score * score


def energy(x: Any) -> Any:
    """Give a number and an array beside it."""
    return (x * x).sum(), x


TOKENS: dict[str, Callable[[], Any]] = {
    "max_sim": lambda: similarities.max_sim(normalize=False),
    "max_sim with masks": lambda: similarities.max_sim(query_mask=LABELS[:, None] > 0, document_mask=MASK[:, :1]),
}

PAIRINGS: dict[str, Callable[[], Pairing]] = {
    "Pairing": lambda: Pairing(near, rows=(LABELS * 2,), columns=(LABELS * 2 + 1,)),
    "diagonal": pairings.diagonal,
    "explicit": lambda: pairings.explicit(MASK),
    "index": lambda: pairings.index(LABELS),
    "labels": lambda: pairings.labels(LABELS),
    "ids": lambda: pairings.ids(LABELS),
    "labels of both": lambda: pairings.labels(LABELS, LABELS[::-1]),
    "guided": lambda: pairings.guided(X, Y, margin=0.125, strategy="relative"),
    "overlap array": lambda: pairings.overlap(MASK),
    "queue": pairings.queue,
    "smoothed": lambda: pairings.smoothed(0.25),
    "soft array": lambda: pairings.soft(MASK * 0.5),
    "teacher array": lambda: pairings.teacher(X, Y, temperature=0.5),
    "weighted array": lambda: pairings.weighted(pairings.two_views(), MASK * 0.5),
    "queue of valid": lambda: pairings.queue(LABELS > 0),
    "two_views": pairings.two_views,
    "transposed": lambda: Pairing(near, rows=(LABELS,), columns=(LABELS,)).transposed(),
}
SIMILARITIES: dict[str, Callable[[], Any]] = {
    **{name: partial(similarities.resolve, name) for name in similarities.NAMES},
    "critic": lambda: similarities.resolve(critic),
    "Similarity": lambda: similarities.Similarity(similarities.resolve("dot").prepare, inner_product=True),
    "bilinear": lambda: similarities.bilinear(np.eye(3) + 0.5),
    "normalized": lambda: similarities.normalized("neg_euclidean"),
    "normalized dot": lambda: similarities.normalized("dot"),
    "normalized critic": lambda: similarities.normalized(critic),
    "scaled_columns": lambda: similarities.scaled_columns("neg_sq_euclidean", np.arange(1.0, 7.0)),
    "shifted_columns": lambda: similarities.shifted_columns("neg_sq_euclidean", np.arange(1.0, 7.0)),
    "shifted_columns dot": lambda: similarities.shifted_columns("dot", np.arange(1.0, 7.0)),
    "scaled_columns dot": lambda: similarities.scaled_columns("dot", np.arange(1.0, 7.0)),
    "transposed": lambda: similarities.scaled_columns("neg_euclidean", np.ones(6)).transposed(),
}
OBJECTIVES: dict[str, Callable[[], Any]] = {
    **{f"info_nce {m}": partial(objectives.info_nce, multi_positive=m) for m in ("each", "pooled", "separate")},
    **{
        f"flat_nce {include} {form}": partial(objectives.flat_nce, include_positive=include, form=form)
        for include in (False, True)
        for form in ("log", "detach")
    },
    "Objective": lambda: objectives.Objective(hinge, needs_negative=True),
    "Pairwise": lambda: objectives.Pairwise(square, objectives.Term(square), divide_by="pairs"),
    "dclw": lambda: objectives.dclw(temperature=0.5),
    "hard_negatives": lambda: objectives.hard_negatives(beta=0.5, tau_plus=0.125, floor=-2.0),
    "dclw of arrays": lambda: objectives.dclw(temperature=np.asarray(0.5), sigma=np.asarray(0.25), detach_weights=True),
    "info_nce_anchor": lambda: objectives.info_nce_anchor(n_columns=5, nu=0.5),
    "logistic": lambda: objectives.logistic(bias=0.5, balance=True),
    "contrastive": lambda: objectives.contrastive(margin=2.0, positive_power=1, average="nonzero"),
    "contrastive of arrays": lambda: objectives.contrastive(margin=np.asarray(2.0)),
    "triplet": lambda: objectives.triplet(margin=0.5, mining="batch_hard", form="soft"),
    "triplet, mined": lambda: objectives.triplet(mining=("easy", "semi_hard")),
    "triplet of arrays": lambda: objectives.triplet(margin=np.asarray(0.5)),
    "relic": lambda: objectives.relic(alpha=0.5, symmetric=True, stop_gradient="first"),
    "relic of arrays": lambda: objectives.relic(alpha=np.asarray(0.5)),
}
TRANSFORMED: dict[str, Callable[[], Any]] = {
    "value_and_grad": lambda: pnce.value_and_grad(pnce.info_nce),
    "of both": lambda: pnce.value_and_grad(pnce.info_nce, argnums=(0, 1)),
    "matryoshka": lambda: pnce.matryoshka(pnce.info_nce, (2, 3), weights=(0.5, 1.0)),
    "grad": lambda: pnce.grad(pnce.info_nce, 1),
    "of a partial function": lambda: pnce.grad(partial(pnce.nt_xent, temperature=0.25)),
}
WITH_ARRAYS = (
    "array",
    "labels",
    "index",
    "explicit",
    "guided",
    "valid",
    "bilinear",
    "ids",
    "scaled_columns",
    "shifted_columns",
    "Pairing",
    "transposed",
    "with masks",
    "partial",
)

Part = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def _with_pairing(pairing: Pairing) -> Any:
    return pnce.contrast(X, Y, objective="info_nce", pairing=pairing, reduction="none")


def _with_similarity(similarity: Any) -> Any:
    return pnce.info_nce(X, Y, similarity=similarity, temperature=0.5, reduction="none")


def _with_tokens(similarity: Any) -> Any:
    return pnce.info_nce(X[:, None, :], Y[:, None, :], similarity=similarity, reduction="none")


def _with_objective(objective: Any) -> Any:
    return pnce.contrast(X, Y, objective=objective, pairing=pairings.labels(LABELS, LABELS), reduction="none")


def _apply(function: Any) -> Any:
    return function(X, Y)


PARTS: list[Part] = [
    (f"{kind} {name}", make, use)
    for kind, table, use in (
        ("pairing", PAIRINGS, _with_pairing),
        ("similarity", SIMILARITIES, _with_similarity),
        ("tokens", TOKENS, _with_tokens),
        ("objective", OBJECTIVES, _with_objective),
        ("gradient", TRANSFORMED, _apply),
    )
    for name, make in table.items()
]
parts = pytest.mark.parametrize(("name", "make", "use"), PARTS, ids=[name for name, _, _ in PARTS])


def _same(ours: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_every_part_has_its_line() -> None:
    """What is added to the package is added here."""
    names = {name.partition(" ")[0] for name in (*PAIRINGS, *SIMILARITIES, *TOKENS, *OBJECTIVES)}
    assert {*pairings.__all__} - {"Tile"} <= names
    assert {*similarities.__all__} - {"NAMES", "Operands", "Pullback", "Scores", "resolve"} <= names
    assert {*objectives.__all__} - {"RowStatistics", "Term", "resolve"} <= names


@parts
def test_a_round_trip(name: str, make: Callable[[], Any], use: Callable[[Any], Any]) -> None:
    """The same results; and equal parts, whose arrays are the same or are in none."""
    part = make()
    for again in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):  # noqa: S301  (our own)
        _same(use(again), use(part))
        if not any(word in name for word in WITH_ARRAYS):
            assert again == part
            assert hash(again) == hash(part)
    shallow = copy.copy(part)
    assert shallow == part
    assert hash(shallow) == hash(part)


def test_parts_of_other_contents_differ() -> None:
    """Equality is that of types, of contents and of the identity of arrays."""
    a, b = np.eye(3), np.eye(3)
    different: list[Any] = [
        objectives.dclw(temperature=0.5),
        objectives.dclw(temperature=0.25),
        objectives.dclw(temperature=a[:1, 0]),
        objectives.info_nce_anchor(n_columns=5),
        objectives.info_nce_anchor(n_columns=6),
        objectives.info_nce_anchor(n_columns=5, nu=0.5),
        objectives.logistic(),
        objectives.logistic(bias=1.0),
        objectives.logistic(bias=a[:1, 0]),
        objectives.triplet(),
        objectives.triplet(margin=a[:1, 0]),
        objectives.relic(),
        objectives.relic(alpha=2.0),
        similarities.bilinear(a),
        similarities.bilinear(b),
        similarities.normalized("dot"),
        similarities.resolve("dot"),
        pairings.diagonal(),
        pairings.queue(),
        pairings.labels(LABELS),
        pairings.labels(LABELS, LABELS),
        pairings.labels(LABELS + 0),
        pnce.grad(pnce.info_nce),
        pnce.grad(pnce.info_nce, (0,)),
        pnce.value_and_grad(pnce.info_nce),
        pnce.matryoshka(pnce.info_nce, (2, 3)),
        pnce.matryoshka(pnce.info_nce, (2, 3), weights=(1.0, 2.0)),
        pnce.matryoshka(pnce.nt_xent, (2, 3)),
    ]
    for k, first in enumerate(different):
        assert [first == second for second in different] == [n == k for n in range(len(different))]
    assert similarities.bilinear(a) == similarities.bilinear(a)
    assert pairings.labels(LABELS) == pairings.labels(LABELS)


def test_a_queue() -> None:
    """A checkpoint of training holds the memory too."""
    queue = pnce.queue_push(pnce.queue_init(X, 8), X)
    again = pickle.loads(pickle.dumps(queue))  # noqa: S301  (our own)
    _same(pnce.moco(X, Y, again), pnce.moco(X, Y, queue))
    queue = pnce.queue_push(pnce.queue_init(X, 8, labels=LABELS), X, labels=LABELS)
    again = pickle.loads(pickle.dumps(queue))  # noqa: S301  (our own)
    _same(pnce.supcon(Y, LABELS, keys=again), pnce.supcon(Y, LABELS, keys=queue))


def test_gradients_of_second_order_and_with_aux() -> None:
    """Transformed functions nest, and give what comes beside the value."""
    function = pickle.loads(pickle.dumps(pnce.grad(energy, has_aux=True)))  # noqa: S301  (our own)
    gradient, aux = function(X)
    _same(gradient, 2 * X)
    _same(aux, X)
    second = pickle.loads(pickle.dumps(pnce.value_and_grad(pnce.value_and_grad(energy, has_aux=True), has_aux=True)))  # noqa: S301
    with pytest.raises(TypeError, match="0-d"):
        second(X)


class _Model:
    scale = 2.0

    @partial(pnce.grad, argnums=1)
    def gradient(self, x: Any) -> Any:
        """Give a scaled sum."""
        return (self.scale * x).sum()


def test_a_gradient_in_a_class_is_a_method() -> None:
    """As a function would be."""
    _same(_Model().gradient(X), np.full_like(X, 2.0))
    assert _Model.gradient.__name__ == "gradient"
    assert _Model.gradient.__doc__ == "Give a scaled sum."


def in_another_process(data: bytes) -> list[Any]:
    """Use parts in a process that has made none."""
    uses = [_with_pairing, _with_similarity, _with_tokens, _with_objective, _apply]
    kinds = ["pairing", "similarity", "tokens", "objective", "gradient"]
    return [uses[kinds.index(kind)](part) for kind, part in pickle.loads(data)]  # noqa: S301  (our own)


def test_in_a_spawned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to a new process gives the same results there."""
    # That process imports this file as pytest did; the installed package comes before the source tree.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    data = pickle.dumps([(name.partition(" ")[0], make()) for name, make, _ in PARTS])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = pool.submit(in_another_process, data).result(timeout=300)
    _same(results, [use(make()) for _, make, use in PARTS])


def _traces(use: Callable[..., Any], first: Any, second: Any) -> int:
    """Count how often a function is traced for two parts, one after the other."""
    count = 0

    @partial(jax.jit, static_argnums=0)
    def compiled(part: Any, x: Any, y: Any) -> Any:
        nonlocal count
        count += 1
        return use(part, x, y)

    x, y = jnp.asarray(X), jnp.asarray(Y)
    _same(compiled(first, x, y), compiled(second, x, y))
    return count


def _compiled(run: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    """Tell what JAX compiles for a call."""
    caplog.clear()
    with jax.log_compiles():
        run()
    return [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]


@pytest.mark.parametrize(
    ("part", "use"),
    [
        (pairings.two_views(), lambda p, x, y: pnce.contrast(x, y, objective="info_nce", pairing=p)),
        (
            similarities.normalized("neg_euclidean"),
            lambda s, x, y: pnce.info_nce(x, y, similarity=s, temperature=0.5),
        ),
        *(
            (make(), lambda o, x, y: pnce.contrast(x, y, objective=o))
            for name, make in OBJECTIVES.items()
            if "array" not in name and name != "Objective"
        ),
        (pnce.value_and_grad(pnce.info_nce), lambda f, x, y: f(x, y)),
    ],
)
def test_compiled_code_is_found_again(part: Any, use: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """A part that has been read from a file does not compile anything anew, as a static argument or inside."""
    again = pickle.loads(pickle.dumps(part))  # noqa: S301  (our own)
    assert again is not part or isinstance(part, str)
    assert _traces(use, part, again) == 1
    use(part, jnp.asarray(X), jnp.asarray(Y))
    assert not _compiled(lambda: use(again, jnp.asarray(X), jnp.asarray(Y)), caplog)
    assert _compiled(lambda: use(again, jnp.asarray(X[:4]), jnp.asarray(Y[:4])), caplog)


def test_torch_tensors_in_parts() -> None:
    """The arrays of a part may be of any library."""
    x, y = torch.tensor(X), torch.tensor(Y)
    similarity = similarities.bilinear(torch.eye(3, dtype=torch.float64))
    again = pickle.loads(pickle.dumps(similarity))  # noqa: S301  (our own)
    assert torch.equal(pnce.info_nce(x, y, similarity=again), pnce.info_nce(x, y, similarity=similarity))
