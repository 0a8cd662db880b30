"""Row losses, summed, are the loss with ``reduction="sum"``, at scores of any magnitude, also of some columns alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing.cases import LOSSES

from calls import Call, options_of

REDUCED = [name for name in LOSSES if "reduction" in options_of(name) and not name.endswith(("bilinear", "max_sim"))]
SIZES = 1.0, 1e2, 1e4, 1e6


def with_dot(name: str) -> dict[str, Any]:
    """Inner products, where a loss has a choice, so that scores grow with the embeddings."""
    fixed = "similarity" not in options_of(name) or "similarity" in LOSSES[name].options or name in {"cosent", "angle"}
    return {} if fixed or name.startswith("from_scores") else {"similarity": "dot"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", REDUCED)
def test_row_losses_add_up_to_the_sum(name: str, size: float) -> None:
    """Value and gradients, where each array in turn is this much larger than the others, and where all are."""
    options = with_dot(name)
    total = Call(name, reduction="sum", **options)
    each = Call(name, reduction="none", **options)
    arrays = [np.array(x) for x in total.numbers]
    large = [k for k, x in enumerate(arrays) if x.ndim >= 1]
    for chosen in (*([k] for k in large), large):
        given = [size * x if k in chosen else x for k, x in enumerate(arrays)]
        places = tuple(range(len(given)))
        value, slopes = pnce.value_and_grad(total, argnums=places)(*given)
        own, found = pnce.value_and_grad(lambda *x: each(*x).sum(), argnums=places)(*given)
        assert np.isfinite(value)
        np.testing.assert_allclose(own, value, rtol=1e-11, atol=1e-14 * size**2)
        for a, b in zip(found, slopes, strict=True):
            # The gradient by a temperature is a difference of terms of the scores' size.
            atol = 1e-14 * size**2 if np.ndim(b) == 0 else 1e-11 * max(np.max(np.abs(b)), 1e-280)
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["moco", "info_nce"])
def test_a_positive_far_from_the_columns_of_a_queue(name: str, dtype: type) -> None:
    """The bound of rows times queue says nothing of the positives, which may need a shift in exponentials."""
    arrays: list[Any] = [np.asarray(x, dtype) for x in ([[-0.9], [0.5]], [[1000.0], [1000.0]], [[1.4], [-0.2]])]

    def total(*arrays: Any) -> Any:
        values: Any = getattr(pnce, name)(*arrays, temperature=1.0, similarity="dot", reduction="none")
        return values.sum()

    value, gradients = pnce.value_and_grad(total, argnums=(0, 1, 2))(*arrays)
    # Row 0: the positive -900; the columns -1.26 and 0.18, with softmax weights 0.1915 and 0.8085.
    assert float(value) == pytest.approx(900.3926306912863, rel=2e-7 if dtype is np.float32 else 1e-14)
    shares = np.exp([-1.26, 0.18]) / np.exp([-1.26, 0.18]).sum()
    np.testing.assert_allclose(gradients[0][0], shares @ [1.4, -0.2] - 1000.0, rtol=1e-6)
