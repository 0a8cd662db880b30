"""Passes over a score matrix: operations of PyTorch on arrays of its size, for value and gradients of a later call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable_nce as pnce
from portable_nce import bounds, density, from_scores
from portable_nce._core import calls
from portable_nce.backends import torch_namespace

N = 256
"""Rows and columns: large enough for the kernels of large matrices."""

SAME = torch.arange(N)[:, None] % 8 == torch.arange(N)[None, :] % 8
OTHERS = ~torch.eye(N, dtype=torch.bool)
SOFT = SAME / SAME.sum(dim=1, keepdim=True)
INDEX = (7 * torch.arange(N)) % N
ZEROS = torch.zeros(N, N)

NO_PASSES = frozenset(
    {
        *("alias", "detach", "empty", "empty_like", "empty_strided", "new_empty"),
        *("gather", "index_select", "scatter_"),  # few entries are read by index, and written on a diagonal
    }
)
"""Operations that read or write no whole array."""

Loss = Callable[..., Any]

OF_SCORES: dict[str, tuple[Loss, int]] = {
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
    "margin_mse": (lambda s: from_scores.margin_mse(s, ZEROS), 10),
}
OF_BOUNDS: dict[str, tuple[Loss, int]] = {
    "club": (bounds.club, 3),
    "dual": (lambda s: bounds.dual(s, s[:, 0]), 9),
    "dual_critic": (lambda s: bounds.dual_critic(s).sum(), 5),
    "dv": (bounds.dv, 5),
    "fdv": (bounds.fdv, 7),
    "flo": (lambda s: bounds.flo(s, torch.zeros(N)), 7),
    "info_nce": (bounds.info_nce, 5),
    "info_nce_anchor": (bounds.info_nce_anchor, 29),
    "interpolated": (lambda s: bounds.interpolated(s, 0.5, 0.0), 29),
    "js": (bounds.js, 5),
    "js_mi": (bounds.js_mi, 10),
    "leave_one_out": (bounds.leave_one_out, 7),
    "mine": (lambda s: bounds.mine(s)[0], 5),
    "nwj": (bounds.nwj, 6),
    "smile": (bounds.smile, 9),
    "tuba": (lambda s: bounds.tuba(s, 0.5), 6),
}
OF_NOISE: dict[str, tuple[Loss, int]] = {
    "balance_penalty": (density.balance_penalty, 8),
    "full_softmax": (lambda _, noise: density.full_softmax(noise, INDEX), 5),
    "info_nce_anchor": (lambda data, noise: density.info_nce_anchor(data, noise, 0.0, 0.0), 30),
    "local_nce": (lambda data, noise: density.local_nce(data, noise, 0.0, ZEROS), 8),
    "log_partition": (lambda _, noise: density.log_partition(noise, ZEROS).sum(), 6),
    "negative_sampling": (density.negative_sampling, 5),
    "nre_a": (density.nre_a, 5),
    "nre_b": (density.nre_b, 4),
    "nre_c": (density.nre_c, 29),
    "recover_log_prob": (lambda _, noise: density.recover_log_prob(noise, ZEROS).sum(), 12),
    "ranking_nce": (lambda data, noise: density.ranking_nce(data, noise, 0.0, ZEROS), 6),
    "sampled_softmax": (lambda data, noise: density.sampled_softmax(data, noise, 0.0, ZEROS), 6),
}
CALLS = {
    f"{module}.{name}": call
    for module, table in (("from_scores", OF_SCORES), ("bounds", OF_BOUNDS), ("density", OF_NOISE))
    for name, call in table.items()
}
"""Functions of a score matrix, and the number of their passes."""


class _Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operations that read or write an array of the size of the scores."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001  (public nowhere)
        arrays = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        if name not in NO_PASSES and not function.is_view and any(math.prod(x.shape) >= N * N for x in arrays):
            self.found[name] += 1
        return result


def passes(loss: Loss, *arrays: Any) -> Counter[str]:
    """Count the passes of a later call with the gradients of its arrays, with all that earlier calls have kept."""
    for _ in range(calls.TRIAL):
        loss(*arrays).backward()
    # The engine asks whether a mode observes its operations, and then computes some of them otherwise.
    with mock.patch.object(torch_namespace, "_len_torch_dispatch_stack", return_value=0), _Passes() as watched:
        torch.autograd.grad(loss(*arrays), arrays, allow_unused=True)
    found: Counter[str] = watched.found
    return found


def _made(*shape: int) -> Any:
    return (3.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()


@pytest.mark.parametrize("name", CALLS)
def test_passes_over_a_score_matrix(name: str) -> None:
    """None of them selects entry by entry: `where` takes longer than an exponential."""
    loss, number = CALLS[name]
    arrays = (_made(N), _made(N, N)) if name.startswith("density.") else (_made(N, N),)
    found = passes(loss, *arrays)
    assert found.total() == number, found
    assert not found.keys() & {"where", "masked_fill"}


OTHERS_BY_REASON = {
    "of vectors": {"bounds.barber_agakov", "bounds.vub", "from_scores.cosent"},
    "of triplets": {"from_scores.triplet"},
    "of embeddings": {"density.linear_softmax"},
    "without a gradient, or with several": {
        *("bounds.log_n_ceiling", "bounds.standard_error", "density.self_normalization"),
        *("density.SelfNormalization", "density.SoftmaxStatistics"),
    },
}


def test_all_functions_of_a_matrix_are_counted() -> None:
    counted = {name.partition(",")[0] for name in CALLS}
    modules = {"from_scores": from_scores, "bounds": bounds, "density": density}
    functions = {f"{key}.{name}" for key, module in modules.items() for name in module.__all__}
    assert functions == counted | {name for names in OTHERS_BY_REASON.values() for name in names}


def test_means_over_positives_and_over_negatives_take_three_products() -> None:
    labels, options = torch.arange(N) // 4, {"average": "nonzero", "balance": True}
    found = passes(lambda x: pnce.contrastive(x, labels, **options), _made(N, 16))  # type: ignore[arg-type]
    assert found["mm"] == 3
