"""The path from the arguments of a loss to its result: what losses use of it."""

from .checks import check_hardness
from .embeddings import contrast, contrast_embeddings, statistics_of_rows
from .entry import (
    Entered,
    enter_embeddings,
    has_own_column,
    pair_scores,
    result_dtype,
    same_width,
    scale_of,
    shards_of_rows,
)
from .matrices import sharpness_of
from .records import ANY, PAIRED, ColumnLayout, Embedding, LossOptions
from .results import add, finish
from .scores import contrast_scores, loss_of_scores

__all__ = [
    "ANY",
    "PAIRED",
    "ColumnLayout",
    "Embedding",
    "Entered",
    "LossOptions",
    "add",
    "check_hardness",
    "contrast",
    "contrast_embeddings",
    "contrast_scores",
    "enter_embeddings",
    "finish",
    "has_own_column",
    "loss_of_scores",
    "pair_scores",
    "result_dtype",
    "same_width",
    "scale_of",
    "shards_of_rows",
    "sharpness_of",
    "statistics_of_rows",
]
