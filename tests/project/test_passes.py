"""Passes over a score matrix: operations of PyTorch on arrays of its size, for value and gradients of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce import from_scores
from portable_nce._core import calls
from portable_nce.backends import torch_namespace

N = 256
SAME = torch.arange(N)[:, None] % 8 == torch.arange(N)[None, :] % 8
OTHERS = ~torch.eye(N, dtype=torch.bool)
SOFT = SAME / SAME.sum(dim=1, keepdim=True)
INDEX = (7 * torch.arange(N)) % N
FREE = {"alias", "detach", "empty", "empty_like", "empty_strided", "new_empty", "view"}
"""Operations that neither read nor write a matrix."""

PASSES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "info_nce": (from_scores.info_nce, 5),
    "info_nce, index": (lambda s: from_scores.info_nce(s, positives=INDEX), 5),
    "info_nce, mask": (lambda s: from_scores.info_nce(s, mask=OTHERS | SAME), 8),
    "info_nce, rows": (lambda s: from_scores.info_nce(s, reduction="none").sum(), 5),
    "info_nce, soft": (lambda s: from_scores.info_nce(s, positives=SOFT), 30),
    "supcon": (lambda s: from_scores.supcon(s, positives=SAME & OTHERS, mask=OTHERS), 22),
    "nca": (lambda s: from_scores.nca(s, positives=SAME & OTHERS, mask=OTHERS), 19),
    "dcl": (from_scores.dcl, 5),
    "flat_nce": (from_scores.flat_nce, 5),
    "dclw": (lambda s: from_scores.dclw(s, temperature=0.1), 6),
    "clip": (from_scores.clip, 14),
    "logistic": (from_scores.logistic, 7),
    "contrastive": (from_scores.contrastive, 8),
    "relic": (from_scores.relic, 27),
}
"""Functions of a score matrix, and the most passes that they may take."""


class Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations on arrays of N × N entries."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001  (public nowhere)
        arrays = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        # Few entries of a matrix are read by index, and written on a diagonal.
        whole = name not in FREE | {"gather", "index_select", "scatter_"} and not function.is_view
        if whole and any(math.prod(x.shape) >= N * N for x in arrays):
            self.names.append(name)
        return result


def passes_of(loss: Callable[[Any], Any], *, large: bool = False) -> list[str]:
    """The passes of a later call, with all that earlier calls have kept."""
    scores = torch.randn((N, N), generator=torch.Generator().manual_seed(0)) * (30.0 if large else 3.0)
    scores.requires_grad_()
    for _ in range(calls.TRIAL):
        torch.autograd.grad(loss(scores), scores)
    # The engine asks whether a mode observes its operations, and then computes some of them otherwise.
    with mock.patch.object(torch_namespace, "_len_torch_dispatch_stack", return_value=0), Passes() as passes:
        torch.autograd.grad(loss(scores), scores)
    found: list[str] = passes.names
    return found


@pytest.mark.parametrize("name", PASSES)
def test_a_function_of_scores_takes_no_more_passes(name: str) -> None:
    loss, most = PASSES[name]
    passes = passes_of(loss)
    assert len(passes) <= most, passes
    assert len(passes) > 0.8 * most, "lower the limit"


@pytest.mark.parametrize("name", PASSES)
def test_no_matrix_is_selected_entry_by_entry(name: str) -> None:
    """`where` takes longer than an exponential."""
    assert "where" not in passes_of(PASSES[name][0])
    assert "masked_fill" not in passes_of(PASSES[name][0])


def test_all_functions_of_a_matrix_have_a_limit() -> None:
    named = {name.partition(",")[0] for name in PASSES}
    assert named == {*from_scores.__all__} - {"cosent", "margin_mse", "triplet"}  # of vectors, and of triplets
    assert pnce.from_scores is from_scores
