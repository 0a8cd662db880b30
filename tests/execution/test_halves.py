"""Products of 16 bits keep gradients within a unit in the last place. Which losses use them: test_products.py.

One fixture lets torch use the 16-bit products of a GPU on the host, where they are exact; another does so for JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core.half_precision import in_halves, product_of_rows
from portable_nce._core.registry import adapter_of
from portable_nce._execution import products as engine
from portable_nce._execution.products import Operand, product
from portable_nce.testing import run_ranks

from calls import mostly_full

pytestmark = [
    pytest.mark.usefixtures("emulated"),
    # torch.compile makes an instance of autograd.Function for itself, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # torch announces a changed default, once per process.
    pytest.mark.filterwarnings("ignore:torch.asarray. unspecified requires_grad:UserWarning"),
]

Loss = Callable[..., Any]


@pytest.fixture
def emulated() -> Iterator[set[str]]:
    """Let torch use the 16-bit products of a GPU on the host."""
    adapter: Any = adapter_of(torch.zeros(1))
    devices: set[str] = adapter.half_devices
    devices.add("cpu")
    yield devices
    devices.discard("cpu")


def library(x: Any) -> Any:
    """The namespace of an array."""
    return jnp if isinstance(x, jax.Array) else torch


def supcon(x: Any, y: Any, t: float, **options: Any) -> Any:
    """SupCon of two views, with nine classes in the batch."""
    xp = library(x)
    labels = xp.arange(x.shape[0]) % 9
    return pnce.supcon(xp.concatenate([x, y]), xp.concatenate([labels, labels]), temperature=t, **options)


def max_sim(x: Any, y: Any, t: float, *, masks: Any = (None, None), **options: Any) -> Any:
    """InfoNCE of queries and documents of four tokens."""
    own = pnce.similarities.max_sim(query_mask=masks[0], document_mask=masks[1])
    query, document = (z.reshape((z.shape[0], 4, z.shape[1] // 4)) for z in (x, y))
    return pnce.info_nce(query, document, similarity=own, temperature=t, **options)


def masked_max_sim(x: Any, y: Any, t: float, **options: Any) -> Any:
    """InfoNCE of tokens with masks; some rows have no tokens."""
    masks = torch.rand((2, x.shape[0], 4), generator=torch.Generator().manual_seed(2)) < 0.8
    return max_sim(x, y, 4 * t, masks=masks, **options)


def judged(x: Any, y: Any, *, margin: float | None = None, **options: Any) -> Any:
    """A loss with the scores of a second model: distillation, or GISTEmbed if there is a margin."""
    teacher, student = (z.detach() if isinstance(z, torch.Tensor) else z for z in (x + y, x))
    if margin is not None:
        return pnce.gist_embed(x, y, teacher, student, temperature=0.1, margin=margin, **options)
    return pnce.distillation(x, y, teacher, student, temperature=0.1, teacher_temperature=0.05, **options)


def overlap(x: Any, y: Any, _: float, **options: Any) -> Any:
    """InfoNCE with shared labels as positives."""
    labels = pnce.pairings.overlap(x > 0, y > 1)
    return pnce.contrast(x, y, objective="info_nce", pairing=labels, temperature=0.1, **options)


def sogclr(x: Any, y: Any, t: float, **options: Any) -> Any:
    """The first step of SogCLR."""
    wide = torch.float64 if x.dtype == torch.float64 else library(x).float32
    return pnce.sogclr(x, y, library(x).zeros(x.shape[0], dtype=wide), temperature=t, **options)[0]


FORMS: dict[str, Loss] = {
    "info_nce": lambda x, y, t, **o: pnce.info_nce(x, y, temperature=t, **o),
    "clip": lambda x, y, t, **o: pnce.clip(x, y, logit_scale=1 / t, **o),
    "siglip": lambda x, y, t, **o: pnce.siglip(
        x, y, **{"logit_scale": 1 / t, "logit_bias": -10.0, "reduction": "sum", **o}
    ),
    "nt_xent": lambda x, y, t, **o: pnce.nt_xent(x, y, temperature=t, **o),
    "moco": lambda x, y, t, **o: pnce.moco(x, x, y, temperature=t, **o),
    "relic": lambda x, y, t, **o: pnce.relic(x, y, temperature=t, **o),
    "sogclr": sogclr,
    "supcon": supcon,
    "max_sim": masked_max_sim,
    "max_sim, symmetric": partial(masked_max_sim, symmetric=True),
    "overlap": overlap,
    "distillation": lambda x, y, _, **o: judged(x, y, **o),
    "distillation, symmetric": lambda x, y, _, **o: judged(x, y, symmetric=True, **o),
    "gist_embed": lambda x, y, _, **o: judged(x, y, margin=0.1, **o),
    "gist_embed, symmetric": lambda x, y, _, **o: judged(x, y, margin=0.1, symmetric=True, **o),
}
"""Losses of two arrays and a temperature."""


def bilinear(x: Any, y: Any, m: Any, s: float, **options: Any) -> Any:
    """InfoNCE of a bilinear similarity."""
    own = pnce.similarities.bilinear(m)
    return pnce.info_nce(x, y, temperature=1 / s, similarity=own, **{"reduction": "sum", **options})


def offsets(x: Any, y: Any, m: Any, _: float, **options: Any) -> Any:
    """InfoNCE of cosines plus a number of each column."""
    own = pnce.similarities.shifted_columns("cosine", m.reshape(-1)[: y.shape[0]])
    return pnce.info_nce(x, y, similarity=own, **{"temperature": 1 / 20, "block_size": 64, **options})


OF_THREE: dict[str, Loss] = {
    "bilinear": bilinear,
    "clip, bilinear": lambda x, y, m, s, **o: pnce.clip(
        x, y, logit_scale=s, similarity=pnce.similarities.bilinear(m), block_size=64, **o
    ),
    "cpc": lambda x, y, m, s, **o: pnce.cpc(x, y[None], m[None], temperature=1 / s, reduction="sum", **o),
    "cpc of cosines": lambda x, y, m, _, **o: pnce.cpc(
        x, y[None], m[None], temperature=1 / 40, similarity="cosine", **o
    ),
    "offsets": offsets,
}
"""Losses of two arrays, a matrix and a factor, whose scores are not plain products of 16-bit arrays."""

MARGINS = {"random": (1.0, 0.1, 1.0), "memorised": (0.02, 0.05, 1.0), "memorised, sharp": (0.05, 0.0125, 1.6)}
"""Distance of the arrays, temperature, and factor of inner products; memorised positives lead by up to 80."""

halves = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
margins = pytest.mark.parametrize("margin", MARGINS)
similarities = pytest.mark.parametrize("similarity", ["cosine", "dot"])


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Draw normal numbers."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def near_pairs(margin: str, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw two arrays, the second near the first."""
    a, noise = drawn(7, (rows, 32), (rows, 32))
    return a.to(dtype), (a + MARGINS[margin][0] * noise).to(dtype)


