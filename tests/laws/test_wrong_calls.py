"""Common mistakes: each raises an error that names the remedy."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import FunctionType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce
from portable_nce._core.calls import KINDS
from portable_nce.modules.torch import CLIP, InfoNCE, Loss, MemoryQueue, MoCo, NTXent, SupCon
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import LOSSES, example

pnce: Any = portable_nce  # type checkers reject most of these calls
bounds, density, diagnostics = pnce.bounds, pnce.density, pnce.diagnostics
from_scores, objectives = pnce.from_scores, pnce.objectives
pairings, similarities = pnce.pairings, pnce.similarities

X, Y = np.random.default_rng(0).normal(size=(2, 6, 4))
MORE = np.random.default_rng(1).normal(size=(9, 4))
LABELS = np.asarray([0, 0, 1, 1, 2, 2])
SCORES = X @ Y.T
TENSOR = torch.asarray(X)
EACH = np.ones(6)
ALL = np.ones((6, 6), dtype=bool)
OF_CLIP: Any = CLIP
TOKENS, DOCUMENTS = np.random.default_rng(2).normal(size=(6, 3, 4)), np.random.default_rng(3).normal(size=(6, 5, 4))
SCALES = {"logit_scale": 10.0, "logit_bias": -10.0}
OWN = np.random.default_rng(4).normal(size=(6, 3, 4))  # three negatives of each row


def jitted(function: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    """Compile a function with its options as arguments."""
    return lambda: jax.jit(function)(jnp.asarray(X), jnp.asarray(Y), **options)


class Variable:
    """A variable of a framework, which forwards attributes to the array that it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)


