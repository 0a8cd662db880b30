"""Parts of a loss can be pickled, as data loaders and job schedulers do, and compare equal afterwards."""

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
WEIGHTS = np.arange(1.0, 7.0)
HALF = np.asarray(0.5)


def near(tile: Tile) -> tuple[Any, Any]:
    """Pair rows with indices that differ by one."""
    gap = abs(tile.rows[0] - tile.columns[0])
    return gap == 1, gap > 2


def critic(x: Any, y: Any) -> Any:
    """Score by inner products."""
    return 0.5 * x @ y.T


def halves(x: Any, y: Any, scale: Any) -> Any:
    """Operands of half an inner product."""
    return (0.5 * scale * x,), (y,)


def hinge(row: objectives.RowStatistics) -> Any:
    """Loss of a row."""
    return row.log_odds**2


def square(score: Any) -> Any:
    """Term of a pair."""
    return score * score


def tripled(score: Any) -> Any:
    """Function of a score."""
    return 3.0 * score


def constant(score: Any) -> Any:
    """Derivative of `tripled`."""
    return 0.0 * score + 3.0


def energy(x: Any) -> Any:
    """A number and an auxiliary array."""
    return (x * x).sum(), x


def neighbours(x: Any) -> Pairing:
    """Pair neighbours, so that there are several positives."""
    return pairings.labels(LABELS[: len(x)], LABELS[: len(x)])


rows: Any = {"reduction": "none"}
USES: dict[str, Callable[..., Any]] = {
    "pairing": lambda part, x=X, y=Y: pnce.contrast(x, y, objective="info_nce", pairing=part, **rows),
    "similarity": lambda part, x=X, y=Y: pnce.info_nce(x, y, similarity=part, temperature=0.5, **rows),
    "tokens": lambda part, x=X, y=Y: pnce.info_nce(x[:, None, :], y[:, None, :], similarity=part, **rows),
    "objective": lambda part, x=X, y=Y: pnce.contrast(x, y, objective=part, pairing=neighbours(x), **rows),
    "objective alone": lambda part, x=X, y=Y: pnce.contrast(x, y, objective=part),
    "gradient": lambda part, x=X, y=Y: part(x, y),
}
"""Call of a loss with a part of each kind."""


