"""Calls that are programs: later calls of a kind return what the first call would."""

from __future__ import annotations

import gc
import inspect
import math
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce import pairings
from portable_nce._core import calls
from portable_nce._core.calls import MOST
from portable_nce._core.namespace import namespace_of
from portable_nce._core.tracing import traced
from portable_nce.backends.traced import MOST_BLOCKS, MOST_ROWS
from portable_nce.testing.cases import LOSSES, example
from portable_nce.testing.suite.calls import arrays_of, value_and_gradients

from calls import COUNTS_PROGRAMS, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portable_nce.testing.variants import Variant

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    """Clear the kept calls before and after a test."""
    calls.KINDS.clear()
    yield
    calls.KINDS.clear()


def tensors(*shape: int, seed: int = 0) -> list[Any]:
    """Two tensors that require a gradient."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=made, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def afresh(function: Callable[[], Any]) -> Any:
    """Call a function as a first one."""
    calls.KINDS.clear()
    return function()


# The options of which a covering array is run; None is the default.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "reduction": ("mean", "sum", "none"),
    "block_size": ("auto", None, 3),
    "similarity": ("cosine", "dot"),
    "weights": (False, True),
}


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("reduction", OPTIONS["reduction"])
@pytest.mark.parametrize("block_size", OPTIONS["block_size"])
@pytest.mark.parametrize("weighted", OPTIONS["weights"])
@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("from_scores.")])
def test_every_loss_is_the_same_by_a_program(
    variant: Variant, name: str, reduction: str, block_size: Any, *, weighted: bool
) -> None:
    signature = {**LOSSES[name].options}
    case = example(name, 6)
    options: dict[str, Any] = {"reduction": reduction, "block_size": block_size}
    options = {key: x for key, x in options.items() if key not in signature and accepts(case.loss, key)}
    givens = []
    for seed in range(3):  # one kind, different values
        arrays = arrays_of(variant, example(name, 6), "float64")
        moved = {key: arrays[key] * (1.0 + 0.25 * seed) + 0.125 * seed for key in case.arguments}
        arrays |= {key: x for key, x in moved.items() if len(x.shape) > 1}
        if weighted and accepts(case.loss, "weights") and "weights" not in arrays:
            arrays["weights"] = variant.floats([1.0 + seed, 0.5, 0.0, 2.0, 1.0, 0.25], "float64")
        givens.append(arrays)
    alike = [key for key in case.arguments if tuple(givens[0][key].shape) == (6, 3)][:2]
    givens.append({**givens[1], **dict.fromkeys(alike, givens[1].get(alike[0]))} if alike else givens[1])
    padding = variant.floats([0.0, 0.0, float("nan"), 0.0, 0.0, 0.0], "float64")[:, None]  # in the row of weight 0
    givens.append({**givens[2], **{key: givens[2][key] + padding for key in alike}} if weighted else givens[2])

    def results(arrays: dict[str, Any]) -> str:
        value, gradients = value_and_gradients(name, arrays, **options)
        return repr([variant.to_list(x) for x in (value, *gradients.values())])  # NaN equals NaN

    wanted = [afresh(partial(results, arrays)) for arrays in givens]
    calls.KINDS.clear()
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0)):  # one array as both embeddings, after and before two arrays
        for _ in range(2):
            assert [results(givens[k]) for k in order] == [wanted[k] for k in order]
        calls.KINDS.clear()


def accepts(loss: str, option: str) -> bool:
    """Whether a loss has an option."""
    return option in inspect.signature(getattr(pnce, loss)).parameters


CALLS: dict[str, Callable[..., Any]] = {
    "info_nce": lambda x, y, **options: pnce.info_nce(x, y, temperature=0.1, **options),
    "moco": lambda x, y, **options: pnce.moco(x, y, y.detach() * 2.0 + 1.0, **options),
    "clip": lambda x, y, **options: pnce.clip(x, y, logit_scale=torch.tensor(9.0, dtype=x.dtype), **options),
    "siglip": lambda x, y, **options: pnce.siglip(x, y, logit_scale=9.0, logit_bias=-5.0, **options),
    "nt_xent": pnce.nt_xent,
    "hcl": pnce.hcl,
    "supcon": lambda x, y, **options: pnce.supcon(x, (y[:, 0] > 0).to(torch.int64), **options),
}


def programs() -> list[int]:
    """Numbers of programs of the kinds."""
    return [len(kind.programs) for kind in calls.KINDS.values()]


@COUNTS_PROGRAMS
@pytest.mark.parametrize("name", CALLS)
def test_the_usual_losses_run_by_programs(name: str) -> None:
    """With and without gradients; one program for the arrays of a kind, and more for other answers of its guards."""
    x, y = tensors(6, 4)
    for seed in range(4):
        x, y = tensors(6, 4, seed=seed)
        CALLS[name](x, y)
        CALLS[name](x.detach(), y.detach())
    assert programs() in ([1, 1], [2, 2])  # of labels, one may be alone
    wanted = [afresh(partial(CALLS[name], z, y)) for z in (0.0 * x, x)]
    calls.KINDS.clear()
    order = (1, 1, 0, 0, 1, 0, 1)
    assert [CALLS[name]((0.0 * x, x)[k], y) for k in order] == [wanted[k] for k in order]
    assert max(programs()) >= 2


def test_arrays_that_are_one_inside_of_others() -> None:
    """A program of a call with one array as both embeddings serves calls with two."""
    x, y = (z.detach().numpy() for z in tensors(6, 4))

    def alike(a: Any, b: Any) -> Any:
        return pnce.info_nce(a, pnce.stop_gradient(b), temperature=0.5)

    wanted = [afresh(partial(pnce.value_and_grad(alike), x, z)) for z in (x, y)]
    calls.KINDS.clear()
    for k in (0, 0, 0, 1, 1, 0):
        found = pnce.value_and_grad(lambda a, k=k: alike(a, a if k == 0 else y))(x)
        np.testing.assert_array_equal(found[0], wanted[k][0])
        np.testing.assert_array_equal(found[1], wanted[k][1])


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another value": lambda value: 2.0 * value,
    "NaN": lambda value: value * math.nan,
    "another dtype": lambda value: namespace_of(value).astype(value, namespace_of(value).float64),
    "another shape": lambda value: namespace_of(value).reshape(value, (1,)),
}
"""What may be wrong with a result."""


@pytest.mark.internals
@pytest.mark.parametrize("change", CHANGES)
def test_a_program_with_another_result_than_the_call_is_not_kept(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (z.detach().to(torch.float32) for z in tensors(6, 4))
    wanted = afresh(partial(pnce.info_nce, x, y))

    def wrong(function: Callable[..., Any], *given: Any) -> Any:
        return traced(lambda *arrays: CHANGES[change](function(*arrays)), *given)

    monkeypatch.setattr(calls, "traced", wrong)
    for _ in range(3):
        torch.testing.assert_close(pnce.info_nce(x, y), wanted, rtol=0.0, atol=0.0)
    assert programs() == [0]


@COUNTS_PROGRAMS
def test_a_result_of_nan_has_a_program() -> None:
    x, y = (z.detach() for z in tensors(6, 4))
    x[2, 1] = math.nan
    losses = [pnce.info_nce(x, y, reduction="none") for _ in range(4)]
    assert programs() == [1]
    assert all(loss.isnan().tolist() == losses[0].isnan().tolist() for loss in losses)


@COUNTS_PROGRAMS
@pytest.mark.parametrize(("blocks", "kept"), [(1, 1), (2, 1), (MOST_BLOCKS, 1), (MOST_BLOCKS + 1, 0)])
def test_a_sweep_of_few_blocks_has_a_program(blocks: int, kept: int) -> None:
    x, y = tensors(2 * blocks, 4)
    losses = [pnce.info_nce(x, y, block_size=2) for _ in range(3)]
    assert programs() == [kept]
    assert losses[0] == losses[1] == losses[2]


@COUNTS_PROGRAMS
@pytest.mark.parametrize(("rows", "kept"), [(MOST_ROWS, 1), (MOST_ROWS + 1, 0)])
def test_a_sweep_of_many_rows_in_blocks_has_none(rows: int, kept: int) -> None:
    x, y = (z[:rows] for z in tensors(MOST_ROWS + 1, 1))
    for _ in range(2):
        pnce.info_nce(x, y, block_size=1024)
    assert programs() == [kept]


@COUNTS_PROGRAMS
@pytest.mark.parametrize(("entries", "number"), [(calls.SMALL // 2 - 4, 2), (calls.SMALL // 2, 8)])
def test_large_arrays_are_recorded_later(entries: int, number: int) -> None:
    """Recording takes the time of two calls, which a size that comes once or twice would not repay."""
    x, y = tensors(4, entries // 4)
    for _ in range(number - 1):
        pnce.info_nce(x, y)
    assert programs() == [0]
    pnce.info_nce(x, y)
    assert programs() == [1]


@COUNTS_PROGRAMS
@pytest.mark.parametrize("name", CALLS)
def test_kept_calls_hold_no_argument(name: str) -> None:
    x, y = tensors(6, 4)
    references = [weakref.ref(z) for z in (x, y)]
    for _ in range(3):  # noted, recorded, run by a program
        CALLS[name](x, y).backward()
    del x, y
    gc.collect()
    assert programs() == [1]
    assert all(reference() is None for reference in references)


X, Y = np.random.default_rng(3).normal(size=(2, 4, 3))
ONES, LABELS = np.ones(4), np.asarray([0, 1, 0, 1])
OTHERS: dict[str, Any] = {
    "temperature": 0.25,
    "symmetric": True,
    "positives": LABELS,
    "similarity": "dot",
    "mask": ONES > 0,
    "weights": ONES,
    "hardness": 0.5,
    "reduction": "sum",
    "block_size": 2,
    "precision": "high",
    "multi_positive": "pooled",
    "negative_keys": Y,
}
"""Another value of each option of `info_nce`."""


def key_of(*args: Any, **options: Any) -> Any:
    found = calls._kind_of(pnce.info_nce, args, options)  # noqa: SLF001  (what makes calls one kind)
    return None if found is None else found[0]


@COUNTS_PROGRAMS
def test_a_kind_depends_on_each_argument() -> None:
    """On values of options; on shapes, dtypes, layouts of arrays, and whether they need a gradient."""
    options = {*inspect.signature(pnce.info_nce).parameters} - {"query", "positive_key"}
    assert {*OTHERS} == options - {"across"}
    assert key_of(X, Y, across=object()) is None
    keys = [key_of(X, Y), *(key_of(X, Y, **{name: x}) for name, x in OTHERS.items())]
    keys += [key_of(X, Y, temperature=x) for x in (1, 1.0, True, 0.0, -0.0, "1.0", None, np.float64(1.0))]
    keys += [key_of(X, X), key_of(X[:3], Y[:3]), key_of(X, Y.astype(np.float32)), key_of(X, Y.astype(">f8"))]
    keys += [key_of(X, Y, mask=m) for m in (Y > 0, X > 0, np.stack([Y > 0] * 2))][1:]
    x, y = (torch.tensor(z) for z in (X, Y))
    keys += [key_of(x, y), key_of(x.requires_grad_(), y), key_of(x, y.requires_grad_())]
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key_of(x, y))
    with torch.inference_mode():
        keys.append(key_of(x, y))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key_of(X, Y, temperature=0.5) == key_of(X + 1.0, Y * 2.0, temperature=0.5)


PAIRINGS: list[tuple[Any, dict[str, Any]]] = [
    (
        pairings.diagonal(),
        {
            "rule": pairings.two_views().rule,
            "positives": pairings.AheadOfQueue(),
            "valid_rows": (ONES > 0,),
            "valid_columns": (ONES > 0,),
            "one_per_row": False,
            "one_per_column": False,
            "extra_columns": True,
            "exchangeable": False,
            "without_negatives": True,
            "paired": False,
            "outline": pairings.two_views().rule,
        },
    ),
    (pairings.OnDiagonals(1), {"views": 2}),
    (pairings.SameLabel(*(LABELS, LABELS, True)), {"rows": LABELS + 1, "columns": ONES, "own": False}),
]


@pytest.mark.internals
@pytest.mark.parametrize(("record", "others"), PAIRINGS)
def test_a_kind_depends_on_each_field_of_a_record(record: Any, others: dict[str, Any]) -> None:
    assert {*record._fields} == {*others}
    own = key_of(X, Y, weights=record)
    assert own is not None
    assert own == key_of(X, Y, weights=record)
    for name, other in others.items():
        assert key_of(X, Y, weights=record._replace(**{name: other})) != own, name


def test_the_same_array_twice_is_another_kind() -> None:
    x, y = tensors(6, 4)
    labels = [torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 1, 2, 2, 0])]

    def by_labels(a: Any, b: Any) -> Any:
        return pnce.contrast(x, y, objective="info_nce", pairing=pnce.pairings.labels(a, b))

    weights, scale, bias = (torch.tensor(z, dtype=torch.float64) for z in ([1.0, 2.0, 0.5, 1.0, 0.0, 3.0], 9.0, -5.0))
    weighted = partial(pnce.info_nce, weights=weights)
    logistic = partial(pnce.siglip, weights=weights, logit_scale=scale, logit_bias=bias)
    of_embeddings = [(loss, (x, x), (x, y)) for loss in (pnce.info_nce, weighted, logistic)]
    as_negatives = pnce.info_nce, (x, y, x), (x, y, y)  # one array twice in both, but not the same one
    for loss, first, second in (*of_embeddings, as_negatives, (by_labels, (labels[0],) * 2, tuple(labels))):
        wanted = [afresh(partial(loss, *given)) for given in (first, second)]
        for order in ((0, 1), (1, 0)):
            calls.KINDS.clear()
            for k in order * 3:
                assert loss(*(first, second)[k]) == wanted[k]


@pytest.mark.parametrize("made", [float, np.float64, lambda t: torch.tensor(t, dtype=torch.float64)])
def test_the_temperature_is_looked_at_in_each_call(made: Any) -> None:
    """From scores that need no shift to scores that do, and back; and invalid temperatures."""
    x, y = tensors(6, 4)
    for loss in (pnce.info_nce, pnce.nt_xent):
        temperatures = (0.5, 0.01, 0.001, 0.25)
        wanted = [afresh(partial(loss, x, y, temperature=made(t))) for t in temperatures]
        calls.KINDS.clear()
        for _ in range(3):
            assert [loss(x, y, temperature=made(t)) for t in temperatures] == wanted
        for bad in (0.0, -1.0, float("inf")):
            with pytest.raises(ValueError, match="temperature: expected a finite number greater than 0"):
                loss(x, y, temperature=made(bad))


def test_numbers_of_parts_are_told_apart() -> None:
    x, y = tensors(6, 4)
    labels = torch.arange(6) // 2
    each: list[Any] = [
        *(partial(pnce.siglip, x, y, logit_scale=9.0, logit_bias=b) for b in (-5.0, -1.0)),
        *(partial(pnce.hcl, x, y, beta=b) for b in (1.0, 0.5)),
        *(partial(pnce.hcl, x, y, temperature=t) for t in (0.5, 0.25)),
        *(partial(pnce.contrastive, x, labels, margin=m, similarity="cosine") for m in (1.0, 0.5)),
        *(partial(pnce.siglip, x, y, logit_scale=s, logit_bias=-5.0) for s in (9.0, 2.0)),
    ]
    wanted = [afresh(call) for call in each]
    calls.KINDS.clear()
    assert [call() for call in each * 3] == wanted * 3
    assert len({value.item() for value in wanted}) == len(each) - 2  # three calls are written twice


def test_what_is_refused_is_refused_by_later_calls_too() -> None:
    x, y = tensors(6, 4)
    loss: Any = pnce.info_nce
    for _ in range(3):
        loss(x, y)
    with pytest.raises(ValueError, match="block_size"):
        loss(x, y, block_size=True)
    with pytest.raises(TypeError, match="symmetric"):
        loss(x, y, symmetric=0)
    with pytest.raises(TypeError, match="dense"):
        loss(x.detach().to_sparse(), y)
    with pytest.raises(TypeError, match="library"):
        loss(x, y.detach().numpy())
    with pytest.raises(ValueError, match="reduction"):
        loss(x, y, reduction=["mean"])
    with pytest.raises(TypeError, match="weights"):
        loss(x, y, weights=[1.0] * 6)


@pytest.mark.parametrize("name", CALLS)
def test_derivatives_of_every_kind(name: str) -> None:
    """After calls without gradients; with gradients, second ones, and those of torch.func."""
    loss, (x, y) = CALLS[name], tensors(6, 4)

    def gradients() -> list[Any]:
        value = loss(x, y)
        return [value, *torch.autograd.grad(value, (x, y), allow_unused=True)]

    def second() -> list[Any]:
        first = torch.autograd.grad(loss(x, y), x, create_graph=True)[0]
        return [torch.autograd.grad((first * first).sum(), x)[0]]

    def transformed() -> list[Any]:
        found = torch.func.grad(lambda a: loss(a, y.detach()))(x.detach())
        pair = torch.stack([x.detach(), 2.0 * x.detach() + 1.0])
        return [found, *torch.func.vmap(torch.func.grad(lambda a: loss(a, y.detach())))(pair)]

    ways = [gradients, second, transformed]
    wanted = [afresh(way) for way in ways]
    calls.KINDS.clear()
    with torch.no_grad():
        loss(x, y)
    for way, numbers in zip(ways * 3, wanted * 3, strict=True):
        for got, number in zip(way(), numbers, strict=True):
            assert number is got or torch.equal(got, number)


def test_an_array_on_a_tape_beside_others() -> None:
    call: Any
    x, y = (z.detach().numpy() for z in tensors(6, 4))
    functions = [
        lambda: pnce.info_nce(x, y),
        lambda: pnce.value_and_grad(pnce.info_nce)(x, y),
        lambda: pnce.value_and_grad(pnce.info_nce, (0, 1))(x, y),
        lambda: pnce.value_and_grad(lambda b: pnce.info_nce(x, b))(y),
        lambda: pnce.grad(lambda a: (pnce.grad(pnce.info_nce)(a, y) ** 2).sum())(x),
        lambda: pnce.value_and_grad(lambda t: pnce.info_nce(x, y, temperature=t))(np.asarray(0.5)),
        lambda: pnce.value_and_grad(lambda s: pnce.clip(x, y, logit_scale=s))(np.asarray(9.0)),
        lambda: pnce.value_and_grad(lambda w: pnce.info_nce(x, y, weights=w))(np.arange(1.0, 7.0)),
        lambda: pnce.value_and_grad(lambda a: pnce.info_nce(a, y, weights=np.arange(1.0, 7.0)))(x),
        lambda: pnce.value_and_grad(lambda a: pnce.supcon(a, np.arange(6) % 2, weights=np.arange(1.0, 7.0)))(x),
    ]
    wanted = [afresh(function) for function in functions]
    calls.KINDS.clear()
    for call, numbers in zip(functions * 3, wanted * 3, strict=True):
        found = call()
        flat, others = (np.concatenate([np.ravel(z) for z in nested(part)]) for part in (found, numbers))
        np.testing.assert_array_equal(flat, others)


def nested(parts: Any) -> Iterator[Any]:
    """Yield the arrays of nested tuples."""
    for part in parts if isinstance(parts, tuple) else ():
        yield from nested(part)
    if not isinstance(parts, tuple):
        yield parts


def test_second_derivatives_on_the_tape_are_those_of_a_first_call() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 8, 4))

    def norm(x: Any, y: Any) -> Any:
        return pnce.value_and_grad(lambda x: pnce.info_nce(x, y, temperature=0.5) ** 2)(x)[1].sum()

    first, second = pnce.grad(pnce.info_nce)(x, y, temperature=0.5), pnce.grad(norm)(x, y)
    for _ in range(3):
        np.testing.assert_array_equal(pnce.grad(pnce.info_nce)(x, y, temperature=0.5), first)
        np.testing.assert_array_equal(pnce.grad(norm)(x, y), second)


def test_a_backward_pass_may_be_repeated_and_differentiated() -> None:
    """With what the program kept, and by the loss itself."""
    x, y = tensors(6, 4)

    def passes() -> list[Any]:
        value = pnce.info_nce(x, y, temperature=0.5, reduction="none")
        found = [torch.autograd.grad(value, (x, y), c * torch.ones(6), retain_graph=True) for c in (1.0, 3.0, 1.0)]
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return [z for pair in found for z in pair] + [slope, *torch.autograd.grad((slope**2).sum(), (x, y))]

    wanted = afresh(passes)
    for _ in range(3):
        for got, number in zip(passes(), wanted, strict=True):
            torch.testing.assert_close(got, number, rtol=0.0, atol=0.0)


def test_calls_that_warn_warn_each_time() -> None:
    x, y = tensors(6, 4)
    for _ in range(4):
        with pytest.warns(UserWarning, match="logarithm"):
            pnce.clip(x, y, logit_scale=np.log(100.0))


def test_explain_is_of_calls_by_programs_too() -> None:
    x, y = tensors(6, 4)
    wanted = pnce.explain(pnce.info_nce, x, y)
    for _ in range(3):
        pnce.info_nce(x, y)
    assert pnce.explain(pnce.info_nce, x, y) == wanted


def test_kinds_are_bounded() -> None:
    for n in range(2, MOST + 20):
        pnce.info_nce(*(z.detach().numpy()[:, :2] for z in tensors(n, 2)))
    assert len(calls.KINDS) <= MOST


def test_threads_share_programs() -> None:
    given = [tensors(n, 4, seed=k) for k, n in enumerate((5, 6, 7, 5))]
    wanted = [pnce.nt_xent(*pair).item() for pair in given]
    calls.KINDS.clear()
    failed: list[int] = []

    def work(k: int) -> None:
        failed.extend(k for _ in range(50) if pnce.nt_xent(*given[k]).item() != wanted[k])

    in_threads(work)
    assert not failed


@pytest.mark.parametrize("make", [pnce.objectives.hard_negatives, pnce.objectives.relic, pnce.objectives.triplet])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_object_that_is_changed_after_a_call_is_another_one(make: Callable[[], Any], library: str) -> None:
    """A new object has the loss of its own numbers, whatever became of an equal one."""
    x, y = (z.detach() if library == "torch" else z.detach().numpy() for z in tensors(6, 4))

    def loss(objective: Any) -> float:
        return float(pnce.contrast(x, y, objective=objective, temperature=0.5))

    first, number = make(), 0
    wanted = loss(first)
    for name in first._fields:
        if type(getattr(first, name)) is float and math.isfinite(getattr(first, name)):
            calls.KINDS.clear()
            changed = make()
            loss(changed)
            kept = hash(changed)
            setattr(changed, name, getattr(changed, name) + 0.5)
            assert hash(changed) != kept
            assert [loss(make()) for _ in range(4)] == [wanted] * 4
            assert loss(changed) != wanted
            number += 1
    assert number