WRONG: Mapping[str, tuple[Callable[[], Any], str]] = {
    # Order and number of arguments.
    "one embedding": (lambda: pnce.info_nce(X[0], Y[0]), r"query: .*\(4,\); one row has nothing to be compared with"),
    "labels first": (lambda: pnce.supcon(LABELS, X), "embeddings: .*; labels come after embeddings"),
    "truth as labels of one embedding": (lambda: pnce.supcon(X[0], LABELS > 0), "embeddings: .*one row has nothing"),
    "truth as labels": (lambda: pnce.supcon(X, LABELS > 0), "labels: expected an integer dtype, got bool; convert"),
    "views on an axis": (
        lambda: pnce.supcon(np.stack([X, Y], axis=1), LABELS),
        r"embeddings: .*\(6, 2, 4\); merge the leading axes, as in embeddings.reshape\(\(-1, 4\)\), with one label",
    ),
    "only one of two scales": (
        lambda: pnce.siglip(X, Y, logit_scale=10.0),
        "siglip: expected the option 'logit_bias', got none; pass logit_bias=",
    ),
    "a queue (D, K)": (lambda: pnce.moco(X, Y, MORE.T), r"queue: expected 4 features .*\(4, 9\); pass queue.T"),
    "negatives (D, M)": (lambda: pnce.info_nce(X, Y, MORE.T), "negative_keys: .*; pass negative_keys.T"),
    "no key": (
        lambda: pnce.info_nce(X),
        r"info_nce: expected query, positive_key \(negative_keys is optional\), got too few: .*'positive_key'",
    ),
    "no second view": (lambda: pnce.nt_xent(X), r"expected view_a, view_b \(further_views is optional\), got too few"),
    **{
        f"both views in one array of {loss.__name__}": (
            partial(loss, X),
            rf"; split an .*{loss.__name__}\(both\[",
        )
        for loss in (pnce.nt_xent, pnce.flat_nce, pnce.dcl, pnce.dclw, pnce.hcl)
    },
    "views in a list": (lambda: pnce.nt_xent([X, Y]), r"; unpack the views, as in nt_xent\(\*views\)"),
    "stacked views": (lambda: pnce.nt_xent(np.stack([X, Y])), r"; unpack the views, as in nt_xent\(\*views\)"),
    "labels of triplets": (
        lambda: pnce.triplet(X, LABELS),
        r"; for labels, use triplet_from_labels\(embeddings",
    ),
    **{
        f"scores for {loss.__name__}": (partial(loss, SCORES), rf"; for a matrix of scores, use from_scores\.{other}\(")
        for loss, other in (
            (pnce.info_nce, "info_nce"),
            (pnce.clip, "clip"),
            (pnce.siglip, "logistic"),
            (pnce.relic, "relic"),
            (pnce.nca, "nca"),
        )
    },
    "embeddings without labels": (lambda: pnce.supcon(X), r"; for views without labels, use nt_xent\("),
    "one feature": (lambda: pnce.info_nce(X[:, 0], Y[:, 0]), r"; of samples of one feature, pass query\[:, None\]"),
    "a column of weights": (lambda: pnce.info_nce(X, Y, weights=EACH[:, None]), r"weights: .*; pass weights\[:, 0\]"),
    "a row of weights": (lambda: from_scores.dcl(SCORES, weights=EACH[None, :]), r"weights: .*; pass weights\[0\]"),
    "a column of temperatures": (
        lambda: pnce.info_nce(X, Y, temperature=EACH[:, None]),
        r"temperature: .*; pass temperature\[:, 0\]",
    ),
    "negative weights of grades": (
        lambda: from_scores.cosent(X[:, 0], EACH, weights=-EACH),
        "weights: expected numbers of at least 0, got -1",
    ),
    "a column of grades": (lambda: pnce.cosent(X, Y, EACH[:, None]), r"grades: .*; pass grades\[:, 0\]"),
    "labels as tensors of floats": (
        lambda: pnce.supcon(TENSOR, torch.asarray(LABELS).float()),
        r"labels: expected an integer dtype, got torch.float32; convert it with labels.long\(\)",
    ),
    "labels as floats": (lambda: pnce.supcon(X, EACH), r"labels: .*; convert it with labels.astype\('int32'\)"),
    "another dtype": (
        lambda: pnce.info_nce(TENSOR, TENSOR.float()),
        r"expected the dtype of query, torch.float64, got torch.float32; .* positive_key.to\(torch.float64\)",
    ),
    "a temperature below 0 of a module": (lambda: InfoNCE(temperature=-1), "temperature: .* greater than 0, got -1"),
    "scores for a module": (lambda: InfoNCE()(TENSOR[:4]), r"InfoNCE: expected query, .*; for a matrix of scores, use"),
    "views for a module": (lambda: NTXent()(TENSOR), r"NTXent: expected view_a, view_b .*; split an array"),
    "a third array for a module": (
        lambda: SupCon()(TENSOR, torch.asarray(LABELS), None),
        "SupCon: expected embeddings, labels, got 3 positional arguments",
    ),
    "no keys for a module": (lambda: MoCo(8, 4)(TENSOR), "MoCo: expected query, key, got too few: .*'key'"),
    "rows for a queue": (lambda: MemoryQueue(8, 4)(TENSOR), r"MemoryQueue: .* got 1 .*; push\(rows\) appends rows"),
    "no queue": (lambda: pnce.moco(X, Y), "moco: expected query, key, queue, got too few: .*'queue'"),
    "no scale": (lambda: pnce.siglip(X, Y), "siglip: expected the option 'logit_scale', got none; pass logit_scale="),
    "other rows": (lambda: pnce.info_nce(X, Y[:5]), r"positive_key: expected shape \(6, 4\), got \(5, 4\)"),
    "transposed keys": (
        lambda: pnce.info_nce(X, Y.T),
        r"positive_key: expected shape \(6, 4\), got \(4, 6\); pass positive_key.T",
    ),
    "a transposed text": (lambda: pnce.clip(X, Y.T, logit_scale=1.0), r"text: .*\(6, 4\), .*; pass text.T"),
    "a transposed view": (lambda: pnce.nt_xent(X, Y.T), r"view_b: .*\(6, 4\), .*; pass view_b.T"),
    "arrays by name": (
        lambda: pnce.clip(image_features=X, text_features=Y, logit_scale=1.0),
        "image_features: expected an option of clip, .*; pass image, text by position",
    ),
    "labels by name": (
        lambda: pnce.supcon(X, labels=LABELS),
        "labels: expected no keyword in supcon, got labels=...; pass embeddings, labels by position",
    ),
    "no objective": (lambda: pnce.contrast(X, Y), "contrast: expected the option 'objective', got none; pass obj"),
    # Options by position, and by names of other libraries.
    "a third number": (lambda: pnce.info_nce(X, Y, 0.1), "negative_keys: .*; options are keywords"),
    "a third number of views": (lambda: pnce.nt_xent(X, Y, 0.1), r"further_views\[0\]: .*options are keywords"),
    "a third number of labels": (lambda: pnce.supcon(X, LABELS, 0.1), "supcon: .*options are keywords"),
    "a scale by its place": (lambda: pnce.clip(X, Y, 10.0), "clip: .*options are keywords, as in logit_scale=..."),
    "tau": (lambda: pnce.info_nce(X, Y, tau=0.1), "tau: expected temperature in info_nce"),
    "temperature of clip": (lambda: pnce.clip(X, Y, temperature=0.1), "expected logit_scale = 1 / temperature"),
    "temperature of cosent": (lambda: pnce.cosent(X, Y, EACH, temperature=0.1), "expected scale = 1 / temperature"),
    "scale of clip": (lambda: pnce.clip(X, Y, scale=10.0), "scale: expected logit_scale in clip"),
    "scale of InfoNCE": (lambda: pnce.info_nce(X, Y, logit_scale=9.0), "expected temperature = 1 / logit_scale"),
    "a typing error": (lambda: pnce.info_nce(X, Y, reducton="sum"), "reducton: .*; did you mean 'reduction'?"),
    "another's option": (lambda: pnce.info_nce(X, Y, margin=0.1), "margin: expected an option of info_nce"),
    # Scores instead of embeddings, and embeddings instead of scores.
    "scores and indices": (lambda: pnce.info_nce(SCORES, np.arange(6)), "positive_key: .*use portable_nce.from_scores"),
    "embeddings for a bound": (lambda: bounds.info_nce(X, Y), r"expected a K × N matrix of scores, .*critic\(x, y\)"),
    "embeddings for nwj": (lambda: bounds.nwj(X), r"expected a K × N matrix of scores, .*\(6, 4\)"),
    "embeddings for flo": (lambda: bounds.flo(X, Y), r"expected a K × N matrix of scores, .*\(6, 4\)"),
    "embeddings as scores": (lambda: from_scores.info_nce(X), r"expected a K × N matrix of scores, .*critic\(x, y\)"),
    "queries and keys as scores": (lambda: from_scores.clip(X, Y), "expected a K × N matrix of scores"),
    "temperature of scores": (lambda: from_scores.info_nce(SCORES, temperature=0.1), "; scores include it"),
    # Parts.
    "a pairing not called": (
        lambda: pnce.contrast(X, Y, objective="info_nce", pairing=pairings.diagonal),
        r"pairing: expected what pairings.diagonal\(...\) returns, got diagonal itself; call it",
    ),
    "an objective not called": (lambda: pnce.contrast(X, Y, objective=objectives.triplet), "objective: .*call it"),
    "a similarity not called": (lambda: pnce.info_nce(X, Y, similarity=similarities.max_sim), "similarity: .*call it"),
    "a file as objective": (lambda: pnce.contrast(X, Y, objective=objectives), "objective: .*got the module"),
    "a module as objective": (
        lambda: pnce.contrast(TENSOR, objective=torch.nn.CrossEntropyLoss()),
        "objective: expected a function of RowStatistics, got CrossEntropyLoss: .*'target'",
    ),
    "a class as objective": (lambda: pnce.contrast(X, Y, objective=torch.nn.Linear), "objective: .*got the class"),
    "no reduction": (lambda: pnce.info_nce(X, Y, reduction=None), "reduction: .* got None; did you mean 'none'?"),
    "a short name": (lambda: pnce.info_nce(X, Y, similarity="cos"), "similarity: .*; did you mean 'cosine'?"),
    "operands not in tuples": (
        lambda: pnce.info_nce(X, Y, similarity=similarities.Similarity(lambda x, y, s: (x * s, y), inner_product=True)),
        r"prepare: expected two tuples of one array each, as in \(x,\), \(y,\), got \(ndarray, ndarray\)",
    ),
    "one operand": (
        lambda: pnce.info_nce(X, Y, similarity=similarities.Similarity(lambda x, y, s: x @ y.T * s, np.matmul)),
        r"prepare: expected two tuples of arrays, as in \(x,\), \(y,\), got ndarray",
    ),
    # Arrays.
    "a list": (lambda: pnce.info_nce(X.tolist(), Y), "query: expected an array .*got list; convert it with asarray"),
    "integers": (lambda: pnce.info_nce(X.astype(int), Y), "query: expected a real floating-point dtype .*got int64"),
    "two libraries": (lambda: pnce.info_nce(X, TENSOR), "positive_key: expected an array of the same library as query"),
    "temperatures in a list": (lambda: pnce.info_nce(X, Y, temperature=[0.1] * 6), "temperature: .*list; convert it"),
    "indices as floats": (
        lambda: pnce.info_nce(X, Y, positives=EACH),
        r"positives: expected integers \(N,\), .*, got dtype float64 of shape \(6,\)",
    ),
    "a mask of integers": (lambda: pnce.info_nce(X, Y, mask=ALL * 1), "mask: expected a boolean array .*mask != 0"),
    "a variable": (lambda: pnce.info_nce(Variable(X), Y), "query: .*Variable, which holds one; pass that"),
    "a variable to differentiate": (lambda: pnce.grad(pnce.info_nce)(Variable(X), Y), "which holds one; pass that"),
    # Pairs of rules.
    **{
        f"mining {bad!r}": (partial(pnce.triplet_from_labels, X, LABELS, mining=bad), r"\Amining: .*expected.*got")
        for bad in (("hard", "semihard"), ("semi_hard", "semi_hard"), ("hard",), ["hard", "easy"], None)
    },
    # Shapes: tokens, views, images, several negatives, transposed axes.
    **{
        f"tokens for {loss.__name__}": (
            partial(loss, TOKENS, DOCUMENTS, **options),
            r"\(N, D\), got \(6, 3, 4\); for tokens, pass similarity=similarities.max_sim\(\), or merge",
        )
        for loss, options in (
            (pnce.info_nce, {}),
            (pnce.clip, {"logit_scale": 1.0}),
            (pnce.siglip, {"logit_scale": 1.0, "logit_bias": 0.0}),
            (pnce.two_tower, {}),
            (pnce.contrast, {"objective": "info_nce"}),
            (diagnostics.top_k_accuracy, {}),
        )
    },
    "tokens for a function": (
        lambda: pnce.info_nce(TOKENS, DOCUMENTS, similarity=lambda x, y: x @ y.T),
        r"query: .* for tokens, flatten each row by query.reshape\(\(6, 12\)\)",
    ),
    "several negatives of triplets": (lambda: pnce.triplet(X, Y, OWN), r"negative: .*\(6, 3, 4\); .*info_nce\(anchor"),
    "images": (lambda: pnce.nt_xent(*np.zeros((2, 6, 3, 8, 8))), "view_a: .*one vector for each sample"),
    "negatives of the query second": (
        lambda: pnce.info_nce(X, Y, OWN.swapaxes(0, 1)),
        "negative_keys: expected shape .*; queries are the first axis",
    ),
    "steps second": (
        lambda: pnce.cpc(X, np.zeros((6, 2, 4)), np.zeros((2, 4, 4))),
        "targets: .*; steps are the first axis, contexts the second",
    ),
    "transposed prototypes": (
        lambda: pnce.proto_nce(X, MORE[:3].T, LABELS, EACH[:3]),
        "prototypes: expected 4 features as in embeddings, .*; pass prototypes.T",
    ),
    "labels of three axes": (
        lambda: pairings.kernel(TOKENS, bandwidth=1.0),
        r"rows: expected shape \(N,\) or \(N, C\)",
    ),
    "more keys": (lambda: pnce.info_nce(X, MORE), r"positive_key: .*\(9, 4\); .* as in positives=arange\(N\)"),
    # Labels and indices.
    "labels in a column": (lambda: pnce.supcon(X, LABELS[:, None]), r"labels: .*\(6, 1\); pass labels\[:, 0\]"),
    "one-hot labels": (lambda: pnce.supcon(X, np.eye(3, dtype=int)[LABELS]), "; pass labels.argmax.*one-hot"),
    **{
        f"multi-hot labels of {np.dtype(kind).name}": (
            partial(pnce.supcon, X, (np.arange(18).reshape(6, 3) % 4 > 1).astype(kind)),
            r"; pass labels.argmax\(axis=1\), if it is one-hot; labels != 0, if it is multi-hot",
        )
        for kind in (int, float)
    },
    **{
        f"multi-hot labels of {name}": (partial(loss, X, ALL), r"one-hot; use contrast with pairings.overlap, if it is")
        for name, loss in (("nca", pnce.nca), ("triplets", pnce.triplet_from_labels), ("pairs", pnce.contrastive))
    },
    "multi-hot labels of a pairing": (lambda: pairings.labels(ALL), "rows: .* one-hot; use pairings.overlap, if it is"),
    "targets before the weight": (
        lambda: density.linear_softmax(X, LABELS, MORE),
        "weight: expected a real floating-point dtype .*; targets come after weight",
    ),
    "labels of a vocabulary": (
        lambda: density.linear_softmax(X, MORE, labels=LABELS),
        "labels: .*; pass embeddings, weight, targets by position; targets are the labels",
    ),
    "one-hot targets": (lambda: density.full_softmax(SCORES, np.eye(6)), "targets: .* float64 .*argmax.* one-hot"),
    "a view as labels": (lambda: pnce.supcon(X, Y), r"labels: expected integers of shape \(6,\), got float64 of shape"),
    "words as ids": (lambda: pnce.two_tower(X, Y, ids=np.asarray([*"abcdef"])), "ids: .*<U1; number the values"),
    "labels as keys": (lambda: pnce.info_nce(X, LABELS), "positive_key: .*; for labels, use supcon; for scores"),
    "labels of scores": (
        lambda: diagnostics.top_k_accuracy(SCORES, LABELS),
        "key: expected embeddings .*pass positives=",
    ),
    **{
        f"a target of {ignored}": (
            partial(density.linear_softmax, X, MORE, np.asarray([0, 1, 2, ignored, 1, 1])),
            f"targets: .*got {ignored}; to leave rows out, pass ignore_index=",
        )
        for ignored in (-1, -100)
    },
    "floats as positives": (
        lambda: diagnostics.recall_at(SCORES, positives=EACH),
        r"positives: expected integers \(N,\) or booleans \(N, K\), got dtype float64 of shape \(6,\); convert",
    ),
    "weights as positives": (
        lambda: diagnostics.recall_at(X, Y, positives=SCORES),
        r"positives: expected integers \(N,\) or booleans \(N, K\), .*; compare, as in positives > 0",
    ),
    "weights of positives in triplets": (
        lambda: from_scores.triplet(SCORES, positives=SCORES),
        r"positives: expected integers \(N,\) or booleans \(N, K\)",
    ),
    "several positives of a margin": (
        lambda: from_scores.margin_mse(SCORES, SCORES, positives=ALL),
        r"positives: expected integers \(N,\), .*got bool of shape \(6, 6\); .*positives.argmax",
    ),
    "excluded keys that are not there": (
        lambda: diagnostics.top_k(X, Y, 2, exclude=np.arange(1, 7)),
        "exclude: expected indices from 0 to 5, of the keys, got 6; negative indices exclude nothing",
    ),
    "a bias of integers": (
        lambda: density.linear_softmax(X, MORE, LABELS, bias=np.zeros(9, dtype=int)),
        "bias: expected a real floating-point dtype .*got int64; convert it with bias.astype",
    ),
    # Options of other functions and libraries.
    "labels of InfoNCE": (lambda: pnce.info_nce(X, Y, labels=LABELS), "labels: .*; .*use supcon"),
    "labels of a score matrix": (lambda: from_scores.supcon(SCORES, labels=LABELS), "labels: .*; pass positives="),
    "ids of InfoNCE": (lambda: pnce.info_nce(X, Y, ids=LABELS), "ids: .*; .*use two_tower"),
    "log_q of InfoNCE": (lambda: pnce.info_nce(X, Y, log_q=EACH), "log_q: .*; .*use two_tower"),
    "normalize": (
        lambda: pnce.info_nce(X, Y, normalize=True),
        "normalize: .*; the default similarity, cosine, normali",
    ),
    "negative_mode": (lambda: pnce.info_nce(X, Y, negative_mode="paired"), "negative_mode: .*; negative_keys of shape"),
    "tau of SMILE": (lambda: bounds.smile(SCORES, tau=5.0), "tau: .*; the limit of the log-ratios is clip="),
    "temperature of a module": (
        partial(OF_CLIP, temperature=0.1),
        "temperature: expected logit_scale = 1 / temp",
    ),
    "tau of a module": (lambda: Loss(pnce.info_nce, tau=0.1), "tau: expected temperature in info_nce"),
    "a pairing by its name": (
        lambda: pnce.contrast(X, Y, objective="info_nce", pairing="labels"),
        r"pairing: .*got 'labels'; pass pairings.labels\(...\)",
    ),
    "a loss as objective": (
        lambda: pnce.contrast(X, Y, objective=pnce.info_nce),
        "objective: expected a name or what portable_nce.objectives returns, got the function info_nce",
    ),
    "a tuple as similarity": (lambda: pnce.info_nce(X, Y, similarity=pnce.prepare(Y)), "similarity: .*got tuple$"),
    "a similarity of pairs": (
        lambda: pnce.info_nce(TENSOR, TENSOR, similarity=torch.nn.CosineSimilarity()),
        r"similarity: .*got shape \(6,\); compare each row with each column, as x @ y.T does",
    ),
    "a mask by its place": (lambda: similarities.max_sim(ALL), "max_sim: expected no array, .*options are keywords"),
    "nothing": (lambda: pnce.info_nce(X, None), "positive_key: expected an array .*, got NoneType$"),
    "a number as weights": (lambda: pnce.info_nce(X, Y, weights=2.0), "weights: expected an array .*, got float$"),
    # Names in another spelling, catalogues, groups.
    "an objective in capitals": (
        lambda: pnce.contrast(X, Y, objective="InfoNCE"),
        "objective: .*got 'InfoNCE'; did you mean 'info_nce'",
    ),
    "mining in one word": (
        lambda: pnce.triplet_from_labels(X, LABELS, mining="semihard"),
        "mining: .*got 'semihard'; did you mean 'semi_hard'?",
    ),
    "a pairing with a hyphen": (
        lambda: pnce.contrast(X, Y, objective="info_nce", pairing="Two-Views"),
        "pairing: .*; did you mean 'two_views'?",
    ),
    "log_q of a catalogue": (
        lambda: pnce.two_tower(X, Y, ids=LABELS, log_q=np.zeros(100)),
        r"log_q: expected shape \(6,\), got \(100,\); pass log_q\[ids\], the entries of the candidates in this batch",
    ),
    "negative_log_q of a catalogue": (
        lambda: pnce.two_tower(X, Y, MORE, log_q=-EACH, negative_log_q=np.zeros(100)),
        r"negative_log_q: .*; pass negative_log_q\[negative_ids\]",
    ),
    "no process group": (
        lambda: pnce.across(torch.distributed.group.WORLD, gradients="averaged"),
        r"group: .*got None; torch.distributed has none before init_process_group\(\), so call that",
    ),
    **{
        f"{option} of an estimate": (partial(pnce.estimation.mutual_information, X, Y, **{option: 5}), remedy)
        for option, remedy in {
            "seed": "seed: .*; did you mean 'rng'?",
            "random_state": "random_state: .*; did you mean 'rng'?",
            "n_splits": "n_splits: .*; did you mean 'folds'?",
            "units": "units: .* results are in nats",
            "groups": "groups: expected a label of each of the 6 rows, got int; for a number of parts, pass folds",
        }.items()
    },
    "samples along the second axis": (
        lambda: pnce.estimation.mutual_information(np.zeros((2, 60)), np.zeros((1, 60))),
        r"x: expected at least 48 rows, got shapes \(2, 60\) and \(1, 60\); rows are samples: pass x.T and y.T",
    ),
    # Options that a compiled function has as arguments.
    "traced symmetric": (jitted(pnce.info_nce, symmetric=True), r"symmetric: .*static_argnames=\('symmetric',\)"),
    "traced block size": (jitted(pnce.info_nce, block_size=2), "block_size: .*static_argnames="),
    "traced hardness": (jitted(pnce.info_nce, hardness=2.0), "hardness: .*static_argnames="),
    "a random key": (lambda: pnce.info_nce(jax.random.key(0), jnp.asarray(X), jnp.asarray(Y)), "query: .* random keys"),
    "random keys as labels": (
        lambda: pnce.supcon(jnp.asarray(X), jax.random.split(jax.random.key(0), 6)),
        "labels: expected an array of numbers, got random keys of JAX",
    ),
    "a random key as a temperature": (
        lambda: pnce.info_nce(jnp.asarray(X), jnp.asarray(Y), temperature=jax.random.key(0)),
        "temperature: expected an array of numbers, got random keys",
    ),
    "traced k": (lambda: jax.jit(diagnostics.top_k)(jnp.asarray(X), jnp.asarray(Y), 2), "k: .*static_argnames="),
    # Numbers in arrays.
    "temperature below 0": (
        lambda: pnce.info_nce(TENSOR, TENSOR, temperature=torch.asarray(-1.0)),
        "temperature: expected a finite number greater than 0, got -1.0",
    ),
    "a temperature of 0": (
        lambda: pnce.info_nce(X, Y, temperature=np.asarray([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])),
        "temperature: expected a finite number greater than 0, got 0.0",
    ),
    # Differentiation.
    "a value, not a function": (lambda: pnce.value_and_grad(pnce.info_nce(X, Y)), "fn: expected a function"),
    "losses of rows": (lambda: pnce.grad(pnce.info_nce)(X, Y, reduction="none"), "expected the function to return"),
}


