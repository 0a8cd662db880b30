"""The page of the catalogue says of every loss what the code says."""

from __future__ import annotations

from pathlib import Path

import catalogue


def test_the_page_shows_what_each_loss_is_made_of() -> None:
    assert catalogue.composition() in catalogue.PAGE.read_text(encoding="utf-8")


def test_the_page_shows_what_each_loss_has_passed() -> None:
    text = catalogue.PAGE.read_text(encoding="utf-8")
    for name in catalogue.losses():
        assert text.count(f"| `{name}` |") == 3  # in the table of its kind, of the variants, of the transforms
    assert "failed" not in text


def test_the_transforms_are_tests() -> None:
    source = (Path(__file__).parents[1] / "laws" / "test_transforms.py").read_text(encoding="utf-8")
    assert [test for tests in catalogue.TRANSFORMS.values() for test in tests if f"def {test}(" not in source] == []


def test_a_test_is_counted_for_the_loss_that_it_names() -> None:
    assert catalogue.loss_of("test_case[numpy-triplet_from_labels batch_hard-float64]") == "triplet_from_labels"
    assert catalogue.loss_of("test_torch_backward[None-info_nce own]") == "info_nce"
    assert catalogue.loss_of("test_jax_scores[scores dcl]") == "from_scores.dcl"
    assert catalogue.loss_of("test_jax_scores[ess]") is None
