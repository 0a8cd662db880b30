"""A remedy that names a call gives the value that the refused call meant."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import portable_nce as pnce
from portable_nce._hints import options as remedies

SCORES = np.random.default_rng(3).normal(size=(4, 4))
TEACHER = np.random.default_rng(4).normal(size=(4, 4))
X, Y, QUEUE = np.random.default_rng(5).normal(size=(3, 4, 3))
FUNCTIONS = [name for name in pnce.from_scores.__all__ if name != "cosent"]


def _parameters(x: Any) -> Any:
    return inspect.signature(x).parameters if callable(x) and not isinstance(x, type) else ()


def message_of(function: Any, *arrays: Any, **options: Any) -> str:
    """Message of the error that a call raises."""
    with pytest.raises(TypeError) as raised:
        function(*arrays, **options)
    return str(raised.value)


@pytest.mark.parametrize(("name", "option"), remedies.OF_ONE)
def test_a_remedy_of_one_function_is_in_its_error(name: str, option: str) -> None:
    function = attrgetter(name)(pnce)
    assert option not in inspect.signature(function).parameters
    assert remedies.OF_ONE[name, option] in message_of(function, **{option: 1})


LOSSES = [getattr(pnce, name) for name in pnce.__all__ if "weights" in _parameters(getattr(pnce, name))]


@pytest.mark.parametrize("option", [*remedies.OF_EMBEDDINGS, *remedies.ELSEWHERE, *remedies.INSTEAD])
def test_a_remedy_of_many_is_in_an_error(option: str) -> None:
    found = [message_of(loss, **{option: 1}) for loss in LOSSES if option not in _parameters(loss)]
    table = remedies.OF_EMBEDDINGS | remedies.ELSEWHERE
    for remedy in [table[option]] if option in table else remedies.INSTEAD[option]:
        assert any(remedy in message for message in found), remedy


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_directions_of_given_scores(name: str) -> None:
    """`from_scores.clip` is the mean of both directions of InfoNCE, and of no other loss."""
    function = getattr(pnce.from_scores, name)
    parameters = inspect.signature(function).parameters
    arrays = (SCORES, TEACHER) if "teacher_scores" in parameters else (SCORES,)
    mean = (function(*arrays) + function(*(x.T for x in arrays))) / 2
    if "symmetric" in parameters:
        np.testing.assert_allclose(function(*arrays, symmetric=True), mean, rtol=1e-12)
        return
    message = message_of(function, *arrays, symmetric=True)
    if "leave it out" in message:
        np.testing.assert_allclose(function(*arrays), mean, rtol=1e-12)
        return
    assert "scores.T" in message
    if "from_scores.clip" in message:
        np.testing.assert_allclose(pnce.from_scores.clip(SCORES), mean, rtol=1e-12)
    assert ("teacher_scores.T" in message) == ("teacher_scores" in parameters)


@pytest.mark.parametrize("name", ["info_nce", "supcon"])
def test_smoothed_targets_of_given_scores(name: str) -> None:
    """Soft targets as positives are cross-entropy with label smoothing."""
    function = getattr(pnce.from_scores, name)
    for option in ("label_smoothing", "smoothing"):
        assert "positives=(1 - smoothing) * eye(N) + smoothing / N" in message_of(function, SCORES, **{option: 0.1})
    assert "soft targets" in message_of(function, SCORES, pairing=pnce.pairings.smoothed(0.1))
    targets = (1 - 0.1) * np.eye(4) + 0.1 / 4
    logs = SCORES - np.log(np.exp(SCORES).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(function(SCORES, positives=targets), -(targets * logs).sum(axis=1).mean(), rtol=1e-12)


def test_smoothed_targets_of_embeddings() -> None:
    assert "pairings.smoothed(...)" in message_of(pnce.info_nce, X, Y, label_smoothing=0.1)
    options: Any = {"objective": "info_nce", "pairing": pnce.pairings.smoothed(0.1), "temperature": 0.5}
    cosines = (X / np.linalg.norm(X, axis=1, keepdims=True)) @ (Y / np.linalg.norm(Y, axis=1, keepdims=True)).T
    wanted = pnce.from_scores.info_nce(cosines / 0.5, positives=(1 - 0.1) * np.eye(4) + 0.1 / 4)
    np.testing.assert_allclose(pnce.contrast(X, Y, **options), wanted, rtol=1e-12)


def test_a_queue_of_negatives() -> None:
    assert "use moco(query, key, queue)" in message_of(pnce.info_nce, X, Y, queue=QUEUE)
    ours = pnce.moco(X, Y, QUEUE, temperature=0.5)
    np.testing.assert_allclose(ours, pnce.info_nce(X, Y, QUEUE, temperature=0.5), rtol=1e-12)


OTHER_SPELLINGS = [
    (pnce.siglip, {"logit_scale": 1.0, "logit_bias": 0.0, "pos_weight": 2.0}, "pairings.weighted(...)"),
    (pnce.clip, {"logit_scale": 1.0, "local_loss": True}, "pass across=portable_nce.across(...)"),
    (pnce.clip, {"logit_scale": 1.0, "gather_with_grad": True}, "pass across=portable_nce.across(...)"),
    (pnce.siglip, {"logit_scale": 1.0, "logit_bias": 0.0, "world_size": 2}, "pass across=portable_nce.across(...)"),
    (pnce.info_nce, {"temp": 0.1}, "pass temperature=..."),
    (pnce.clip, {"temp": 0.1}, "pass logit_scale=..., its inverse"),
    (pnce.nt_xent, {"tau_plus": 0.1}, "use hcl(view_a, view_b, tau_plus=...)"),
    (pnce.info_nce, {"tau_plus": 0.1}, "use hcl(view_a, view_b, tau_plus=...)"),
    (pnce.info_nce, {"pair_weights": 0.1}, "pairings.weighted(...)"),
]


@pytest.mark.parametrize(("function", "options", "remedy"), OTHER_SPELLINGS)
def test_options_of_other_libraries(function: Any, options: dict[str, Any], remedy: str) -> None:
    assert remedy in message_of(function, X, Y, **options)


MEANT = {
    "NTXentLoss": "use portable_nce.nt_xent",
    "losses": "functions of portable_nce",
    "mi": "portable_nce.estimation.mutual_information",
    "NCE": "portable_nce.density.local_nce",
    "ArcFaceLoss": "portable_nce.contrast",
    "CircleLoss": "portable_nce.from_scores.dcl",
    "MultiSimilarityLoss": "portable_nce.from_scores.info_nce",
    "ProxyNCALoss": "portable_nce.info_nce",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_name_of_another_library_has_a_remedy_in_an_import_too(name: str) -> None:
    """Python's own message of a failed import would not have it."""
    with pytest.raises(ImportError, match=MEANT[name]):
        exec(f"from portable_nce import {name}")  # noqa: S102  (a statement)
    with pytest.raises(AttributeError, match=MEANT[name]):
        getattr(pnce, name)
    assert not hasattr(pnce, name)


def test_names_of_modules() -> None:
    import portable_nce.modules.torch as modules

    for name, meant in (("NTXEnt", "NTXent"), ("ClipLoss", "CLIP"), ("Infonce", "InfoNCE"), ("Siglip", "SigLIP")):
        with pytest.raises(AttributeError, match=f"use portable_nce.modules.torch.{meant}$"):
            getattr(modules, name)
        with pytest.raises(ImportError, match=f"use portable_nce.modules.torch.{meant}$"):
            exec(f"from portable_nce.modules.torch import {name}")  # noqa: S102  (a statement)
    with pytest.raises(ImportError, match=r"use portable_nce\.bounds\.info_nce"):
        exec("from portable_nce.bounds import InfoNCE")  # noqa: S102
    assert not hasattr(modules, "NTXEnt")


def test_modules_and_unknown_names_are_imported_as_ever() -> None:
    exec("from portable_nce import testing, modules, bounds, _core")  # noqa: S102
    with pytest.raises(ImportError, match="cannot import name 'qqqq'"):
        exec("from portable_nce import qqqq")  # noqa: S102