PROBABILITIES = np.linspace(0.1, 0.3, 6)
COUNTS = np.asarray([1.0, 3.0, 2.0, 5.0, 1.0, 4.0])
DATA_LOG_Q, NOISE_LOG_Q = np.log(PROBABILITIES), np.log(np.tile(PROBABILITIES, (6, 1)))

SUSPECT: Mapping[str, tuple[Callable[[], Any], str]] = {
    # Values that are possible, but hardly meant.
    "a logarithm as scale": (
        lambda: pnce.clip(X, Y, logit_scale=2.659),
        r"logit_scale: expected the factor .* got 2.659, which is the logarithm of 14.28; .* pass its exponential",
    ),
    "log 10 as scale": (lambda: pnce.siglip(X, Y, logit_scale=2.3026, logit_bias=-10.0), "the logarithm of 10; if"),
    "log 100 as scale": (lambda: pnce.clip(X, Y, logit_scale=4.6052), "the logarithm of 100; if"),
    "log 20 as scale": (lambda: pnce.cosent(X, Y, EACH, scale=2.9957), "scale: .*the logarithm of 20; if"),
    "a temperature as scale": (
        lambda: pnce.clip(X, Y, logit_scale=0.07),
        "logit_scale: expected a number above 0.2 with cosines, got 0.07, .*a temperature, pass its reciprocal, 14.29",
    ),
    "a scale as temperature": (
        lambda: pnce.info_nce(X, Y, temperature=14.3),
        "temperature: expected a number below 5 .* got 14.3, .* ±0.0699; .*a scale, pass its reciprocal, 0.06993",
    ),
    "a scale as temperature of a queue": (lambda: pnce.moco(X, Y, MORE, temperature=20), "temperature: .*, 0.05$"),
    "a scale as temperature of own negatives": (
        lambda: pnce.info_nce(X, Y, OWN, temperature=20.0),
        "temperature: .*, 0.05$",
    ),
    "a scale as temperature of graded pairs": (lambda: pnce.cosent(X, Y, EACH, scale=0.05), "scale: .*, 20$"),
    "a scale as temperature in a compiled function": (
        lambda: jax.jit(partial(pnce.info_nce, temperature=14.3))(jnp.asarray(X), jnp.asarray(Y)),
        "temperature: .*, 0.06993$",
    ),
    "a learned logarithm": (lambda: CLIP(2.659), "logit_scale: .*the logarithm of 14.28"),
    "a parameter without exp": (
        lambda: pnce.clip(TENSOR, TENSOR, logit_scale=torch.nn.Parameter(torch.tensor(2.659, dtype=torch.float64))),
        r"logit_scale: .* an array below 4.7; if it is a logarithm, .* as in logit_scale=log_scale.exp\(\)",
    ),
    "a bias of the wrong sign": (
        lambda: pnce.siglip(X, Y, logit_scale=10.0, logit_bias=10.0),
        "logit_bias: expected a number of at most 1, got 10",
    ),
    "a learned bias of the wrong sign": (
        lambda: pnce.siglip(X, Y, logit_scale=10.0, logit_bias=np.asarray(10.0)),
        "logit_bias: expected a number of at most 1, got an array of another",
    ),
    "a negative margin": (lambda: pnce.triplet(X, Y, X, margin=-1), "margin: expected a number of at least 0, got -1"),
    "a negative margin of labels": (lambda: pnce.triplet_from_labels(X, LABELS, margin=-0.5), "margin: .*got -0.5"),
    "a negative margin of scores": (lambda: from_scores.triplet(SCORES, margin=-0.5), "margin: .*got -0.5"),
    "a negative margin of distances": (lambda: pnce.contrastive(X, LABELS, margin=-0.5), "margin: .*got -0.5"),
    "negative weights": (
        lambda: pnce.info_nce(X, Y, weights=-EACH),
        "weights: expected numbers of at least 0, got neg",
    ),
    "negative weights of scores": (lambda: from_scores.nca(SCORES, weights=-EACH), "weights: .*got negative ones"),
    "negative weights of classes": (
        lambda: density.linear_softmax(X, MORE, LABELS, class_weights=-np.ones(9)),
        "class_weights: expected numbers of at least 0, got negative ones",
    ),
    "more than all columns": (lambda: diagnostics.top_k_accuracy(SCORES, k=9), "k: expected at most 6, .*always 1"),
    "more than all keys": (lambda: diagnostics.recall_at(X, Y, k=9), "k: expected at most 6, .*always 1"),
    "probabilities as log_q": (
        lambda: pnce.two_tower(X, Y, log_q=PROBABILITIES),
        r"log_q: expected logarithms, got entries between 0 and 1; of probabilities, take the log",
    ),
    "counts as log_q": (
        lambda: pnce.two_tower(X, Y, log_q=COUNTS),
        "log_q: .*whole numbers of at least 1; of",
    ),
    "probabilities of further candidates": (
        lambda: pnce.two_tower(X, Y, MORE, log_q=DATA_LOG_Q, negative_log_q=np.linspace(0.1, 0.2, 9)),
        "negative_log_q: .*of probabilities",
    ),
    "probabilities of the noise": (
        lambda: density.ranking_nce(EACH, SCORES, data_log_q=DATA_LOG_Q, noise_log_q=np.exp(NOISE_LOG_Q)),
        "noise_log_q: .*of probabilities",
    ),
    "probabilities of the data": (
        lambda: density.local_nce(EACH, SCORES, PROBABILITIES, NOISE_LOG_Q),
        "data_log_q: .*of probabilities",
    ),
}
"""Calls that warn, with the message. Only Python numbers and arrays that can be read are looked at."""

