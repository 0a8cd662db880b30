"""A row of the catalogue: a call of a public function, its plain formula, and the arrays of both."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

TAU: Final = 0.1
"""Temperature, where a loss has one."""
CLASS: Final = 4
"""Rows of a class."""
LARGE_CLASS: Final = 64
"""Rows of a large class."""
TOKENS: Final = 8
"""Tokens of a query or document; N / 8 of these make N tokens."""
STEPS: Final = 2
"""Predicted steps of CPC."""
PROTOTYPES: Final = 4
"""Rows per prototype."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The same loss of another library.

    Attributes
    ----------
    name
        Package.
    library
        Array library that it needs.
    make
        Imports it and returns a function of the row's arrays.
    """

    name: str
    library: str
    make: Callable[[], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A call of a public function and its plain formula.

    Attributes
    ----------
    name
        Public name below the package, such as ``"bounds.dv"``.
    way
        Options of the call, in words.
    given
        Names of the arrays of `ARRAYS`: those with gradients, then after a bar those without. Where nothing has a
        gradient, only values are compared and timed.
    ours
        The call, a function of these arrays.
    formula
        The same as a user writes it: a function of a kit (`kits`) and these arrays.
    by_hand
        On NumPy, a function of these arrays that returns value and gradients. Without gradients, the formula itself.
    peers
        Other libraries that have it.
    """

    name: str
    given: str
    ours: Callable[..., Any]
    formula: Callable[..., Any]
    way: str = ""
    by_hand: Callable[..., Any] | None = None
    peers: tuple[Peer, ...] = ()

    @property
    def title(self) -> str:
        """Name and options."""
        return f"{self.name}, {self.way}" if self.way else self.name

    @property
    def gradients(self) -> int:
        """Number of arrays with gradients, the first ones."""
        return len(self.given.partition("|")[0].split())

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(self.given.replace("|", " ").split())

    def has(self, library: str) -> bool:
        """Whether there is a formula for a library."""
        return library != "numpy" or self.by_hand is not None or not self.gradients

    def draw(self, rows: int, width: int, dtype: str) -> list[np.ndarray[Any, Any]]:
        """Draw the arrays."""
        return [drawn(name, rows, width, dtype) for name in self.arrays]


def _unit(x: Any) -> Any:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _labels(n: int, size: int) -> Any:
    """Classes of equal size, mixed."""
    return np.random.default_rng(1).permutation(n) // size


def _partners(n: int, size: int) -> Any:
    """Indices of the other rows of each row's class."""
    labels = _labels(n, size)
    same = (labels[:, None] == labels) & ~np.eye(n, dtype=bool)
    return np.nonzero(same)[1].reshape(n, -1)


def _mask(rng: Any, n: int) -> Any:
    return (rng.random((n, n)) < 0.9) | np.eye(n, dtype=bool)  # noqa: PLR2004


def _targets(rng: Any, n: int) -> Any:
    t = rng.random((n, n)) + n * np.eye(n)
    return t / t.sum(1, keepdims=True)


def _near(name: str, rng: Any, n: int, width: int) -> Any:
    """Rows near those of another array, as a second view of them."""
    return _unit(_raw(name, n, width) + 0.15 * rng.standard_normal((n, width)))


ARRAYS: Final[Mapping[str, Callable[[Any, int, int], Any]]] = {
    **dict.fromkeys(("x", "z", "queue", "teacher_x", "weight"), lambda g, n, d: _unit(g.standard_normal((n, d)))),
    **{name: lambda g, n, d: _near("x", g, n, d) for name in ("y", "key_x", "key_y")},
    "teacher_y": lambda g, n, d: _near("teacher_x", g, n, d),
    "own": lambda g, n, d: _unit(g.standard_normal((n, 16, d))),
    "matrix": lambda g, n, d: np.eye(d) + 0.1 * g.standard_normal((d, d)),
    "tokens": lambda g, n, d: g.standard_normal((n // TOKENS, TOKENS, d)),
    "document": lambda g, n, d: _raw("tokens", n, d) + 0.1 * g.standard_normal((n // TOKENS, TOKENS, d)),
    "future": lambda g, n, d: _unit(g.standard_normal((STEPS, n, d))),
    "projections": lambda g, n, d: np.eye(d) + 0.1 * g.standard_normal((STEPS, d, d)),
    "prototypes": lambda g, n, d: _unit(g.standard_normal((n // PROTOTYPES, d))),
    "assignments": lambda g, n, d: _labels(n, PROTOTYPES),
    "concentrations": lambda g, n, d: 0.05 + 0.1 * g.random(n // PROTOTYPES),
    "labels": lambda g, n, d: _labels(n, CLASS),
    "partners": lambda g, n, d: _partners(n, CLASS),
    "labels_large": lambda g, n, d: _labels(n, LARGE_CLASS),
    "partners_large": lambda g, n, d: _partners(n, LARGE_CLASS),
    "grades": lambda g, n, d: g.integers(0, 5, n),
    "scores": lambda g, n, d: g.standard_normal((n, n)) + 2 * np.eye(n),
    "teacher_scores": lambda g, n, d: g.standard_normal((n, n)) + 2 * np.eye(n),
    "negative_distances": lambda g, n, d: -0.2 - np.abs(g.standard_normal((n, n))),
    "mask": lambda g, n, d: _mask(g, n),
    "same": lambda g, n, d: _labels(n, CLASS)[:, None] == _labels(n, CLASS),
    "soft": lambda g, n, d: _targets(g, n),
    "targets": lambda g, n, d: g.integers(0, n, n),
    "noise_scores": lambda g, n, d: g.standard_normal((n, n)),
    **dict.fromkeys(("data_scores", "u", "log_baseline", "similarities"), lambda g, n, d: g.standard_normal(n)),
    **dict.fromkeys(("data_log_q", "log_q", "log_marginal", "log_u"), lambda g, n, d: -1 - g.random(n)),
    "log_mean": lambda g, n, d: np.asarray(0.25),
    "row_weights": lambda g, n, d: 0.5 + g.random(n),
}
"""Arrays by name, each a function of a generator, rows N and features D."""


def _raw(name: str, rows: int, width: int) -> Any:
    return ARRAYS[name](np.random.default_rng(zlib.crc32(name.encode())), rows, width)


def drawn(name: str, rows: int, width: int, dtype: str) -> np.ndarray[Any, Any]:
    """Draw an array; floats take the dtype."""
    found = np.asarray(_raw(name, rows, width))
    return found.astype(dtype) if found.dtype.kind == "f" else found
