"""Copies inside of other packages beside the installed package: each keeps to itself, and they get along."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import portable_nce as installed

with_compat: Any = import_module("dummy._vendor.portable_nce")
without_compat: Any = import_module("plain.portable_nce")
PACKAGES = {"installed": installed, "dummy": with_compat, "plain": without_compat}

X, Y = np.random.default_rng(0).normal(size=(2, 5, 3))

ours = pytest.mark.parametrize("inner", PACKAGES.values(), ids=PACKAGES)
theirs = pytest.mark.parametrize("outer", PACKAGES.values(), ids=PACKAGES)


def door(package: Any) -> Any:
    return import_module(f"{package.__name__}._core.namespace")


def test_vendored_copies_use_their_own_array_api_compat() -> None:
    assert door(with_compat).library_namespace(X).__name__ == "dummy._vendor.array_api_compat.numpy"
    assert door(without_compat).library_namespace(X).__name__ in {"numpy", "array_api_compat.numpy"}
    assert len({id(package.info_nce) for package in PACKAGES.values()}) == len(PACKAGES)


@ours
def test_the_same_numbers(inner: Any) -> None:
    for loss in ("info_nce", "clip", "siglip"):
        options = {"temperature": 0.5} if loss == "info_nce" else {"logit_scale": 2.0}
        options |= {"logit_bias": -1.0} if loss == "siglip" else {}
        expected = installed.value_and_grad(getattr(installed, loss), argnums=(0, 1))(X, Y, **options)
        found = inner.value_and_grad(getattr(inner, loss), argnums=(0, 1))(X, Y, **options)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


@ours
@theirs
def test_a_vendored_copy_differentiates_the_losses_of_another(inner: Any, outer: Any) -> None:
    def loss(x: Any, y: Any) -> Any:
        return inner.info_nce(x, y, temperature=0.5)

    expected, gradients = installed.value_and_grad(loss, argnums=(0, 1))(torch.tensor(X), torch.tensor(Y))
    for convert in (np.asarray, torch.tensor):
        value, found = outer.value_and_grad(loss, argnums=(0, 1))(convert(X), convert(Y))
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-13)
        for one, wanted in zip(found, gradients, strict=True):
            np.testing.assert_allclose(np.asarray(one), wanted, rtol=1e-12, atol=1e-15)


@ours
@theirs
def test_constants_may_stay_outside(inner: Any, outer: Any) -> None:
    # The positive's weight of DCLW and RELIC's target hold parts of the loss fixed.
    def loss(x: Any) -> Any:
        weighted = inner.dclw(x, Y, temperature=0.5, detach_weights=True, block_size=2)
        return weighted + inner.relic(x, Y, temperature=0.5, stop_gradient="first") + inner.stop_gradient(x).sum()

    value, gradient = outer.value_and_grad(loss)(X)
    expected, wanted = inner.value_and_grad(loss)(X)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-15)


@ours
@theirs
def test_a_vendored_copy_differentiates_the_gradient_of_another(inner: Any, outer: Any) -> None:
    def slope(x: Any) -> Any:
        gradient = inner.grad(lambda x: inner.info_nce(x, Y, temperature=0.5))(x)
        return (gradient * gradient).sum()

    value, gradient = outer.value_and_grad(slope)(X)
    expected, wanted = inner.value_and_grad(slope)(X)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-11, atol=1e-14)


def test_a_registration_here_is_none_there() -> None:
    registries = [import_module(f"{package.__name__}._core.registry") for package in PACKAGES.values()]
    with_compat.register_backend("decimal")
    assert ["decimal" in registry._registered for registry in registries] == [False, True, False]  # noqa: SLF001
