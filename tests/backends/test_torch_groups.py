"""Process groups of PyTorch, with threads as ranks; `tests/ranks` has processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import distributed

import portable_nce as pnce
from portable_nce.backends.torch_ranks import communicator

threaded = pytest.importorskip("torch.testing._internal.distributed.multi_threaded_pg")
isolate: Any = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode", None)  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SLF001
pytestmark = pytest.mark.skipif(isolate is None, reason="this PyTorch cannot isolate threads")
COUNTS = [(3, 3), (2, 4), (0, 5)]
"""Rows of both ranks."""


@contextmanager
def threads_are_ranks() -> Iterator[None]:
    threaded._install_threaded_pg()  # noqa: SLF001  (public nowhere)
    isolate(True)  # noqa: FBT003
    try:
        yield
    finally:
        isolate(False)  # noqa: FBT003
        threaded._uninstall_threaded_pg()  # noqa: SLF001
        threaded.ProcessLocalGroup.reset()


def on_both(work: Callable[[int], Any]) -> list[Any]:
    """Results of a function of the rank, in a group of two."""
    store: Any = distributed.HashStore()  # type: ignore[attr-defined]
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            distributed.init_process_group("threaded", rank=rank, world_size=2, store=store)
            found[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001  (the other rank would wait for this one)
            found[rank] = error
            threaded.ProcessLocalGroup.exception_handle(error)

    with threads_are_ranks():
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for rank in range(2):
        if isinstance(found.get(rank), BaseException):
            raise found[rank]
    return [found[rank] for rank in range(2)]


@pytest.mark.parametrize("counts", COUNTS)
def test_ranks_exchange_rows(counts: tuple[int, int]) -> None:
    rows = torch.arange(2.0 * sum(counts)).reshape(-1, 2)
    parts = torch.split(rows, list(counts))

    def work(rank: int) -> Any:
        ranks = communicator(distributed.group.WORLD)
        assert ranks is not None
        assert (ranks.rank, ranks.size) == (rank, 2)
        assert ranks.tell([rank, 7]) == [[0, 7], [1, 7]]
        gathered = ranks.all_gather(parts[rank], counts)
        scattered = ranks.reduce_scatter(rows * (rank + 1.0), counts)
        sums = [ranks.all_reduce(torch.tensor([rank + 1.0, -rank]), largest=largest) for largest in (False, True)]
        return gathered, scattered, *sums

    for rank, (gathered, scattered, total, largest) in enumerate(on_both(work)):
        torch.testing.assert_close(gathered, rows)
        torch.testing.assert_close(scattered, 3.0 * parts[rank])
        assert total.tolist() == [3.0, -1.0]
        assert largest.tolist() == [2.0, 0.0]


LOSSES: dict[str, Callable[..., Any]] = {
    "info_nce": lambda x, y, _, **options: pnce.info_nce(x, y, **options),
    "clip": lambda x, y, _, **options: pnce.clip(x, y, logit_scale=5.0, **options),
    "nt_xent": lambda x, y, _, **options: pnce.nt_xent(x, y, **options),
    "supcon": lambda x, _, labels, **options: pnce.supcon(x, labels, **options),
    "relic": lambda x, y, _, **options: pnce.relic(x, y, **options),
}


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_a_group_is_that_of_one_process(name: str, counts: tuple[int, int]) -> None:
    made = torch.Generator().manual_seed(0)
    x, y = (torch.randn(sum(counts), 3, dtype=torch.float64, generator=made) for _ in range(2))
    labels = torch.arange(sum(counts)) % 2
    each = [torch.split(z, list(counts)) for z in (x, y, labels)]
    whole = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    wanted = LOSSES[name](*whole, labels)
    wanted.backward()

    def work(rank: int) -> Any:
        given = [z[rank].clone().requires_grad_() for z in each[:2]]
        ranks = pnce.across(distributed.group.WORLD, gradients="summed")
        value = LOSSES[name](*given, each[2][rank], across=ranks)
        value.backward()
        return value.detach(), [z.grad for z in given]

    found = on_both(work)
    for value, _ in found:
        torch.testing.assert_close(value, wanted.detach())
    for k, z in enumerate(whole):
        if z.grad is not None:
            torch.testing.assert_close(torch.cat([gradients[k] for _, gradients in found]), z.grad)
