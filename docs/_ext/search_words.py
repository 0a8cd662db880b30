"""Words that people search for, and the page or section that answers.

The site's search ranks them first. They are words that a title does not have.
"""

from __future__ import annotations

from typing import Any, Final

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

WORDS: Final = {
    "adopting": ("vendoring", "patch", "adopt"),
    "choosing": ("recommended temperature", "batch size"),
    "choosing#how-to-decide": ("how many negatives", "number of negatives", "false negatives"),
    "coming-from": ("migration", "equivalent", "lightly", "pytorch-metric-learning", "sentence-transformers"),
    "gpu": ("cuda", "torch.compile", "tensor cores"),
    "guarantees": ("nan", "second derivatives", "zero vectors"),
    "installation": ("install", "pip", "requirements", "cite", "citation", "bibtex", "license", "licence", "vendoring"),
    "mixed-precision": ("fp16", "bf16", "bfloat16", "float16", "amp", "autocast", "tf32", "half precision"),
    "mutual-information": ("mine", "nwj", "smile", "club", "critic", "variational bounds"),
    "names": ("arcface", "cosface", "bpr", "grace", "filip", "rince", "mil-nce", "infoloob", "label smoothing"),
    "options#across": ("gather",),
    "options#hard-negatives": ("hard negatives", "hard negative mining"),
    "options#labels": ("ignore index", "ignore_index", "unlabelled rows"),
    "options#learned-temperature": ("learned temperature", "learnable temperature", "logit scale"),
    "options#mask": ("padding", "duplicates", "masked pairs"),
    "queues": ("memory bank", "momentum encoder", "checkpoint"),
    "ranks": ("ddp", "fsdp", "multi-gpu", "several gpus", "all_gather", "distributed", "data parallel"),
    "recipe-clip": ("train clip", "resume"),
    "recipe-lightning": ("pytorch lightning", "trainer"),
    "recipe-retrieval": ("recall", "evaluation", "recommender", "logq"),
    "reference/generated/portable_nce.diagnostics.mean_reciprocal_rank": ("mrr", "mean reciprocal rank"),
    "reference/generated/portable_nce.diagnostics.recall_at": ("knn", "k nearest neighbours", "recall at k"),
    "reference/generated/portable_nce.diagnostics.top_k": ("knn", "k nearest neighbours", "nearest neighbour search"),
    "reference/generated/portable_nce.nca": ("knn", "nearest neighbour classification"),
    "reference/generated/portable_nce.similarities.max_sim": ("colbert", "late interaction"),
    "reference/generated/portable_nce.triplet_from_labels": (
        *("triplet mining", "triplet miner", "hard mining", "semi-hard", "batch hard"),
    ),
    "sampled-softmax": ("large vocabulary", "ranking nce"),
    "sbi": ("nre", "simulator", "likelihood-free inference"),
    "scaling": ("gradient caching", "gradcache", "gradient accumulation", "out of memory", "large batch"),
    "speed": ("benchmark", "memory", "performance"),
    "tape": ("autograd for numpy", "value_and_grad"),
    "two-arrays": ("confidence interval", "error bars", "estimate mutual information", "standard error"),
}
"""Words by page, or by page and section."""

LOGGER = logging.getLogger(__name__)


class SearchWords(SphinxTransform):
    """Add the words of a page to the index, as main entries."""

    default_priority = 5

    def apply(self, **options: Any) -> None:
        """Add one node a place."""
        del options
        for place, words in WORDS.items():
            page, _, section = place.partition("#")
            if page == self.env.docname:
                entries = [("single", word, section, "main", None) for word in words]
                self.document.insert(0, addnodes.index(entries=entries))


def check(app: Sphinx, environment: BuildEnvironment) -> None:
    """Warn of places that do not exist."""
    del app
    for place in WORDS:
        page, _, section = place.partition("#")
        found = page in environment.found_docs
        if not found or (section and section not in ids_of(environment, page)):
            LOGGER.warning("%s: expected a page or a section, got none; change docs/_ext/search_words.py", place)


def ids_of(environment: BuildEnvironment, page: str) -> set[str]:
    """Anchors of the sections of a page."""
    return {name for section in environment.get_doctree(page).findall(nodes.section) for name in section["ids"]}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_transform(SearchWords)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