PARTS: dict[str, dict[str, Any]] = {
    "pairing": {
        "Pairing": Pairing(near, rows=(LABELS * 2,), columns=(LABELS * 2 + 1,)),
        **{name: getattr(pairings, name)() for name in ("diagonal", "queue", "two_views")},
        **{name: getattr(pairings, name)(LABELS) for name in ("ids", "index", "labels")},
        "explicit": pairings.explicit(MASK),
        "labels of both": pairings.labels(LABELS, LABELS[::-1]),
        "labels of equal contents": pairings.labels(LABELS + 0),
        "guided": pairings.guided(X, Y, margin=0.125, strategy="relative"),
        "kernel": pairings.kernel(X, bandwidth=0.5),
        "overlap": pairings.overlap(MASK),
        "queue of valid": pairings.queue(LABELS > 0),
        "smoothed": pairings.smoothed(0.25),
        "soft": pairings.soft(MASK * 0.5),
        "teacher": pairings.teacher(X, Y, temperature=0.5),
        "weighted": pairings.weighted(pairings.two_views(), MASK * 0.5),
        "transposed": Pairing(near, rows=(LABELS,), columns=(LABELS,)).transposed(),
    },
    "similarity": {
        **{name: similarities.resolve(name) for name in similarities.NAMES},
        "critic": similarities.resolve(critic),
        "Similarity": similarities.Similarity(halves, inner_product=True),
        "bilinear": similarities.bilinear(np.eye(3) + 0.5),
        "bilinear of equal contents": similarities.bilinear(np.eye(3) + 0.5),
        "normalized": similarities.normalized("neg_euclidean"),
        "normalized dot": similarities.normalized("dot"),
        "normalized critic": similarities.normalized(critic),
        "scaled_columns": similarities.scaled_columns("neg_sq_euclidean", WEIGHTS),
        "scaled_columns dot": similarities.scaled_columns("dot", WEIGHTS),
        "shifted_columns": similarities.shifted_columns("neg_sq_euclidean", WEIGHTS),
        "shifted_columns dot": similarities.shifted_columns("dot", WEIGHTS),
        "transposed": similarities.scaled_columns("neg_euclidean", np.ones(6)).transposed(),
        "elementwise": similarities.elementwise("neg_sq_euclidean", tripled, constant),
        "elementwise cosine": similarities.elementwise("cosine", tripled, constant),
    },
    "tokens": {
        "max_sim": similarities.max_sim(normalize=False),
        "max_sim with masks": similarities.max_sim(query_mask=LABELS[:, None] > 0, document_mask=MASK[:, :1]),
    },
    "objective": {
        **{name: getattr(objectives, name)() for name in ("logistic", "triplet", "relic")},
        **{f"info_nce {m}": objectives.info_nce(multi_positive=m) for m in ("each", "pooled", "separate")},
        **{f"flat_nce {form}": objectives.flat_nce(form=form) for form in ("log", "detach")},
        **{f"flat_nce {f} of all": objectives.flat_nce(include_positive=True, form=f) for f in ("log", "detach")},
        "Objective": objectives.Objective(hinge, needs_negative=True),
        "Pairwise": objectives.Pairwise(square, objectives.Term(square), divide_by="pairs"),
        "dclw": objectives.dclw(temperature=0.5),
        "dclw 0.25": objectives.dclw(temperature=0.25),
        "dclw of arrays": objectives.dclw(temperature=HALF, sigma=np.asarray(0.25), detach_weights=True),
        "hard_negatives": objectives.hard_negatives(beta=0.5, tau_plus=0.125, floor=-2.0),
        "info_nce_anchor 5": objectives.info_nce_anchor(n_columns=5),
        "info_nce_anchor 6": objectives.info_nce_anchor(n_columns=6),
        "info_nce_anchor": objectives.info_nce_anchor(n_columns=5, nu=0.5),
        "logistic bias": objectives.logistic(bias=0.5, balance=True),
        "logistic of arrays": objectives.logistic(bias=HALF),
        "contrastive": objectives.contrastive(margin=2.0, positive_power=1, average="nonzero"),
        "contrastive of arrays": objectives.contrastive(margin=np.asarray(2.0)),
        "triplet of arrays": objectives.triplet(margin=HALF),
        "triplet batch_hard": objectives.triplet(margin=0.5, mining="batch_hard", form="soft"),
        "triplet mined": objectives.triplet(mining=("easy", "semi_hard")),
        "relic first": objectives.relic(alpha=0.5, symmetric=True, stop_gradient="first"),
        "relic of arrays": objectives.relic(alpha=HALF),
    },
    "gradient": {
        "grad": pnce.grad(pnce.info_nce, 1),
        "grad of one": pnce.grad(pnce.info_nce, (0,)),
        "value_and_grad": pnce.value_and_grad(pnce.info_nce),
        "of both": pnce.value_and_grad(pnce.info_nce, argnums=(0, 1)),
        "of a partial function": pnce.grad(partial(pnce.nt_xent, temperature=0.25)),
        "matryoshka": pnce.matryoshka(pnce.info_nce, (2, 3)),
        "matryoshka weights": pnce.matryoshka(pnce.info_nce, (2, 3), weights=(0.5, 1.0)),
        "matryoshka nt_xent": pnce.matryoshka(pnce.nt_xent, (2, 3)),
    },
}
"""Parts of every kind, no two of them equal."""

each_part = pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, of in PARTS.items() for name in of])


