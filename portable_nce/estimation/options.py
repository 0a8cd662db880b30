"""Arguments of estimates: what samples may be, and the names that options have in other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

from .._core.checks import explained
from .._core.types import AnyArray, Parameters, Result

__all__ = ["Samples", "with_options_explained"]

Samples: TypeAlias = AnyArray | Sequence[Any]

OTHER_NAMES = {
    "seed": "rng",
    "seeds": "networks",
    "random_state": "rng",
    "n_splits": "folds",
    "cv": "folds",
    "subjects": "groups",
    "times": "order",
    "z": "given",
    "units": "nothing: results are in nats, divide them by log 2 for bits",
}
"""Options of mutual_information under the names of other libraries."""


def with_options_explained(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Function that names the right option for one under another library's name."""
    call = explained(function)

    @wraps(function)
    def checked(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        for name in OTHER_NAMES.keys() & options.keys():
            meant = OTHER_NAMES[name]
            remedy = f"did you mean {meant!r}?" if meant.isidentifier() else f"pass {meant}"
            raise TypeError(f"{name}: expected an option of {function.__name__}, got {name!r}; {remedy}")
        return call(*args, **options)

    return checked