SOUND: Mapping[str, Callable[[], Any]] = {
    "logarithms of counts": lambda: pnce.two_tower(X, Y, log_q=np.log(COUNTS)),
    "equal probabilities": lambda: pnce.two_tower(X, Y, log_q=np.zeros(6)),
    "a temperature of inner products": lambda: pnce.info_nce(X, Y, similarity="dot", temperature=14.3),
    "an extreme temperature": lambda: [pnce.info_nce(X, Y, temperature=t) for t in (1e-3, 1e3)],
    "scales of a sweep": lambda: [
        pnce.clip(X, Y, logit_scale=1 / t) for t in (0.01, 0.07, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 2)
    ],
    "a learned scale": lambda: pnce.clip(TENSOR, TENSOR, logit_scale=torch.tensor(14.28, dtype=torch.float64)),
    "a learned temperature": lambda: pnce.info_nce(TENSOR, TENSOR, temperature=torch.tensor(1.0, dtype=torch.float64)),
    "a learned scale of inner products": lambda: pnce.clip(X, Y, logit_scale=np.asarray(2.0), similarity="dot"),
    "a learned scale in a compiled function": lambda: jax.jit(pnce.clip)(
        jnp.asarray(X), jnp.asarray(Y), logit_scale=jnp.asarray(2.659)
    ),
    "no bias": lambda: pnce.siglip(X, Y, logit_scale=10.0, logit_bias=0.0),
    "a limit of cosines": lambda: pnce.contrastive(X, LABELS, margin=-0.5, similarity="cosine"),
    "all columns": lambda: diagnostics.top_k_accuracy(SCORES, k=6),
}
"""Calls that do not warn, though they come close."""


