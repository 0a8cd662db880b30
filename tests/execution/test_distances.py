"""Distances by products: all digits where rows are close together, in every way that a tile may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce._core import distances
from portable_nce._core.distances import Near, negative_squares, pull_squares

RNG = np.random.default_rng(0)
N, D = 48, 24
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "neg_sq_euclidean": (lambda d: -d, lambda d: -np.ones_like(d)),
    "neg_euclidean": (lambda d: -np.sqrt(d), lambda d: np.where(d == 0, 0, -0.5 / np.sqrt(np.where(d == 0, 1, d)))),
    "cauchy": (lambda d: -np.log1p(d), lambda d: -1 / (1 + d)),
}


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


BASE, COPIES = normal(N, D), np.repeat(normal(N // 8, D), 8, axis=0)
CENTRES = np.repeat(normal(N // 8, D), 8, axis=0) * 30.0
OUTLIER = np.where(np.arange(N)[:, None] == 3, 1e4, 1.0) * BASE
ROWS: dict[str, tuple[Any, Any]] = {
    "usual": (BASE, BASE + 0.7 * normal(N, D)),
    "far from the origin": (1000 + BASE, 1000 + BASE + 0.3 * normal(N, D)),
    "pairs close together": (BASE, BASE + 1e-3 * normal(N, D)),
    "pairs of one row": (COPIES, COPIES.copy()),
    "clusters far apart": (CENTRES + 0.1 * normal(N, D), CENTRES + 0.1 * normal(N, D)),
    "one row far from the others": (OUTLIER, OUTLIER + 0.3 * normal(N, D)),
}
TEMPERATURE = {"neg_sq_euclidean": 8.0, "neg_euclidean": 1.0, "cauchy": 0.5}


@pytest.fixture(autouse=True)
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tile is small."""
    monkeypatch.setattr(distances, "_SMALL", 0)
    jax.clear_caches()
    yield
    jax.clear_caches()


def exact(x: Any, y: Any, similarity: str) -> tuple[Any, ...]:
    """InfoNCE and its gradients, from differences, with the digits of long double."""
    x, y = (np.asarray(z, dtype=np.longdouble) for z in (x, y))
    value, slope = FUNCTIONS[similarity]
    apart = x[:, None] - y
    squares = (apart * apart).sum(-1)
    scores = value(squares) / TEMPERATURE[similarity]
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -(np.diag(scores) - np.log(np.exp(scores).sum(axis=1))).mean()
    pull = (shares - np.eye(len(x))) / len(x) * slope(squares) * 2 / TEMPERATURE[similarity]
    pull = pull[:, :, None] * apart
    return loss, pull.sum(1), -pull.sum(0)


def of_torch(x: Any, y: Any, **options: Any) -> tuple[Any, ...]:
    tensors = [torch.tensor(z, requires_grad=True) for z in (x, y)]
    loss = pnce.info_nce(*tensors, **options)
    return loss.detach().numpy(), *(gradient.numpy() for gradient in torch.autograd.grad(loss, tensors))


def of_numpy(x: Any, y: Any, **options: Any) -> tuple[Any, ...]:
    value, gradients = pnce.value_and_grad(partial(pnce.info_nce, **options), argnums=(0, 1))(x, y)
    return value, *gradients


def of_jax(x: Any, y: Any, **options: Any) -> tuple[Any, ...]:
    loss = jax.jit(jax.value_and_grad(partial(pnce.info_nce, **options), argnums=(0, 1)))
    value, gradients = loss(jnp.asarray(x), jnp.asarray(y))
    return value, *gradients


LIBRARIES = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax}


