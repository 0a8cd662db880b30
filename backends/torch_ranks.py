"""Ranks of a torch.distributed process group.

Under torch.compile, collectives are functional. They are private to torch; each is used in one place here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.nn.utils.rnn import pad_sequence


def _compiling() -> bool:
    return bool(torch.compiler.is_dynamo_compiling())


def _gather_equal(x: Any, group: Any, size: int) -> Any:
    """Rows of all ranks, which have equal numbers of rows."""
    if _compiling():
        from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

        together = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
        return together(x, 0, group)
    result = x.new_empty((size * x.shape[0], *x.shape[1:]))
    # Renamed in torch 2.13, which deprecates the old name.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(result, x.contiguous(), group=group)
    return result


def _scatter_equal(x: Any, group: Any, size: int) -> Any:
    """Rows of the sum that belong to this rank."""
    if _compiling():
        from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

        apart = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor
        return apart(x, "sum", 0, group)
    result = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    scatter(result, x.contiguous(), group=group)
    return result


@dataclass(frozen=True)
class GroupRanks:
    """Ranks of a process group. Uneven numbers of rows are padded to the largest."""

    group: Any
    size: int
    rank: int
    library = "torch"

    def all_gather(self, x: Any, counts: Sequence[int]) -> Any:
        longest = max(counts)
        if min(counts) == longest:
            return _gather_equal(x, self.group, self.size)
        padded = x.new_zeros((longest, *x.shape[1:]))
        padded[: x.shape[0]] = x
        result = _gather_equal(padded, self.group, self.size)
        return torch.cat([result[k * longest : k * longest + count] for k, count in enumerate(counts)])

    def reduce_scatter(self, x: Any, counts: Sequence[int]) -> Any:
        longest = max(counts)
        if min(counts) == longest:
            return _scatter_equal(x, self.group, self.size)
        padded = pad_sequence(x.split(list(counts)), batch_first=True).flatten(0, 1)
        return _scatter_equal(padded, self.group, self.size)[: counts[self.rank]]

    def all_reduce(self, x: Any, *, largest: bool = False) -> Any:
        if _compiling():
            from torch.distributed._functional_collectives import all_reduce  # noqa: PLC0415

            return all_reduce(x, "max" if largest else "sum", self.group)
        result = x.clone(memory_format=torch.contiguous_format)
        kind: Any = distributed.ReduceOp.MAX if largest else distributed.ReduceOp.SUM
        distributed.all_reduce(result, op=kind, group=self.group)
        return result

    def tell(self, numbers: Sequence[int]) -> list[list[int]]:
        config = distributed.get_backend_config(self.group)  # as in "cpu:gloo,cuda:nccl"
        device = "cpu" if "cpu" in config else torch.device("cuda")
        sent = torch.tensor([list(numbers)], dtype=torch.int64, device=device)
        result: list[list[int]] = _gather_equal(sent, self.group, self.size).tolist()
        return result


def communicator(group: Any) -> GroupRanks | None:
    """Ranks of a process group or of a one-dimensional device mesh; None for other objects."""
    if not distributed.is_available():
        return None
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  (part of torch.distributed)

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"group: expected a device mesh of one dimension, got {group.ndim}; name one, as in mesh['data']"
            )
        group = group.get_group()
    if not isinstance(group, distributed.ProcessGroup):
        return None
    rank = distributed.get_rank(group)
    if rank < 0:
        raise ValueError("group: expected a group to which this process belongs")
    return GroupRanks(group, distributed.get_world_size(group), rank)
