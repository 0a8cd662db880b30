"""The queue: contents, order, and unwritten slots, which are ignored."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .. import oracles
from .._package import pnce
from ..cases import sixteenths
from ..variants import assert_belongs, differentiate, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..variants import Nested, Variant

D = 3
DIRT = [math.inf, math.nan, 1e30, 0.0]
WRITTEN = [False, True, False, True, True, False]
"""A pattern that queue_push does not produce, but losses accept."""


def vectors(rows: int, seed: int) -> Nested:
    """Draw numbers that every dtype represents exactly."""
    return sixteenths((rows, D), seed)


def contents(variant: Variant, queue: pnce.Queue) -> tuple[Nested, Nested]:
    """Rows of a queue, and their validity."""
    return variant.to_list(queue.rows), variant.to_list(queue.valid)


def assert_queue(variant: Variant, queue: pnce.Queue, example: Any, size: int) -> None:
    """Assert the size of a queue, and the library, dtype and device of the example."""
    assert type(queue) is pnce.Queue
    assert_belongs(variant, queue.rows, example, (size, D))
    assert_belongs(variant, queue.valid, variant.array([True]), (size,))


def results_of(variant: Variant, function: Callable[..., Any], arrays: list[Any]) -> list[Nested]:
    """Value and gradients."""
    value, gradients = differentiate(function, arrays)
    return [variant.to_list(x) for x in (value, *gradients)]


# --- contents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_an_empty_queue(variant: Variant, dtype: str) -> None:
    example = variant.floats(vectors(2, 1), dtype)
    queue = pnce.queue_init(example, size=4)
    assert_queue(variant, queue, example, 4)
    assert contents(variant, queue) == ([[0.0] * D] * 4, [False] * 4)
    assert_queue(variant, pnce.queue_push(queue, example), example, 4)


@pytest.mark.parametrize("labelled", [False, True])
def test_pushing_no_rows_changes_nothing(variant: Variant, labelled: bool) -> None:  # noqa: FBT001
    """A filtered batch may be empty."""
    example, labels = variant.floats(vectors(2, 1)), variant.array([5, 6]) if labelled else None
    queue = pnce.queue_push(pnce.queue_init(example, 4, labels=labels), example, labels=labels)
    same = pnce.queue_push(queue, example[:0, ...], labels=None if labels is None else labels[:0])
    assert_queue(variant, same, example, 4)
    assert contents(variant, same) == contents(variant, queue)
    assert labels is None or variant.to_list(same.labels) == variant.to_list(queue.labels)


@given(size=st.integers(1, 5), batches=st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_a_queue_holds_the_last_rows_pushed(variant: Variant, size: int, batches: list[int]) -> None:
    """The order is that of a growing list, for any batch sizes; no row is lost or repeated."""
    queue = pnce.queue_init(variant.floats([[0.0] * D]), size)
    model: list[tuple[list[float], bool]] = [([0.0] * D, False)] * size
    for batch in batches:
        rows = [[float(len(model) + k), float(-k), 0.5] for k in range(batch)]
        queue = pnce.queue_push(queue, variant.floats(rows))
        model += [(row, True) for row in rows]
        held = model[-size:]
        assert contents(variant, queue) == ([row for row, _ in held], [valid for _, valid in held])


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 9])
def test_a_push_changes_no_queue_in_place(variant: Variant, batch: int) -> None:
    first = pnce.queue_push(pnce.queue_init(variant.floats(vectors(1, 0)), size=4), variant.floats(vectors(3, 1)))
    before = contents(variant, first)
    rows = variant.floats(vectors(batch, 2))
    pnce.queue_push(first, rows)
    assert contents(variant, first) == before
    assert variant.to_list(rows) == vectors(batch, 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_queue_keeps_its_dtype(variant: Variant, dtype: str) -> None:
    """Rows of another 16- or 32-bit dtype are rounded to it; rows in the queue do not change."""
    for pushed in ({"float32", "float16", "bfloat16"} - {dtype}) & {*variant.dtypes, *variant.further_dtypes}:
        first, rows = variant.floats(vectors(2, 1), dtype), variant.floats(vectors(3, 2), pushed)
        queue = pnce.queue_push(pnce.queue_push(pnce.queue_init(first, 4), first), rows)
        assert_queue(variant, queue, first, 4)
        assert contents(variant, queue) == ([*vectors(2, 1)[1:], *vectors(3, 2)], [True] * 4)
        assert_queue(variant, pnce.queue_push(queue, variant.floats([[1 / 3] * D], pushed)), first, 4)


@pytest.mark.parametrize("kind", ["int8", "int32", "of an index"])
@pytest.mark.parametrize("batch", [1, 3, 4, 7])
def test_labels_move_with_their_rows(variant: Variant, batch: int, kind: str) -> None:
    """Labels keep their dtype, and the queue keeps its own."""
    kind = variant.index_dtype if kind == "of an index" else kind
    example = variant.floats(vectors(2, 1))
    queue = pnce.queue_init(example, 4, labels=variant.array([5, 6], kind))
    model = [0] * 4
    for turn in range(3):
        labels = [10 * turn + k for k in range(batch)]
        before = variant.to_list(queue.labels)
        pushed = pnce.queue_push(queue, variant.floats(vectors(batch, turn)), labels=variant.array(labels, kind))
        assert variant.to_list(queue.labels) == before
        queue, model = pushed, (model + labels)[-4:]
        assert type(queue) is pnce.Queue
        assert_belongs(variant, queue.labels, variant.array([5, 6], kind), (4,))
        assert variant.to_list(queue.labels) == model


@pytest.mark.parametrize(
    ("held", "given"), [("int32", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("int8", "int32")]
)
def test_labels_of_another_dtype(variant: Variant, held: str, given: str) -> None:
    """Labels of a shorter dtype are accepted; others raise an error."""
    rows, labels = variant.floats(vectors(2, 1)), variant.array([7, 8], given)
    queue = pnce.queue_init(rows, 3, labels=variant.array([5, 6], held))
    if held == "int32":
        pushed = pnce.queue_push(queue, rows, labels=labels)
        assert_belongs(variant, pushed.labels, variant.array([7, 8], held), (3,))
        assert variant.to_list(pushed.labels) == [0, 7, 8]
        return
    with pytest.raises(TypeError, match=r"\Alabels: expected labels that fit the queue's dtype .*, got"):
        pnce.queue_push(queue, rows, labels=labels)


def test_a_queue_of_other_shapes_is_refused(variant: Variant) -> None:
    rows, valid, labels = variant.floats(vectors(2, 1)), variant.array([True] * 4), variant.array([1, 2])
    for error, words, flags, held, pushed in (
        (ValueError, r"\Aqueue.valid: expected shape \(4,\), got \(3,\)", valid[:3], None, None),
        (TypeError, r"\Aqueue.valid: expected", variant.array([1] * 4), None, None),
        (ValueError, r"\Aqueue.labels: expected shape \(4,\), got \(2,\)", valid, labels, labels),
    ):
        with pytest.raises(error, match=words):
            pnce.queue_push(pnce.Queue(variant.floats(vectors(4, 2)), flags, held), rows, labels=pushed)


def test_no_gradient_is_kept(variant: Variant) -> None:
    """No gradient flows through a queue: not to pushed rows, nor to earlier ones, nor to the example."""
    query, key = variant.floats(vectors(3, 1)), variant.floats(vectors(3, 2))

    def loss(held: Any, entering: Any) -> Any:
        queue = pnce.queue_push(pnce.Queue(held, valid), entering)
        return pnce.info_nce(query, key, queue.rows)

    valid = variant.array([True] * 5)
    value, *gradients = results_of(variant, loss, [variant.floats(vectors(5, 3)), variant.floats(vectors(2, 4))])
    assert value > 0
    assert [set(flatten(gradient)) for gradient in gradients] == [{0.0}, {0.0}]
    _, gradient = results_of(variant, lambda x: pnce.info_nce(query, key, pnce.queue_init(x, size=2).rows), [query])
    assert set(flatten(gradient)) == {0.0}


# --- unwritten slots and masks ----------------------------------------------------------------------------------------


def memories(variant: Variant, rows: list[list[float]], dirt: float) -> tuple[pnce.Queue, Any]:
    """A queue with NaN in unwritten slots, and the array of written rows."""
    supply = iter(rows)
    slots = [next(supply) if written else [dirt] * D for written in WRITTEN]
    return pnce.Queue(variant.floats(slots), variant.array(WRITTEN)), variant.floats(rows)


MEMORIES: Mapping[str, dict[str, Any]] = {
    **{name: {} for name in ("moco", "nnclr")},
    "nnclr symmetric": {"symmetric": True},
    **{name: {} for name in ("proto_nce", "nt_xent", "nt_xent three views", "dcl", "flat_nce", "dclw", "supcon")},
    "supcon separate": {"multi_positive": "separate"},
    "nca": {},
    "contrastive": {"margin": 3.0},
    "triplet_from_labels": {"margin": 3.0},
    "triplet_from_labels hard": {"mining": "batch_hard", "form": "soft"},
}
"""Losses with a memory, and their options."""

REMEMBER, OF_LABELS = [*MEMORIES][:3], [*MEMORIES][9:]
SLOT_LABELS = [0, 1, 7, 0, 2, 1]


def call(variant: Variant, name: str, a: Any, b: Any, memory: Any, **options: Any) -> Any:
    """Call a loss of three pairs with a memory: keys, a queue or a support."""
    loss, labels = getattr(pnce, name.partition(" ")[0]), variant.array([0, 1, 1])
    options = {**MEMORIES[name], **options}
    if name in REMEMBER:
        return loss(a, b, memory, **options)
    if name == "proto_nce":
        return loss(a, a * 0.5, labels, variant.floats([0.5, 0.25, 1.0]), key=b, queue=memory, **options)
    if name in OF_LABELS:
        return loss(a + b, labels, keys=memory, **options)
    return loss(a, b, *([a * 0.5 + b] if "three views" in name else []), keys=memory, **options)


def run(variant: Variant, name: str, memory: Any, **options: Any) -> list[Nested]:
    """Loss with a memory, and its gradients with respect to both embeddings and the temperature."""
    arrays = [variant.floats(vectors(3, 1)), variant.floats(vectors(3, 2)), variant.floats(0.5)]
    return results_of(variant, lambda a, b, t: call(variant, name, a, b, memory, temperature=t, **options), arrays)


def assert_same(variant: Variant, got: list[Nested], wanted: list[Nested]) -> None:
    """Assert equality up to a few roundings of the largest number."""
    for ours, theirs in zip(got, wanted, strict=True):
        exact = oracles.exact(theirs)
        scale = max([1.0, *(abs(number) for number in oracles.numbers_of(exact))])
        pairs = zip(oracles.numbers_of(oracles.exact(ours)), oracles.numbers_of(exact), strict=True)
        assert all(abs(a - b) <= 8 * variant.eps() * scale for a, b in pairs), (ours, theirs)


CALLS: list[tuple[str, str | None, int | None]] = [
    *((name, None, block_size) for name in MEMORIES for block_size in (None, 2)),
    *product(REMEMBER, pnce.similarities.NAMES, (None, 2)),
]
MARKED = [pytest.param(*of, marks=[] if of[1:] == (None, None) else pytest.mark.exhaustive) for of in CALLS]


@pytest.mark.parametrize(("name", "similarity", "block_size"), MARKED)
def test_unwritten_slots_change_nothing(
    variant: Variant, name: str, similarity: str | None, block_size: int | None
) -> None:
    """They are ignored, whatever their rows, labels and positions."""
    options = {"block_size": block_size, **({} if similarity is None else {"similarity": similarity})}
    _, written = memories(variant, vectors(sum(WRITTEN), 3), 0.0)
    slot_labels = variant.array(SLOT_LABELS)
    among = variant.array([label for label, held in zip(SLOT_LABELS, WRITTEN, strict=True) if held])
    wanted = run(variant, name, written, **options, **({"key_labels": among} if name in OF_LABELS else {}))
    for dirt in DIRT if similarity is None else [math.nan]:
        queue, _ = memories(variant, vectors(sum(WRITTEN), 3), dirt)
        if name in OF_LABELS:
            assert_same(variant, run(variant, name, queue, key_labels=slot_labels, **options), wanted)
            queue = queue._replace(labels=slot_labels)
        assert_same(variant, run(variant, name, queue, **options), wanted)


@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "proto_nce"])
@pytest.mark.parametrize("block_size", [None, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_no_slot_is_written(variant: Variant, name: str, block_size: int | None) -> None:
    """Without negatives or neighbours the loss is 0. Views still contrast with each other."""
    for dirt in DIRT:
        labels = variant.array([0, 1, 0, 1]) if name in OF_LABELS else None
        queue = pnce.Queue(variant.floats([[dirt] * D] * 4), variant.array([False] * 4), labels)
        found = run(variant, name, queue, block_size=block_size)
        if name in {*REMEMBER, *OF_LABELS}:
            assert found == [0.0, [[0.0] * D] * 3, [[0.0] * D] * 3, 0.0]
        else:
            assert_same(variant, found, run(variant, name, None, block_size=block_size))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", ["moco", "nnclr", "proto_nce", "nt_xent", "dclw", "supcon"])
def test_rows_of_a_queue_have_no_gradient(variant: Variant, name: str, *, full: bool) -> None:
    """Only the embeddings have a gradient."""
    valid, labels = variant.array([True] * 4 + [full]), variant.array([0, 1, 0, 2, 1]) if name == "supcon" else None
    arrays = [variant.floats(vectors(rows, seed)) for rows, seed in ((3, 1), (3, 2), (5, 3))]
    value, _, by_key, by_held = results_of(
        variant, lambda a, b, held: call(variant, name, a, b, pnce.Queue(held, valid, labels)), arrays
    )
    assert value != 0.0
    assert set(flatten(by_held)) == {0.0}
    assert any(flatten(by_key))


@pytest.mark.parametrize("size", [2, pytest.param(5, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", REMEMBER)
def test_a_pushed_queue_is_the_array_of_its_rows(variant: Variant, name: str, size: int) -> None:
    """Partly written or full, the loss is that of the written rows."""
    rows = vectors(3, 4)
    queue = pnce.queue_push(pnce.queue_init(variant.floats(rows), size), variant.floats(rows))
    assert_same(variant, run(variant, name, queue), run(variant, name, variant.floats(rows[-size:])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_mask_comes_on_top(variant: Variant, block_size: int | None) -> None:
    """A slot counts if it is written and not masked."""
    queue, written = memories(variant, vectors(sum(WRITTEN), 3), math.nan)
    mask = [[(i + j) % 3 > 0 for j in range(len(WRITTEN))] for i in range(3)]
    among = [[bit for bit, held in zip(row, WRITTEN, strict=True) if held] for row in mask]
    found, wanted = (
        run(variant, "moco", memory, mask=variant.array(marks), block_size=block_size)
        for memory, marks in ((queue, mask), (written, among))
    )
    assert_same(variant, found, wanted)


def test_a_query_whose_slots_were_not_written_may_hold_anything(variant: Variant) -> None:
    """The mask leaves it only an unwritten slot: no negative, and loss 0."""
    queue, _ = memories(variant, vectors(sum(WRITTEN), 3), 0.0)
    none = next(k for k, held in enumerate(WRITTEN) if not held)
    mask = variant.array([[True] * len(WRITTEN), [k == none for k in range(len(WRITTEN))]])
    results = []
    for dirt in (math.nan, 0.5):
        arrays = [variant.floats([vectors(1, seed)[0], [dirt] * D]) for seed in (1, 2)]
        loss = partial(call, variant, "moco", memory=queue, mask=mask, reduction="sum")
        results.append(results_of(variant, loss, arrays))
    assert results[0] == results[1]
    assert [gradient[1] for gradient in results[0][1:]] == [[0.0] * D] * 2


@pytest.mark.parametrize("name", OF_LABELS)
def test_the_batch_among_the_keys_without_itself(variant: Variant, name: str) -> None:
    """With a mask that excludes each row's pair with itself, passing the batch as keys changes nothing."""
    labels, loss = variant.array([0, 1, 0, 1]), getattr(pnce, name.partition(" ")[0])
    mask = variant.array([[i != j for j in range(4)] for i in range(4)])
    arrays = [variant.floats(vectors(4, 1)), variant.floats(0.5)]

    def keyed(x: Any, t: Any) -> Any:
        return loss(x, labels, keys=x, key_labels=labels, mask=mask, temperature=t, **MEMORIES[name])

    def alone(x: Any, t: Any) -> Any:
        return loss(x, labels, temperature=t, **MEMORIES[name])

    assert_same(variant, results_of(variant, keyed, arrays), results_of(variant, alone, arrays))