LEARNED: Mapping[str, Callable[[float], Any]] = {
    "scale": lambda number: pnce.clip(X, Y, logit_scale=np.asarray(2.0 + number)),
    "temperature": lambda number: pnce.info_nce(X, Y, temperature=np.asarray(2.0 + number)),
    "bias": lambda number: pnce.siglip(X, Y, logit_scale=10.0, logit_bias=np.asarray(2.0 + number)),
    "weights": lambda number: pnce.info_nce(X, Y, weights=EACH - 1.5 - number),
    "probabilities": lambda number: pnce.two_tower(X, Y, log_q=PROBABILITIES * (1.0 - number)),
    "counts": lambda number: pnce.two_tower(X, Y, log_q=np.floor(COUNTS + 10.0 * number)),
}
"""Suspect arrays that differ from step to step."""


@pytest.mark.parametrize("what", LEARNED)
def test_a_warning_of_arrays_is_shown_once(what: str) -> None:
    """Not in each step of a training loop."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in (0.1, 0.2, 0.3):
            LEARNED[what](number)
    assert len(caught) == 1


@pytest.mark.parametrize("what", SUSPECT)
def test_suspect_values_warn(what: str) -> None:
    """Every call with a number warns, since Python's filter, not the package, shows each line of a program once."""
    call, message = SUSPECT[what]
    for _ in range(3):
        KINDS.clear()
        with pytest.warns(UserWarning, match=message) as caught:
            call()
        if "compiled" not in what:
            assert {one.filename for one in caught} == {__file__}


