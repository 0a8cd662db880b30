"""Calls that type checkers must refuse, at the lines marked and nowhere else: ten that users make, and further ones."""

from __future__ import annotations

import torch

import portable_nce as pnce
from portable_nce.modules.torch import InfoNCE

X = torch.eye(4, 3)


def misspelt_reduction() -> None:
    pnce.info_nce(X, X, reduction="average")  # wrong


def misspelt_similarity() -> None:
    pnce.nt_xent(X, X, similarity="cosin")  # wrong


def keyword_of_another_loss() -> None:
    pnce.clip(X, X, logit_scale=10.0, temperature=0.1)  # wrong


def list_for_an_array() -> None:
    pnce.info_nce(X, [[1.0, 0.0, 0.0]] * 4)  # wrong


def block_size_of_another_name() -> None:
    pnce.info_nce(X, X, block_size="all")  # wrong


def temperature_as_text() -> None:
    pnce.supcon(X, torch.arange(4), temperature="0.1")  # wrong


def option_by_position() -> None:
    pnce.info_nce(X, X, None, 0.1)  # wrong


def missing_key() -> None:
    pnce.info_nce(X, temperature=0.1)  # wrong


def mask_as_a_list() -> None:
    pnce.from_scores.info_nce(X @ X.T, mask=[True, True, False, True])  # wrong


def tensor_for_a_number() -> None:
    loss: float = pnce.bounds.js(X @ X.T)  # wrong
    loss.hex()


# Further ones.


def unknown_precision() -> None:
    pnce.moco(X, X, X, precision="low")  # also wrong


def unknown_rule_of_a_pair() -> None:
    pnce.triplet_from_labels(X, torch.arange(4) // 2, mining=("easy", "semi-hard"))  # also wrong


def mask_as_a_number() -> None:
    pnce.dcl(X, X, mask=1.0)  # also wrong


def option_of_a_gradient() -> None:
    pnce.value_and_grad(pnce.info_nce)(X, X, temprature=0.1)  # also wrong


def option_of_a_gradient_of_nested_losses() -> None:
    pnce.grad(pnce.matryoshka(pnce.nt_xent, [2, 3]))(X, X, reduction="max")  # also wrong


def option_of_a_module() -> None:
    InfoNCE(reduction="max")(X, X)  # also wrong


def text_for_embeddings() -> None:
    pnce.bounds.info_nce("scores")  # also wrong


def none_for_embeddings() -> None:
    pnce.flat_nce(X, None)  # also wrong


def result_as_a_tuple() -> None:
    column = torch.linspace(0.0, 1.0, 60)
    _p, *_others = pnce.estimation.independence_test(column, column, rng=0)  # also wrong


def seed_under_another_name() -> None:
    column = torch.linspace(0.0, 1.0, 60)
    pnce.estimation.mutual_information(column, column, seed=0)  # also wrong


TYPICAL = (
    misspelt_reduction,
    misspelt_similarity,
    keyword_of_another_loss,
    list_for_an_array,
    block_size_of_another_name,
    temperature_as_text,
    option_by_position,
    missing_key,
    mask_as_a_list,
    tensor_for_a_number,
)
FURTHER = (
    unknown_precision,
    unknown_rule_of_a_pair,
    mask_as_a_number,
    option_of_a_gradient,
    option_of_a_gradient_of_nested_losses,
    option_of_a_module,
    text_for_embeddings,
    none_for_embeddings,
    result_as_a_tuple,
    seed_under_another_name,
)
