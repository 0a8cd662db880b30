"""Losses of other libraries, with the options that make them equal to a row's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from .rows import TAU, Peer

METRIC_LEARNING: Final = "pytorch-metric-learning"


def _info_nce(mode: str) -> tuple[Peer, ...]:
    def make() -> Callable[..., Any]:
        from info_nce import InfoNCE  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

        loss: Callable[..., Any] = InfoNCE(temperature=TAU, negative_mode=mode)
        return loss

    return (Peer(name="info-nce-pytorch", library="torch", make=make),)


def _metric_learning(make: Callable[[Any], Callable[..., Any]]) -> Peer:
    """Make a peer from a function of pytorch-metric-learning."""

    def loss() -> Callable[..., Any]:
        for part in ("losses", "miners", "reducers"):  # which become attributes
            import_module(f"pytorch_metric_learning.{part}")
        return make(import_module("pytorch_metric_learning"))

    return Peer(name=METRIC_LEARNING, library="torch", make=loss)


def _views(library: Any) -> Callable[..., Any]:
    import torch  # noqa: PLC0415

    loss = library.losses.NTXentLoss(temperature=TAU)
    return lambda x, y: loss(torch.cat([x, y]), torch.arange(len(x)).repeat(2))


def _distances(library: Any, **options: Any) -> Any:
    """Euclidean distances of embeddings as they are, not normalised."""
    return library.distances.LpDistance(normalize_embeddings=False, **options)


def _triplets(*, hard: bool) -> Callable[[Any], Callable[..., Any]]:
    def make(library: Any) -> Callable[..., Any]:
        plain = {"distance": _distances(library)}
        loss = library.losses.TripletMarginLoss(margin=0.2, reducer=library.reducers.MeanReducer(), **plain)
        miner = library.miners.BatchHardMiner(**plain) if hard else None
        return lambda x, labels, *_: loss(x, labels, miner and miner(x, labels))

    return make


def _optax(make: Callable[[Any, Any], Callable[..., Any]]) -> Peer:
    def loss() -> Callable[..., Any]:
        import jax.numpy as jnp  # noqa: PLC0415
        import optax  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

        return make(optax, jnp)

    return Peer(name="optax", library="jax", make=loss)


IN_BATCH: Final = _info_nce("unpaired")
PAIRED: Final = _info_nce("paired")
NT_XENT: Final = (
    _metric_learning(_views),
    _optax(
        lambda optax, jnp: (
            lambda x, y: optax.ntxent(jnp.concatenate([x, y]), jnp.tile(jnp.arange(len(x)), 2), temperature=TAU)
        )
    ),
)
SUPCON: Final = (_metric_learning(lambda library: library.losses.SupConLoss(temperature=TAU)),)
NCA: Final = (_metric_learning(lambda library: library.losses.NCALoss(distance=_distances(library, power=2))),)
CONTRASTIVE: Final = (_metric_learning(lambda library: library.losses.ContrastiveLoss(distance=_distances(library))),)
ALL_TRIPLETS: Final = (_metric_learning(_triplets(hard=False)),)
HARD_TRIPLETS: Final = (_metric_learning(_triplets(hard=True)),)
DIAGONAL: Final = (
    _optax(
        lambda optax, jnp: (
            lambda scores: optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(scores))).mean()
        )
    ),
)
TARGETS: Final = (
    _optax(
        lambda optax, _: lambda scores, targets: optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean()
    ),
)
PAIRWISE: Final = (
    _optax(
        lambda optax, jnp: lambda scores: optax.sigmoid_binary_cross_entropy(scores, jnp.eye(len(scores))).sum(1).mean()
    ),
)