def with_a_suspect_scale() -> dict[str, tuple[str, float]]:
    """Losses of cosines, and the temperature or scale that each would warn of."""
    found = {}
    for name, loss in LOSSES.items():
        case = example(name)
        options = inspect.signature(attrgetter(case.loss)(pnce)).parameters
        for key, value in (("temperature", 14.3), ("logit_scale", 0.07)):
            if name == case.loss and loss.similarity == "cosine" and key in options:
                found[name] = key, value
    return found


OF_COSINES = with_a_suspect_scale()


@pytest.mark.parametrize("name", [name for name in OF_COSINES if name != "proto_nce"])  # which has two temperatures
def test_a_loss_warns_once_of_a_suspect_scale(name: str) -> None:
    """Also a loss that is made of several, or whose arrays enter before those of the loss that it is made of."""
    case, (key, value) = example(name), OF_COSINES[name]
    arrays = {k: np.asarray(x) for k, x in {**case.arguments, **case.constants}.items() if k != key}
    with pytest.warns(UserWarning, match=rf"{key}: expected a number") as caught:
        case.bound(**{key: value})(arrays)
    assert len(caught) == 1


@pytest.mark.parametrize("name", [name for name in OF_COSINES if name != "proto_nce"])
def test_a_loss_warns_once_of_a_learned_scale_without_exp(name: str) -> None:
    """An array of one entry is looked at where it can be read: the logarithm of a scale, a scale as temperature."""
    KINDS.clear()
    case, (key, _) = example(name), OF_COSINES[name]
    arrays = {k: np.asarray(x) for k, x in {**case.arguments, **case.constants}.items() if k != key}
    value = np.asarray(14.3 if key == "temperature" else 2.659)
    with pytest.warns(UserWarning, match=rf"{key}: expected .* got (an array below|one above)") as caught:
        case.bound(**{key: value})(arrays)
    assert len(caught) == 1


OF_WEIGHTS = [
    name
    for name in LOSSES
    if "weights" in inspect.signature(attrgetter(name.split()[0])(pnce)).parameters
    # Weights of widths; logarithms of weights, which are refused.
    and name.split()[0] not in {"matryoshka", "angle", "cosent", "from_scores.cosent"}
]


