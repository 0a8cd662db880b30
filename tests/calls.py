"""The losses of the one table as functions of their arrays alone, which PyTorch and JAX transform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import portable_nce as pnce
from portable_nce.testing.cases import CASES, LOSSES, Case, example

OF_SCORES: dict[str, Case] = {}
"""One call of each function of bounds, density and diagnostics."""
for case in CASES:
    if case.loss.startswith(("bounds.", "density.", "diagnostics.")) and case.regime == "normal":
        OF_SCORES.setdefault(case.loss, case)

EACH = [*(name for name in LOSSES if " " not in name), *OF_SCORES]
STREAMED = [name for name in EACH if name in vars(pnce) and name not in {"cosent", "angle"}]
WAYS = [
    *("info_nce", "info_nce neg_euclidean", "contrast labels", "nt_xent three views", "relic", "siglip", "contrastive"),
    *("triplet", "triplet_from_labels", "triplet_from_labels batch_hard", "moco queue", "nnclr", "from_scores.clip"),
]
"""One loss for each way through the library: where all would take their time to compile and show nothing new."""


class Call:
    """A loss as a function of the arrays that it has gradients for, and then of the others."""

    def __init__(self, name: str, *, rows: int = 4, seed: int = 7, **options: Any) -> None:
        def normal(shape: tuple[int, ...], place: int) -> Any:
            return np.random.default_rng((seed, place)).normal(size=shape).tolist()

        case = OF_SCORES[name] if name in OF_SCORES else example(name, rows, fill=normal)
        given = {key: value for key, value in options.items() if value is not None and key != "block_size"}
        given |= {"block_size": options.get("block_size")} if name.partition(" ")[0] in STREAMED else {}
        constant = LOSSES[name].constant if name in LOSSES else frozenset()
        arrays = {key: np.asarray(value) for key, value in case.arguments.items()}
        self.call = case.bound(**given)
        self.learned = [key for key in arrays if key not in constant]
        constants = {key: np.asarray(value) for key, value in case.constants.items()}
        self.fixed = {**{key: arrays[key] for key in arrays if key in constant}, **constants}
        self.numbers = [arrays[key] for key in self.learned]
        self.others = [*self.fixed.values()]

    def __call__(self, *arrays: Any) -> Any:
        """Call the loss on its arrays, or on those with gradients alone."""
        kinds: list[Any] = [(torch.Tensor, torch.asarray), (jax.Array, jnp.asarray), (object, np.asarray)]
        convert = next(function for kind, function in kinds if isinstance(arrays[0], kind))
        others = arrays[len(self.learned) :] or [convert(x) for x in self.others]
        named = zip([*self.learned, *self.fixed], [*arrays[: len(self.learned)], *others], strict=True)
        return self.call(dict(named))

    def torch(self, *, requires_grad: bool = False) -> list[torch.Tensor]:
        """Make the arrays with gradients, for PyTorch."""
        return [torch.tensor(x, requires_grad=requires_grad) for x in self.numbers]

    def jax(self) -> list[jax.Array]:
        """Make the arrays with gradients, for JAX."""
        return [jnp.asarray(x) for x in self.numbers]

    def expected(self) -> list[np.ndarray]:
        """Give value and gradients by the tape."""
        value, slopes = pnce.value_and_grad(self, argnums=tuple(range(len(self.numbers))))(*self.numbers)
        return [value, *slopes]
