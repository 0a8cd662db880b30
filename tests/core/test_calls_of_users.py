"""Functions of users run in each call, and each call returns what a first call would."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._core import calls
from portable_nce._core.equality import is_fixed

from calls import COUNTS_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch = pytest.importorskip("torch")

FACTOR = [1.0]


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    """Clear the kept calls before and after a test."""
    calls.KINDS.clear()
    FACTOR[0] = 1.0
    yield
    calls.KINDS.clear()


def rows(row: Any) -> Any:
    return row.log_odds * FACTOR[0]


def slopes(row: Any) -> Any:
    return row.log_odds * 0.0 + FACTOR[0], None, None, None


def rule(tile: Any) -> Any:
    return tile.i == tile.j, tile.i + FACTOR[0] < tile.j


wrapped = functools.wraps(pnce.objectives.info_nce)(rule)


class Rule:
    """A class instead of a function."""

    def __new__(cls, tile: Any) -> Any:
        return rule(tile)


class Objective(pnce.objectives.Objective):
    """An objective with an overridden method."""

    __slots__ = ()

    def values(self, row: Any, *parameters: Any) -> Any:
        del parameters
        return rows(row)

    def pulled(self, row: Any, factor: Any, *parameters: Any) -> Any:
        del row, parameters
        return factor * FACTOR[0], None, None, None


@dataclasses.dataclass
class Unhashable:
    """A callable without a hash."""

    def __call__(self, argument: Any) -> Any:
        return rule(argument) if hasattr(argument, "i") else rows(argument)


def without_module() -> Any:
    """A function without a module."""
    return FunctionType(rule.__code__, {"FACTOR": FACTOR})


inside = pnce.objectives.info_nce()
USERS: dict[str, Any] = {
    "objective": {"objective": pnce.objectives.Objective(rows)},
    "objective with slopes": {"objective": pnce.objectives.Objective(rows, slopes=slopes)},
    "subclass": {"objective": Objective(inside.rows, slopes=inside.slopes)},
    "callable": {"objective": Unhashable()},
    "rule": {"pairing": pnce.pairings.Pairing(rule)},
    "wrapped rule": {"pairing": pnce.pairings.Pairing(wrapped)},
    "class as rule": {"pairing": pnce.pairings.Pairing(Rule)},
    "rule without hash": {"pairing": pnce.pairings.Pairing(Unhashable())},
    "rule without module": {"pairing": pnce.pairings.Pairing(without_module())},
}


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("name", USERS)
def test_functions_of_users_run_in_each_call(name: str, similarity: str) -> None:
    """Their closures may have changed."""
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4))
    options = {"objective": "info_nce", "similarity": similarity, **USERS[name]}

    def call() -> Any:
        return pnce.value_and_grad(lambda x: pnce.contrast(x, y, **options))(x)

    found = []
    for k in range(5):
        FACTOR[0] = 1.0 + k
        found.append(call())
    for k, (value, gradient) in enumerate(found):
        FACTOR[0] = 1.0 + k
        calls.KINDS.clear()
        wanted = call()
        assert value == wanted[0]
        np.testing.assert_array_equal(gradient, wanted[1])


def test_calls_fix_only_functions_of_this_package() -> None:
    for given in (
        rows,
        wrapped,
        Rule,
        Objective,
        Unhashable(),
        USERS["subclass"]["objective"],
        np.ones(1),
        without_module(),
    ):
        assert not is_fixed(given)
        assert not is_fixed((1.0, ("name", given)))
    assert is_fixed((1.0, None, True, ("name", pnce.objectives.info_nce(), pnce.pairings.diagonal().rule)))


def test_functions_of_users_are_not_kept() -> None:
    x, y = (torch.tensor(z) for z in np.random.default_rng(0).normal(size=(2, 6, 4)))
    references = []
    for _ in range(3):
        weight = torch.ones(1000)
        references.append(weakref.ref(weight))
        objective = pnce.objectives.Objective(lambda row, w=weight: row.log_odds * w[0], slopes=slopes)
        pnce.contrast(x, y, objective=objective)
        del weight, objective
    gc.collect()
    assert all(reference() is None for reference in references)


@COUNTS_PROGRAMS
def test_every_named_loss_of_embeddings_runs_by_programs() -> None:
    """No function of the package is mistaken for a user's."""
    x, y = (torch.tensor(z) for z in np.random.default_rng(0).normal(size=(2, 6, 4)))
    labels, index = torch.arange(6) // 2, torch.arange(6)
    each: list[Callable[[], Any]] = [
        *(functools.partial(pnce.info_nce, x, y, similarity=s) for s in ("dot", "neg_sq_euclidean", "neg_euclidean")),
        functools.partial(pnce.info_nce, x, y, positives=index),
        functools.partial(pnce.info_nce, x, y, mask=torch.ones(6, 6, dtype=torch.bool)),
        functools.partial(pnce.info_nce, x, y, reduction="none"),
        functools.partial(pnce.supcon, x, labels, similarity="dot"),
        functools.partial(pnce.relic, x, y),
        functools.partial(pnce.density.linear_softmax, x, y, labels),
        functools.partial(pnce.from_scores.info_nce, x @ y.T),
        functools.partial(pnce.from_scores.logistic, x @ y.T),
        functools.partial(pnce.bounds.info_nce, x @ y.T),
    ]
    for call in each:
        calls.KINDS.clear()
        for _ in range(3):
            call()
        assert [len(kind.programs) for kind in calls.KINDS.values()] == [1], call