def near_identity(dtype: torch.dtype) -> torch.Tensor:
    """Draw a matrix near the identity."""
    (noise,) = drawn(4, (32, 32))
    return (torch.eye(32) + 0.1 * noise).to(dtype)


def of_dtype(numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Numbers in the dtype in which a loss of x is computed."""
    return numbers.to(torch.promote_types(x.dtype, torch.float32))


def results(loss: Loss, *arrays: torch.Tensor) -> list[torch.Tensor]:
    """Value and gradients."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    value = loss(*leaves)
    value.backward()
    return [value.detach(), *(x.grad for x in leaves if x.grad is not None)]


def exact(loss: Loss, *arrays: torch.Tensor) -> list[torch.Tensor]:
    """Value and gradients in float64."""
    return results(loss, *(x.double() for x in arrays))


def error(x: torch.Tensor, y: torch.Tensor) -> float:
    """Largest error of any row of x, in units in the last place of the row's largest entry."""
    limits = torch.finfo(x.dtype)
    x, y = (z.double().clamp(-limits.max, limits.max) for z in (x, y))  # larger is infinity
    scale = y.abs() if y.ndim == 0 else y.abs().flatten(1).amax(dim=1).reshape(-1, *[1] * (y.ndim - 1))
    found = float(((x - y).abs() / scale.clamp_min(limits.tiny / limits.eps)).max()) / limits.eps
    return math.inf if math.isnan(found) else found  # `max` ignores NaN


def errors(loss: Loss, *arrays: torch.Tensor) -> list[float]:
    """Errors of value and gradients against float64."""
    return [error(x, y) for x, y in zip(results(loss, *arrays), exact(loss, *arrays), strict=True)]


def distance(x: Any, y: Any) -> float:
    """Largest difference of arrays, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    wide: Any = [[z.double() if isinstance(z, torch.Tensor) else np.asarray(z, np.float64) for z in p] for p in pairs]
    found = [float(abs(a - b).max() / abs(b).max()) for a, b in wide]
    return math.inf if any(map(math.isnan, found)) else max(found)


def at(number: float, loss: Loss, **options: Any) -> Loss:
    """A loss of arrays alone, at a temperature or with a factor."""
    return lambda *arrays, **more: loss(*arrays, number, **options, **more)


# ------------------------------------------------------------------------------------------------------------ PyTorch


@halves
@margins
@pytest.mark.parametrize("form", FORMS)
def test_no_bit_is_lost(form: str, margin: str, dtype: torch.dtype) -> None:
    """Each row of the gradient is within one unit in the last place, however far the positives lead."""
    block: Any = {} if form in {"clip", "siglip", "supcon"} else {"block_size": 64}
    loss = at(MARGINS[margin][1], FORMS[form], **block)
    # At 80 nats the two parts of RELIC's gradient are ten times their sum, and each is rounded.
    limit = 4.0 if (form, margin) == ("relic", "memorised, sharp") else 1.0
    assert max(errors(loss, *near_pairs(margin, 200, dtype))) <= limit


@halves
@margins
@pytest.mark.parametrize("form", OF_THREE)
def test_no_bit_is_lost_of_what_is_computed(form: str, margin: str, dtype: torch.dtype) -> None:
    """Gradients of rows, columns and a matrix against float64; that of the matrix is a sum over all rows."""
    block: Any = {"block_size": 64} if form == "cpc" else {}
    loss = at(MARGINS[margin][2], OF_THREE[form], **block)
    limit = 1.0 if form == "offsets" else 0.6  # the others are products of float32
    assert max(errors(loss, *near_pairs(margin, 200, dtype), near_identity(dtype))) <= limit


@halves
@pytest.mark.parametrize("form", ["bilinear", "clip, bilinear"])
def test_the_gradient_of_a_matrix_of_float32_has_its_bits(form: str, dtype: torch.dtype) -> None:
    """Parameters often have more bits than embeddings; products with them are float32 products."""
    arrays = *near_pairs("memorised", 200, dtype), near_identity(torch.float32)
    found, wanted = (function(at(1.0, OF_THREE[form]), *arrays)[3] for function in (results, exact))
    assert distance(found, wanted) <= 5e-6


@margins
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)])
def test_no_bit_is_lost_between_two_formats(dtypes: tuple[torch.dtype, torch.dtype], margin: str) -> None:
    x, y = ((0.25 * z).to(dtype) for z, dtype in zip(near_pairs(margin, 200, torch.float32), dtypes, strict=True))
    options: Any = {"temperature": 0.0625 / MARGINS[margin][2], "similarity": "dot", "reduction": "sum"}
    value, *gradients = errors(partial(pnce.info_nce, **options), x, y)
    assert value <= 64
    assert max(gradients) <= 0.6


@similarities
@pytest.mark.parametrize("factor", [1e-37, 1e-25, 1.0, 1e18])
def test_rows_of_any_magnitude(factor: float, similarity: Any) -> None:
    """Products of bfloat16 rows overflow float32; the rows do not."""
    a, b = (x.bfloat16() for x in drawn(3, (12, 8), (12, 8)))
    a = torch.cat([a[:4] * factor, a[4:8] / factor if factor < 1 else a[4:8], a[8:]]).bfloat16()
    temperature = 0.5 if similarity == "cosine" else max(1.0, factor * 8)
    loss = partial(pnce.info_nce, temperature=temperature, similarity=similarity)
    assert all(bool(torch.isfinite(x).all()) for x in results(loss, a, b))
    if similarity == "cosine" or factor == 1.0:
        assert max(errors(loss, a, b)) <= 1.0


SHORT_AND_LONG = [
    (torch.float16, -20), (torch.float16, -17), (torch.float16, -12), (torch.float16, 12),
    (torch.bfloat16, -120), (torch.bfloat16, -60), (torch.bfloat16, 60), (torch.bfloat16, 110),
]  # fmt: skip
"""Dtypes, and exponents of factors that make rows shorter or longer than what is multiplied as it is, or nearly so."""


@pytest.mark.parametrize(("dtype", "power"), SHORT_AND_LONG)
@pytest.mark.parametrize("form", ["info_nce", "clip", "nt_xent", "siglip", "supcon", "max_sim, symmetric"])
def test_rows_times_a_power_of_2_lose_no_bit(form: str, dtype: torch.dtype, power: int) -> None:
    """A factor that is no power of 2 would round them again: by 2.3 units of the value, 8.7 of the gradient."""
    loss = at(0.0125, FORMS[form])
    a, b = (x.to(dtype) for x in drawn(3, (40, 16), (40, 16)))
    moved = a * 2.0**power
    kept = moved * 2.0**-power  # of float16 numbers below the smallest normal one, some bits
    some = torch.arange(40)[:, None] % 3 == 0
    assert torch.equal(loss(moved, b), loss(kept, b))
    assert torch.equal(loss(torch.where(some, moved, kept), b), loss(kept, b))

    def in_range(x: torch.Tensor, y: torch.Tensor) -> Any:
        return 2.0 ** min(power, 0) * loss(x, y)

    assert error(results(in_range, moved, b)[1], exact(in_range, moved, b)[1]) <= 1.0


@similarities
def test_rows_below_the_smallest_normal_number(similarity: Any) -> None:
    """No power of 2 in float32 scales them to 1."""
    a, b = drawn(3, (12, 8), (12, 8))
    a[:4] *= 1e-39
    a, b = a.bfloat16(), b.bfloat16()
    loss = partial(pnce.info_nce, temperature=0.5, similarity=similarity)
    found, wanted = results(loss, a, b), exact(loss, a, b)
    found[1], wanted[1] = found[1][4:], wanted[1][4:]
    assert max(map(error, found, wanted)) <= 1.0


@similarities
@pytest.mark.parametrize("factor", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("form", ["info_nce", "clip", "nt_xent"])
def test_short_rows_of_float16_leave_the_others_as_they_are(form: str, factor: float, similarity: str) -> None:
    """A row or column whose factor is far above the others does not limit their accuracy."""
    a, b = (4 * x for x in drawn(0, (40, 16), (40, 16)))
    b += a
    a[0] *= factor
    b[:3] *= factor
    scale = torch.tensor(5.0 if similarity == "cosine" else 0.05)

    def loss(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> Any:
        return FORMS[form](x, y, 1 / s, similarity=similarity)

    *others, by_scale = errors(loss, a.half(), b.half(), scale)
    assert max(others) <= 1.0
    assert by_scale * torch.finfo(torch.float32).eps <= 1e-4


@pytest.mark.parametrize("noise", [0.3, 0.03])
def test_the_gradient_of_a_scale_where_embeddings_have_almost_collapsed(noise: float) -> None:
    """It is a small difference of products, and must keep the last place despite rounded cotangents."""
    base, *others = drawn(0, (1, 256), (64, 256), (64, 256))
    a, b = ((base + noise * x).bfloat16() for x in others)
    by_scale = errors(lambda x, y, s: pnce.clip(x, y, logit_scale=s), a, b, torch.tensor(20.0))[-1]
    assert by_scale * torch.finfo(torch.float32).eps <= torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("form", ["n_tuple", "clip", "supcon"])
@pytest.mark.parametrize("size", [1e-13, 1e-20, 1e-30])
def test_inner_products_of_tiny_rows(size: float, form: str) -> None:
    a, b = ((x * size).bfloat16() for x in drawn(1, (6, 4), (6, 4)))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    losses: dict[str, Loss] = {
        "supcon": lambda x, y: pnce.supcon(x + y, labels, similarity="dot", temperature=1.0),
        "clip": lambda x, y: pnce.clip(x, y, similarity="dot", logit_scale=1.0),
        "n_tuple": pnce.n_tuple,
    }
    _, *found = results(losses[form], a, b)
    _, *wanted = exact(losses[form], a, b)
    assert distance(found, wanted) <= 2 * torch.finfo(torch.bfloat16).eps


def test_nan_is_seen_by_16_bit_products() -> None:
    x, labels = torch.rand((6, 4), generator=torch.Generator().manual_seed(0)).half() + 0.1, torch.arange(6) // 2
    assert pnce.supcon(x, labels, temperature=torch.tensor(torch.nan)).isnan()
    factors = torch.ones(6)
    factors[3] = torch.nan
    own = pnce.similarities.scaled_columns("cosine", factors)
    assert pnce.info_nce(x, x, similarity=own, reduction="none").isnan().all()
    for number in (-torch.inf, torch.inf, torch.nan):
        x[0, 0] = number
        assert pnce.supcon(x, labels).isnan()
        assert pnce.info_nce(x, x, mask=torch.eye(6) > -1).isnan()


def test_rows_that_do_not_count_may_hold_anything() -> None:
    a, b = (x.half() for x in drawn(6, (5, 4), (5, 4)))
    a[3] = torch.nan
    positives = torch.eye(5) > 0
    positives[3, 3] = False
    explicit = pnce.pairings.explicit(positives)
    one_each = pnce.pairings.Pairing(explicit.rule, pairs=(positives,), one_per_row=True)
    tokens = torch.tensor([[True] * 4] * 3 + [[False] * 4] + [[True, False, True, False]])
    options: Any = {"objective": "info_nce", "temperature": 0.5}
    losses: list[Loss] = [
        partial(pnce.contrast, pairing=pairing, similarity=similarity, **options)
        for pairing in (explicit, one_each)
        for similarity in ("cosine", "dot")
    ]
    repeated = at(0.1, max_sim, masks=(tokens, None), positives=positives)
    losses.append(lambda x, y: repeated(torch.cat([x] * 4, dim=1), torch.cat([y] * 4, dim=1)))
    for loss in losses:
        found, wanted = results(loss, a, b), exact(loss, a, b)
        if loss is not losses[-1]:
            found[1][3] = wanted[1][3] = 0.0  # its own gradient
        assert all(bool(x.isfinite().all()) for x in wanted)
        assert max(map(error, found, wanted)) <= 1.0
    x, y = (torch.where(z.isnan(), 1.0, z).to("meta") for z in (a, b))  # no values on meta
    of_numbers = torch.tensor([0, 1, 2, -1, 4], device="meta")
    assert pnce.info_nce(x, y, positives=of_numbers).shape == ()


@halves
@pytest.mark.parametrize("form", ["info_nce", "siglip"])
def test_a_row_of_no_number_leaves_the_gradients_of_other_rows(form: str, dtype: torch.dtype) -> None:
    a, b = (x.to(dtype) for x in drawn(8, (5, 4), (5, 4)))
    a[3, 1] = torch.nan
    loss = at(0.1, FORMS[form])
    found, wanted = (function(loss, a, b)[1][[0, 1, 2, 4]] for function in (results, exact))
    assert bool(wanted.isfinite().all())
    assert error(found, wanted) <= 1.0


@halves
@pytest.mark.parametrize("symmetric", [False, True])
def test_temperatures_of_rows_that_are_far_apart(dtype: torch.dtype, *, symmetric: bool) -> None:
    """Gradients of rows with little weight are as accurate as those of rows with much."""
    temperature = 10.0 ** torch.linspace(-1.5, 6.0, 64)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=of_dtype(temperature, x), symmetric=symmetric, reduction="sum")

    found, wanted = (function(loss, *near_pairs("random", 64, dtype))[1] for function in (results, exact))
    seen = wanted.abs().max(dim=1).values > 64 * torch.finfo(dtype).tiny
    assert int(seen.sum()) > 16
    assert error(found[seen], wanted[seen]) <= 1.0


EXPONENT = torch.tensor([-10, 0, 3, 8, 12, 17, 20, 21])
"""Exponents of row temperatures; the lengths of the rows compensate them in the gradient."""


@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_little_weight_have_their_bits(*, masked: bool) -> None:
    """float16 rows of which one has 2^26 times the temperature of another, and is as much shorter."""
    a, b = drawn(2, (8, 16), (8, 16))
    a *= 2.0 ** (-EXPONENT.clamp(max=20))[:, None]
    some = torch.rand((8, 8), generator=torch.Generator().manual_seed(3)) < 0.8
    mask = torch.logical_or(torch.eye(8) > 0, some) if masked else None

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=of_dtype(2.0**EXPONENT, x), mask=mask, reduction="sum")

    assert float(exact(loss, a.half(), b.half())[1].abs().amax(dim=1).min()) > 2.0**-8
    assert max(errors(loss, a.half(), b.half())) <= 1.0


@pytest.mark.parametrize("form", ["temperatures", "products", "products, symmetric"])
def test_tokens_of_little_weight_have_their_bits(form: str) -> None:
    of_products = form.startswith("products")
    a, b = drawn(2, (8, 2, 16), (8, 2, 16))
    a *= (2.0 ** (2 * of_products - EXPONENT.clamp(max=20)))[:, None, None]
    b *= 2.0 ** (5 * of_products)
    own = pnce.similarities.max_sim(normalize=not of_products)
    weights = torch.linspace(0.6, 0.9, 8)  # otherwise small gradients are sums of few powers of 2

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        temperature = 2.0**10 if of_products else of_dtype(2.0**EXPONENT, x)
        options: Any = {"reduction": "sum", "symmetric": form.endswith("symmetric"), "weights": weights.to(x.dtype)}
        return pnce.info_nce(x, y, temperature=temperature, similarity=own, **options)

    assert float(exact(loss, a.half(), b.half())[1].abs().amax(dim=(1, 2)).min()) > 2.0**-10
    assert max(errors(loss, a.half(), b.half())[1:]) <= 1.0


@halves
def test_a_column_at_minus_infinity_takes_no_part(dtype: torch.dtype) -> None:
    """All its scores are -inf, not NaN."""
    draw = torch.Generator().manual_seed(2)
    a, b = ((torch.rand((rows, 3), generator=draw) + 0.1).to(dtype) for rows in (4, 6))
    b[5, 0] = -torch.inf
    own: Any = {"objective": "info_nce", "similarity": "dot", "temperature": 0.5, "reduction": "none"}
    found = pnce.contrast(a, b, **own)
    assert bool(found.isfinite().all())
    assert torch.equal(found, pnce.contrast(a, b[:5], **own))


def shifted_twice(x: torch.Tensor) -> Any:
    """Cosine with two offsets of columns."""
    first, second = (of_dtype(numbers, x) for numbers in drawn(3, (32,), (32,)))
    return pnce.similarities.shifted_columns(pnce.similarities.shifted_columns("cosine", first), second)


SIMILARITIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "offsets upon offsets": shifted_twice,
    "factors of 0": lambda x: pnce.similarities.scaled_columns("cosine", torch.zeros(32, dtype=x.dtype)),
    "negative factors": lambda x: pnce.similarities.scaled_columns("cosine", torch.full((32,), -3.0, dtype=x.dtype)),
}
"""Each offset is one more column of the operands, without 16-bit parts; factors may have any sign."""


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarities_around_the_cosine(name: str) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pnce.info_nce(x, y, temperature=0.1 if "offsets" in name else 0.5, similarity=SIMILARITIES[name](x))

    assert max(errors(loss, *near_pairs("random", 32, torch.bfloat16))) <= 1.0


@halves
def test_zeros_and_what_takes_no_part(dtype: torch.dtype) -> None:
    a, b = (x.to(dtype) for x in drawn(5, (6, 4), (6, 4)))
    a[2] = 0
    mask = torch.ones((6, 6), dtype=torch.bool)
    mask[4], mask[:, 4] = False, False
    assert max(errors(partial(pnce.clip, logit_scale=2.0, mask=mask), a, b)) <= 1.0
    a[4] = torch.nan
    masked = partial(pnce.info_nce, temperature=0.5, mask=mask)
    assert all(bool(x.isfinite().all()) for x in exact(masked, a, b))
    assert max(errors(masked, a, b)) <= 1.0


@pytest.mark.parametrize("form", ["info_nce", "clip", "nt_xent", "supcon", "bilinear", "offsets"])
def test_derivatives_of_the_second_order_are_those_of_float32(form: str) -> None:
    """Second derivatives use float32 products: tangents have more than 16 bits."""
    *arrays, matrix = (x.bfloat16() for x in drawn(11, *[(64, 16)] * 3, (16, 16)))

    def curvature(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        value = FORMS[form](x, y, 0.1) if form in FORMS else OF_THREE[form](x, y, matrix.to(x.dtype), 0.25)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        return torch.autograd.grad((slope * v).sum(), x)[0]

    found, wanted = curvature(*arrays), curvature(*(x.double() for x in arrays))
    assert distance(found, wanted) <= 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("form", ["clip", "nt_xent", "info_nce"])
def test_ranks_multiply_sixteen_bits(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (x.bfloat16() for x in drawn(2, (12, 8), (12, 8)))
    loss = at(0.1, FORMS[form])
    adapter: Any = adapter_of(a)
    multiply, products = adapter.half_product, []

    def counted(x: torch.Tensor, y: torch.Tensor) -> Any:
        products.append((x.dtype, y.dtype))
        return multiply(x, y)

    def on_a_rank(group: Any) -> list[torch.Tensor]:
        own = slice(3) if group.rank == 0 else slice(3, None)
        return results(partial(loss, across=pnce.across(group, gradients="summed")), a[own], b[own])

    monkeypatch.setattr(adapter, "half_product", counted)
    first, second = run_ranks(2, on_a_rank)
    joined = [first[0], *(torch.cat([x, y]) for x, y in zip(first[1:], second[1:], strict=True))]
    assert max(map(error, joined, exact(loss, a, b))) <= 1.0
    assert len(products) >= 2 * 3
    assert set(products) == {(torch.bfloat16, torch.bfloat16)}


@pytest.mark.parametrize("form", mostly_full(["info_nce", "clip", "max_sim"]))
def test_a_compiled_loss_takes_any_number_of_rows(form: str) -> None:
    """The number of rows is symbolic, also in factors and parts."""
    torch.compiler.reset()
    loss = at(0.1, max_sim if form == "max_sim" else FORMS[form])
    compiled: Any = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (8, 12, 17):
        arrays = [x.bfloat16() for x in drawn(rows, (rows, 16), (rows, 16))]
        assert max(map(error, results(compiled, *arrays), exact(loss, *arrays))) <= 1.0


# ------------------------------------------------------------------------------------------- operands by themselves


def operand(x: torch.Tensor, dtype: torch.dtype) -> Operand:
    """The operand of 16-bit rows."""
    return Operand(x, *in_halves(x.to(dtype).float(), x, dtype))


def whole(x: Operand) -> np.ndarray[Any, Any]:
    """The rows that an operand multiplies."""
    return (x.part.double() / x.divisor.double()).numpy()


@halves
def test_scores_of_halves_are_those_of_their_rows(dtype: torch.dtype) -> None:
    """Numbers added to columns are added to their scores."""
    rows, columns, added = drawn(3, (4, 6), (7, 6), (7,))
    rows, columns = (x * 10.0 ** torch.arange(-3, len(x) - 3)[:, None] for x in (rows, columns))
    own, other = (operand(x, dtype) for x in (rows, columns))
    wanted = whole(own) @ whole(other).T
    scale = np.linalg.norm(whole(own), axis=1)[:, None] * np.linalg.norm(whole(other), axis=1)
    assert np.all(np.abs(product(own, other).numpy() - wanted) <= 2.0**-22 * scale)
    found = product(own, engine.with_added(other, added)).numpy()
    assert np.all(np.abs(found - wanted - added.numpy()) <= 2.0**-22 * (scale + np.abs(added.numpy())))


@pytest.mark.parametrize("of_halves", [False, True])
def test_rows_are_sharpened_where_nothing_is_differentiated(*, of_halves: bool) -> None:
    x, y = (z.bfloat16().float() for z in drawn(3, (3, 4), (5, 4)))
    sharpness = torch.tensor([0.5, 3.0, -1.0])

    def sharpened() -> tuple[Operand, Operand, tuple[Operand, Any]]:
        rows, columns = (operand(z, torch.bfloat16) if of_halves else Operand(z) for z in (x, y))
        return rows, columns, engine.sharpened_rows(rows, columns, sharpness)

    _, columns, (scaled, rest) = sharpened()
    assert rest is None
    torch.testing.assert_close(scaled.x, sharpness[:, None] * x)
    torch.testing.assert_close(product(scaled, columns), sharpness[:, None] * (x @ y.T))
    for leaf in (x, y):
        leaf.requires_grad_()
        rows, _, (scaled, rest) = sharpened()
        assert scaled is rows
        assert rest is sharpness
        leaf.requires_grad = False


@halves
@pytest.mark.parametrize("signs", [False, True])
def test_cotangents_of_halves_are_rounded_once(dtype: torch.dtype, *, signs: bool) -> None:
    """Cotangents of rows and columns, for residuals of any magnitude, with and without row coefficients and sums."""
    rows, columns = (operand(x, dtype) for x in drawn(5, (4, 6), (7, 6)))
    coefficient = torch.tensor([0.6, 1.4, 0.9, 1.2])
    for size, numbers in zip((1.0, 2.0**-60, 2.0**-90), drawn(6, *[(4, 7)] * 3), strict=True):
        residual = size * (numbers if signs else numbers.abs())
        sums = None if signs else residual.sum(dim=1)
        for own in (None, coefficient):
            factor = np.ones((4, 1)) if own is None else own.numpy()[:, None].astype(np.float64)
            scaled = residual.double().numpy() * factor
            of_all = np.abs(scaled) @ np.abs(whole(columns)), np.abs(scaled).T @ np.abs(whole(rows))
            for wanted in ((True, True), (True, False), (False, True)):
                to_rows, to_columns = engine.pullback(residual.clone(), own, rows, columns, need_grad=wanted, sums=sums)
                found = to_rows, to_columns if to_columns is None else engine.with_divisor(to_columns, columns)
                expected = (scaled @ whole(columns), scaled.T @ whole(rows))
                for flag, x, y, most in zip(wanted, found, expected, of_all, strict=True):
                    assert (x is None) == (not flag)
                    if x is not None:
                        assert np.all(np.abs(x.numpy() - y) <= 2.0**-8 * most)


@pytest.mark.parametrize("signs", [False, True])
@halves
def test_the_sum_of_a_row_is_that_of_float32(dtype: torch.dtype, *, signs: bool) -> None:
    """With equal columns, the gradient of a row has the digits of float32."""
    rows = operand(drawn(1, (4, 2))[0], dtype)
    columns = operand(torch.tensor([[1.0, -3.0]]).repeat(5, 1), dtype)
    residual = torch.rand((4, 5), generator=torch.Generator().manual_seed(2)) - 0.25 * signs
    sums = None if signs else residual.sum(dim=1)
    found, _ = engine.pullback(residual.clone(), None, rows, columns, need_grad=(True, True), sums=sums)
    wanted = residual.double() @ torch.from_numpy(whole(columns))
    torch.testing.assert_close(found, wanted, rtol=2.0**-21, atol=0.0, check_dtype=False)


@halves
def test_one_large_entry_of_a_row_has_no_error(dtype: torch.dtype) -> None:
    rows, columns = (operand(x, dtype) for x in drawn(1, (4, 2), (5, 2)))
    residual = torch.zeros((4, 5))
    residual[:, 2] = torch.tensor([0.1, 1 / 3, 0.7, 123.4])
    sums = residual.sum(dim=1)
    found, _ = engine.pullback(residual.clone(), None, rows, columns, need_grad=(True, True), sums=sums)
    wanted = residual.double() @ torch.from_numpy(whole(columns))
    torch.testing.assert_close(found, wanted, rtol=2.0**-21, atol=0.0, check_dtype=False)


def test_cotangents_of_float16_have_small_entries_and_zeros() -> None:
    """Entries far below the largest keep their bits; rows and matrices of zeros have zero gradients."""
    x = torch.tensor([[0.0, 0.0], [1.0, -0.5], [-1.0, 0.5]])
    columns, rows = operand(x, torch.float16), operand(torch.tensor([[1.0, 0.5], [1.0, 0.25]]), torch.float16)
    small = 1.2345 * 2.0**-20
    residual = torch.tensor([[1.0, small, 0.0], [0.0, 0.0, 0.0]])
    to_rows = torch.tensor([[small, -0.5 * small], [0.0, 0.0]])
    to_columns = torch.tensor([[1.0, 0.5], [small, 0.5 * small], [0.0, 0.0]])
    for size in (1.0, 0.0):
        for sums in (None, size * residual.sum(dim=1)):
            found = engine.pullback(size * residual, None, rows, columns, need_grad=(True, True), sums=sums)
            wanted = (size * to_rows, size * to_columns)
            torch.testing.assert_close(found, wanted, rtol=2.0**-10 * size, atol=0.0)


@pytest.mark.parametrize("number", [0.0, -0.0])
def test_rows_that_are_multiplied_by_0_are_0(number: float) -> None:
    """Their divisor is neither 0 nor infinite."""
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    part, divisor = in_halves(x, number * x, torch.float16)
    assert bool((divisor > 0).all())
    assert bool(divisor.isfinite().all())
    assert torch.equal(part, torch.zeros_like(x).half())


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("of_halves", [False, True])
def test_rows_of_16_bits_have_divisors_in_their_products(
    emulated: set[str], *, of_halves: bool, recorded: bool
) -> None:
    if not of_halves:
        emulated.discard("cpu")
    x, y = (z.bfloat16() for z in drawn(3, (2, 3), (4, 3)))
    of_rows, of_columns = torch.tensor([[2.0], [-3.0]]), torch.tensor([[1.0], [0.5], [7.0], [-1.0]])
    wanted = (x.double() / of_rows) @ (y.double() / of_columns).T
    found = product_of_rows((x, of_rows.requires_grad_(recorded)), (y, of_columns))
    torch.testing.assert_close(found.detach(), wanted.float(), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------- JAX


@pytest.fixture
def on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let JAX use the 16-bit products of an accelerator on the host, where they are exact, under jit."""

    def chosen(*arrays: Any, default: Any, **_: Any) -> Any:
        return default(*arrays)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
    jax.clear_caches()
    yield
    jax.clear_caches()


accelerated = pytest.mark.usefixtures("on_an_accelerator")


def of_jax(seed: int, shape: tuple[int, ...], count: int, dtype: Any = jnp.bfloat16) -> list[Any]:
    """Draw arrays of normal numbers."""
    draw = np.random.default_rng(seed)
    return [jnp.asarray(draw.normal(size=shape), dtype=dtype) for _ in range(count)]


def in_every_mode(function: Callable[[Any, Any], Any], *, only: tuple[str, ...] = ()) -> Callable[..., dict[str, Any]]:
    """Derivatives of a function of two arrays, along two others, by every transformation of JAX."""
    gradient = jax.grad(function, (0, 1))
    in_pairs = jax.vmap(jax.vmap(gradient, (0, None)), (None, 0))

    def computed(a: Any, b: Any, u: Any, v: Any) -> dict[str, Any]:
        def along(x: Any, y: Any) -> Any:
            return jax.jvp(function, (x, y), (u, v))[1].astype(jnp.float32)

        def slope(x: Any, y: Any) -> Any:
            return sum(jnp.sum((g * w).astype(jnp.float32)) for g, w in zip(gradient(x, y), (u, v), strict=True))

        def of_both(x: Any, y: Any) -> Any:
            return jnp.sum(jax.vmap(function, (0, None))(x, y).astype(jnp.float32))

        modes: dict[str, Callable[[], Any]] = {
            "forward": lambda: along(a, b),
            "reverse": lambda: gradient(a, b),
            "forward over reverse": lambda: jax.jvp(gradient, (a, b), (u, v))[1],
            "reverse over reverse": lambda: jax.grad(slope, (0, 1))(a, b),
            "reverse over forward": lambda: jax.grad(along, (0, 1))(a, b),
            "vmap of reverse": lambda: jax.vmap(gradient, (None, 1))(a, jnp.stack([b, v], axis=1)),
            "reverse of vmap": lambda: jax.grad(of_both, (0, 1))(jnp.stack([a, u]), b),
            "vmap of both": lambda: in_pairs(jnp.stack([a, u]), jnp.stack([b, v])),
        }
        return {mode: modes[mode]() for mode in only or modes}

    return jax.jit(computed)


@accelerated
def test_jax_transforms_products_of_sixteen_bits() -> None:
    """In a rematerialised scan; cotangents are rounded to 16 bits, tangents are not."""

    def parts(x: Any, half: Any) -> Operand:
        return Operand(x, jax.lax.stop_gradient(x).astype(half), jnp.ones_like(x[:, :1]))

    def in_blocks(x: Any, y: Any, *, half: Any) -> Any:
        def step(carry: Any, block: Any, start: Any) -> Any:
            del start
            scores = product(parts(block[0], half), parts(y, half))
            return (carry[0] + jnp.sum(jnp.sin(scores), axis=0),), (jnp.sum(jnp.cos(0.3 * scores), axis=1),)

        (total,), (each,) = adapter_of(x).scan(step, (jnp.zeros(6),), (x,), 2)
        return jnp.sum(jnp.sin(total)) + jnp.sum(each**2)

    def at_once(x: Any, y: Any) -> Any:
        scores = x @ y.T
        each = jnp.sum(jnp.cos(0.3 * scores), axis=1)
        return jnp.sum(jnp.sin(jnp.sum(jnp.sin(scores), axis=0))) + jnp.sum(each**2)

    plainly = in_every_mode(at_once)
    for half in (jnp.bfloat16, jnp.float16):
        arrays = [x.astype(jnp.float32) for x in of_jax(2, (6, 5), 4, half)]
        wanted = plainly(*arrays)
        for mode, found in in_every_mode(partial(in_blocks, half=half))(*arrays).items():
            assert distance(found, wanted[mode]) <= (2e-6 if mode == "forward" else 2.0**-8), (half, mode)


SECOND = ("forward over reverse", "reverse over reverse", "reverse over forward")


def in_float64(loss: Loss, *arrays: Any) -> dict[str, Any]:
    """Derivatives of a loss in the same modes, by PyTorch."""
    a, b, u, v = (torch.tensor(np.asarray(x, dtype=np.float64), requires_grad=True) for x in arrays)

    def gradient(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        return [*torch.autograd.grad(loss(x, y), (x, y), create_graph=True)]

    ab, ub, av, uv = gradient(a, b), gradient(u, b), gradient(a, v), gradient(u, v)
    along = (ab[0] * u).sum() + (ab[1] * v).sum()
    second = torch.autograd.grad(along, (a, b), retain_graph=True)
    modes = {
        "forward": along,
        "reverse": ab,
        **dict.fromkeys(SECOND, second),
        "vmap of both": [torch.stack(four).reshape(2, 2, *a.shape) for four in zip(ab, ub, av, uv, strict=True)],
    }
    return jax.tree.map(lambda x: x.detach().numpy(), modes)


MODES: dict[str, tuple[str, ...]] = {
    "info_nce": ("forward", "reverse", *SECOND, "vmap of both"),
    "clip": ("reverse", "forward over reverse", "vmap of both"),
    "bilinear": ("forward", "reverse over reverse", "forward over reverse"),
    "offsets": ("reverse", "reverse over reverse", "vmap of both"),
    "relic": ("forward", "forward over reverse"),
}
"""The transformations tested with each loss. Products have all those above."""


@accelerated
@pytest.mark.parametrize("form", mostly_full(MODES))
def test_jax_differentiates_in_every_mode(form: str) -> None:
    """As PyTorch in float64, up to the 16-bit rounding of intermediate results by JAX."""
    (matrix,) = of_jax(3, (5, 5), 1)

    def loss(x: Any, y: Any) -> Any:
        own: dict[str, Any] = {} if form == "clip" else {"reduction": "none", "block_size": 5}  # one pass, or two
        if form in FORMS:
            values = FORMS[form](x, y, 0.5, **own)
        elif form == "offsets":
            values = offsets(x, y, y, 1.0, temperature=0.5, **own)
        else:
            further = matrix if isinstance(x, jax.Array) else torch.tensor(np.asarray(matrix, dtype=np.float64))
            values = bilinear(x, y, further, 1.0, **own)
        return values.sum() if isinstance(x, torch.Tensor) else jnp.sum(values.astype(jnp.float32))

    arrays = of_jax(4, (12, 5), 4)
    wanted = in_float64(loss, *arrays)
    for mode, found in in_every_mode(loss, only=MODES[form])(*arrays).items():
        assert distance(found, wanted[mode]) <= 2.0**-7, mode


@accelerated
def test_jax_flushes_what_is_tiny_and_has_finite_gradients() -> None:
    """XLA flushes numbers below 2^-126."""
    gradient = jax.jit(jax.grad(lambda x, t: pnce.info_nce(x, x, temperature=t), (0, 1)))
    found = gradient(jnp.eye(4, dtype=jnp.float16), jnp.float32(1 / 85))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in found)


@accelerated
def test_jax_maps_products_of_sixteen_bits_over_a_mesh() -> None:
    """JAX tracks which of rows and columns vary over the axes of a mesh, even of one device."""
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    a, b = of_jax(5, (6, 5), 2)

    def alone(x: Any, y: Any) -> Any:
        return jnp.sum(pnce.info_nce(x, y, temperature=0.7, reduction="none", block_size=2).astype(jnp.float32))

    def added_up(x: Any, y: Any) -> Any:
        total: Any = jax.lax.psum
        return total(alone(x, y), "a")

    place: Any = jax.P
    wanted = jax.jit(jax.grad(alone, (0, 1)))(a, b)
    for function, *specs in ((added_up, "a", None), (added_up, None, "a"), (alone, None, None)):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=tuple(map(place, specs)), out_specs=place())
        assert distance(jax.jit(jax.grad(mapped, (0, 1)))(a, b), wanted) <= 2.0**-7, specs


