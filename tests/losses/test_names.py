"""The recipes of docs/names.md: at their edges, and those without a check on the page against loops in NumPy."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "names.md"
FIRST, *BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
N, D = 8, 16


def run(inputs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Run the page with other inputs than those of its first block.

    Returns the namespace, and our side of each comparison.
    """
    namespace: dict[str, Any] = {}
    ours: list[Any] = []
    exec(FIRST, namespace)  # noqa: S102  (code of the page)
    namespace |= {**inputs, "check": lambda value, _: ours.append(value)}
    for block in BLOCKS:
        exec(block, namespace)  # noqa: S102  (code of the page)
    return namespace, ours


# ------------------------------------------------------------------------------------------------- formulas in NumPy


def log_softmax_at(scores: np.ndarray, i: int) -> float:
    """Logarithm of the softmax of a row of scores at one column."""
    return float(scores[i] - np.log(np.exp(scores).sum()))


def grace(x: np.ndarray, y: np.ndarray, tau: float, **_: Any) -> float:
    """Zhu et al. (2020), arXiv:2006.04131, equations 1 and 2: pairs between and within views."""

    def one(u: np.ndarray, v: np.ndarray, i: int) -> float:
        within = sum(math.exp(u[i] @ u[k] / tau) for k in range(N) if k != i)
        between = sum(math.exp(u[i] @ v[k] / tau) for k in range(N) if k != i)
        own = math.exp(u[i] @ v[i] / tau)
        return math.log(own / (own + between + within))

    return -sum(one(x, y, i) + one(y, x, i) for i in range(N)) / (2 * N)


def filip(image: np.ndarray, text: np.ndarray, tau: float, **_: Any) -> float:
    """Yao et al. (2021), arXiv:2111.07783, equations 1 to 5: token-wise maxima, averaged over each side's tokens."""
    to_text, to_image = np.empty((N, N)), np.empty((N, N))
    for i, j in product(range(N), repeat=2):
        products = image[i] @ text[j].T
        to_text[i, j], to_image[j, i] = products.max(axis=1).mean(), products.max(axis=0).mean()
    of_images, of_texts = (np.mean([log_softmax_at(s[k] / tau, k) for k in range(N)]) for s in (to_text, to_image))
    return float(-0.5 * (of_images + of_texts))


def bcl(x: np.ndarray, labels: np.ndarray, centres: np.ndarray, tau: float, **_: Any) -> float:
    """Zhu et al. (2022), arXiv:2207.09052, section 3.3: class-averaging and class-complement."""
    losses = []
    for i in range(N):
        members = {c: [x[k] for k in range(N) if labels[k] == c and k != i] + [centres[c]] for c in range(3)}
        total = sum(np.mean([math.exp(x[i] @ z / tau) for z in of_class]) for of_class in members.values())
        losses.append(-np.mean([math.log(math.exp(x[i] @ z / tau) / total) for z in members[labels[i]]]))
    return float(np.mean(losses))


def rank_n_contrast(x: np.ndarray, target: np.ndarray, tau: float, **_: Any) -> float:
    """Zha et al. (2023), arXiv:2210.01189, equations 1 and 2: negatives at least as far in the target."""
    similarity = -np.sqrt(((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2))
    total = 0.0
    for i, j in product(range(N), repeat=2):
        if i != j:
            farther = [k for k in range(N) if k != i and abs(target[i] - target[k]) >= abs(target[i] - target[j])]
            total -= similarity[i, j] / tau - math.log(sum(math.exp(similarity[i, k] / tau) for k in farther))
    return total / (N * (N - 1))


def generalised(x: np.ndarray, y: np.ndarray, degrees: np.ndarray, **_: Any) -> float:
    """Leyva-Vallina, Strisciuglio and Petkov (2021), arXiv:2103.06638, equation 3, with the margin 0.5."""
    distances = np.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2))
    pairs = degrees * distances**2 / 2 + (1 - degrees) * np.maximum(0.5 - distances, 0) ** 2 / 2
    return float(pairs.mean())


def bpr(x: np.ndarray, y: np.ndarray, z: np.ndarray, **_: Any) -> float:
    """Rendle et al. (2009), arXiv:1205.2618, section 4.1, without the penalty: mean of -ln sigmoid(x_ui - x_uj)."""
    return float(np.mean([-math.log(1 / (1 + math.exp(u @ j - u @ i))) for u, i, j in zip(x, y, z, strict=True)]))


def spectral(x: np.ndarray, y: np.ndarray, **_: Any) -> float:
    """HaoChen et al. (2021), arXiv:2106.04156, equation 6: -2 E f(x)·f(x⁺) + E (f(x)·f(x'))²."""
    apart = [(x[i] @ y[j]) ** 2 for i, j in product(range(N), repeat=2) if i != j]
    return float(-2 * np.mean([x[i] @ y[i] for i in range(N)]) + np.mean(apart))


PAPERS: dict[str, Callable[..., float]] = {
    paper.__name__: paper for paper in (grace, filip, bcl, rank_n_contrast, generalised, bpr, spectral)
}


def test_recipes_without_a_check_are_the_papers_formulas() -> None:
    namespace, _ = run({})
    arrays = {key: value.numpy() for key, value in namespace.items() if isinstance(value, torch.Tensor) and value.ndim}
    tokens = {key: arrays.pop(key) for key in ("image", "text")}
    for name, paper in PAPERS.items():
        wanted = paper(**arrays, **tokens, tau=namespace["temperature"], centres=arrays["z"][:3])
        assert float(namespace[name]) == pytest.approx(wanted, rel=1e-12), name


# ------------------------------------------------------------------------------------------------------------- edges

UNIT = np.random.default_rng(5).normal(size=(3, N, D))
UNIT /= np.linalg.norm(UNIT, axis=2, keepdims=True)
EDGES: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {
    "pairs are identical": (UNIT[0], UNIT[0], UNIT[0]),
    "all are identical": (np.tile(UNIT[0, :1], (N, 1)),) * 3,
    "pairs are opposite": (UNIT[0], -UNIT[0], -UNIT[0]),
    "all are zero": (np.zeros((N, D)),) * 3,
    "some are zero": tuple(np.where(np.arange(N)[:, None] == k, 0.0, z) for k, z in enumerate(UNIT)),  # type: ignore[dict-item]
    "axes": (np.eye(N, D), np.eye(N, D), np.eye(N, D)[::-1].copy()),
    "nothing special": (UNIT[0], UNIT[1], UNIT[2]),
}


@pytest.mark.parametrize("temperature", [2e-3, 0.2, 1e3])
@pytest.mark.parametrize("edge", EDGES)
def test_recipes_are_finite_at_their_edges(edge: str, temperature: float) -> None:
    """Values and gradients of all recipes, by all embeddings."""
    inputs = {key: torch.tensor(z, requires_grad=True) for key, z in zip("xyz", EDGES[edge], strict=True)}
    namespace, compared = run({**inputs, "temperature": temperature})
    recipes: dict[Any, Any] = {**dict(enumerate(compared)), **{name: namespace[name] for name in PAPERS}}
    assert len(recipes) == len(re.findall(r"^check\(", "".join(BLOCKS), re.MULTILINE)) + len(PAPERS)
    for name, value in recipes.items():
        assert torch.isfinite(value), name
        if value.requires_grad:
            gradients: tuple[Any, ...] = torch.autograd.grad(
                value, [*inputs.values()], retain_graph=True, allow_unused=True
            )
            assert any(gradient is not None for gradient in gradients), name
            for gradient in gradients:
                assert gradient is None or torch.isfinite(gradient).all(), name