@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_a_loss_warns_once_of_negative_weights(name: str) -> None:
    KINDS.clear()
    case = example(name)
    arrays = {key: np.asarray(x) for key, x in {**case.arguments, **case.constants}.items()}
    with pytest.warns(
        UserWarning, match="^weights: expected numbers of at least 0, got negative ones, whose"
    ) as caught:
        case.bound(weights=np.asarray([1.0, -1.0, 1.0, 1.0]))(arrays)
    assert len(caught) == (2 if name == "proto_nce queue" else 1)  # its embeddings enter two losses


@pytest.mark.parametrize("what", SOUND)
def test_sound_values_do_not_warn(what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SOUND[what]()


def test_a_suspect_value_in_a_loop_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for k in range(5):
            pnce.info_nce(X + k, Y, temperature=14.3)
    assert len(caught) == 1


NOTHING_COUNTS: Mapping[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "different classes": (pnce.supcon, (X, np.arange(6)), {}, "no row counts, so the loss is 0"),
    "different classes of triplets": (pnce.triplet_from_labels, (X, np.arange(6)), {}, "no row counts"),
    "a mask of nothing": (pnce.info_nce, (X, Y), {"mask": ~ALL}, "no row counts"),
    "a mask of nothing for both sides": (pnce.siglip, (X, Y), {"mask": ~ALL, **SCALES}, "no row counts"),
    "weights of nothing": (pnce.nt_xent, (X, Y), {"weights": 0 * EACH}, "no row counts"),
    "indices of nothing": (pnce.info_nce, (X, Y), {"positives": ~ALL}, "no row counts"),
    "scores of nothing": (from_scores.supcon, (SCORES,), {"positives": ~ALL}, "no row counts"),
    "a batch of one": (pnce.info_nce, (X[:1], Y[:1]), {}, "no row has a negative"),
}


@pytest.mark.parametrize("what", NOTHING_COUNTS)
def test_explain_says_that_nothing_counts(what: str) -> None:
    loss, arrays, options, said = NOTHING_COUNTS[what]
    assert loss(*arrays, **options) == 0.0
    assert said in repr(pnce.explain(loss, *arrays, **options))
    on_jax = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    assert said in repr(pnce.explain(loss, *map(jnp.asarray, arrays), **on_jax))
    assert said not in repr(pnce.explain(pnce.supcon, X, LABELS))


@pytest.mark.parametrize("what", WRONG)
def test_remedy(what: str) -> None:
    call, remedy = WRONG[what]
    with pytest.raises((TypeError, ValueError), match=remedy):
        call()


@pytest.mark.parametrize("space", ["", "bounds", "density", "diagnostics", "from_scores", "objectives", "pairings"])
def test_arguments_that_do_not_fit_a_signature_have_a_message_of_the_package(space: str) -> None:
    module = getattr(pnce, space) if space else similarities
    for name in module.__all__:
        function = getattr(module, name)
        if not isinstance(function, FunctionType) or name == "resolve":
            continue
        for call in (partial(function, *[None] * 40), partial(function, no_such_option=1)):
            with pytest.raises(TypeError, match=rf"^({name}|no_such_option): expected .*, got "):
                call()


NAMED: Mapping[str, str] = {
    "NTXentLoss": "portable_nce.nt_xent, portable_nce.moco or portable_nce.supcon, or a torch.nn.Module",
    "InfoNCE": "portable_nce.info_nce, or a torch.nn.Module of portable_nce.modules.torch",
    "CLIP": "portable_nce.clip, or",
    "SupConLoss": "portable_nce.supcon, or",
    "SimCLR": "portable_nce.nt_xent or portable_nce.supcon, or",
    "mutual_information": "portable_nce.estimation.mutual_information",
    "linear_softmax": "portable_nce.density.linear_softmax",
    "tripletloss": "portable_nce.triplet",
    "infonse": "portable_nce.info_nce",
    "bounds.infonce": "portable_nce.bounds.info_nce",
    "bounds.InfoNCE": "portable_nce.bounds.info_nce",
    "estimation.mutual_info": "portable_nce.estimation.mutual_information",
    "objectives.InfoNCE": "portable_nce.objectives.info_nce",
    "density.supcon": "portable_nce.supcon",
    "from_scores.siglip": "portable_nce.from_scores.logistic",
}
"""Names that people type, and what the error names."""


@pytest.mark.parametrize("name", NAMED)
def test_a_name_of_another_library_leads_to_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name.rpartition('.')[2]}'; use {NAMED[name]}"):
        attrgetter(name)(pnce)


@pytest.mark.parametrize("name", ["xyzzy", "__wrapped__", "bounds.__path__"])
def test_a_name_like_no_other_has_no_remedy(name: str) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute '\w+'$"):
        attrgetter(name)(pnce)


GROUPS: Mapping[str, Any] = {
    "": {name: getattr(pnce, name) for name in {name.split()[0] for name in LOSSES} if "." not in name},
    **{
        place: {name: getattr(getattr(pnce, place), name) for name in getattr(pnce, place).__all__}
        for place in ("from_scores", "bounds", "density", "diagnostics")
    },
}
"""Functions of each public module; of the package, the losses of embeddings."""

SAID = {
    "scale": r"expected (temperature = 1 / \w+|logit_scale|scale = 1 / \w+|scale|logit_scale = 1 / \w+) in",
    "scores": r"scores include it$|scores are given; losses of embeddings",
    "given": (
        r"; (leave it out|take the mean of the losses of|pass it to the loss that|to leave rows out, pass weights)"
        r"|targets are the labels$"
    ),
    "takers": r"; ([\w., ]+) (take|takes) it$",
    "function": r"use ([\w.]+)(\(.*)?",
    "argument": r"; (?:pass|did you mean) '?(\w+)'?",
}
"""Forms of remedies."""


