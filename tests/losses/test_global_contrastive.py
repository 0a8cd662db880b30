"""Losses with a state per sample: the returned state, and its effect on the next call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp

import portable_nce as pnce
from portable_nce._core.namespace import namespace_of
from portable_nce.testing import oracles
from portable_nce.testing.cases import sixteenths
from portable_nce.testing.variants import differentiate, flatten

if TYPE_CHECKING:
    from portable_nce.testing.variants import Nested, Variant

N, D = 4, 3


QUERY, KEY = (sixteenths((N, D), seed) for seed in (1, 2))


def arrays_of(variant: Variant, log_u: Nested, dtype: str | None = None) -> list[Any]:
    """Make query, key and state, in the widest dtype by default."""
    return [variant.floats(x, dtype or variant.dtypes[0]) for x in (QUERY, KEY, log_u)]


def call(variant: Variant, log_u: Nested, **options: Any) -> tuple[Any, Any]:
    """Give losses and the new state."""
    dtype = "float64" if "float64" in variant.dtypes else None
    loss, state = pnce.sogclr(*arrays_of(variant, log_u, dtype), **{"temperature": 0.5, **options})
    return variant.to_list(loss), variant.to_list(state)


def tolerance(variant: Variant) -> float:
    return 1e-12 if "float64" in variant.dtypes else 1e-5


@pytest.mark.parametrize("block_size", [None, 2])
def test_the_state_is_the_logarithm_of_the_average(variant: Variant, block_size: int | None) -> None:
    """The row losses are the new state; for a new sample, the average is the batch's."""
    before = [0.5, -math.inf, -2.0, 40.0]
    losses, state = call(variant, before, gamma=0.75, reduction="none", block_size=block_size)
    assert losses == pytest.approx(state, rel=tolerance(variant))
    given = {"query": QUERY, "key": KEY, "log_u": [-math.inf] * N}
    batch = oracles.evaluate("sogclr", given, {"temperature": 0.5, "reduction": "none"})
    for k, (memory, plain) in enumerate(zip(before, batch, strict=True)):
        fresh = memory == -math.inf
        wanted = plain if fresh else mp.log(0.25 * mp.exp(memory) + 0.75 * mp.exp(plain))
        assert state[k] == pytest.approx(float(wanted), rel=tolerance(variant), abs=tolerance(variant))


def test_sogclr_without_a_memory_is_flat_nce(variant: Variant) -> None:
    x, y, before = arrays_of(variant, [3.0] * N)
    plain = pnce.contrast(x, y, objective="flat_nce", temperature=0.5)
    loss, _ = pnce.sogclr(x, y, before, gamma=1.0, temperature=0.5)
    wanted = variant.to_list(plain) - math.log(N - 1)
    assert variant.to_list(loss) == pytest.approx(wanted, rel=tolerance(variant))


def test_gradient_of_a_new_sample_is_the_gradient_of_its_batch(variant: Variant) -> None:
    """For every γ: the gradient of a logarithm."""
    x, y, before = arrays_of(variant, [-math.inf] * N)

    def plain(x: Any, y: Any) -> Any:
        return pnce.contrast(x, y, objective="flat_nce", temperature=0.5)

    _, slopes = differentiate(lambda x, y: pnce.sogclr(x, y, before, gamma=0.25, temperature=0.5)[0], [x, y])
    _, wanted = differentiate(plain, [x, y])
    for slope, want in zip(slopes, wanted, strict=True):
        assert oracles.error(variant.to_list(slope), oracles.exact(variant.to_list(want))) <= tolerance(variant)


def test_the_state_has_no_gradient(variant: Variant) -> None:
    """Neither the given nor the returned state."""
    arrays = arrays_of(variant, [0.5, -math.inf, -2.0, 1.0])
    _, slopes = differentiate(lambda x, y, u: pnce.sogclr(x, y, u, temperature=0.5)[0], arrays)
    assert variant.to_list(slopes[2]) == [0.0] * N

    def of_state(x: Any, y: Any, u: Any) -> Any:
        state = pnce.sogclr(x, y, u, temperature=0.5)[1]
        return namespace_of(state).sum(state)

    _, slopes = differentiate(of_state, arrays_of(variant, [0.5] * N))
    assert [set(flatten(variant.to_list(slope))) for slope in slopes] == [{0.0}] * 3


