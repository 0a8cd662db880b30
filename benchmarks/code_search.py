"""The task of `training.py`: code search by docstrings, an encoder, and losses of several libraries.

The data are functions of installed libraries. As in CodeSearchNet (Husain et al., 2019, arXiv:1909.09436), the first
paragraph of a docstring is the query for its function, in a held-out library. All losses but FlatNCE compute symmetric
InfoNCE.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import runpy
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, normalize

import portable_nce as pnce
from portable_nce.modules.torch import encode_in_chunks

TEMPERATURE: Final = 0.05
SHORTEST: Final = 3  # fewest words of a query and of a function, as in CodeSearchNet
VOCABULARY, WIDTH, CHUNK, LENGTHS = 10_000, 128, 128, (24, 64)
EAGER, OPEN_CLIP, SENTENCES = "cross_entropy", "open_clip", "sentence-transformers"
OURS, FLAT, CACHED = "portable_nce", "portable_nce, FlatNCE", ", in chunks"

Loss = Callable[[Any, Any], Any]


def files(library: str) -> Iterator[Path]:
    """List the modules of a library, without tests and vendored packages."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    root = stdlib if library == "stdlib" else Path(str(importlib.import_module(library).__file__)).parent
    left_out = {"test", "tests", "testing", "_vendor", "externals", "site-packages", "dist-packages", "idlelib"}
    return (path for path in sorted(root.rglob("*.py")) if not left_out & {*path.relative_to(root).parts})


def words(text: str) -> tuple[str, ...]:
    """Split text and identifiers into lower-case words and numbers."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text))


def pairs(library: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Give the words of each docstring's first paragraph and of its function without the docstring."""
    for path in files(library):
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            nodes = [*ast.walk(ast.parse(source))]
        except SyntaxError:  # templates
            continue
        lines = source.splitlines()
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and len(node.body) > 1 and not node.name.startswith("__"):
                query, doc = words((ast.get_docstring(node) or "").partition("\n\n")[0]), node.body[0]
                code = [*lines[node.lineno - 1 : doc.lineno - 1], *lines[doc.end_lineno : node.end_lineno]]
                if min(len(query), len(code)) >= SHORTEST:
                    yield query, words("\n".join(code))


def corpus(libraries: Sequence[str], held_out: str) -> tuple[dict[str, int], list[Any], list[Any]]:
    """Give the number of pairs by library, and the tokens of queries and functions, for training and held out."""
    seen: set[tuple[str, ...]] = set()
    found: dict[str, list[Any]] = {library: [] for library in (held_out, *libraries)}
    for library, unique in found.items():
        for pair in pairs(library):
            if seen.isdisjoint(pair):
                seen.update(pair)
                unique.append(pair)
    train = [pair for library in libraries for pair in found[library]]
    counts = Counter(w for pair in train for side, length in zip(pair, LENGTHS, strict=True) for w in side[:length])
    numbers = {word: 2 + k for k, (word, _) in enumerate(counts.most_common(VOCABULARY - 2))}

    def tokens(some: list[Any], side: int) -> Any:
        rows = ([numbers.get(word, 1) for word in pair[side][: LENGTHS[side]]] for pair in some)
        return np.asarray([row + [0] * (LENGTHS[side] - len(row)) for row in rows], np.int32)

    train_on, test_on = ([tokens(some, side) for side in (0, 1)] for some in (train, found[held_out]))
    return {library: len(unique) for library, unique in found.items()}, train_on, test_on


class Encoder(nn.Module):
    """Word embeddings, a convolution of width three, attention pooling and a perceptron, for text and code."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.convolution, self.attention = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, 1)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, tokens: Any) -> Any:
        """Return embeddings; the losses normalise them."""
        x = self.words(tokens)
        x = x + gelu(self.convolution(x.mT).mT)
        weights = self.attention(x).masked_fill(tokens[..., None] == 0, -1e9).softmax(1)
        pooled = (weights.mT @ x).squeeze(1)
        return pooled + self.perceptron(pooled)


class Features(nn.Sequential):
    """Encoder with sentence-transformers' interface."""

    def forward(self, features: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  (their name)
        """Name the embeddings."""
        return {"sentence_embedding": self[0](features["input_ids"])}


def by_hand(x: Any, y: Any) -> Any:
    """Symmetric InfoNCE as usually written."""
    scores, labels = normalize(x) @ normalize(y).T / TEMPERATURE, torch.arange(len(x))
    return (cross_entropy(scores, labels) + cross_entropy(scores.T, labels)) / 2


def losses(encoder: Encoder, name: str = SENTENCES) -> dict[str, Loss]:
    """Give losses of query and function tokens; those of SENTENCES, slow to import, only by name."""

    def of(loss: Loss) -> Loss:
        return lambda query, code: loss(encoder(query), encoder(code))

    def cached(loss: Loss) -> Loss:
        encode = partial(encode_in_chunks, encoder, chunk_size=CHUNK)
        return lambda query, code: loss(encode(query), encode(code))

    ours: Loss = partial(pnce.info_nce, temperature=TEMPERATURE, symmetric=True)
    flat: Loss = partial(pnce.contrast, objective=pnce.objectives.flat_nce(), temperature=TEMPERATURE, symmetric=True)
    found = {EAGER: of(by_hand)}
    if spec := importlib.util.find_spec("open_clip"):
        # Importing the whole package needs torchvision.
        source = Path((spec.submodule_search_locations or [])[0], "loss.py")
        clip = runpy.run_path(str(source))["ClipLoss"]()
        found[OPEN_CLIP] = of(lambda x, y: clip(normalize(x), normalize(y), 1 / TEMPERATURE))
    if name.startswith(SENTENCES) and importlib.util.find_spec("sentence_transformers"):
        library: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
        options: Any = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
        whole = library.MultipleNegativesRankingLoss(None, 1 / TEMPERATURE, **options)
        parts = library.CachedMultipleNegativesRankingLoss(
            Features(encoder), 1 / TEMPERATURE, mini_batch_size=CHUNK, **options
        )
        found[SENTENCES] = of(lambda x, y: whole.compute_loss_from_embeddings([x, y], None))
        found[SENTENCES + CACHED] = lambda query, code: parts([{"input_ids": query}, {"input_ids": code}], None)
    return {**found, OURS: of(ours), FLAT: of(flat), EAGER + CACHED: cached(by_hand), OURS + CACHED: cached(ours)}