def arguments_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a function by name."""
    return inspect.signature(function).parameters


def check_remedy(message: str, option: str, place: str, function: Callable[..., Any]) -> None:
    """Check that a message has a remedy, and that each function and argument that it names exists."""
    named = next((form for form, text in SAID.items() if re.search(text, message)), None)
    assert named is not None, message
    found: Any = re.search(SAID[named], message)
    if named == "takers":
        for taker in re.split(", | and ", found[1].removesuffix(" and others")):
            path = taker if "." in taker or not place else f"{place}.{taker}"
            assert option in arguments_of(attrgetter(path.removeprefix("portable_nce."))(pnce)), message
    elif named == "function":
        other = attrgetter(found[1].removeprefix("portable_nce."))(pnce)
        for argument in re.findall(r"[(\s](\w+)=", found[2] or ""):
            assert argument in {*arguments_of(other), "bias"}, message
    elif named == "argument":
        assert found[1] in arguments_of(function), message


def test_an_argument_of_another_function_has_a_remedy() -> None:
    """For every argument that one function of a module has and another lacks, the message names what to use."""
    for place, functions in GROUPS.items():
        parts = {name: f for name, f in functions.items() if isinstance(f, FunctionType)}
        for option in dict.fromkeys(key for f in parts.values() for key in arguments_of(f)):
            for name, function in parts.items():
                own = arguments_of(function)
                required = [p for p in own.values() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
                if option not in own:
                    with pytest.raises(TypeError, match=rf"^{option}: expected .*{name}, got ") as caught:
                        function(*[None] * len(required), **{option: 1})
                    check_remedy(str(caught.value), option, place, function)


def test_remedies_lead_to_the_same_loss() -> None:
    positives, scales = LABELS[:, None] == LABELS[None, :], {"logit_scale": 4.0, "logit_bias": -1.0}
    in_place = pnce.siglip(X, Y, **scales)
    logistic = objectives.logistic(bias=-1.0)
    explicit = pnce.contrast(
        X, Y, objective=logistic, pairing=pairings.explicit(np.eye(6, dtype=bool)), temperature=0.25
    )
    np.testing.assert_allclose(explicit, in_place, rtol=1e-12)
    several = pnce.contrast(X, Y, objective=logistic, pairing=pairings.explicit(positives), temperature=0.25)
    scores = 4.0 * (X / np.linalg.norm(X, axis=1)[:, None]) @ (Y / np.linalg.norm(Y, axis=1)[:, None]).T - 1.0
    np.testing.assert_allclose(several, np.log1p(np.exp(np.where(positives, -scores, scores))).sum() / 6, rtol=1e-12)
    clip = pnce.info_nce(X, Y, positives=np.arange(6), symmetric=True, temperature=0.25)
    np.testing.assert_allclose(clip, pnce.clip(X, Y, logit_scale=4.0), rtol=1e-12)
    multi_hot = np.arange(18).reshape(6, 3) % 4 > 1
    overlap = pnce.contrast(X, objective=objectives.info_nce(), pairing=pairings.overlap(multi_hot), temperature=0.1)
    np.testing.assert_allclose(pnce.supcon(X, multi_hot.astype(int) != 0), overlap, rtol=1e-12)


def test_a_partial_array_library_is_refused_at_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    partial_library = SimpleNamespace(**{name: getattr(np, name) for name in ("asarray", "sum", "exp")})
    monkeypatch.setitem(sys.modules, "partial_library", partial_library)
    with pytest.raises(ValueError, match=r"register_backend: expected partial_library .* lacks abs, all, .*; pass arr"):
        pnce.register_backend("partial_library")


def test_remedy_on_ranks() -> None:
    def on_a_rank(group: Any) -> Any:
        return pnce.clip(X, Y, temperature=0.1, across=pnce.across(group, gradients="summed"))

    with pytest.raises(TypeError, match="temperature: expected logit_scale = 1 / temperature"):
        run_ranks(2, on_a_rank)


def test_an_error_inside_a_call_that_fits_stays_as_it_is() -> None:
    def objective(row: Any) -> Any:
        return row.log_odds + SimpleNamespace()

    with pytest.raises(TypeError, match="unsupported operand"):
        pnce.contrast(X, Y, objective=objective)


def test_optional_arrays_by_keyword() -> None:
    """By position and by keyword give the same, also for prefixes of embeddings and for tokens."""
    tokens, pairs = similarities.max_sim(), {"data_log_q": EACH, "noise_log_q": SCORES}
    same = [
        (pnce.info_nce(X, Y, MORE), pnce.info_nce(X, Y, negative_keys=MORE)),
        (pnce.two_tower(X, Y, MORE), pnce.two_tower(X, Y, negative_candidates=MORE)),
        (pnce.contrast(X, Y, objective="info_nce"), pnce.contrast(X, y=Y, objective="info_nce")),
        (
            pnce.info_nce(X[:, None], Y[:, None], MORE[:, None], similarity=tokens),
            pnce.info_nce(X[:, None], Y[:, None], negative_keys=MORE[:, None], similarity=tokens),
        ),
        (
            pnce.matryoshka(pnce.info_nce, [2, 4])(X, Y, MORE),
            pnce.matryoshka(pnce.info_nce, [2, 4])(X, Y, negative_keys=MORE),
        ),
        (pnce.density.ranking_nce(EACH, SCORES, EACH, SCORES), pnce.density.ranking_nce(EACH, SCORES, **pairs)),
    ]
    for by_place, by_name in same:
        assert by_place == by_name
    assert pairings.labels(LABELS, LABELS) == pairings.labels(LABELS, columns=LABELS)


def test_a_function_may_have_no_module() -> None:
    """For example, one defined by `exec` in a namespace without `__name__`."""
    dot = FunctionType((lambda x, y: x @ y.T).__code__, {})
    assert dot.__module__ is None
    np.testing.assert_allclose(pnce.info_nce(X, Y, similarity=dot), pnce.info_nce(X, Y, similarity="dot"), rtol=1e-15)


FACTORIES = [
    make
    for part in (objectives, pairings, similarities)
    for name in part.__all__
    if inspect.isfunction(make := getattr(part, name))
]


def test_a_function_that_makes_a_part_is_to_be_called_and_a_class_is_no_similarity() -> None:
    for maker in FACTORIES:
        name, module = maker.__name__, maker.__module__
        axis = "objective" if "objectives" in module else "similarity"
        if "pairings" in module or (axis, name) == ("similarity", "resolve"):
            continue
        parts: dict[str, Any] = {"objective": "info_nce"} | {axis: maker}
        words = rf"^{axis}: expected what \w+.{name}\(...\) returns, got {name} itself; call"
        with pytest.raises(TypeError, match=words):
            pnce.contrast(X, X, **parts)
    with pytest.raises(TypeError, match=r"^similarity: expected .* got the class"):
        pnce.info_nce(X, X, similarity=np.ndarray)
