"""The variant of Dask arrays, which nothing in portable_nce knows of: chunked, lazy, and on the tape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import numpy as np

import portable_nce as pnce
from portable_nce.testing import Variant


@dataclass(frozen=True, kw_only=True)
class Dask(Variant):
    """Dask arrays in chunks of two rows and two columns, computed in the thread that asks."""

    def start(self) -> None:
        pnce.register_backend("dask")
        dask.config.set(scheduler="synchronous")

    @property
    def xp(self) -> Any:
        return dask.array

    def place(self, nested: Any, dtype: str, device: Any) -> Any:
        del device
        x = np.asarray(nested, dtype=dtype)
        return dask.array.from_array(x, chunks=2) if x.ndim else dask.array.from_array(x)

    def to_list(self, x: Any) -> Any:
        return x.compute().tolist()

    def device_of(self, x: Any) -> Any:
        del x


MORE_PIECES = "ignore:Increasing number of chunks:dask.array.PerformanceWarning"
"""Dask's remark on a gather from the flattened score matrix, by which mined triples are taken: each of its pieces meets
each piece of the indices, which makes as many tasks as the matrix has blocks."""

VARIANT = Dask(name="dask", module="dask", library="dask", largest=8, repeats=False, harmless=(MORE_PIECES,))
