"""MoCo on several processes of torch: one queue for all, a key encoder that follows, and a checkpoint.

    torchrun --nproc-per-node 2 examples/ranks_moco.py

Parameters and queue are those of one process that has the whole batch, also after a restart from a checkpoint; the
script says how far they are off.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import portable_nce as pnce
from portable_nce.modules.torch import MemoryQueue, MoCo


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    for mine, its in zip(slow.parameters(), fast.parameters(), strict=True):
        mine.lerp_(its, 1.0 - momentum)
    for held, new in zip(slow.buffers(), fast.buffers(), strict=True):  # such as running statistics
        held.copy_(new)


class Training:
    """An encoder, its momentum encoder, a loss with a queue, an optimizer."""

    def __init__(self, encoder: nn.Module, ranks: pnce.Ranks | None = None) -> None:
        self.encoder = encoder
        self.slow = copy.deepcopy(encoder).requires_grad_(requires_grad=False)
        self.model = encoder if ranks is None else DistributedDataParallel(encoder)
        self.loss = MoCo(size=24, width=8, temperature=0.2, across=ranks)  # outside of the model
        self.optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)

    def step(self, view_a: Any, view_b: Any) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(view_a), self.slow(view_b)).backward()  # the keys of all ranks enter the queues of all
        self.optimizer.step()
        follow(self.slow, self.encoder, momentum=0.99)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in ("encoder", "slow", "loss", "optimizer")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)


def with_ranks(encoder: nn.Module) -> Training:
    return Training(encoder, pnce.across(dist.group.WORLD, gradients="averaged"))


def restarted(training: Training, path: Path) -> Training:
    if dist.get_rank() == 0:
        torch.save(training.state_dict(), path)  # the same on all ranks
    dist.barrier()
    again = with_ranks(encoder_of_a_seed(1))
    again.load_state_dict(torch.load(path))
    return again


class WithMemory(nn.Module):
    """A model that has a queue among its buffers, which DDP takes for buffers like any."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, 8)
        self.memory = MemoryQueue(6, 8)

    def forward(self, x: Any) -> Any:
        """Return embeddings."""
        return self.encoder(x)


def check_buffers() -> None:
    """Without `across`, queues differ until DDP sends those of the first rank to all."""
    model = DistributedDataParallel(WithMemory())
    memory: Any = model.module.memory
    memory.push(torch.full((6, 8), float(dist.get_rank() + 1)))
    assert float(memory.rows[0, 0]) == dist.get_rank() + 1
    model(torch.ones(2, 16))
    assert float(memory.rows[0, 0]) == 1.0


def encoder_of_a_seed(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 8)).double()


def numbers(training: Training) -> list[torch.Tensor]:
    return [x.detach() for x in (*training.encoder.parameters(), *training.slow.parameters(), training.loss.queue.rows)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    draw = torch.Generator().manual_seed(1)
    batches = torch.randn(6, 2, 4 * size, 16, generator=draw)
    rows = slice(4 * rank, 4 * rank + 4)

    alone, training = Training(encoder_of_a_seed(0)), with_ranks(encoder_of_a_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)
        for k, (view_a, view_b) in enumerate(batches):
            if k == 2:  # two ranks have filled two thirds of their queue
                training = restarted(training, Path(shared[0]) / "checkpoint.pt")
            alone.step(view_a, view_b)
            training.step(view_a[rows], view_b[rows])
        dist.barrier()
    error = max(float((x - y).abs().max()) for x, y in zip(numbers(training), numbers(alone), strict=True))
    if rank == 0:
        print(f"with_ranks: off by at most {error:.0e}")
    assert error < 1e-12
    assert torch.equal(training.loss.queue.valid, alone.loss.queue.valid)
    check_buffers()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