def test_the_rows_of_neighbours_come_before_those_of_the_view(variant: Variant) -> None:
    """If the support is the first view, rescaled, the loss with negatives of both views is NT-Xent."""
    first, second = vectors(3, 1), vectors(3, 2)
    support = variant.floats([*vectors(1, 4), *([2.0 * x for x in row] for row in first)])
    got = pnce.nnclr(variant.floats(first), variant.floats(second), support, negatives="views", reduction="none")
    wanted = pnce.nt_xent(variant.floats(first), variant.floats(second), temperature=0.1, reduction="none")
    assert_same(variant, [variant.to_list(got)], [variant.to_list(wanted)])


def test_no_neighbour_is_no_positive_of_the_view(variant: Variant) -> None:
    """With an empty queue, rows of the other view do not count either."""
    empty = pnce.Queue(variant.floats(vectors(4, 3)), variant.array([False] * 4))
    view_a, view_b = (variant.floats(vectors(3, seed)) for seed in (1, 2))
    assert variant.to_list(pnce.nnclr(view_a, view_b, empty, negatives="views", reduction="none")) == [0.0] * 6


@pytest.mark.parametrize("role", ["neither", "row", "column"])
def test_a_row_of_which_no_neighbour_takes_part_may_hold_anything(variant: Variant, role: str) -> None:
    """With negatives of both views, a neighbour is used as a row, as a column, or not at all."""
    rows, idle, size = vectors(3, 1), 0, 6
    barred = {"neither": {"row", "column"}, "row": {"column"}, "column": {"row"}}[role]
    out = [
        [(i == idle and "row" in barred) or (j == idle and "column" in barred) for j in range(size)]
        for i in range(size)
    ]
    mask = variant.array([[not bit for bit in row] for row in out])

    def losses(row: list[float]) -> Nested:
        arrays = [variant.floats(x) for x in ([row, *rows[1:]], vectors(3, 2), vectors(4, 3))]
        return variant.to_list(pnce.nnclr(*arrays, negatives="views", mask=mask, reduction="none"))

    taken = [losses(row) for row in ([-1.0, 2.0, 0.5], [2.0, -0.25, -1.0])]
    if role == "neither":
        assert losses([math.nan] * D) == taken[0] == taken[1]
    else:
        assert taken[0] != taken[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("similarity", pnce.similarities.NAMES)
def test_the_neighbour_is_the_nearest(variant: Variant, similarity: pnce.typing.SimilarityName) -> None:
    """NNCLR is InfoNCE of the neighbours; among equal ones, of the older."""
    view_a, view_b, support = vectors(3, 1), vectors(3, 2), [*vectors(4, 3), vectors(4, 3)[1]]
    scores = oracles.score_matrix(oracles.exact(view_a), oracles.exact(support), similarity, oracles.exact(1.0))
    neighbours = [support[row.index(max(row))] for row in scores]
    got = pnce.nnclr(*(variant.floats(nested) for nested in (view_a, view_b, support)), similarity=similarity)
    wanted = pnce.info_nce(variant.floats(neighbours), variant.floats(view_b), temperature=0.1, similarity=similarity)
    assert_same(variant, [variant.to_list(got)], [variant.to_list(wanted)])
