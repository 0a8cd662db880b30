"""Functions of PyTorch, JAX and NumPy under the same names, with which formulas are written once.

Each library has its own kernels here (`torch.nn.functional.cross_entropy`, `torch.cdist`, `jax.nn.softplus`), as a user
of that library would choose them. What all arrays have as methods (`x.T`, `x.sum(1)`, `x.mean()`, `x.diagonal()`) is
not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

Kit = SimpleNamespace


def _torch() -> Kit:
    import torch  # noqa: PLC0415  (a process imports only its library)
    from torch.nn import functional  # noqa: PLC0415

    def squares(x: Any, y: Any) -> Any:
        return ((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.T)).clamp(min=0)

    return Kit(
        **{name: getattr(torch, name) for name in ("arange", "argmax", "concat", "exp", "log", "log1p", "logaddexp")},
        **{name: getattr(torch, name) for name in ("log_softmax", "logsumexp", "relu", "sigmoid", "softmax", "sqrt")},
        **{name: getattr(torch, name) for name in ("abs", "clip", "quantile", "stack", "where")},
        asarray=torch.asarray,
        cross_entropy=functional.cross_entropy,
        distances=torch.cdist,
        eye=lambda n: torch.eye(n, dtype=torch.bool),
        max=torch.amax,
        min=torch.amin,
        norm=lambda x, axis: x.norm(dim=axis),
        softplus=functional.softplus,
        squares=squares,
        std=lambda x: x.std(correction=0),
        stop=lambda x: x.detach(),
        sum_by=lambda x, labels, n: torch.zeros(n, dtype=x.dtype).index_add(0, labels, x),
        take=lambda x, index: x.gather(1, index),
        top_k=lambda x, k: x.topk(k, dim=1),
        unit=lambda x: functional.normalize(x, dim=-1),
        zeros=lambda n: torch.zeros(n, dtype=torch.int64),
    )


def _jax() -> Kit:
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def cross_entropy(scores: Any, targets: Any, reduction: str = "mean") -> Any:
        losses = -jnp.take_along_axis(jax.nn.log_softmax(scores, axis=1), targets[:, None], axis=1)[:, 0]
        return losses.mean() if reduction == "mean" else losses

    def squares(x: Any, y: Any) -> Any:
        return jnp.maximum((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.T), 0)

    def distances(x: Any, y: Any) -> Any:
        square = squares(x, y)
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    return Kit(
        **{name: getattr(jnp, name) for name in ("abs", "arange", "argmax", "asarray", "clip", "exp", "log", "log1p")},
        **{name: getattr(jnp, name) for name in ("logaddexp", "max", "min", "quantile", "sqrt", "stack", "std")},
        **{name: getattr(jax.nn, name) for name in ("log_softmax", "logsumexp", "relu", "sigmoid", "softmax")},
        concat=jnp.concatenate,
        cross_entropy=cross_entropy,
        distances=distances,
        eye=lambda n: jnp.eye(n, dtype=bool),
        norm=lambda x, axis: jnp.linalg.norm(x, axis=axis),
        softplus=jax.nn.softplus,
        squares=squares,
        stop=jax.lax.stop_gradient,
        sum_by=jax.ops.segment_sum,
        take=lambda x, index: jnp.take_along_axis(x, index, axis=1),
        top_k=jax.lax.top_k,
        unit=lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
        where=jnp.where,
        zeros=lambda n: jnp.zeros(n, dtype=int),
    )


def _numpy() -> Kit:
    """Give what values without gradients need."""
    import numpy as np  # noqa: PLC0415

    def logsumexp(x: Any, axis: Any) -> Any:
        largest = x.max(axis=axis, keepdims=True)
        return np.log(np.exp(x - largest).sum(axis)) + largest.squeeze(axis)

    def top_k(x: Any, k: int) -> tuple[Any, Any]:
        index = np.argpartition(-x, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(x, index, axis=1), axis=1)
        index = np.take_along_axis(index, order, axis=1)
        return np.take_along_axis(x, index, axis=1), index

    return Kit(
        **{name: getattr(np, name) for name in ("abs", "arange", "clip", "exp", "log", "max", "min", "sqrt", "where")},
        asarray=np.asarray,
        concat=np.concatenate,
        stack=np.stack,
        cross_entropy=lambda x, targets: (logsumexp(x, 1) - x[np.arange(len(x)), targets]).mean(),
        eye=lambda n: np.eye(n, dtype=bool),
        logsumexp=logsumexp,
        norm=lambda x, axis: np.linalg.norm(x, axis=axis),
        quantile=np.quantile,
        squares=lambda x, y: np.maximum((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.T), 0),
        softmax=lambda x, axis: np.exp(x - logsumexp(x, axis)[:, None]),
        sum_by=lambda x, labels, n: np.bincount(labels, x, n).astype(x.dtype),
        take=lambda x, index: np.take_along_axis(x, index, axis=1),
        top_k=top_k,
        unit=lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    )


_MAKERS: Final[dict[str, Callable[[], Kit]]] = {"torch": _torch, "jax": _jax, "numpy": _numpy}


@cache
def kit(library: str) -> Kit:
    """Give the functions of a library."""
    return _MAKERS[library]()
