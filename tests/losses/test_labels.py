"""Mined triples against the rules of other libraries, as loops over anchors in torch; and the divisor of their mean."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import portable_nce as pnce

if TYPE_CHECKING:
    from collections.abc import Iterator

MARGIN = 1.0


def anchors(distances: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Distances of each anchor to its positives and negatives, for anchors with both."""
    for i, row in enumerate(distances):
        same = labels == labels[i]
        others = torch.arange(len(labels)) != i
        if (same & others).any() and not same.all():
            yield row[same & others], row[~same]


def semi_hard(negatives: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """The nearest negative farther than a limit, or the farthest of all."""
    farther = negatives[negatives > limit]
    return farther.min() if len(farther) else negatives.max()


def tensorflow_addons(distances: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """TripletSemiHardLoss: one negative per pair of anchor and positive; the mean over the pairs."""
    terms = [
        torch.relu(positive - semi_hard(negatives, positive) + MARGIN)
        for positives, negatives in anchors(distances, labels)
        for positive in positives
    ]
    return torch.stack(terms).mean()


def tensorflow_similarity(distances: torch.Tensor, labels: torch.Tensor, rules: tuple[str, str]) -> torch.Tensor:
    """TripletLoss with its strategies for positives and negatives; the mean over the anchors."""
    terms = []
    for positives, negatives in anchors(distances, labels):
        near, far = negatives.min(), negatives.max()
        positive = positives.max() if rules[0] == "hard" else positives.min()
        negative = {"hard": near, "easy": far, "semi_hard": semi_hard(negatives, positives.max())}[rules[1]]
        terms.append(torch.relu(positive - negative + MARGIN))
    return torch.stack(terms).mean()


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(6, 15))
    labels = torch.tensor([0, 0, 1, *rng.integers(0, 3, count - 3)])
    return torch.tensor(rng.normal(size=(count, 4)), requires_grad=True), labels


def assert_same(x: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad(ours, x)
    (wanted,) = torch.autograd.grad(theirs, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-11, atol=1e-12)


def distances_of(x: torch.Tensor, *, squared: bool) -> torch.Tensor:
    own = torch.eye(len(x), dtype=x.dtype)  # avoids the root of 0 on the unused diagonal
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).sum(2)
    return squares if squared else torch.sqrt(squares + own)


@pytest.mark.parametrize("similarity", ["neg_sq_euclidean", "neg_euclidean"])
@pytest.mark.parametrize("seed", range(20))
def test_semi_hard_as_in_tensorflow_addons(seed: int, similarity: pnce.typing.SimilarityName) -> None:
    x, labels = drawn(seed)
    ours = pnce.triplet_from_labels(x, labels, margin=MARGIN, mining="semi_hard", similarity=similarity)
    assert_same(x, ours, tensorflow_addons(distances_of(x, squared="sq" in similarity), labels))


SIMILARITY = [("hard", "hard"), ("hard", "semi_hard"), ("hard", "easy"), ("easy", "hard"), ("easy", "easy")]


@pytest.mark.parametrize("rules", SIMILARITY)
@pytest.mark.parametrize("seed", range(5))
def test_the_strategies_of_tensorflow_similarity(
    seed: int, rules: tuple[pnce.typing.MiningRule, pnce.typing.MiningRule]
) -> None:
    """All but easy positives with semi-hard negatives, which it chooses relative to the farthest positive."""
    x, labels = drawn(seed)
    ours = pnce.triplet_from_labels(x, labels, margin=MARGIN, mining=rules)
    assert_same(x, ours, tensorflow_similarity(distances_of(x, squared=False), labels, rules))


def test_a_tie_is_not_farther() -> None:
    """A negative at the distance of the positive is not semi-hard."""
    x = np.asarray([[0.0], [1.0], [-1.0], [3.0]])
    found = pnce.triplet_from_labels(x, np.asarray([0, 0, 1, 2]), margin=4.0, mining="semi_hard", reduction="none")
    # From 0: the positive at 1, negatives at 1 and 3. From 1: the positive at 1, negatives at 2 and 2.
    np.testing.assert_array_equal(found, [2.0, 3.0, 0.0, 0.0])


def test_the_mean_of_hardest_triples_is_over_all_rows_or_over_those_with_a_loss() -> None:
    scores = np.asarray([[0.0, -1.0, -3.0], [-4.0, 0.0, -0.5], [-0.25, -5.0, 0.0]])  # row 0 has no loss
    triplet = functools.partial(pnce.from_scores.triplet, scores, margin=1.0, mining="batch_hard")
    np.testing.assert_allclose(triplet(reduction="none"), [0.0, 0.5, 0.75], rtol=1e-14)
    assert [triplet(), triplet(average="all"), triplet(average="nonzero")] == pytest.approx([1.25 / 3, 1.25 / 3, 0.625])


@pytest.mark.parametrize("block_size", ["auto", 2])
def test_the_mean_of_soft_triples_is_over_all_or_over_those_that_do_not_round_to_zero(block_size: Any) -> None:
    x, labels = np.asarray([[0.0], [1.0], [2.5], [1000.0]]), np.asarray([0, 0, 1, 2])  # the last is no near negative
    soft = functools.partial(pnce.triplet_from_labels, x, labels, margin=0.0, form="soft", block_size=block_size)
    near = [np.logaddexp(0.0, 1.0 - 2.5), np.logaddexp(0.0, 1.0 - 1.5)]  # of anchors 0 and 1
    assert [soft(), soft(average="all")] == pytest.approx([sum(near) / 4.0] * 2)
    assert soft(average="nonzero") == pytest.approx(sum(near) / 2.0)


@pytest.mark.parametrize("labels", [np.asarray([0, 0, 1]), np.eye(3) > 0], ids=["labels", "several labels"])
def test_labels_of_keys_without_keys_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^key_labels: expected None without keys"):
        pnce.supcon(np.eye(3), labels, key_labels=np.asarray([0, 1]))
