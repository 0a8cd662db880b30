"""Bad input is refused with what was expected, what came, and how to mend it, by the name of the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import portable_nce as pnce

from variants import Variant, foreign_array

N, D = 4, 3


def embeddings(variant: Variant, rows: int = N, features: int = D, dtype: str | None = None) -> Any:
    return variant.floats([[float((3 * i + j) % 5) for j in range(features)] for i in range(rows)], dtype)


def integers(variant: Variant, rows: int = N, columns: int = D) -> Any:
    return variant.array([[(3 * i + j) % 5 for j in range(columns)] for i in range(rows)])


def truths(variant: Variant, rows: int, columns: int) -> Any:
    return variant.array([[True] * columns] * rows)


def two(variant: Variant) -> tuple[Any, Any]:
    return embeddings(variant), embeddings(variant)


Call = Callable[[Variant], Any]

SHAPES: dict[str, tuple[str, Call]] = {
    "query is a vector": ("query", lambda v: pnce.info_nce(v.floats([1.0, 2.0]), embeddings(v))),
    "query is a stack": ("query", lambda v: pnce.info_nce(v.floats([[[1.0, 2.0, 3.0]]]), embeddings(v))),
    "positive_key is a vector": ("positive_key", lambda v: pnce.info_nce(embeddings(v), v.floats([1.0, 2.0]))),
    "other feature count": ("positive_key", lambda v: pnce.info_nce(embeddings(v), embeddings(v, N, D + 1))),
    "fewer keys than queries": ("positive_key", lambda v: pnce.info_nce(embeddings(v), embeddings(v, N - 1))),
    "no rows": ("query", lambda v: pnce.info_nce(embeddings(v)[:0, :], embeddings(v))),
    "one row": ("positive_key", lambda v: pnce.info_nce(embeddings(v, 1), embeddings(v, 1))),
    "one row, nt_xent": ("view_", lambda v: pnce.nt_xent(embeddings(v, 1), embeddings(v, 1))),
    "one row, dcl": ("view_", lambda v: pnce.dcl(embeddings(v, 1), embeddings(v, 1))),
    "one row, flat_nce": ("view_", lambda v: pnce.flat_nce(embeddings(v, 1), embeddings(v, 1))),
    "one row, clip": ("text|image", lambda v: pnce.clip(embeddings(v, 1), embeddings(v, 1), logit_scale=1.0)),
    "negatives of other width": (
        "negative_keys",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5, D + 1)),
    ),
    "negatives for too few rows": (
        "negative_keys",
        lambda v: pnce.info_nce(*two(v), v.floats([[[1.0] * D]] * (N - 1))),
    ),
    "negatives a vector": ("negative_keys", lambda v: pnce.info_nce(*two(v), v.floats([1.0] * D))),
    "keys that are not the queries' with shared negatives": (
        "positive_key",
        lambda v: pnce.info_nce(embeddings(v), embeddings(v, N + 1), embeddings(v, 5)),
    ),
    "symmetric but not square": (
        "positive_key",
        lambda v: pnce.info_nce(embeddings(v), embeddings(v, N + 1), symmetric=True),
    ),
    "views of unequal size": ("view_b", lambda v: pnce.nt_xent(embeddings(v), embeddings(v, N + 1))),
    "image and text of unequal size": (
        "text",
        lambda v: pnce.clip(embeddings(v), embeddings(v, N + 1), logit_scale=1.0),
    ),
    "scores are a vector": ("scores", lambda v: pnce.from_scores.info_nce(v.floats([1.0, 2.0]))),
    "fewer columns than rows": ("scores", lambda v: pnce.from_scores.info_nce(embeddings(v, 4, 3))),
    "fewer columns than rows, flat_nce": ("scores", lambda v: pnce.from_scores.flat_nce(embeddings(v, 4, 3))),
    "fewer columns than rows, dcl": ("scores", lambda v: pnce.from_scores.dcl(embeddings(v, 4, 3))),
    "fewer columns than rows, bound": ("scores", lambda v: pnce.bounds.info_nce(embeddings(v, 4, 3))),
    "one column, bound": ("scores", lambda v: pnce.bounds.dual_critic(embeddings(v, 1, 1))),
    "critic of other length": ("u", lambda v: pnce.bounds.dual(embeddings(v, 3, 3), v.floats([1.0, 2.0]))),
    "mask of other shape": ("mask", lambda v: pnce.from_scores.info_nce(embeddings(v, 3, 3), mask=truths(v, 3, 4))),
    "mask of other shape, embeddings": ("mask", lambda v: pnce.info_nce(*two(v), mask=truths(v, N, N + 1))),
    "mask of the positives' shape": (
        "mask",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5), mask=truths(v, N, N)),
    ),
    "mask of pairs, nt_xent": ("mask", lambda v: pnce.nt_xent(*two(v), mask=truths(v, N, N))),
    "weights of other length": ("weights", lambda v: pnce.info_nce(*two(v), weights=v.floats([1.0] * (N + 1)))),
    "weights a matrix": ("weights", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), weights=embeddings(v, 3, 1))),
    "weights of other length, dcl": ("weights", lambda v: pnce.dcl(*two(v), weights=v.floats([1.0] * (N + 1)))),
    "positives of other length": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=v.array([0])),
    ),
    "positives of other shape": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=truths(v, 3, 2)),
    ),
    "temperature a vector": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=v.floats([1.0, 2.0]))),
    "logit_scale a vector": ("logit_scale", lambda v: pnce.clip(*two(v), logit_scale=v.floats([1.0, 2.0]))),
    "bilinear of other shape": (
        "weight",
        lambda v: pnce.info_nce(*two(v), similarity=pnce.similarities.bilinear(embeddings(v, D + 1, D))),
    ),
    "labels of other length": (
        "rows|labels",
        lambda v: pnce.contrast(embeddings(v), objective="info_nce", pairing=pnce.pairings.labels(v.array([0, 1, 0]))),
    ),
}

CHOICES: dict[str, tuple[str, Call]] = {
    "similarity": ("similarity", lambda v: pnce.info_nce(*two(v), similarity="cosin")),
    "reduction": ("reduction", lambda v: pnce.info_nce(*two(v), reduction="average")),
    "reduction of scores": ("reduction", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), reduction="average")),
    "multi_positive": ("multi_positive", lambda v: pnce.info_nce(*two(v), multi_positive="all")),
    "multi_positive of scores": (
        "multi_positive",
        lambda v: pnce.from_scores.info_nce(embeddings(v, 3, 3), multi_positive="all"),
    ),
    "form": ("form", lambda v: pnce.flat_nce(*two(v), form="exp")),
    "block_size 0": ("block_size", lambda v: pnce.info_nce(*two(v), block_size=0)),
    "block_size negative": ("block_size", lambda v: pnce.nt_xent(*two(v), block_size=-1)),
    "block_size text": ("block_size", lambda v: pnce.clip(*two(v), logit_scale=1.0, block_size="large")),
    "temperature 0": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=0.0)),
    "temperature negative": ("temperature", lambda v: pnce.nt_xent(*two(v), temperature=-0.1)),
    "temperature NaN": ("temperature", lambda v: pnce.dcl(*two(v), temperature=float("nan"))),
    "temperature infinite": ("temperature", lambda v: pnce.flat_nce(*two(v), temperature=float("inf"))),
    "logit_scale 0": ("logit_scale", lambda v: pnce.clip(*two(v), logit_scale=0.0)),
    "objective": ("objective", lambda v: pnce.contrast(*two(v), objective="infonce")),
    "pairing": ("pairing", lambda v: pnce.contrast(*two(v), objective="info_nce", pairing="diag")),
}

KINDS: dict[str, tuple[str, Call]] = {
    "integer embeddings": ("query", lambda v: pnce.info_nce(integers(v), integers(v))),
    "integer key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), integers(v))),
    "integer scores": ("scores", lambda v: pnce.from_scores.info_nce(integers(v, 3, 3))),
    "integer scores, bound": ("scores", lambda v: pnce.bounds.info_nce(integers(v, 3, 3))),
    "integer scores, diagnostics": ("scores", lambda v: pnce.diagnostics.effective_sample_size(integers(v, 3, 3))),
    "boolean scores": ("scores", lambda v: pnce.from_scores.dcl(truths(v, 3, 3))),
    "float labels": ("rows|labels", lambda v: pnce.pairings.labels(v.floats([0.0, 1.0]))),
    "float index": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=v.floats([0.0, 1.0, 2.0])),
    ),
    "float index, embeddings": ("positives", lambda v: pnce.info_nce(*two(v), positives=v.floats([0.0] * N))),
    "float mask": ("mask", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), mask=embeddings(v, 3, 3))),
    "integer mask": ("mask", lambda v: pnce.info_nce(*two(v), mask=integers(v, N, N))),
    "integer matrix of positives": (
        "positives",
        lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=integers(v, 3, 3)),
    ),
    "text temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature="warm")),
    "integer temperature array": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=v.array(1))),
    "boolean temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=True)),
    "list of embeddings": ("positive_key", lambda v: pnce.info_nce(embeddings(v), [[1.0] * D] * N)),
    "list of queries": ("query", lambda v: pnce.info_nce([[1.0] * D] * N, embeddings(v))),
    "list of scores": ("scores", lambda _: pnce.from_scores.info_nce([[1.0, 2.0], [3.0, 4.0]])),
    "number as scores": ("scores", lambda _: pnce.bounds.info_nce(1.0)),
    "list of weights": ("weights", lambda v: pnce.info_nce(*two(v), weights=[1.0] * N)),
    "list as mask": ("mask", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), mask=[[True] * 3] * 3)),
    "list as positives": ("positives", lambda v: pnce.from_scores.dcl(embeddings(v, 3, 3), positives=[0, 1, 2])),
    "list of negatives": ("negative_keys", lambda v: pnce.info_nce(*two(v), [[1.0] * D] * 5)),
    "None as key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), None)),
    "positives with own negatives": (
        "positives",
        lambda v: pnce.info_nce(*two(v), embeddings(v, 5), positives=v.array([0] * N)),
    ),
    "foreign key": ("positive_key", lambda v: pnce.info_nce(embeddings(v), foreign_array(v, [[1.0] * D] * N))),
    "foreign negatives": ("negative_keys", lambda v: pnce.info_nce(*two(v), foreign_array(v, [[1.0] * D] * 5))),
    "foreign text": ("text", lambda v: pnce.clip(embeddings(v), foreign_array(v, [[1.0] * D] * N), logit_scale=1.0)),
    "foreign weights": ("weights", lambda v: pnce.nt_xent(*two(v), weights=foreign_array(v, [1.0] * N))),
    "foreign critic": ("u", lambda v: pnce.bounds.dual(embeddings(v, 3, 3), foreign_array(v, [1.0] * 3))),
    "foreign temperature": ("temperature", lambda v: pnce.info_nce(*two(v), temperature=foreign_array(v, 1.0))),
}


@pytest.mark.parametrize("what", list(SHAPES))
def test_shapes(variant: Variant, what: str) -> None:
    name, call = SHAPES[what]
    with pytest.raises(ValueError, match=rf"(?s)\b({name}).*expected.*got"):
        call(variant)


@pytest.mark.parametrize("what", list(CHOICES))
def test_choices(variant: Variant, what: str) -> None:
    name, call = CHOICES[what]
    with pytest.raises(ValueError, match=rf"(?s)\b({name})\b.*expected.*got"):
        call(variant)


@pytest.mark.parametrize("what", list(KINDS))
def test_kinds(variant: Variant, what: str) -> None:
    name, call = KINDS[what]
    with pytest.raises((TypeError, ValueError), match=rf"(?s)\b({name})\b.*expected.*got"):
        call(variant)


@pytest.mark.parametrize("dtype", ["float64"])
def test_mixed_precision(variant: Variant, dtype: str) -> None:
    """Two floating-point dtypes: which one was meant is the caller's to say."""
    if "float32" not in variant.dtypes:
        assert variant.dtypes == (dtype,)
        return
    with pytest.raises(TypeError, match=r"(?s)positive_key.*expected.*float64.*got.*float32"):
        pnce.info_nce(embeddings(variant), embeddings(variant, dtype="float32"))


def test_two_devices(variant: Variant) -> None:
    """Arrays on two devices are not moved behind the caller's back."""
    if variant.other_device is None:
        assert variant.module in {"numpy", "cupy", "mparray"}
        return
    key = variant.array([[1.0] * D] * N, device=variant.other_device)
    weights = variant.array([1.0] * N, device=variant.other_device)
    with pytest.raises(ValueError, match=r"(?s)positive_key.*expected.*device.*got"):
        pnce.info_nce(embeddings(variant), key)
    with pytest.raises(ValueError, match=r"(?s)(weights.*expected.*device|expected.*device of weights).*got"):
        pnce.info_nce(*two(variant), weights=weights)
    with pytest.raises(ValueError, match=r"(?s)u.*expected.*device.*got"):
        pnce.bounds.dual(embeddings(variant, N, N), weights)


def test_options_are_keywords(variant: Variant) -> None:
    """Arrays by position, options by keyword."""
    with pytest.raises(TypeError):
        pnce.info_nce(*two(variant), None, 0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        pnce.info_nce(query=embeddings(variant), positive_key=embeddings(variant))  # type: ignore[call-arg]
