"""The losses of `LOSSES` as functions of arrays only, for transforms of PyTorch and JAX; streamed losses."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing.cases import CASES, LOSSES, WITHOUT_GRADIENT, Case, example
from portable_nce.testing.covering import FORMS
from portable_nce.testing.variants import differentiate

OF_SCORES = {
    case.loss: case
    for case in reversed(CASES)  # so that the first of each loss stays
    if case.loss.startswith(("bounds.", "density.", "diagnostics.")) and case.regime == "normal"
}
"""One case of each function of bounds, density and diagnostics."""

EACH = [*(name for name in LOSSES if " " not in name), *(name for name in OF_SCORES if name not in WITHOUT_GRADIENT)]
"""Each function that has a gradient."""
WAYS = [
    *("info_nce", "info_nce neg_euclidean", "contrast labels", "nt_xent three views", "relic", "siglip", "contrastive"),
    *("triplet", "triplet_from_labels", "triplet_from_labels batch_hard", "moco queue", "nnclr", "from_scores.clip"),
]
"""One loss for each code path, for tests that compile, where all losses would take too long."""


def mostly_full(names: Iterable[Any], few: Iterable[Any] = WAYS) -> list[Any]:
    """Mark all but a few values for the full run."""
    return [name if name in {*few} else pytest.param(name, marks=pytest.mark.full) for name in names]


FIRST_OF_ITS_FORM = {*{FORMS[case.name]: case.name for case in reversed(CASES)}.values()}
"""The first case of each form of call."""


def by_form(cases: Iterable[Case]) -> list[Any]:
    """Mark all cases but one of each form of call for the full run."""
    return [case if case.name in FIRST_OF_ITS_FORM else pytest.param(case, marks=pytest.mark.full) for case in cases]


def shares(cases: Iterable[Case], key: Callable[[Case], str] = lambda case: case.loss) -> list[Any]:
    """Lists of cases by a key: those that are the first of their form, and for the full run the others."""
    first: dict[str, list[Case]] = {}
    others: dict[str, list[Case]] = {}
    for case in cases:
        (first if case.name in FIRST_OF_ITS_FORM else others).setdefault(key(case), []).append(case)
    marked = [pytest.param(found, id=f"{name}, others", marks=pytest.mark.full) for name, found in others.items()]
    return [*(pytest.param(found, id=name) for name, found in first.items()), *marked]


AUTOGRAD: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SLF001
COUNTS_PROGRAMS = pytest.mark.skipif(
    not hasattr(AUTOGRAD, "_top_saved_tensors_default_hooks"),
    reason="PyTorch before 2.8 does not say whether hooks of checkpointing see a call: none is a program",
)


def in_threads(work: Callable[[int], None]) -> None:
    """Call a function of 0 to 3 in four threads at once."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def options_of(name: str) -> set[str]:
    """Parameter names of a loss; for `matryoshka`, of the loss that it nests."""
    loss = name.partition(" ")[0]
    return {*inspect.signature(attrgetter("clip" if loss == "matryoshka" else loss)(pnce)).parameters}


class Call:
    """A loss as a function of its differentiable arrays, followed by the others."""

    def __init__(self, name: str, *, rows: int = 4, seed: int = 7, **options: Any) -> None:
        """Keep the options that the loss has; dense by default."""

        def normal(shape: tuple[int, ...], place: int) -> Any:
            return np.random.default_rng((seed, place)).normal(size=shape).tolist()

        case = OF_SCORES[name] if name in OF_SCORES else example(name, rows, fill=normal)
        constant = LOSSES[name].constant if name in LOSSES else frozenset()
        arrays = {key: np.asarray(value) for key, value in case.arguments.items()}
        given = {"block_size": None, **options}
        self.call = case.bound(**{key: given[key] for key in given.keys() & options_of(name)})
        self.learned = {key: x for key, x in arrays.items() if key not in constant}
        constants = {key: np.asarray(value) for key, value in case.constants.items()}
        self.fixed = {key: arrays[key] for key in arrays if key in constant} | constants
        self.numbers = [*self.learned.values()]

    def __call__(self, *arrays: Any) -> Any:
        """Call the loss on all arrays, or only on the differentiable ones."""
        kinds: list[Any] = [(torch.Tensor, torch.asarray), (jax.Array, jnp.asarray), (object, np.asarray)]
        convert = next(function for kind, function in kinds if isinstance(arrays[0], kind))
        count = len(self.learned)
        named = zip(
            [*self.learned, *self.fixed], [*arrays[:count], *(arrays[count:] or self.others(convert))], strict=True
        )
        return self.call(dict(named))

    def others(self, convert: Callable[[Any], Any]) -> list[Any]:
        """Arrays without a gradient."""
        return [convert(x) for x in self.fixed.values()]

    def torch(self, *, requires_grad: bool = False) -> list[torch.Tensor]:
        """Differentiable arrays as PyTorch tensors."""
        return [torch.tensor(x, requires_grad=requires_grad) for x in self.numbers]

    def jax(self) -> list[jax.Array]:
        """Differentiable arrays as JAX arrays."""
        return [jnp.asarray(x) for x in self.numbers]

    def expected(self) -> list[np.ndarray]:
        """Value and gradients by the tape."""
        value, slopes = pnce.value_and_grad(self, argnums=tuple(range(len(self.numbers))))(*self.numbers)
        return [value, *slopes]


def streams_like_the_dense(loss: Callable[..., Any], *arrays: Any, block_sizes: tuple[int, ...] = (1, 3, 8)) -> None:
    """Compare value and gradients of a loss with and without a block size."""
    value, gradients = differentiate(functools.partial(loss, block_size=None), arrays)
    assert np.isfinite(value)
    for size in block_sizes:
        again, found = differentiate(functools.partial(loss, block_size=size), arrays)
        np.testing.assert_allclose(again, value, rtol=1e-11)
        for ours, dense in zip(found, gradients, strict=True):
            np.testing.assert_allclose(ours, dense, rtol=1e-9, atol=1e-11 * np.max(np.abs(dense)))
