"""Edge cases of the core that the general cases of the conformance suite do not cover."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core import ranks
from portable_nce.objectives import Objective, Pairwise, Term
from portable_nce.pairings import queue
from portable_nce.testing import CASES, oracles
from portable_nce.testing.variants import VARIANTS, case_arrays, differentiate

from calls import OF_SCORES, options_of

RNG = np.random.default_rng(11)

# Concentrations of clusters.

SEVERAL, ONE, NONE = [0, 1, 2, 3] * 3 + [3, 3], [0] * 5 + [1] + [2] * 4 + [3] * 4, [0] * 7 + [2] * 4 + [3] * 3
PERCENTILES = [(10.0, 90.0), (0.0, 100.0), (30.0, 35.0), (50.0, 50.0), (0.0, 0.0)]


@pytest.mark.parametrize("members", [SEVERAL, ONE, NONE], ids=["of several", "of one", "of none"])
def test_concentrations_are_those_of_the_definition(members: list[int]) -> None:
    points, centres = RNG.normal(size=(14, 3)), RNG.normal(size=(4, 3))
    pairs = itertools.product((10.0, 0.5), PERCENTILES)
    given = [{"temperature": 0.3, "smoothing": smoothing, "percentiles": p} for smoothing, p in pairs]
    for options in [dict[str, Any](), *given]:
        found = pnce.concentrations(points, centres, np.asarray(members), **options)
        expected = oracles.concentrations(points.tolist(), centres.tolist(), members, **options)
        np.testing.assert_allclose(found, [float(number) for number in expected], rtol=1e-13, err_msg=str(options))
        assert found.mean() == pytest.approx(options.get("temperature", 0.1), rel=1e-13)


def test_concentrations_of_more_clusters_than_a_block_holds() -> None:
    number = 1100  # squared, more than 2**20
    points, members = RNG.normal(size=(2 * number, 2)), np.concatenate([np.arange(number)] * 2)
    found = pnce.concentrations(points, np.zeros((number, 2)), members, percentiles=(0.0, 100.0))
    sums = np.linalg.norm(points, axis=1).reshape(2, number).sum(axis=0)
    np.testing.assert_allclose(found, 0.1 * sums / sums.mean(), rtol=1e-12)


def test_concentrations_of_clusters_of_identical_points_are_all_alike() -> None:
    points, members = np.asarray([[1.0, 2.0], [3.0, 4.0]] * 2), np.asarray([0, 1, 0, 1])
    assert pnce.concentrations(points, points[:2], members, temperature=0.25).tolist() == [0.25, 0.25]


def test_concentrations_within_a_loss_are_constants() -> None:
    """Also for a library whose arrays refuse a recorded right operand."""
    points, centres, members = (
        array_api_strict.asarray(x) for x in (RNG.normal(size=(6, 2)), np.eye(2), np.asarray([0, 1, 0, 1, 0, 1]))
    )
    phi = pnce.concentrations(points, centres, members)
    within = pnce.grad(lambda x: pnce.proto_nce(x, centres, members, pnce.concentrations(x, centres, members)))(points)
    beforehand = pnce.grad(pnce.proto_nce)(points, centres, members, phi)
    np.testing.assert_array_equal(np.asarray(within), np.asarray(beforehand))


@pytest.mark.parametrize("name", ["assignments", "concentrations", "mask"])
@pytest.mark.parametrize("count", [1, 3])
def test_clusterings_come_in_equal_numbers(name: str, count: int) -> None:
    arrays = {"assignments": np.asarray([0, 1]), "concentrations": np.ones(2), "mask": np.ones((2, 2), dtype=bool)}
    given = {key: [array] * (count if key == name else 2) for key, array in arrays.items()}
    with pytest.raises(ValueError, match=rf"^{name}: expected a sequence of 2 arrays, .*, got {count}$"):
        pnce.proto_nce(np.eye(2), [np.eye(2)] * 2, *list(given.values())[:2], mask=given["mask"])


def test_concentrations_refuse_an_assignment_to_no_cluster_and_have_the_dtype_of_the_embeddings() -> None:
    points, members = RNG.normal(size=(5, 3)), np.asarray([0, 1, 0, 1, 0])
    for dtype in (np.float16, np.float32, np.float64):
        assert pnce.concentrations(points.astype(dtype), points[:2].astype(dtype), members).dtype == dtype
    for outside in (-1, 2, 7):
        with pytest.raises(ValueError, match="assignments"):
            pnce.concentrations(points, points[:2], np.asarray([0, 1, 0, 1, outside]))


# Streamed products of embeddings against dense execution.


OBJECTIVES = {
    "the log-odds": Objective(lambda row: row.log_odds**2, slopes=lambda row: (2.0 * row.log_odds, None, None, None)),
    "the negatives": Objective(lambda row: row.negative**2, slopes=lambda row: (None, None, 2.0 * row.negative, None)),
}
"""Objectives of one row statistic, with slopes; test_own_parts has one of all of them."""


def square(score: Any, centre: Any) -> Any:
    """A term of a score and of one parameter."""
    return np.maximum(score - centre, 0.0) ** 2


SQUARE = Term(square, lambda score, centre: (2.0 * np.maximum(score - centre, 0), 2.0 * np.minimum(centre - score, 0)))


def streams_like_the_dense(loss: Callable[..., Any], *arrays: Any, block_sizes: tuple[int, ...] = (1, 3, 8)) -> None:
    """Compare value and gradients of a loss with and without a block size."""
    value, gradients = differentiate(functools.partial(loss, block_size=None), arrays)
    assert np.isfinite(value)
    for size in block_sizes:
        again, found = differentiate(functools.partial(loss, block_size=size), arrays)
        np.testing.assert_allclose(again, value, rtol=1e-11)
        for ours, dense in zip(found, gradients, strict=True):
            np.testing.assert_allclose(ours, dense, rtol=1e-9, atol=1e-11 * np.max(np.abs(dense)))


ROWS, COLUMNS = RNG.normal(size=(8, 3)), RNG.normal(size=(8, 3))
WEIGHTS = np.asarray([1.0, 0.0, 2.0, 0.5, 1.0, 0.0, 1.5, 1.0])


@pytest.mark.parametrize("temperature", [2.0, 0.02], ids=["small scores", "large scores"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("pairing", ["diagonal", "two_views"])
def test_products_stream_for_every_statistic(
    temperature: float, objective: Objective, pairing: pnce.typing.PairingName, *, weighted: bool, symmetric: bool
) -> None:
    options: dict[str, Any] = {"similarity": "dot", "temperature": temperature, "symmetric": symmetric}

    def loss(x: Any, y: Any, w: Any, *, block_size: int | None) -> Any:
        columns = y if pairing == "diagonal" else None
        options.update(weights=w if weighted else None, block_size=block_size)
        return pnce.contrast(x, columns, objective=objective, pairing=pairing, **options)

    streams_like_the_dense(loss, ROWS, COLUMNS, WEIGHTS)


ATTRACTING = {"nothing": None, "a term": SQUARE, "a plain term": Term(square)}


@pytest.mark.parametrize("attract", ATTRACTING.values(), ids=ATTRACTING)
@pytest.mark.parametrize("divide_by", ["rows", "pairs", "active"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pairing", ["diagonal", "two_views", queue()])
def test_sums_of_products_stream_for_every_term(
    attract: Term | None, divide_by: pnce.typing.DivideBy, pairing: Any, *, weighted: bool
) -> None:
    def loss(x: Any, y: Any, weights: Any, centre: Any, *, block_size: int | None) -> Any:
        columns = {"diagonal": [y], "two_views": []}.get(pairing, [np.concatenate([y, x * y])])
        objective = Pairwise(attract, SQUARE, parameters=(centre,), divide_by=divide_by)
        chosen = weights if weighted else None
        options: dict[str, Any] = {"similarity": "dot", "weights": chosen, "block_size": block_size}
        return pnce.contrast(x, *columns, objective=objective, pairing=pairing, **options)

    streams_like_the_dense(loss, ROWS, COLUMNS, WEIGHTS, np.asarray(0.25))


def test_an_infinite_loss_without_weight_is_no_contribution() -> None:
    rows, columns, weights = ROWS.copy(), COLUMNS.copy(), np.ones(8)
    rows[0], columns[1], weights[0] = 1e200, 1e200, 0.0  # their product overflows
    loss = functools.partial(pnce.contrast, rows, columns, objective="info_nce", similarity="dot")
    with np.errstate(over="ignore"):
        assert loss(reduction="none")[0] > 1e300
        for pairing in ("diagonal", pnce.pairings.labels(np.arange(8))):
            dense, streamed = (loss(pairing=pairing, weights=weights, block_size=size) for size in (None, 3))
            assert np.isfinite(dense)
            assert streamed == pytest.approx(dense, rel=1e-12)


# Divisors of means.


def test_the_mean_of_hardest_triples_is_over_all_rows_or_over_those_with_a_loss() -> None:
    scores = np.asarray([[0.0, -1.0, -3.0], [-4.0, 0.0, -0.5], [-0.25, -5.0, 0.0]])  # row 0 has no loss
    triplet = functools.partial(pnce.from_scores.triplet, scores, margin=1.0, mining="batch_hard")
    np.testing.assert_allclose(triplet(reduction="none"), [0.0, 0.5, 0.75], rtol=1e-14)
    assert [triplet(), triplet(average="all"), triplet(average="nonzero")] == pytest.approx([1.25 / 3, 1.25 / 3, 0.625])


def test_the_accuracy_weighs_rows() -> None:
    scores = np.asarray([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    accuracy = functools.partial(pnce.diagnostics.top_k_accuracy, scores, weights=np.asarray([0.5, 1.5, 2.0]))
    np.testing.assert_array_equal(accuracy(reduction="none"), [0.0, 1.5, 0.0])
    assert accuracy(reduction="sum") == 1.5
    assert [accuracy(), accuracy(k=2)] == pytest.approx([1.5 / 4.0, 2.0 / 4.0])


# Second-order derivatives: value and gradient are differentiated together.


KINDS = np.asarray([0, 1, 0, 2, 1, 2, 0, 1])
EXECUTIONS: dict[str, Callable[..., Any]] = {
    "products": lambda x, w, **o: pnce.info_nce(x, COLUMNS, weights=w, similarity="dot", **o),
    "both sides": lambda x, w, **o: pnce.clip(x, COLUMNS, logit_scale=5.0, weights=w, **o),
    "own scores": lambda x, w, **o: pnce.nt_xent(x, COLUMNS, weights=w, **o),
    "rows": lambda x, w, **o: pnce.supcon(x, KINDS, weights=w, **o),
    "pairs of products": lambda x, w, **o: pnce.siglip(x, COLUMNS, logit_scale=3.0, logit_bias=-1.0, weights=w, **o),
    "pairs": lambda x, w, **o: pnce.contrastive(x, KINDS, margin=3.0, positive_margin=0.5, weights=w, **o),
}
"""Losses whose streamed execution has a gradient of its own."""


@pytest.mark.parametrize("loss", EXECUTIONS.values(), ids=EXECUTIONS)
def test_a_value_and_its_gradient_are_differentiated_together(loss: Callable[..., Any]) -> None:
    def penalised(x: Any, w: Any, *, block_size: int | None) -> Any:
        value, gradients = differentiate(functools.partial(loss, block_size=block_size), (x, w))
        return value * value + sum(np.sum(g * g) for g in gradients)

    streams_like_the_dense(penalised, ROWS, WEIGHTS + 0.25, block_sizes=(3,))


# Defaults.

PARTS = (pnce.objectives, pnce.pairings, pnce.similarities)
FACTORIES = [make for part in PARTS for name in part.__all__ if inspect.isfunction(make := getattr(part, name))]


def test_the_parts_of_a_loss_have_the_defaults_that_they_document() -> None:
    for factory in FACTORIES:
        for name, parameter in inspect.signature(factory).parameters.items():
            said = re.search(rf"^    [\w, ]*\b{name}\b[\w, ]* : (.*)$", str(factory.__doc__), re.MULTILINE)
            assert said is not None, (factory, name)
            _, found, default = said[1].partition("default: ")
            if parameter.default is inspect.Parameter.empty:
                assert not found, (factory, name)
            elif parameter.default is None:
                assert said[1].endswith(("optional", "default: None")), (factory, name)
            else:
                assert default.replace('"', "'") == repr(parameter.default), (factory, name)


# Parts of losses.


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("form", ["each", "pooled"])
def test_the_detached_forms_stream_with_several_positives(form: pnce.typing.MultiPositive, *, included: bool) -> None:
    objective = pnce.objectives.flat_nce(form="detach", include_positive=included, multi_positive=form)
    pairing = pnce.pairings.labels(KINDS, KINDS[::-1].copy())
    loss = functools.partial(pnce.contrast, objective=objective, pairing=pairing)
    streams_like_the_dense(lambda x, y, w, **o: loss(x, y, weights=w, **o), ROWS, COLUMNS, WEIGHTS)


@pytest.mark.parametrize("form", ["log", "detach"])
@pytest.mark.parametrize("include_positive", [False, True])
def test_a_row_without_negatives_is_not_counted(form: pnce.typing.FlatForm, *, include_positive: bool) -> None:
    objective = pnce.objectives.flat_nce(form=form, include_positive=include_positive)
    mask = (np.arange(8)[:, None] != 2) | np.eye(8, dtype=bool)  # row 2 has no negative
    whole = pnce.contrast(ROWS, COLUMNS, objective=objective, mask=mask, reduction="none")
    assert whole[2] == 0.0
    for block_size in (None, 3):
        mean = pnce.contrast(ROWS, COLUMNS, objective=objective, mask=mask, block_size=block_size)
        assert mean == pytest.approx(whole.sum() / 7.0, rel=1e-12)


def test_a_queue_has_one_positive_a_row_and_is_worth_nothing_without_further_columns() -> None:
    row = ROWS[:1]
    for pairing in (queue(), queue(np.asarray([True]))):
        assert float(pnce.contrast(row, row, objective="info_nce", pairing=pairing)) == 0.0
        assert (pairing.one_per_row, pairing.one_per_column) == (True, True)


def test_objectives_have_names() -> None:
    named = {
        "square": Objective(square),
        "partial": Objective(functools.partial(square)),
        "mine": Objective(square, label="mine"),
        "logistic": pnce.objectives.logistic(),
        "contrastive": pnce.objectives.contrastive(),
        "dclw": pnce.objectives.dclw(temperature=0.1),
        "info_nce_anchor": pnce.objectives.info_nce_anchor(n_columns=2),
        "info_nce, separate": pnce.objectives.info_nce(multi_positive="separate"),
        "flat_nce with the positive, each": pnce.objectives.flat_nce(include_positive=True),
        "pairwise": Pairwise(None, SQUARE),
    }
    assert [repr(objective) for objective in named.values()] == [f"<objective {name}>" for name in named]


OF_POWERS: dict[str, Callable[..., Any]] = {
    "info_nce": functools.partial(pnce.info_nce, temperature=0.5),
    "nt_xent": functools.partial(pnce.nt_xent, temperature=0.5),
    "clip": functools.partial(pnce.clip, logit_scale=2.0),
    "clip shifted": functools.partial(pnce.clip, logit_scale=60.0),
}


@pytest.mark.parametrize("block_size", ["auto", 2])
@pytest.mark.parametrize("loss", OF_POWERS.values(), ids=OF_POWERS)
def test_second_derivatives_of_powers_of_two(loss: Callable[..., Any], block_size: int | str) -> None:
    """In float32; other tests of derivatives use float64."""

    def twice(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        slopes = pnce.grad(lambda a: loss(a, y, block_size=block_size))
        return np.asarray(pnce.grad(lambda a: (slopes(a) ** 2).sum())(x))

    x, y = np.random.default_rng(5).normal(size=(2, 6, 3))
    expected, found = twice(x, y), twice(x.astype(np.float32), y.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


# Objects similar to an objective, a similarity or an array.


def test_a_function_that_makes_a_part_is_to_be_called_and_a_class_is_no_similarity() -> None:
    for maker in FACTORIES:
        name, module = maker.__name__, maker.__module__
        axis = "objective" if "objectives" in module else "similarity"
        if "pairings" in module or (axis, name) == ("similarity", "resolve"):
            continue
        parts: dict[str, Any] = {"objective": "info_nce"} | {axis: maker}
        words = rf"^{axis}: expected what \w+.{name}\(...\) returns, got {name} itself; call"
        with pytest.raises(TypeError, match=words):
            pnce.contrast(ROWS, ROWS, **parts)
    with pytest.raises(TypeError, match=r"^similarity: expected .* got the class"):
        pnce.info_nce(ROWS, ROWS, similarity=np.ndarray)


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("slopes", [None, lambda s: (np.ones_like(s),)])
@pytest.mark.parametrize("value", [np.sum, lambda s: s[:, :1], lambda _: 1.0], ids=["sum", "column", "number"])
def test_the_function_of_a_pair_is_elementwise(value: Any, slopes: Any, block_size: int | None) -> None:
    objective, x = Pairwise(Term(value, slopes), None), np.eye(4)
    for call in (pnce.contrast, pnce.value_and_grad(pnce.contrast)):
        with pytest.raises(ValueError, match=r"^objective: expected an elementwise function of scores, of shape"):
            call(x, x, objective=objective, block_size=block_size)


@pytest.mark.parametrize("make", [lambda x: np.ma.masked_array(x, x > 0.5), np.matrix], ids=["masked", "matrix"])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_whose_operations_mean_something_else_are_refused(make: Callable[[Any], Any]) -> None:
    x, odd = np.eye(3), make(np.eye(3))
    for call in (
        *(lambda: pnce.info_nce(odd, x), lambda: pnce.info_nce(x, x, weights=odd), lambda: pnce.triplet(odd, odd, odd)),
        *(lambda: pnce.bounds.info_nce(odd), lambda: pnce.diagnostics.uniformity(odd)),
        lambda: pnce.grad(lambda a: (a * a).sum())(odd),
    ):
        with pytest.raises(TypeError, match=r"expected an array, got a (MaskedArray|matrix), whose"):
            call()


BOUNDS = {name: case for name, case in OF_SCORES.items() if name.startswith("bounds.") and "mask" in options_of(name)}


def bound_of(name: str, mask: Any = None) -> Callable[[Any], Any]:
    """Return a bound as a function of its scores."""
    arrays = {key: np.asarray(x) for key, x in BOUNDS[name].arguments.items()}
    return lambda scores: BOUNDS[name].call({**arrays, "scores": scores}, mask=mask)


@pytest.mark.parametrize("name", BOUNDS)
def test_no_pair_is_no_information(name: str) -> None:
    scores = np.asarray(BOUNDS[name].arguments["scores"])
    value, gradient = pnce.value_and_grad(bound_of(name, np.zeros_like(scores, dtype=bool)))(scores)
    assert value == 0.0
    np.testing.assert_array_equal(gradient, np.zeros_like(scores))
    assert bound_of(name)(scores) != 0.0


# Contexts without samples.

OF_NO_SAMPLES: dict[str, tuple[tuple[float, ...], int]] = {
    "local_nce": ((-1.0, -1.0), 3),
    "negative_sampling": ((), 3),
    "ranking_nce": ((-1.0, -1.0), 3),
    "info_nce_anchor": ((-1.0, -1.0), 2),
    "sampled_softmax": ((-1.0, -1.0), 2),
}
"""Log-probabilities, and how many of three contexts count: not one for which the formula for k = 0 has no value."""


@pytest.mark.parametrize("name", OF_NO_SAMPLES)
def test_a_context_without_samples_counts_where_its_loss_is_defined(name: str) -> None:
    log_probabilities, counted = OF_NO_SAMPLES[name]
    options = {"include_positive": False} if name == "sampled_softmax" else {}
    rng = np.random.default_rng(8)
    data, noise, mask = rng.normal(size=3), rng.normal(size=(3, 4)), np.asarray([[True], [False], [True]]).repeat(4, 1)

    def loss(data: Any, noise: Any, **how: Any) -> Any:
        return getattr(pnce.density, name)(data, noise, *log_probabilities, **options, **how)

    losses = loss(data, noise, mask=mask, reduction="none")
    np.testing.assert_allclose(losses[[0, 2]], loss(data[[0, 2]], noise[[0, 2]], reduction="none"), rtol=1e-13)
    assert losses[1] == pytest.approx(np.log1p(np.exp(-data[1])) if name == "negative_sampling" else 0.0, rel=1e-14)
    assert float(loss(data, noise, mask=mask)) == pytest.approx(float(np.sum(losses)) / counted, rel=1e-13)


PARTLY = np.asarray([[True, True, False, True, False], [True] * 5, [False, False, True, False, False]])


@pytest.mark.parametrize("name", BOUNDS)
def test_scores_of_a_bound_that_take_no_part_may_hold_anything(name: str) -> None:
    """They affect neither value nor gradient, and cause no warning."""
    clean = np.asarray(BOUNDS[name].arguments["scores"])
    mask = PARTLY[:, : clean.shape[1]]
    bound = pnce.value_and_grad(bound_of(name, mask))
    wanted, expected = bound(np.where(mask, clean, 0.0))
    for dirt in (math.nan, math.inf, -math.inf, 1e300):
        value, gradient = bound(np.where(mask, clean, dirt))
        assert value == wanted, dirt
        np.testing.assert_array_equal(gradient, expected, err_msg=str(dirt))
    assert np.all(expected[~mask] == 0.0)
    assert np.any(expected != 0.0)


def test_a_positive_out_of_range_is_none_where_nobody_looks() -> None:
    """Under tracing it is not an error: its row does not count."""
    bounds = [getattr(pnce.bounds, name) for name in ("info_nce", "fdv", "dv", "nwj", "js", "club")]
    scores = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
    found = jax.jit(lambda g, p: [bound(g, positives=p) for bound in bounds])(scores, np.asarray([1, 4, 0]))
    wanted = [bound(scores[[0, 2]].astype(np.float64), positives=np.asarray([1, 0])) for bound in bounds]
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_a_negative_at_infinity_is_no_information() -> None:
    scores = np.asarray([[1.0, math.inf, 0.0], [0.0, 1.0, 2.0], [0.5, 0.0, 1.0]])
    value, gradient = pnce.value_and_grad(pnce.bounds.dv)(scores)
    assert value == -math.inf
    assert not np.isnan(gradient).any()


def test_no_critic_of_a_row_that_does_not_count() -> None:
    """Row 2 has no negative, row 0 no positive; in the others it is the log-odds minus log 3."""
    scores, mask = np.arange(12.0).reshape(3, 4) / 4, np.ones((3, 4), dtype=bool)
    mask[0, 0], mask[2] = False, [False, False, True, False]
    wanted = np.log(np.exp(scores[1, [0, 2, 3]] - scores[1, 1]).sum()) - math.log(3.0)
    np.testing.assert_allclose(pnce.bounds.dual_critic(scores, mask=mask), [0.0, wanted, 0.0], rtol=1e-14)


SUMS: dict[str, Callable[..., Any]] = {
    "moco_v3, temperature": lambda a, b, option: pnce.moco_v3(a, b, b, a, temperature=option[0] / 2),
    "moco_v3, weights": lambda a, b, option: pnce.moco_v3(a, b, b, a, weights=option, reduction="sum"),
    "proto_nce, weights": lambda a, b, option: pnce.proto_nce(
        *(a, [b[:3], b[2:]], [np.arange(8) % 3, np.arange(8) % 6], [0.0 * b[:3, 0] + 0.5, 0.0 * b[2:, 0] + 0.5]),
        key=b,
        weights=option,
        reduction="sum",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_gradient_of_an_option_in_several_terms_is_rounded_once(name: str) -> None:
    """In 16 bits a sum of rounded terms would be off by more than half a unit."""
    for seed in range(20):
        a, b = np.random.default_rng(seed).normal(size=(2, 8, 4)).astype(np.float16)
        option = np.random.default_rng(seed).uniform(0.5, 1.5, size=(8,)).astype(np.float16)
        found = pnce.grad(SUMS[name], argnums=2)(a, b, option)
        wanted = pnce.grad(SUMS[name], argnums=2)(*(x.astype(np.float64) for x in (a, b, option)))
        assert found.dtype == np.float16
        unit = np.spacing(np.abs(wanted).astype(np.float16)).astype(np.float64)
        assert (np.abs(found.astype(np.float64) - wanted) <= 0.51 * unit).all()


def test_targets_out_of_range_have_their_name() -> None:
    with pytest.raises(ValueError, match=r"^targets: expected indices from 0 to 2, of the columns of scores, got 3"):
        pnce.density.full_softmax(np.zeros((2, 3)), np.asarray([0, 3]))


# NaN.


CASES_OF = {loss: [case for case in CASES if case.loss == loss] for loss in {case.loss: None for case in CASES}}
DENSE_OF = {loss: [case for case in cases if "streamed" not in case.name] for loss, cases in CASES_OF.items()}


@pytest.mark.parametrize("libraries", [(np, torch), (torch, np)], ids=["numpy first", "torch first"])
@pytest.mark.parametrize("loss", CASES_OF)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_nan_in_a_differentiated_array_makes_the_loss_nan(loss: str, libraries: Any) -> None:
    """NaN in a row that counts makes the loss NaN."""
    for case, library in zip(CASES_OF[loss], itertools.cycle(libraries)):
        arrays = case_arrays(VARIANTS["numpy"], case, "float64")
        _, gradients = differentiate(case.function, arrays, len(case.arguments))
        for k, (name, gradient) in enumerate(zip(case.arguments, gradients, strict=True)):
            for place in np.flatnonzero(gradient.reshape(len(gradient), -1).any(axis=1)) if gradient.ndim else ():
                dirty = arrays[k].copy()
                dirty[place] = np.nan
                found = case.function(*(library.asarray(dirty if j == k else x) for j, x in enumerate(arrays)))
                assert np.isnan(float(found)), (case.name, name, place)


# Byte orders: arrays from HDF5, FITS and NetCDF are big-endian.


@pytest.mark.parametrize("loss", DENSE_OF)
def test_the_byte_order_changes_nothing(loss: str) -> None:
    """In all arrays or in one; results have native byte order."""
    for case in DENSE_OF[loss]:
        arrays = case_arrays(VARIANTS["numpy"], case, "float64")
        swapped = [x.astype(x.dtype.newbyteorder()) for x in arrays]
        value, gradients = differentiate(case.function, arrays, len(case.arguments))
        found, slopes = differentiate(case.function, swapped, len(case.arguments))
        alone = [case.function(*arrays[:k], x, *arrays[k + 1 :]) for k, x in enumerate(swapped)]
        pairs = [(value, x) for x in (found, case.function(*swapped), *alone)]
        for x, y in [*pairs, *zip(gradients, slopes, strict=True)]:
            assert y.dtype == x.dtype, case.name
            np.testing.assert_array_equal(y, x, err_msg=case.name)


UNUSUAL: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (lambda x: x.ndim > 0, lambda x: x.to_sparse()),
    (lambda x: x.ndim > 0, lambda x: torch.nested.nested_tensor([*x.unbind()], dtype=x.dtype)),
    (lambda x: x.ndim > 1, lambda x: torch.nested.nested_tensor([*x.unbind()], dtype=x.dtype, layout=torch.jagged)),
    (torch.is_floating_point, lambda x: x.to(torch.float8_e4m3fn)),
]
"""Which tensors can be what has no arithmetic, and how."""


@pytest.mark.parametrize("loss", DENSE_OF)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_arithmetic_are_refused_by_name(loss: str) -> None:
    for case in DENSE_OF[loss]:
        names = [*case.arguments, *case.constants]
        tensors = case_arrays(VARIANTS["torch"], case, "float32")
        for k, x in enumerate(tensors):
            forms = [make for fits, make in UNUSUAL if fits(x)]
            if not forms or names[k] == "temperature":
                continue
            odd = forms[(len(case.name) + k) % len(forms)](x)
            with pytest.raises(TypeError, match=r"^[\w. \[\]]+: expected "):
                case.function(*tensors[:k], odd, *tensors[k + 1 :])


def test_labels_of_swapped_bytes_keep_their_numbers_between_ranks() -> None:
    assert ranks.widened(np.asarray([2**31], dtype=np.dtype(np.uint32).newbyteorder())).tolist() == [2**31]


DECIDING: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "nnclr": (pnce.nnclr, (0,)),
    "nnclr, views": (functools.partial(pnce.nnclr, negatives="views"), (0,)),
    "nnclr, function": (functools.partial(pnce.nnclr, similarity=lambda x, y: x @ y.T), (0,)),
    "nnclr, distances": (functools.partial(pnce.nnclr, similarity="neg_euclidean"), (0,)),
    "gist_embed": (lambda x, y, z, **options: pnce.gist_embed(x, y, z[:4], z[4:], margin=-2.5, **options), (1, 5)),
}
"""What has no gradient, and decides what is compared: a loss, and places of it in the first or the last argument."""


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", DECIDING)
def test_nan_in_an_array_that_selects_pairs_makes_the_loss_nan(name: str, library: Any) -> None:
    """A search among NaN would return a column, and hide them; masked entries are ignored."""
    loss, places = DECIDING[name]
    arrays = [RNG.normal(size=(n, 3)) for n in (4, 4, 8)]
    for place in places:
        dirty = [x.copy() for x in arrays]
        dirty[2 if name == "gist_embed" else 0][place, 1] = np.nan
        given = [library.asarray(x) for x in dirty]
        for block_size in (None, 2) if "function" not in name else (None,):
            assert np.isnan(float(loss(*given, block_size=block_size)))
        counts = np.arange(8 if "views" in name else 4) % 4 != place % 4
        mask = library.asarray(counts[:, None] & counts)
        clean = [library.asarray(x) for x in arrays]
        assert float(loss(*given, mask=mask)) == float(loss(*clean, mask=mask)) != 0.0


@pytest.mark.parametrize("temperature", [np.nan, 0.0])
@pytest.mark.parametrize("name", ["info_nce", "joint_info_nce", "relic", "dclw"])
def test_a_temperature_that_is_no_number_or_nothing_makes_the_loss_none(name: str, temperature: float) -> None:
    """If it cannot be read without waiting; otherwise 0 is an error."""
    x, y = jnp.asarray(RNG.normal(size=(2, 4, 3)))
    for block_size in (None, 2):
        assert jnp.isnan(getattr(pnce, name)(x, y, temperature=jnp.asarray(temperature), block_size=block_size))


@pytest.mark.parametrize(("column", "expected"), [(2, np.inf), (1, 0.0)], ids=["a negative", "the positive"])
@pytest.mark.parametrize("further", [("query_to_query",), ("key_to_query",), ()])
def test_joint_losses_of_infinite_scores(further: tuple[Any, ...], column: int, expected: float) -> None:
    """Infinite log-odds in one or both directions cause no inf - inf."""
    x, y, infinite = np.eye(4), RNG.normal(size=(4, 4)), np.arange(32).reshape(4, 8) == 8 + column
    loss = functools.partial(pnce.joint_info_nce, temperature=1.0, directions=("query_to_key", *further))
    found = loss(x, y, similarity=lambda a, b: np.where(infinite[:, : len(b)], np.inf, a @ b.T), reduction="none")
    assert found[1] == expected
    assert np.isfinite(found[[0, 2, 3]]).all()


@pytest.mark.parametrize("library", [np.asarray, torch.asarray, jnp.asarray], ids=["numpy", "torch", "jax"])
@pytest.mark.parametrize("direction", ["a_to_b", "b_to_a"])
def test_relic_of_infinite_scores(direction: pnce.typing.RelicDirection, library: Callable[[Any], Any]) -> None:
    """An infinite score has probability 1, in its row and in the row of the transposed scores that contains it."""
    plain = RNG.normal(size=(4, 4)).astype(np.float32)
    relic = functools.partial(pnce.from_scores.relic, reduction="none", direction=direction)
    at_positive, scores = plain.copy(), plain.copy()
    at_positive[1, 1] = scores[1, 2] = np.inf
    assert np.asarray(relic(library(at_positive)))[1] == 0.0
    found, rest = np.asarray(relic(library(scores))), np.asarray(relic(library(plain)))
    of_row = scores[2] - np.log(np.exp(scores[2]).sum())  # log-probabilities in the row of the infinite transpose
    expected = [rest[0], np.inf, np.inf if direction == "a_to_b" else -of_row[2] - of_row[1], rest[3]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    constant = relic(library(scores), alpha=0.0)
    np.testing.assert_allclose(constant, pnce.from_scores.info_nce(scores, reduction="none"), rtol=1e-5)