def worst(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> list[float]:
    """Largest error of the value, and those of the gradients relative to their largest entry."""
    value, *gradients = (np.asarray(x, dtype=np.longdouble) for x in found)
    errors = [float(abs(value - wanted[0]))]
    return errors + [float(abs(a - b).max() / abs(b).max()) for a, b in zip(gradients, wanted[1:], strict=True)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("similarity", FUNCTIONS)
@pytest.mark.parametrize("rows", ROWS)
def test_float32_rows_keep_the_digits_of_float32(rows: str, similarity: str, library: str) -> None:
    x, y = (z.astype(np.float32) for z in ROWS[rows])
    wanted = exact(x, y, similarity)
    for block_size in ("auto", 20):
        options = {"similarity": similarity, "temperature": TEMPERATURE[similarity], "block_size": block_size}
        found = LIBRARIES[library](x, y, **options)
        assert all(np.asarray(a).dtype == np.float32 for a in found)
        assert max(worst(found, wanted)) <= 1e-6


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("similarity", FUNCTIONS)
@pytest.mark.parametrize("rows", ROWS)
def test_float64_rows_keep_their_digits_where_entries_can_be_read(rows: str, similarity: str, library: str) -> None:
    x, y = ROWS[rows]
    wanted = exact(x, y, similarity)
    for block_size in ("auto", 20):
        options = {"similarity": similarity, "temperature": TEMPERATURE[similarity], "block_size": block_size}
        # Differences of rows at 1e4 and at 1 round to 1e-12 of the small ones.
        assert max(worst(LIBRARIES[library](x, y, **options), wanted)) <= 2e-14


@pytest.mark.parametrize("similarity", FUNCTIONS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_losses_of_one_array_and_of_both_directions(similarity: str, *, symmetric: bool) -> None:
    """Two-sided sweeps, and classes of sorted labels, in one block and in several."""
    x, y = (torch.tensor(z) for z in ROWS["pairs close together"])
    labels = torch.arange(N) // 8
    losses: dict[str, Callable[..., Any]] = {
        "info_nce": lambda a, **k: pnce.info_nce(a, y, symmetric=symmetric, **k),
        "nt_xent": lambda a, **k: pnce.nt_xent(a, y, **k),
        "supcon": lambda a, **k: pnce.supcon(a, labels, **k),
        "nca": lambda a, **k: pnce.nca(a, labels, **k),
        "siglip": lambda a, **k: pnce.contrast(a, y, objective="logistic", **k),
    }

    def critic(a: Any, b: Any) -> Any:
        squares = ((a[..., :, None, :] - b[..., None, :, :]) ** 2).sum(-1)
        zero = squares == 0
        root = torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())
        return {"neg_sq_euclidean": -squares, "neg_euclidean": -root, "cauchy": -torch.log1p(squares)}[similarity]

    for name, loss in losses.items():
        results = []
        for chosen, block_size in ((critic, None), (similarity, None), (similarity, 16)):
            a = x.clone().requires_grad_()
            value = loss(a, similarity=chosen, temperature=TEMPERATURE[similarity], block_size=block_size)
            results.append((value.detach(), *torch.autograd.grad(value, a)))
        for value, gradient in results[1:]:
            assert torch.allclose(value, results[0][0], rtol=1e-12), name
            assert float((gradient - results[0][1]).abs().max() / results[0][1].abs().max()) < 1e-12, name


@pytest.mark.parametrize("similarity", FUNCTIONS)
def test_second_derivatives_are_those_of_differences(similarity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PyTorch, and in JAX's two modes, in float32 too."""
    x, y = (z[:6, :3] for z in ROWS["usual"])
    loss = partial(pnce.info_nce, similarity=similarity, temperature=1.0)
    a, b = (torch.tensor(z, requires_grad=True) for z in (x, y))
    assert torch.autograd.gradcheck(loss, (a, b))
    assert torch.autograd.gradgradcheck(loss, (a, b))
    single = [jnp.asarray(z, dtype=jnp.float32) for z in (x, y)]
    found = [jax.jit(jax.hessian(loss))(*single), jax.jacrev(jax.grad(loss))(*single)]
    batched = jax.vmap(jax.grad(loss))(*(jnp.stack([z, 2 * z]) for z in single))
    monkeypatch.setattr(distances, "_SMALL", 2**16)
    jax.clear_caches()
    wanted = jax.hessian(loss)(*single)
    for hessian in found:
        np.testing.assert_allclose(hessian, wanted, atol=2e-6 * float(abs(wanted).max()))
    for k, gradient in enumerate(batched):
        np.testing.assert_allclose(gradient, jax.grad(loss)(*(z * (k + 1) for z in single)), atol=1e-6)


def gaussian(xp: Any) -> pnce.similarities.Similarity:
    return pnce.similarities.elementwise(
        "neg_sq_euclidean", lambda g: xp.exp(0.05 * g), lambda g: 0.05 * xp.exp(0.05 * g)
    )


def angle(xp: Any) -> pnce.similarities.Similarity:
    return pnce.similarities.elementwise(
        "cosine", lambda g: -xp.arccos(0.999 * g), lambda g: 0.999 / xp.sqrt(1.0 - (0.999 * g) ** 2)
    )


@pytest.mark.parametrize(
    ("made", "critic"),
    [
        (gaussian, lambda a, b: torch.exp(-0.05 * ((a[:, None] - b) ** 2).sum(-1))),
        (
            angle,
            lambda a, b: (
                -torch.arccos(
                    0.999 * torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T,
                )
            ),
        ),
    ],
    ids=["a Gaussian kernel", "an angle"],
)
@pytest.mark.parametrize("block_size", [None, 16])
def test_elementwise_is_a_function_of_scores(made: Any, critic: Any, block_size: int | None) -> None:
    x, y = (torch.tensor(z) for z in ROWS["usual"])
    temperature = torch.tensor(0.3, dtype=torch.float64)
    for loss in (pnce.info_nce, partial(pnce.info_nce, symmetric=True), pnce.nt_xent):
        results = []
        for similarity in (critic, made(torch)):
            arrays = [z.clone().requires_grad_() for z in (x, y, temperature)]
            options = {"similarity": similarity, "block_size": block_size if similarity is not critic else None}
            value = loss(*arrays[:2], temperature=arrays[2], **options)
            results.append((value.detach(), *torch.autograd.grad(value, arrays)))
        for found, wanted in zip(*results[::-1], strict=True):
            assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-12


def test_elementwise_takes_inner_products_and_squared_distances() -> None:
    with pytest.raises(ValueError, match="similarity: expected 'dot', 'cosine', 'neg_sq_euclidean'"):
        pnce.similarities.elementwise("neg_euclidean", np.exp, np.exp)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="slope: expected a function"):
        pnce.similarities.elementwise("dot", np.exp, 1.0)  # type: ignore[arg-type]


@pytest.mark.internals
def test_near_pairs_are_those_of_their_differences() -> None:
    """Few near pairs are computed one by one; more of them take products of float64."""
    x = normal(40, 24).astype(np.float32)
    y = np.concatenate([x[:3], normal(37, 24).astype(np.float32)])
    for kind, rows in (("pairs", x), ("exact", np.repeat(x[:4], 10, axis=0))):
        y = y if kind == "pairs" else rows + np.float32(0.01) * y
        squares, near = negative_squares(rows, y)
        assert (near.rows is not None) == (kind == "pairs")
        wanted = -((rows[:, None].astype(np.longdouble) - y) ** 2).sum(-1)
        np.testing.assert_allclose(squares, wanted, rtol=1e-6)
        pulled: Any = pull_squares(near, np.ones_like(squares), rows, y, factor=None, need_grad=(True, True))
        apart = rows[:, None].astype(np.longdouble) - y
        np.testing.assert_allclose(pulled[0], -2 * apart.sum(1), rtol=2e-6, atol=1e-4)
        np.testing.assert_allclose(pulled[1], 2 * apart.sum(0), rtol=2e-6, atol=1e-4)


def test_no_row_and_no_column() -> None:
    for shape in ((0, 3), (4, 0)):
        x, y = normal(shape[0], 5), normal(shape[1], 5)
        squares, near = negative_squares(x, y)
        assert squares.shape == shape
        pulled = pull_squares(near, squares, x, y, factor=None, need_grad=(True, True))
        assert [z.shape for z in pulled if z is not None] == [x.shape, y.shape]
        assert isinstance(near, Near)


CONVERT: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
# On JAX, products of float32 rows are float64, and are rounded to float32.
WAYS = [("jax", 2**16), *((name, small) for name in ("numpy", "torch") for small in (0, 2**16))]


def slopes_of(loss: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    """Value and gradients, compiled on JAX, as NumPy arrays."""
    both: Any = pnce.value_and_grad(loss, argnums=(0, 1))
    value, slopes = (jax.jit(both) if isinstance(x, jax.Array) else both)(x, y)
    return [*map(np.asarray, (value, *slopes))]


@pytest.mark.parametrize(("library", "small"), WAYS)
@pytest.mark.parametrize(("dtype", "power"), [("float32", 80), ("float32", -80), ("float64", 800), ("float64", -800)])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of squares that are then left
def test_distances_of_any_length(
    library: str, small: int, dtype: str, power: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and temperature times a number leave the loss; their squares would overflow or be subnormal."""
    monkeypatch.setattr(distances, "_SMALL", small)
    x, y = (CONVERT[library](z.astype(dtype)) for z in (BASE[:12], BASE[:12] + 0.7))
    if "float32" in str(x.dtype):  # also float64 on JAX
        power = int(np.copysign(80, power))
    number = 2.0**power
    loss = partial(pnce.info_nce, similarity="neg_euclidean")
    value, *slopes = slopes_of(partial(loss, temperature=1.0), x, y)
    found, *others = slopes_of(partial(loss, temperature=number), x * number, y * number)
    eps = float(np.finfo(value.dtype).eps)
    np.testing.assert_allclose(found, value, rtol=16 * eps)
    for slope, other in zip(slopes, others, strict=True):
        np.testing.assert_allclose(other * number, slope, rtol=0.0, atol=32 * eps * float(np.max(np.abs(slope))))


@pytest.mark.parametrize(("library", "small"), WAYS)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_squares_that_overflow_mask_no_pair(library: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All scores are the same, the least number; with -inf, the loss would be 0."""
    monkeypatch.setattr(distances, "_SMALL", small)
    x, y = (CONVERT[library]((z * 1e25).astype("float32")) for z in (BASE[:12], BASE[12:24]))
    value, *slopes = slopes_of(partial(pnce.info_nce, similarity="neg_sq_euclidean", temperature=0.1), x, y)
    assert value == pytest.approx(np.log(12), rel=1e-5)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