def _same(ours: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def _again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301  (own data)


def test_parts_of_the_package_are_listed() -> None:
    """New parts of the package must be listed here."""
    names = {name.partition(" ")[0] for of in PARTS.values() for name in of}
    assert {*pairings.__all__} - {"Tile"} <= names
    assert {*similarities.__all__} - {"NAMES", "Operands", "Pullback", "Scores", "resolve"} <= names
    assert {*objectives.__all__} - {"RowStatistics", "Term", "resolve"} <= names


@each_part
def test_a_round_trip(kind: str, name: str) -> None:
    """Results are the same; parts without arrays, or with the same arrays, are equal."""
    part, use = PARTS[kind][name], USES[kind]
    # Partial functions compare by identity, like arrays.
    of_contents = b"numpy" not in pickle.dumps(part) and "partial" not in name
    for again in (_again(part), copy.deepcopy(part)):
        _same(use(again), use(part))
        assert (again == part) == of_contents
        assert hash(again) == hash(part) or not of_contents
    shallow = copy.copy(part)
    assert shallow == part
    assert hash(shallow) == hash(part)


def test_parts_of_other_contents_differ() -> None:
    """Equality compares types, contents and the identity of arrays."""
    every = [(f"{kind} {name}", part) for kind, of in PARTS.items() for name, part in of.items()]
    for name, part in every:
        assert [other for other, its in every if its == part] == [name]
    weight = np.eye(3)
    assert similarities.bilinear(weight) == similarities.bilinear(weight)
    assert pairings.labels(LABELS) == pairings.labels(LABELS)


def test_a_queue() -> None:
    """A queue can be part of a checkpoint."""
    queue = pnce.queue_push(pnce.queue_init(X, 8), X)
    _same(pnce.moco(X, Y, _again(queue)), pnce.moco(X, Y, queue))
    queue = pnce.queue_push(pnce.queue_init(X, 8, labels=LABELS), X, labels=LABELS)
    _same(pnce.supcon(Y, LABELS, keys=_again(queue)), pnce.supcon(Y, LABELS, keys=queue))


def test_gradients_of_second_order_and_with_aux() -> None:
    """Transformed functions nest, and return auxiliary results."""
    _same(_again(pnce.grad(energy, has_aux=True))(X), (2 * X, X))
    second = _again(pnce.value_and_grad(pnce.value_and_grad(energy, has_aux=True), has_aux=True))
    with pytest.raises(TypeError, match="0-d"):
        second(X)


class _Model:
    scale = 2.0

    @partial(pnce.grad, argnums=1)
    def gradient(self, x: Any) -> Any:
        """A scaled sum."""
        return (self.scale * x).sum()


def test_a_gradient_in_a_class_is_a_method() -> None:
    """Like a function."""
    _same(_Model().gradient(X), np.full_like(X, 2.0))
    assert _Model.gradient.__name__ == "gradient"
    assert _Model.gradient.__doc__ == "A scaled sum."


def uses_of(given: dict[str, dict[str, Any]]) -> list[Any]:
    """Use parts of every kind."""
    return [USES[kind](part) for kind, of in given.items() for part in of.values()]


def test_parts_work_in_a_spawned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts sent to a new process give the same results."""
    # The process imports this file like pytest; the installed package precedes the source tree.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        _same(pool.submit(uses_of, PARTS).result(timeout=300), uses_of(PARTS))


def _compiled(run: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    """Names of the functions that JAX compiles in a call."""
    caplog.clear()
    with jax.log_compiles():
        run()
    return [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]


last_of_each = {name.split()[0]: name for name in PARTS["objective"] if not name.endswith(("arrays", "Objective"))}
compiled_once = [("pairing", "two_views"), ("similarity", "normalized"), ("gradient", "value_and_grad")]


objectives_of_each = [("objective", name) for name in last_of_each.values()]
rarely = [pytest.param(*pair, marks=pytest.mark.full) for pair in objectives_of_each[3:]]


@pytest.mark.parametrize(("kind", "name"), [*compiled_once, *objectives_of_each[:3], *rarely])
def test_compiled_code_is_found_again(kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """An unpickled part does not recompile anything, as a static argument or inside a function."""
    part, use = PARTS[kind][name], USES["objective alone" if kind == "objective" else kind]
    again, x, y = _again(part), jnp.asarray(X), jnp.asarray(Y)
    assert again is not part
    traced = []

    @partial(jax.jit, static_argnums=0)
    def compiled(part: Any, x: Any, y: Any) -> Any:
        traced.append(part)
        return use(part, x, y)

    _same(compiled(part, x, y), compiled(again, x, y))
    assert len(traced) == 1
    use(part, x, y)
    assert not _compiled(lambda: use(again, x, y), caplog)
    assert _compiled(lambda: use(again, x[:4], y[:4]), caplog)


def test_torch_tensors_in_parts() -> None:
    """The arrays of a part may be of any library."""
    x, y = torch.tensor(X), torch.tensor(Y)
    part, use = similarities.bilinear(torch.eye(3, dtype=torch.float64)), USES["similarity"]
    _same(use(_again(part), x, y), use(part, x, y))
