"""InfoNCE on several MPI processes, in NumPy: the methods of a `Communicator` by mpi4py.

    mpiexec -n 2 python examples/ranks_mpi.py

The gradients equal those of one process with the whole batch; the script prints the errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import portable_nce as pnce


class MpiRanks:
    """Ranks of an MPI communicator; rows are sent as bytes, for all dtypes."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.size, self.rank = comm, comm.size, comm.rank

    def all_gather(self, x: Any, counts: Sequence[int]) -> Any:
        found = np.empty((sum(counts), *x.shape[1:]), dtype=x.dtype)
        row = math.prod(x.shape[1:], start=x.itemsize)  # a rank may have no rows
        sizes = [count * row for count in counts]
        self.comm.Allgatherv([np.ascontiguousarray(x), MPI.BYTE], [found, sizes, None, MPI.BYTE])
        return found

    def reduce_scatter(self, x: Any, counts: Sequence[int]) -> Any:
        found = np.empty((counts[self.rank], *x.shape[1:]), dtype=x.dtype)
        self.comm.Reduce_scatter(np.ascontiguousarray(x), found, [count * x.size // len(x) for count in counts])
        return found

    def all_reduce(self, x: Any, *, largest: bool = False) -> Any:
        found = np.empty_like(x)
        self.comm.Allreduce(np.ascontiguousarray(x), found, MPI.MAX if largest else MPI.SUM)
        return found

    def tell(self, numbers: Sequence[int]) -> Any:
        return self.comm.allgather(list(numbers))


def main() -> None:
    ranks = pnce.across(MpiRanks(MPI.COMM_WORLD), gradients="summed")
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    query, key = np.random.default_rng(0).normal(size=(2, 4 * size + 1, 8))
    rows = slice(4 * rank, 4 * rank + 4 + (rank == size - 1))  # the last rank has one more row
    value, slopes = pnce.value_and_grad(pnce.info_nce, (0, 1))(query[rows], key[rows], across=ranks)
    wanted, whole = pnce.value_and_grad(pnce.info_nce, (0, 1))(query, key)
    error = max(abs(value - wanted), *(np.max(np.abs(x - y[rows])) for x, y in zip(slopes, whole, strict=True)))
    print(f"rank {rank}: off by at most {error:.0e}")
    assert error < 1e-12


if __name__ == "__main__":
    main()