def test_a_large_memory_stops_the_gradient(variant: Variant) -> None:
    """Negatives are divided by the average, not by their sum in the batch."""

    def size(level: float) -> float:
        x, y, before = arrays_of(variant, [level] * N)
        _, gradient = pnce.value_and_grad(lambda x: pnce.sogclr(x, y, before, gamma=0.5, temperature=0.5)[0])(x)
        return float(max(map(abs, flatten(variant.to_list(gradient)))))

    assert size(60.0) < 1e-20
    assert size(-60.0) > 1e-2


def test_rows_that_do_not_count_keep_their_state(variant: Variant) -> None:
    mask = [[True] * N for _ in range(N)]
    mask[1][1] = False  # no positive
    mask[2] = [k == 2 for k in range(N)]  # no negative
    losses, state = call(variant, [0.5, 0.25, -math.inf, 2.0], mask=variant.array(mask), reduction="none")
    assert state[1:3] == [0.25, -math.inf]
    assert losses[1:3] == [0.0, 0.0]


@pytest.mark.parametrize("rho", [None, 3.0])
@pytest.mark.parametrize("similarity", ["cosine", "neg_sq_euclidean"])
def test_the_mean_is_over_the_rows_that_count(variant: Variant, similarity: str, rho: float | None) -> None:
    """Also with a similarity that is not an inner product, whose scores may be -inf."""
    mask = [[True] * N for _ in range(N)]
    mask[0][3] = False
    mask[1][1] = False  # no positive
    mask[2] = [k == 2 for k in range(N)]  # no negative
    before = [0.5, 0.25, -math.inf, -math.inf]
    options: dict[str, Any] = {"mask": variant.array(mask), "similarity": similarity, "rho": rho}
    losses, state = call(variant, before, reduction="none", **options)
    mean, again = call(variant, before, **options)
    assert losses[1:3] == [0.0, 0.0]
    assert mean == pytest.approx((losses[0] + losses[3]) / 2, rel=tolerance(variant))
    assert state == again
    query, key = oracles.exact(QUERY), oracles.exact(KEY)
    scores = oracles.score_matrix(query, key, similarity, oracles.exact(2.0))
    for k, others, share in ((0, (1, 2), 0.9), (3, (0, 1, 2), 1.0)):
        contrasts = mp.fsum(mp.exp(scores[k][j] - scores[k][k]) for j in others) / len(others)
        wanted = mp.log((1 - share) * mp.exp(before[k]) + share * contrasts)
        assert state[k] == pytest.approx(float(wanted), rel=tolerance(variant), abs=tolerance(variant))
        loss = wanted if rho is None else 0.5 * (wanted + rho)
        assert losses[k] == pytest.approx(float(loss), rel=tolerance(variant), abs=tolerance(variant))
    assert state[1:3] == before[1:3]


def test_sogclr_of_one_row(variant: Variant) -> None:
    dtype = variant.dtypes[0]
    x, before = variant.floats(QUERY[:1], dtype), variant.floats([0.5], dtype)
    loss, state = pnce.sogclr(x, x, before)
    assert variant.to_list(loss) == 0.0
    assert variant.to_list(state) == [0.5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_state_keeps_its_own_dtype(variant: Variant, dtype: str) -> None:
    if dtype not in variant.further_dtypes and dtype not in variant.dtypes:
        return  # a variant without it
    wide = next(name for name in variant.dtypes if name in {"float32", "float64"})
    x, y, _ = arrays_of(variant, [0.5] * N, dtype)
    loss, state = pnce.sogclr(x, y, variant.floats([0.5] * N, wide), temperature=0.5)
    assert loss.dtype == x.dtype
    assert state.dtype == variant.floats([0.5], wide).dtype