@accelerated
@halves
@margins
@pytest.mark.parametrize(
    "form",
    mostly_full(["info_nce", "supcon", "relic", "sogclr", "bilinear", "offsets"], ["info_nce", "supcon", "relic"]),
)
def test_jax_loses_no_bit_in_two_passes(form: str, margin: str, dtype: torch.dtype) -> None:
    """As `test_no_bit_is_lost`."""
    _, temperature, factor = MARGINS[margin]

    matrix = near_identity(dtype).float()

    def loss(x: Any, y: Any) -> Any:
        own: dict[str, Any] = {"reduction": "none", "block_size": 40}
        if form in FORMS:
            return FORMS[form](x, y, temperature, **own).sum()
        further = jnp.asarray(matrix.numpy(), x.dtype) if isinstance(x, jax.Array) else matrix.to(x.dtype)
        return OF_THREE[form](x, y, further, factor, **own).sum()

    a, b = near_pairs(margin, 96, dtype)
    narrow = getattr(jnp, str(dtype).removeprefix("torch."))
    found = jax.jit(jax.grad(loss, (0, 1)))(*(jnp.asarray(x.float().numpy()).astype(narrow) for x in (a, b)))
    _, *wanted = exact(loss, a, b)
    for x, y in zip(found, wanted, strict=True):
        limit = 5.0 if (form, margin) == ("relic", "memorised, sharp") else 1.0
        assert error(torch.tensor(np.array(x, dtype=np.float32)).to(dtype), y) <= limit
