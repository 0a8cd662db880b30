"""The path from the arguments of a loss to its result: what losses use of it."""

from .entry import (
    check_hardness,
    enter_embeddings,
    has_own_column,
    pair_scores,
    result_dtype,
    same_width,
    scale_of,
    shards_of_rows,
    warn_of_arrays,
    warn_of_scale,
)
from .losses import contrast, contrast_embeddings, contrast_scores, loss_of_scores, statistics_of_rows
from .matrices import sharpness_of
from .records import ANY, PAIRED, Call, ColumnLayout, Embedding, LossOptions

__all__ = [
    "ANY",
    "PAIRED",
    "Call",
    "ColumnLayout",
    "Embedding",
    "LossOptions",
    "check_hardness",
    "contrast",
    "contrast_embeddings",
    "contrast_scores",
    "enter_embeddings",
    "has_own_column",
    "loss_of_scores",
    "pair_scores",
    "result_dtype",
    "same_width",
    "scale_of",
    "shards_of_rows",
    "sharpness_of",
    "statistics_of_rows",
    "warn_of_arrays",
    "warn_of_scale",
]
