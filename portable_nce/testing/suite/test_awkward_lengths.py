"""Rows of any length: a cosine, and with it the loss, does not depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..._core.namespace import namespace_of
from .. import oracles
from ..cases import AXES, LOSSES, example
from ..variants import EPS, differentiate
from .calls import FEW, scaled

if TYPE_CHECKING:
    from ..variants import Nested, Variant

OF_COSINES = [
    name
    for name, loss in LOSSES.items()
    if loss.similarity == "cosine" and "similarity" not in loss.options and "bilinear" not in loss.keywords
]
"""Losses of cosines alone."""

POWERS = {
    "float16": (-20, 13, -17, -13, 14, 0),
    "bfloat16": (-110, 45, -60, -39, 100, 41),
    "float32": (-110, 45, -60, -39, 100, 41),
    "float64": (-900, 500, -60, -39, 900, 41),
}
"""Exponents of the factors of consecutive rows: some rows are too short or too long to be multiplied as they are."""


def shifted(rows: Nested, powers: tuple[int, ...], sign: int = 1) -> Nested:
    """Multiply rows by powers of 2."""
    return [scaled(2.0 ** (sign * powers[k % len(powers)]), row) for k, row in enumerate(rows)]


@pytest.mark.filterwarnings("ignore:overflow encountered")  # squares of long rows; gradients of short ones in float16
@pytest.mark.each_variant
@pytest.mark.parametrize("dtype", [*POWERS])
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.exhaustive) for name in OF_COSINES]
)
def test_rows_times_powers_of_2_have_the_same_loss(variant: Variant, name: str, dtype: str) -> None:
    """To the last bit; their gradients are divided by these powers, up to a rounding."""
    case = example(name, 6)
    rows = [key for key, x in case.arguments.items() if isinstance(x, list) and AXES.get(key, "ND")[-1] == "D"]
    constants = {key: variant.array(x) for key, x in case.constants.items()}

    def results(arguments: dict[str, Nested]) -> list[Nested]:
        arrays = [variant.floats(x, dtype) for x in arguments.values()]

        def total(*arrays: Any) -> Any:
            value = case.call({**dict(zip(arguments, arrays, strict=True)), **constants})
            return namespace_of(value).sum(value) if value.shape else value

        value, gradients = differentiate(total, arrays)
        return [variant.to_list(x) for x in (value, *gradients)]

    value, *gradients = results({**case.arguments})
    moved = {key: shifted(x, POWERS[dtype]) if key in rows else x for key, x in case.arguments.items()}
    own, *slopes = results(moved)
    assert own == value
    if dtype == "float16":  # most gradients are out of its range
        return
    for key, found, wanted in zip(case.arguments, slopes, gradients, strict=True):
        exact = oracles.exact(wanted)
        back = shifted(found, POWERS[dtype]) if key in rows else found
        assert oracles.error(back, exact) <= (1.0 if "16" in dtype else 4.0) * EPS[dtype], key
