"""CLIP on several torch processes: with DDP, FSDP2 and gradient caching.

    torchrun --nproc-per-node 2 examples/ranks_torch.py

Each gives the gradients of one process with the whole batch; the script prints the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import portable_nce as pnce
from portable_nce.modules.torch import encode_in_chunks


class Towers(nn.Module):
    """Two towers and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(16, 8)
        self.text = nn.Linear(12, 8)
        self.log_scale = nn.Parameter(torch.tensor([10.0]).log())

    def forward(self, image: Any, text: Any) -> tuple[Any, Any, Any]:
        """Return both embeddings and the scale."""
        return self.image(image), self.text(text), self.log_scale[0].exp()


def with_ddp(towers: nn.Module, image: Any, text: Any) -> None:
    ranks = pnce.across(dist.group.WORLD, gradients="averaged")  # once
    model = DistributedDataParallel(towers)
    image, text, scale = model(image, text)
    pnce.clip(image, text, logit_scale=scale, across=ranks).backward()


def with_fsdp(towers: nn.Module, image: Any, text: Any) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(towers, mesh=mesh)
    ranks = pnce.across(mesh, gradients="averaged")
    image, text, scale = towers(image, text)
    pnce.clip(image, text, logit_scale=scale, across=ranks).backward()


def with_cached_gradients(towers: nn.Module, image: Any, text: Any) -> None:
    ranks = pnce.across(dist.group.WORLD, gradients="averaged")
    model = DistributedDataParallel(towers)
    image, text, scale = encode_in_chunks(model, image, text, chunk_size=2)
    pnce.clip(image, text, logit_scale=scale, across=ranks).backward()


def towers_of_a_seed() -> Towers:
    torch.manual_seed(0)
    return Towers().double()


def gradients(towers: nn.Module) -> list[torch.Tensor]:
    found: list[Any] = [x.grad for x in towers.parameters()]
    return [x.full_tensor() if hasattr(x, "full_tensor") else x for x in found]


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(1)
    image, text = (torch.randn(4 * size + 1, n, generator=draw, dtype=torch.float64) for n in (16, 12))
    rows = slice(4 * rank, 4 * rank + 4 + (rank == size - 1))  # the last rank has one more row

    alone = towers_of_a_seed()
    first, second, scale = alone(image, text)
    pnce.clip(first, second, logit_scale=scale).backward()
    ways: list[Callable[..., None]] = [with_ddp, with_fsdp, with_cached_gradients]
    for way in ways:
        towers = towers_of_a_seed()
        way(towers, image[rows], text[rows])
        pairs = zip(gradients(towers), gradients(alone), strict=True)
        error = max(float((x - y).abs().max()) for x, y in pairs)
        if rank == 0:
            print(f"{way.__name__}: off by at most {error:.0e}")
        assert error < 1e-12
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