def test_selective_checkpointing_sees_the_same_operations() -> None:
    """A recomputed call repeats its operations, whatever other calls of its kind ran in between."""
    from torch.utils import checkpoint

    def policy(_: Any, op: Any, *__: Any, **___: Any) -> Any:
        wanted = checkpoint.CheckpointPolicy
        return wanted.MUST_SAVE if op is torch.ops.aten.mm.default else wanted.PREFER_RECOMPUTE

    def kept(function: Any, z: Any) -> Any:
        contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, policy)
        return checkpoint.checkpoint(function, z, use_reentrant=False, context_fn=contexts)

    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True, generator=None)
    first, second = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 3])

    def total(way: Any) -> Any:
        losses = (pnce.supcon(z * k, labels, temperature=0.5) for k, labels in ((1.0, first), (2.0, second)))
        if way is None:
            return sum(losses)
        return sum(
            way(lambda z, k=k, labels=labels: pnce.supcon(z * k, labels, temperature=0.5), z)
            for k, labels in ((1.0, first), (2.0, second))
        )

    wanted = torch.autograd.grad(total(None), z)[0]
    calls.KINDS.clear()
    for _ in range(3):
        assert torch.equal(torch.autograd.grad(total(kept), z)[0], wanted)


@COUNTS_PROGRAMS
def test_the_program_that_served_last_is_tried_first() -> None:
    x = torch.tensor(np.random.default_rng(0).normal(size=(6, 4)))
    small = 1e-30 * x
    for z in (x, x, small, small):
        pnce.info_nce(z, z * 2.0, similarity="dot")
    ((_, kind),) = calls.KINDS.items()
    last, other = kind.programs
    pnce.info_nce(x, x * 2.0, similarity="dot")
    assert kind.programs == [other, last]


def test_errors_of_memory_are_not_taken_for_a_program_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4))
    wanted = pnce.info_nce(x, y, similarity="dot")

    def without_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "exp", without_memory)
        with pytest.raises(MemoryError):
            pnce.info_nce(x, y, similarity="dot")
    for _ in range(3):
        assert pnce.info_nce(x, y, similarity="dot") == wanted
    assert not any(kind.is_refused for kind in calls.KINDS.values())


class Quantity(np.ndarray):
    """An array that may have a unit, which programs would not see."""


@pytest.mark.parametrize("kind", [np.ndarray, Quantity])
def test_programs_are_made_of_arrays_of_exactly_the_type_of_the_library(kind: type[np.ndarray]) -> None:
    x, y = (z.view(kind) for z in np.random.default_rng(0).normal(size=(2, 6, 4)))
    for _ in range(3):
        pnce.info_nce(x, y)
        pnce.info_nce(x, y, similarity="neg_euclidean", reduction="none", block_size=None)
    assert len(calls.KINDS) == 2 * (kind is np.ndarray)
