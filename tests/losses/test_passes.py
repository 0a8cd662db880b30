"""Passes over the score matrix of one call with gradients, as PyTorch makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce import bounds, density, from_scores
from portable_nce.backends import torch_namespace

ROWS = 128
"""Rows and columns: large enough for the kernels of large matrices."""

NO_PASSES = frozenset(
    {"alias", "detach", "empty", "empty_like", "empty_strided", "gather", "index_select", "new_empty"}
)
"""Operations that read or write no whole array: a selection reads the positives alone."""


class _Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations that read or write an array of the size of the scores."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001  (public nowhere)
        arrays = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        if not function.is_view and name not in NO_PASSES and any(x.numel() >= ROWS * ROWS for x in arrays):
            self.found[name] += 1
        return result


def passes(loss: Callable[..., Any], *arrays: Any) -> Counter[str]:
    """Count the passes of a call with the gradients of its arrays."""
    with mock.patch.object(torch_namespace, "_len_torch_dispatch_stack", return_value=0), _Passes() as watched:
        loss(*arrays).backward()
    found: Counter[str] = watched.found
    return found


def _made(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


LOG_Q = torch.zeros(ROWS, ROWS)
OF_SCORES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "club": (bounds.club, 3),
    "dv": (bounds.dv, 5),
    "flo": (lambda scores: bounds.flo(scores, torch.zeros(ROWS)), 7),
    "info_nce_anchor": (bounds.info_nce_anchor, 25),
    "interpolated": (lambda scores: bounds.interpolated(scores, 0.5, 0.0), 25),
    "js": (bounds.js, 5),
    "js_mi": (bounds.js_mi, 10),
    "margin_mse": (lambda scores: from_scores.margin_mse(scores, torch.zeros(ROWS, ROWS)), 11),
    "mine": (lambda scores: bounds.mine(scores)[0], 5),
    "nwj": (bounds.nwj, 6),
    "smile": (bounds.smile, 9),
    "tuba": (lambda scores: bounds.tuba(scores, 0.5), 7),
}
OF_NOISE: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "balance_penalty": (density.balance_penalty, 8),
    "info_nce_anchor": (lambda data, noise: density.info_nce_anchor(data, noise, 0.0, 0.0), 26),
    "local_nce": (lambda data, noise: density.local_nce(data, noise, 0.0, LOG_Q), 8),
    "log_partition": (lambda _, noise: density.log_partition(noise, LOG_Q).sum(), 6),
    "negative_sampling": (density.negative_sampling, 5),
    "nre_a": (density.nre_a, 5),
    "nre_b": (density.nre_b, 4),
    "nre_c": (density.nre_c, 25),
    "ranking_nce": (lambda data, noise: density.ranking_nce(data, noise, 0.0, LOG_Q), 6),
    "sampled_softmax": (lambda data, noise: density.sampled_softmax(data, noise, 0.0, LOG_Q), 6),
}


@pytest.mark.parametrize("name", OF_SCORES)
def test_passes_over_a_score_matrix(name: str) -> None:
    loss, number = OF_SCORES[name]
    found = passes(loss, _made(ROWS, ROWS))
    assert found.total() == number, found


@pytest.mark.parametrize("name", OF_NOISE)
def test_passes_of_a_density(name: str) -> None:
    loss, number = OF_NOISE[name]
    found = passes(loss, _made(ROWS), _made(ROWS, ROWS))
    assert found.total() == number, found


def test_means_over_positives_and_over_negatives_take_three_products() -> None:
    labels, options = torch.arange(ROWS) // 4, {"average": "nonzero", "balance": True}
    found = passes(lambda x: pnce.contrastive(x, labels, **options), _made(ROWS, 16))  # type: ignore[arg-type]
    assert found["mm"] == 3
