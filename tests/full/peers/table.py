"""Losses of other libraries, and the same losses here: the one table that is tested and that docs/coming-from.md shows.

The lines of both sides stand here as text. The test executes them on the same inputs; ``python
tests/full/peers/table.py`` prints the page. Nothing but the standard library is needed to read the table.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from textwrap import dedent, fill
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library that is compared, by the version of its distribution.

    `dependencies` says whether it is installed with what it depends on, or alone, for its loss modules.
    """

    version: str
    framework: str = "torch"
    dependencies: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A loss of a peer, the lines that compute `loss` there and here, and what is different about the conventions."""

    peer: str
    name: str
    there: str
    here: str
    note: str

    @property
    def framework(self) -> str:
        """The array library of both sides."""
        return PEERS[self.peer].framework


ALONE = "The tests load its loss modules alone: the package as a whole wants {} when it is imported."

PEERS: Final[Mapping[str, Peer]] = {
    "torch": Peer(version="2.13.0"),
    "info-nce-pytorch": Peer(version="0.1.4"),
    "pytorch-metric-learning": Peer(
        version="2.9.0",
        note=(
            "Its distances normalise the embeddings, so ours is `normalized(...)`. Its reducers take the mean over the "
            "pairs, or over the terms that are not zero (`AvgNonZeroReducer`); ours is a mean over the rows, which "
            "`weights` and `average` turn into either."
        ),
    ),
    "lightly": Peer(version="1.6.0", dependencies=False, note=ALONE.format("torchvision")),
    "solo-learn": Peer(
        version="1.0.2", dependencies=False, note=ALONE.format("torchvision, Lightning and further packages")
    ),
    "open-clip-torch": Peer(
        version="3.3.0",
        dependencies=False,
        note=(
            f"{ALONE.format('torchvision and timm')} The losses take normalised features; ours normalise them, "
            'or with `similarity="dot"` take them as they are.'
        ),
    ),
    "sentence-transformers": Peer(
        version="6.2.0",
        note=(
            "`loss(features, labels)` there is the model's embeddings put into `compute_loss_from_embeddings`; so here "
            "`model` may be anything. For losses without that method the features hold the embeddings: `model` returns "
            "those named `sentence_embedding`, `guide` those named `guide`. `scale` is the inverse of a temperature."
        ),
    ),
    "libauc": Peer(
        version="2.0.1",
        dependencies=False,
        note=(
            f"{ALONE.format('torchvision, OpenCV, PyTorch Geometric and further packages')} Its losses are surrogates, "
            "made for their gradient; the lines below give them a value. Its memory is of PyTorch's default dtype, "
            "which the tests set to float64. Before a sample is met, its average is 0 there, so that γ scales its "
            "first one; but where no sample of a batch was met, in the first epoch, γ is 1. Here `log_u` of -inf makes "
            "γ = 1 for that sample. "
            "`adjust_gamma` changes γ from epoch to epoch; here it is an argument of each call."
        ),
    ),
    "optax": Peer(version="0.2.8", framework="jax"),
}
"""The peers, in the order of the page."""

INPUTS: Final[Mapping[str, str]] = {
    "query, key; view_a, view_b, view_c; image, text; anchor, positive, negative": "embeddings (N, D), row by row",
    "negatives, own_negatives": "further embeddings: (M, D) for all rows, (N, M, D) of each row",
    "embeddings, labels": "embeddings (B, D) and their integer classes (B,); one class has a single member",
    "classes": "labels in which every class has several members",
    "queue": "a memory of earlier embeddings (M, D), of unit length, without gradient",
    "earlier, earlier_labels": "a batch that came before, with its classes, without gradient",
    "grades": "how similar row i of `query` and of `key` are to be (N,), in any unit",
    "query_tokens, document_tokens; query_mask, document_mask": (
        "embeddings of tokens (N, T, D) and (N, U, D), and which of them are valid"
    ),
    "guide_query, guide_key": "a second model's embeddings of `query` and `key` (N, E)",
    "teacher_scores": "a second model's scores of two candidates for each query (N, 2)",
    "same": "1 or 0 (N,): whether row i of `query` and of `key` belong together",
    "scores, target, class_weights": "a score matrix (N, N), a column for each row, a weight for each column",
    "logit_scale, logit_bias": "learned scalars, 0-d",
}
"""What the names mean that the lines use."""

ROWS: Final[list[Row]] = []
"""The table."""


def add(peer: str, name: str, there: str, here: str, note: str) -> None:
    """Add a row."""
    there, here = (dedent(lines).strip() for lines in (there, here))
    there = re.sub(r"^((?:from .*\n)+)", r"\1\n", there)  # the imports, and a blank line
    ROWS.append(Row(peer=peer, name=name, there=there, here=here, note=note))


# torch

add(
    "torch",
    "cross_entropy, positives on the diagonal",
    "loss = F.cross_entropy(scores, torch.arange(len(scores)))",
    "loss = pnce.from_scores.info_nce(scores)",
    "The same value; ours keeps its digits where the positive wins by far.",
)
add(
    "torch",
    "cross_entropy, positives by index, class weights",
    "loss = F.cross_entropy(scores, target, weight=class_weights)",
    "loss = pnce.from_scores.info_nce(scores, positives=target, weights=class_weights[target])",
    "Both divide by the sum of the weights. Torch weights classes, ours are of the rows.",
)
add(
    "torch",
    "cross_entropy with soft targets",
    "loss = F.cross_entropy(scores, scores.detach().mul(0.5).softmax(dim=1))",
    "loss = pnce.from_scores.info_nce(scores, positives=scores.detach().mul(0.5).softmax(dim=1))",
    "Ours divides the targets of a row by their sum.",
)
add(
    "torch",
    "cross_entropy(label_smoothing=...)",
    "loss = F.cross_entropy(F.normalize(query) @ F.normalize(key).T, torch.arange(len(query)), label_smoothing=0.1)",
    """
    smoothed = pnce.pairings.smoothed(0.1)
    loss = pnce.contrast(query, key, objective="info_nce", pairing=smoothed)
    """,
    "",
)
add(
    "torch",
    'cross_entropy(reduction="none")',
    'loss = F.cross_entropy(scores, target, reduction="none").square().sum()',
    'loss = pnce.from_scores.info_nce(scores, positives=target, reduction="none").square().sum()',
    "One value for each row on both sides; the sum of squares is there to have one number to differentiate.",
)
add(
    "torch",
    "cross_entropy in both directions",
    """
    target = torch.arange(len(scores))
    loss = (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
    """,
    "loss = pnce.from_scores.clip(scores)",
    "The mean of both directions, as CLIP has it.",
)
add(
    "torch",
    "binary_cross_entropy_with_logits over all pairs",
    """
    pairs = torch.eye(len(scores), dtype=scores.dtype)
    loss = F.binary_cross_entropy_with_logits(scores, pairs, reduction="sum") / len(scores)
    """,
    "loss = pnce.from_scores.logistic(scores)",
    "A row is worth the sum over its pairs; the mean is over rows, not over pairs.",
)
add(
    "torch",
    "triplet_margin_loss",
    "loss = F.triplet_margin_loss(anchor, positive, negative, margin=1.0, eps=0)",
    "loss = pnce.triplet(anchor, positive, negative, margin=1.0)",
    (
        "By default torch adds eps = 1e-6 to every component of the difference; ours adds nothing, and has gradient 0 "
        "at distance 0."
    ),
)
add(
    "torch",
    "triplet_margin_with_distance_loss",
    """
    distance = lambda x, y: 1 - F.cosine_similarity(x, y)
    loss = F.triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=distance, margin=0.5)
    """,
    'loss = pnce.triplet(anchor, positive, negative, margin=0.5, similarity="cosine")',
    "Our distance is minus the similarity: the constant 1 drops out of the difference.",
)
add(
    "torch",
    "cosine_embedding_loss",
    "loss = F.cosine_embedding_loss(query, key, 2 * same - 1, margin=0.3)",
    """
    scores = F.cosine_similarity(query, key) - 1
    loss = pnce.from_scores.contrastive(
        scores[None, :], positives=(same == 1)[None, :], margin=1 - 0.3, positive_power=1, negative_power=1
    )
    """,
    "Given pairs are one row of scores. Our margin is one of distance, torch's one of similarity.",
)
add(
    "torch",
    "hinge_embedding_loss",
    """
    distance = F.pairwise_distance(query, key, eps=0)
    loss = F.hinge_embedding_loss(distance, 2 * same - 1, margin=2.0)
    """,
    """
    distance = F.pairwise_distance(query, key, eps=0)
    loss = pnce.from_scores.contrastive(
        -distance[None, :], positives=(same == 1)[None, :], margin=2.0, positive_power=1, negative_power=1
    )
    """,
    "Given pairs are one row of scores.",
)

add(
    "torch",
    "cross_entropy over a vocabulary",
    "loss = F.cross_entropy(scores, target)",
    "loss = pnce.density.full_softmax(scores, target)",
    "The exact partition function, which the losses of `density` sample.",
)
add(
    "torch",
    "binary_cross_entropy_with_logits, one of data and k of noise",
    """
    data = torch.zeros_like(scores)
    data[:, 0] = 1
    loss = F.binary_cross_entropy_with_logits(scores, data, reduction="sum") / len(scores)
    """,
    "loss = pnce.density.negative_sampling(scores[:, 0], scores[:, 1:])",
    "Negative sampling (word2vec). A row is worth the sum over its samples; the mean is over rows.",
)

# info-nce-pytorch

add(
    "info-nce-pytorch",
    "info_nce, negatives in the batch",
    """
    from info_nce import info_nce
    loss = info_nce(query, key, temperature=0.1)
    """,
    "loss = pnce.info_nce(query, key, temperature=0.1)",
    "The default temperature is 0.1 there, 0.07 here.",
)
add(
    "info-nce-pytorch",
    'info_nce(negative_mode="unpaired")',
    """
    from info_nce import info_nce
    loss = info_nce(query, key, negatives, temperature=0.1, negative_mode="unpaired")
    """,
    "loss = pnce.info_nce(query, key, negatives, temperature=0.1)",
    "With negatives of their own the other keys of the batch are no negatives, on both sides.",
)
add(
    "info-nce-pytorch",
    'info_nce(negative_mode="paired")',
    """
    from info_nce import info_nce
    loss = info_nce(query, key, own_negatives, temperature=0.1, negative_mode="paired")
    """,
    "loss = pnce.info_nce(query, key, own_negatives, temperature=0.1)",
    "The shape of the negatives says which mode it is.",
)
add(
    "info-nce-pytorch",
    'InfoNCE(reduction="sum")',
    """
    from info_nce import InfoNCE
    loss = InfoNCE(temperature=0.1, reduction="sum")(query, key)
    """,
    'loss = pnce.info_nce(query, key, temperature=0.1, reduction="sum")',
    "",
)

# pytorch-metric-learning

add(
    "pytorch-metric-learning",
    "NTXentLoss",
    """
    from pytorch_metric_learning.losses import NTXentLoss
    loss = NTXentLoss(temperature=0.07)(embeddings, labels)
    """,
    """
    positives = (labels[:, None] == labels).sum(1) - 1
    loss = pnce.supcon(embeddings, labels, temperature=0.07, multi_positive="separate", weights=positives)
    """,
    (
        "Each positive against the negatives alone, without the other positives: `separate`. The mean is over positive "
        "pairs, not over rows: weights."
    ),
)
add(
    "pytorch-metric-learning",
    "NTXentLoss with PerAnchorReducer",
    """
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.reducers import PerAnchorReducer
    loss = NTXentLoss(temperature=0.07, reducer=PerAnchorReducer())(embeddings, classes)
    """,
    'loss = pnce.supcon(embeddings, classes, temperature=0.07, multi_positive="separate")',
    "The mean over rows. A row without positives counts as 0 there; here it does not count.",
)
add(
    "pytorch-metric-learning",
    "SelfSupervisedLoss(NTXentLoss)",
    """
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss
    loss = SelfSupervisedLoss(NTXentLoss(temperature=0.1))(view_a, view_b)
    """,
    "loss = pnce.nt_xent(view_a, view_b, temperature=0.1)",
    "Both views are rows, the other 2N - 1 are columns.",
)
add(
    "pytorch-metric-learning",
    "SelfSupervisedLoss(NTXentLoss, symmetric=False)",
    """
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss
    loss = SelfSupervisedLoss(NTXentLoss(temperature=0.1), symmetric=False)(view_a, view_b)
    """,
    "loss = pnce.info_nce(view_a, view_b, temperature=0.1)",
    "Rows from one view, columns from the other.",
)
add(
    "pytorch-metric-learning",
    "SupConLoss",
    """
    from pytorch_metric_learning.losses import SupConLoss
    loss = SupConLoss(temperature=0.1)(embeddings, labels)
    """,
    "loss = pnce.supcon(embeddings, labels, temperature=0.1)",
    "Each positive against all others, the mean over a row's positives, then over the rows that have one.",
)
add(
    "pytorch-metric-learning",
    "CrossBatchMemory(SupConLoss)",
    """
    from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
    memory = CrossBatchMemory(SupConLoss(temperature=0.1), embedding_size=embeddings.shape[1], memory_size=64)
    memory(earlier, earlier_labels)
    loss = memory(embeddings, labels)
    """,
    """
    memory = pnce.queue_init(embeddings, 64, labels=labels)
    memory = pnce.queue_push(memory, earlier, labels=earlier_labels)
    memory = pnce.queue_push(memory, embeddings, labels=labels)
    itself = torch.arange(64) == 64 - len(labels) + torch.arange(len(labels))[:, None]
    loss = pnce.supcon(embeddings, labels, keys=memory, mask=~itself, temperature=0.1)
    """,
    (
        "The batch stands in the memory too, without gradient, and a row is masked against itself. `queue_push` keeps "
        "the oldest rows first: the batch that came last has the last slots."
    ),
)
add(
    "pytorch-metric-learning",
    "ContrastiveLoss, with ref_emb",
    """
    from pytorch_metric_learning.losses import ContrastiveLoss
    loss = ContrastiveLoss()(embeddings, labels, ref_emb=earlier, ref_labels=earlier_labels)
    """,
    """
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = pnce.contrastive(
        embeddings,
        labels,
        keys=earlier,
        key_labels=earlier_labels,
        positive_power=1,
        negative_power=1,
        average="nonzero",
        balance=True,
        similarity=similarity,
    )
    """,
    "Rows against other embeddings, as all losses of labels here take them.",
)
add(
    "pytorch-metric-learning",
    "NCALoss",
    """
    from pytorch_metric_learning.losses import NCALoss
    loss = NCALoss(softmax_scale=2)(embeddings, labels)
    """,
    """
    similarity = pnce.similarities.normalized("neg_sq_euclidean")
    loss = pnce.nca(embeddings, labels, temperature=1 / 2, similarity=similarity)
    """,
    "The squared distance of normalised embeddings; the scale is the inverse of a temperature.",
)
add(
    "pytorch-metric-learning",
    "NCALoss without normalisation",
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import NCALoss
    loss = NCALoss(distance=LpDistance(normalize_embeddings=False, power=2))(embeddings, labels)
    """,
    "loss = pnce.nca(embeddings, labels)",
    "As in the paper: the squared distance of the embeddings as they are.",
)
add(
    "pytorch-metric-learning",
    "NCALoss as the soft nearest neighbour loss",
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import NCALoss
    loss = NCALoss(softmax_scale=1 / 3, distance=LpDistance(normalize_embeddings=False, power=2))(embeddings, labels)
    """,
    "loss = pnce.soft_nearest_neighbor(embeddings, labels, temperature=3.0)",
    "It is `nca` with a temperature.",
)
add(
    "pytorch-metric-learning",
    "NPairsLoss",
    """
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import NPairsLoss
    pairs = torch.arange(len(query)).repeat(2)
    distance = DotProductSimilarity(normalize_embeddings=False)
    loss = NPairsLoss(distance=distance)(torch.cat([query, key]), pairs)
    """,
    "loss = pnce.n_tuple(query, key)",
    (
        "Of a batch with labels it takes the first pair of each class; ours takes the pairs. It normalises unless "
        'told otherwise, which is `similarity="cosine"`.'
    ),
)
add(
    "pytorch-metric-learning",
    "NPairsLoss, as it comes",
    """
    from pytorch_metric_learning.losses import NPairsLoss
    pairs = torch.arange(len(query)).repeat(2)
    loss = NPairsLoss()(torch.cat([query, key]), pairs)
    """,
    'loss = pnce.n_tuple(query, key, similarity="cosine")',
    "The paper compares embeddings that are not normalised.",
)
add(
    "pytorch-metric-learning",
    "NPairsLoss with LpRegularizer",
    """
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import NPairsLoss
    from pytorch_metric_learning.regularizers import LpRegularizer
    pairs = torch.arange(len(query)).repeat(2)
    loss = NPairsLoss(
        distance=DotProductSimilarity(normalize_embeddings=False),
        embedding_regularizer=LpRegularizer(power=2),
        embedding_reg_weight=0.02,
    )(torch.cat([query, key]), pairs)
    """,
    "loss = pnce.n_tuple(query, key, l2=0.01)",
    "Its penalty is a mean over the 2N embeddings, ours a sum over the two of a pair: half the weight.",
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss",
    """
    from pytorch_metric_learning.losses import TripletMarginLoss
    loss = TripletMarginLoss(margin=0.05)(embeddings, labels)
    """,
    """
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = pnce.triplet_from_labels(embeddings, labels, margin=0.05, average="nonzero", similarity=similarity)
    """,
    "All triplets, the mean over those with a loss.",
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss(smooth_loss=True)",
    """
    from pytorch_metric_learning.losses import TripletMarginLoss
    loss = TripletMarginLoss(margin=0.05, smooth_loss=True)(embeddings, labels)
    """,
    """
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = pnce.triplet_from_labels(embeddings, labels, margin=0.05, form="soft", similarity=similarity)
    """,
    "No term is zero, so that the mean over the terms with a loss is the mean over all.",
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss with MeanReducer",
    """
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.reducers import MeanReducer
    loss = TripletMarginLoss(margin=0.05, reducer=MeanReducer())(embeddings, labels)
    """,
    """
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = pnce.triplet_from_labels(embeddings, labels, margin=0.05, similarity=similarity)
    """,
    "The mean over all triplets.",
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss with BatchHardMiner",
    """
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner
    loss = TripletMarginLoss(margin=0.05)(embeddings, labels, BatchHardMiner()(embeddings, labels))
    """,
    """
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = pnce.triplet_from_labels(
        embeddings, labels, margin=0.05, mining="batch_hard", average="nonzero", similarity=similarity
    )
    """,
    "The farthest positive and the nearest negative of each row that has both.",
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss with BatchEasyHardMiner",
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchEasyHardMiner
    from pytorch_metric_learning.reducers import MeanReducer
    distance = LpDistance(normalize_embeddings=False)
    miner = BatchEasyHardMiner(pos_strategy="easy", neg_strategy="hard", distance=distance)
    criterion = TripletMarginLoss(margin=0.5, distance=distance, reducer=MeanReducer())
    loss = criterion(embeddings, labels, miner(embeddings, labels))
    """,
    """
    loss = pnce.triplet_from_labels(embeddings, labels, margin=0.5, mining=("easy", "hard"))
    """,
    (
        "Rules for positives and negatives in one pair. Where no negative is farther than the positive, `semi_hard` "
        "takes the farthest, as TensorFlow Addons does; its miner leaves the anchor out."
    ),
)
add(
    "pytorch-metric-learning",
    "TripletMarginLoss with CosineSimilarity",
    """
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import TripletMarginLoss
    loss = TripletMarginLoss(margin=0.2, distance=CosineSimilarity())(embeddings, labels)
    """,
    """
    loss = pnce.triplet_from_labels(embeddings, labels, margin=0.2, average="nonzero", similarity="cosine")
    """,
    "Our distance is minus the similarity.",
)
add(
    "pytorch-metric-learning",
    "ContrastiveLoss",
    """
    from pytorch_metric_learning.losses import ContrastiveLoss
    loss = ContrastiveLoss(pos_margin=0, neg_margin=1)(embeddings, labels)
    """,
    """
    loss = pnce.contrastive(
        embeddings,
        labels,
        positive_power=1,
        negative_power=1,
        balance=True,
        average="nonzero",
        similarity=pnce.similarities.normalized("neg_euclidean"),
    )
    """,
    "The distances are not squared; positives and negatives are averaged apart, each over its terms with a loss.",
)
add(
    "pytorch-metric-learning",
    "ContrastiveLoss with LpDistance(power=2)",
    """
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import ContrastiveLoss
    loss = ContrastiveLoss(distance=LpDistance(power=2))(embeddings, labels)
    """,
    """
    loss = pnce.contrastive(
        embeddings,
        labels,
        positive_power=1,
        negative_power=1,
        balance=True,
        average="nonzero",
        similarity=pnce.similarities.normalized("neg_sq_euclidean"),
    )
    """,
    "The distance is squared before the margin is taken; the paper squares after it.",
)
add(
    "pytorch-metric-learning",
    "ContrastiveLoss with MeanReducer",
    """
    from pytorch_metric_learning.losses import ContrastiveLoss
    from pytorch_metric_learning.reducers import MeanReducer
    loss = ContrastiveLoss(reducer=MeanReducer())(embeddings, labels)
    """,
    """
    loss = pnce.contrastive(
        embeddings,
        labels,
        positive_power=1,
        negative_power=1,
        balance=True,
        similarity=pnce.similarities.normalized("neg_euclidean"),
    )
    """,
    "The mean over all positive pairs plus the mean over all negative ones.",
)

# lightly

add(
    "lightly",
    "NTXentLoss",
    """
    from lightly.loss import NTXentLoss
    loss = NTXentLoss(temperature=0.5)(view_a, view_b)
    """,
    "loss = pnce.nt_xent(view_a, view_b, temperature=0.5)",
    "The default temperature is 0.5 there, 0.1 here.",
)
add(
    "lightly",
    "NTXentLoss with a memory bank",
    """
    from lightly.loss import NTXentLoss
    criterion = NTXentLoss(temperature=0.1, memory_bank_size=tuple(queue.shape))
    criterion.memory_bank.bank = queue
    loss = criterion(query, key)
    """,
    "loss = pnce.moco(query, key, queue, temperature=0.1)",
    (
        "It pushes normalised keys into its own bank, which starts with random rows; ours is an argument, and "
        "`queue_init` starts with none. Neither lets a gradient into the queue."
    ),
)
add(
    "lightly",
    "DCLLoss",
    """
    from lightly.loss import DCLLoss
    loss = DCLLoss(temperature=0.1)(view_a, view_b)
    """,
    "loss = pnce.dcl(view_a, view_b, temperature=0.1)",
    "",
)
add(
    "lightly",
    "DCLWLoss",
    """
    from lightly.loss import DCLWLoss
    loss = DCLWLoss(temperature=0.1, sigma=0.5)(view_a, view_b)
    """,
    "loss = pnce.dclw(view_a, view_b, temperature=0.1, sigma=0.5, detach_weights=True)",
    "Its weights carry no gradient; ours do unless told otherwise.",
)
add(
    "lightly",
    "NNMemoryBankModule with NTXentLoss (NNCLR)",
    """
    from lightly.loss import NTXentLoss
    from lightly.models.modules import NNMemoryBankModule
    bank = NNMemoryBankModule(size=tuple(queue.shape))
    bank.bank = queue
    loss = NTXentLoss(temperature=0.1)(bank(view_a.detach(), update=False), view_b)
    """,
    'loss = pnce.nnclr(view_a, view_b, queue, temperature=0.1, negatives="views")',
    (
        "NT-Xent over neighbours and views together. In the paper the neighbours are rows and the views columns: see "
        "solo-learn."
    ),
)

add(
    "lightly",
    "HypersphereLoss",
    """
    from lightly.loss import HypersphereLoss
    loss = HypersphereLoss(t=2.0, lam=0.5)(view_a, view_b)
    """,
    """
    uniformity = pnce.diagnostics.uniformity(view_a, t=2.0) + pnce.diagnostics.uniformity(view_b, t=2.0)
    loss = pnce.diagnostics.alignment(view_a, view_b) + 0.5 * uniformity / 2
    """,
    "Wang and Isola's alignment and uniformity, as a loss. The default of t is 1 there, 2 here.",
)

# solo-learn

add(
    "solo-learn",
    "simclr_loss_func",
    """
    from solo.losses import simclr_loss_func
    loss = simclr_loss_func(view_a, view_b, temperature=0.1)
    """,
    "loss = pnce.nt_xent(view_a, view_b, temperature=0.1)",
    "",
)
add(
    "solo-learn",
    "simclr_loss_func with further positives",
    """
    from solo.losses import simclr_loss_func
    both = classes[: len(view_a)].repeat(2)
    further = (both[:, None] == both) & ~torch.eye(len(both), dtype=torch.bool)
    loss = simclr_loss_func(view_a, view_b, temperature=0.1, extra_pos_mask=further)
    """,
    """
    both = classes[: len(view_a)].repeat(2)
    loss = pnce.supcon(torch.cat([view_a, view_b]), both, temperature=0.1)
    """,
    "Each positive against all others, the other positives too.",
)
add(
    "solo-learn",
    "manual_simclr_loss_func, three views",
    """
    from solo.losses import manual_simclr_loss_func
    views = torch.cat([view_a, view_b, view_c])
    of = torch.arange(len(view_a)).repeat(3)
    positives = (of[:, None] == of) & ~torch.eye(len(of), dtype=torch.bool)
    loss = manual_simclr_loss_func(views, positives, of[:, None] != of, temperature=0.1)
    """,
    "loss = pnce.nt_xent(view_a, view_b, view_c, temperature=0.1)",
    "Each positive against the negatives alone, without the other positives.",
)
add(
    "solo-learn",
    "moco_loss_func",
    """
    from solo.losses import moco_loss_func
    loss = moco_loss_func(F.normalize(query), F.normalize(key), queue.T, temperature=0.1)
    """,
    "loss = pnce.moco(query, key, queue, temperature=0.1)",
    "It takes normalised embeddings, and the queue transposed.",
)
add(
    "solo-learn",
    "nnclr_loss_func",
    """
    from solo.losses import nnclr_loss_func
    nearest = (F.normalize(view_a.detach()) @ queue.T).argmax(1)
    loss = nnclr_loss_func(queue[nearest], view_b, temperature=0.1)
    """,
    "loss = pnce.nnclr(view_a, view_b, queue, temperature=0.1)",
    "As in the paper: neighbours are rows, views columns. The first view gets no gradient.",
)
add(
    "solo-learn",
    "nnclr_loss_func, both ways",
    """
    from solo.losses import nnclr_loss_func
    nearest_a = (F.normalize(view_a.detach()) @ queue.T).argmax(1)
    nearest_b = (F.normalize(view_b.detach()) @ queue.T).argmax(1)
    loss = (
        nnclr_loss_func(queue[nearest_a], view_b, temperature=0.1) / 2
        + nnclr_loss_func(queue[nearest_b], view_a, temperature=0.1) / 2
    )
    """,
    """
    one_way = pnce.nnclr(view_a, view_b, queue, temperature=0.1)
    loss = (one_way + pnce.nnclr(view_b, view_a, queue, temperature=0.1)) / 2
    """,
    (
        "Neighbours of both views. This is not our `symmetric`, which is the mean of the two directions of one score "
        "matrix."
    ),
)

add(
    "solo-learn",
    "ressl_loss_func",
    """
    from solo.losses import ressl_loss_func
    loss = ressl_loss_func(F.normalize(query), F.normalize(key), queue, temperature_q=0.1, temperature_k=0.04)
    """,
    "loss = pnce.distillation(query, queue, key, queue, temperature=0.1, teacher_temperature=0.04)",
    "The keys' similarities with the queue are the targets of the queries'. It takes normalised embeddings.",
)

# open_clip

add(
    "open-clip-torch",
    "ClipLoss",
    """
    from open_clip.loss import ClipLoss
    loss = ClipLoss()(F.normalize(image), F.normalize(text), logit_scale)
    """,
    "loss = pnce.clip(image, text, logit_scale=logit_scale)",
    (
        "Its training script clamps the parameter to log 100 after each step; ours takes a larger scale for 100 "
        "(`max_logit_scale`)."
    ),
)
add(
    "open-clip-torch",
    "SigLipLoss",
    """
    from open_clip.loss import SigLipLoss
    loss = SigLipLoss()(F.normalize(image), F.normalize(text), logit_scale, logit_bias)
    """,
    "loss = pnce.siglip(image, text, logit_scale=logit_scale, logit_bias=logit_bias)",
    "The sum over all pairs, divided by the rows.",
)

add(
    "open-clip-torch",
    "SigLipLoss of a block without positives",
    """
    from open_clip.loss import SigLipLoss
    loss = SigLipLoss()._loss(F.normalize(image), F.normalize(text), logit_scale, logit_bias, negative_only=True)
    """,
    "loss = pnce.siglip(image, text, logit_scale=logit_scale, logit_bias=logit_bias, negative_only=True)",
    "As it has them of the texts of other processes; with `across=` ours finds them itself.",
)
add(
    "open-clip-torch",
    "DistillClipLoss",
    """
    from open_clip.loss import DistillClipLoss
    teacher = F.normalize(guide_query).detach(), F.normalize(guide_key).detach()
    _, loss = DistillClipLoss()(F.normalize(query), F.normalize(key), logit_scale, *teacher, dist_logit_scale=5.0)
    """,
    """
    loss = pnce.distillation(
        query, key, guide_query, guide_key, temperature=1 / logit_scale, teacher_temperature=1 / 5, symmetric=True
    )
    """,
    (
        "It returns the CLIP loss, and the cross-entropy with the teacher's softmax, which is this one. Ours lets no "
        "gradient into the teacher; there its embeddings have to come without."
    ),
)

# sentence-transformers

LOSSES = "from sentence_transformers.sentence_transformer.losses import"

add(
    "sentence-transformers",
    "MultipleNegativesRankingLoss",
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    loss = MultipleNegativesRankingLoss(model, scale=20.0).compute_loss_from_embeddings([query, key], None)
    """,
    "loss = pnce.info_nce(query, key, temperature=1 / 20)",
    "",
)
add(
    "sentence-transformers",
    "MultipleNegativesRankingLoss with hard negatives",
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    columns = [query, key, negative]
    loss = MultipleNegativesRankingLoss(model, scale=20.0).compute_loss_from_embeddings(columns, None)
    """,
    """
    keys = torch.cat([key, negative])
    loss = pnce.info_nce(query, keys, positives=torch.arange(len(query)), temperature=1 / 20)
    """,
    "Every row sees the keys and the hard negatives of all rows.",
)
add(
    "sentence-transformers",
    "MultipleNegativesRankingLoss with hardness",
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    hardness = {{"hardness_mode": "all_negatives", "hardness_strength": 5.0}}
    criterion = MultipleNegativesRankingLoss(model, scale=20.0, **hardness)
    loss = criterion.compute_loss_from_embeddings([query, key, negative], None)
    """,
    """
    keys = torch.cat([key, negative])
    own = torch.arange(len(query))
    loss = pnce.info_nce(query, keys, positives=own, temperature=1 / 20, hardness=5.0)
    """,
    "It is added to the scores of all negatives, those of other rows too.",
)
add(
    "sentence-transformers",
    'MultipleNegativesRankingLoss(hardness_mode="in_batch_negatives") of pairs',
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    hardness = {{"hardness_mode": "in_batch_negatives", "hardness_strength": 9.0}}
    loss = MultipleNegativesRankingLoss(model, scale=20.0, **hardness).compute_loss_from_embeddings([query, key], None)
    """,
    "loss = pnce.info_nce(query, key, temperature=1 / 20, hardness=9.0)",
    "Of pairs without hard negatives, it is the same as `all_negatives`.",
)
add(
    "sentence-transformers",
    'MultipleNegativesRankingLoss(hardness_mode="hard_negatives")',
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    hardness = {{"hardness_mode": "hard_negatives", "hardness_strength": 5.0}}
    criterion = MultipleNegativesRankingLoss(model, scale=20.0, **hardness)
    loss = criterion.compute_loss_from_embeddings([query, key, negative], None)
    """,
    """
    cosines = F.normalize(query) @ F.normalize(torch.cat([key, negative])).T
    hard = torch.eye(len(query), dtype=query.dtype)
    own_hard_negative = torch.cat([torch.zeros_like(hard), hard], dim=1)
    loss = pnce.from_scores.info_nce(20.0 * cosines + 5.0 * own_hard_negative * cosines.detach())
    """,
    "It is added to the score of a row's own hard negative alone; our `hardness` is for all negatives.",
)
add(
    "sentence-transformers",
    "MultipleNegativesRankingLoss, all four directions",
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    directions = "query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"
    criterion = MultipleNegativesRankingLoss(model, scale=20.0, directions=directions)
    loss = criterion.compute_loss_from_embeddings([query, key], None)
    """,
    """
    q, k = F.normalize(query), F.normalize(key)
    scores = 20.0 * torch.cat([q @ k.T, q @ q.T, k @ q.T, k @ k.T], dim=1)
    itself = torch.eye(len(q), dtype=torch.bool)
    mask = ~torch.cat([torch.zeros_like(itself), itself, torch.zeros_like(itself), itself], dim=1)
    loss = pnce.from_scores.info_nce(scores, mask=mask)
    """,
    (
        "The candidates of all directions in one softmax (GTE). The positive stands in it twice, once for each of its "
        "directions; in `joint_info_nce`, which streams, it stands once."
    ),
)
add(
    "sentence-transformers",
    "MultipleNegativesRankingLoss, the directions that have the positive once",
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    directions = "query_to_doc", "query_to_query", "doc_to_doc"
    criterion = MultipleNegativesRankingLoss(model, scale=20.0, directions=directions)
    loss = criterion.compute_loss_from_embeddings([query, key], None)
    """,
    """
    directions = "query_to_key", "query_to_query", "key_to_key"
    loss = pnce.joint_info_nce(query, key, temperature=1 / 20, directions=directions)
    """,
    "Without `doc_to_query` both have the same softmax. The default temperature is 0.01 here.",
)
add(
    "sentence-transformers",
    'MultipleNegativesRankingLoss(partition_mode="per_direction")',
    f"""
    {LOSSES} MultipleNegativesRankingLoss
    directions = "query_to_doc", "doc_to_query"
    criterion = MultipleNegativesRankingLoss(model, directions=directions, partition_mode="per_direction")
    loss = criterion.compute_loss_from_embeddings([query, key], None)
    """,
    "loss = pnce.info_nce(query, key, temperature=1 / 20, symmetric=True)",
    "A softmax for each direction, and their mean.",
)
add(
    "sentence-transformers",
    "CachedMultipleNegativesRankingLoss",
    f"""
    {LOSSES} CachedMultipleNegativesRankingLoss
    features = [{{"sentence_embedding": query}}, {{"sentence_embedding": key}}]
    loss = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=4)(features, None)
    """,
    "loss = pnce.info_nce(query, key, temperature=1 / 20)",
    "The same loss: the mini-batches are those of the model. Ours needs O(N · block) memory for any batch.",
)
add(
    "sentence-transformers",
    "MultipleNegativesSymmetricRankingLoss",
    f"""
    {LOSSES} MultipleNegativesSymmetricRankingLoss
    criterion = MultipleNegativesSymmetricRankingLoss(model, scale=20.0)
    loss = criterion.compute_loss_from_embeddings([query, key], None)
    """,
    "loss = pnce.info_nce(query, key, temperature=1 / 20, symmetric=True)",
    (
        "Deprecated there for `MultipleNegativesRankingLoss` with `directions` both ways and "
        '`partition_mode="per_direction"`.'
    ),
)
add(
    "sentence-transformers",
    "ContrastiveLoss",
    f"""
    {LOSSES} ContrastiveLoss
    loss = ContrastiveLoss(model, margin=0.5).compute_loss_from_embeddings([query, key], same)
    """,
    """
    scores = F.cosine_similarity(query, key) - 1
    loss = pnce.from_scores.contrastive(scores[None, :], positives=(same == 1)[None, :], margin=0.5) / 2
    """,
    "Given pairs are one row of scores. It halves the squares; ours does not.",
)
add(
    "sentence-transformers",
    "TripletLoss",
    f"""
    {LOSSES} TripletLoss
    criterion = TripletLoss(model, triplet_margin=1.0)
    loss = criterion.compute_loss_from_embeddings([anchor, positive, negative], None)
    """,
    "loss = pnce.triplet(anchor, positive, negative, margin=1.0)",
    "The default margin is 5 there, 0.2 here.",
)
add(
    "sentence-transformers",
    "TripletLoss(distance_metric=COSINE)",
    f"""
    {LOSSES} TripletDistanceMetric, TripletLoss
    criterion = TripletLoss(model, TripletDistanceMetric.COSINE, triplet_margin=0.5)
    loss = criterion.compute_loss_from_embeddings([anchor, positive, negative], None)
    """,
    'loss = pnce.triplet(anchor, positive, negative, margin=0.5, similarity="cosine")',
    "Our distance is minus the similarity: the constant 1 drops out of the difference.",
)
add(
    "sentence-transformers",
    "BatchAllTripletLoss",
    f"""
    {LOSSES} BatchAllTripletLoss
    loss = BatchAllTripletLoss(model, margin=1.0).compute_loss_from_embeddings([embeddings], labels)
    """,
    'loss = pnce.triplet_from_labels(embeddings, labels, margin=1.0, average="nonzero")',
    "The mean over the triplets with a loss. Not normalised.",
)
add(
    "sentence-transformers",
    "BatchHardTripletLoss",
    f"""
    {LOSSES} BatchHardTripletLoss
    loss = BatchHardTripletLoss(model, margin=1.0).compute_loss_from_embeddings([embeddings], classes)
    """,
    'loss = pnce.triplet_from_labels(embeddings, classes, margin=1.0, mining="batch_hard")',
    (
        "The mean over all rows. A row without a positive counts there, with distance 0 to it, and one without a "
        "negative, with its largest distance; here neither counts."
    ),
)
add(
    "sentence-transformers",
    "BatchHardSoftMarginTripletLoss",
    f"""
    {LOSSES} BatchHardSoftMarginTripletLoss
    loss = BatchHardSoftMarginTripletLoss(model).compute_loss_from_embeddings([embeddings], classes)
    """,
    'loss = pnce.triplet_from_labels(embeddings, classes, margin=0.0, form="soft", mining="batch_hard")',
    "No margin: our soft form has one, here 0.",
)

add(
    "sentence-transformers",
    "BatchSemiHardTripletLoss",
    f"""
    {LOSSES} BatchSemiHardTripletLoss
    loss = BatchSemiHardTripletLoss(model, margin=1.0).compute_loss_from_embeddings([embeddings], labels)
    """,
    'loss = pnce.triplet_from_labels(embeddings, labels, margin=1.0, mining="semi_hard")',
    (
        "Each positive pair with the nearest negative that is farther, or the farthest if there is none. The mean over "
        "all positive pairs."
    ),
)
add(
    "sentence-transformers",
    "CoSENTLoss",
    f"""
    {LOSSES} CoSENTLoss
    loss = CoSENTLoss(model, scale=20.0).compute_loss_from_embeddings([query, key], grades)
    """,
    "loss = pnce.cosent(query, key, grades, scale=20.0)",
    "One logarithm of the sum over all pairs of rows with different grades, on both sides.",
)
add(
    "sentence-transformers",
    "AnglELoss",
    f"""
    {LOSSES} AnglELoss
    loss = AnglELoss(model, scale=20.0).compute_loss_from_embeddings([query, key], grades)
    """,
    "loss = pnce.angle(query, key, grades, scale=20.0)",
    "Both fill an odd width up by a zero. Of triples, it makes pairs there; here these are yours to make.",
)

add(
    "sentence-transformers",
    "MatryoshkaLoss",
    f"""
    {LOSSES} MatryoshkaLoss, MultipleNegativesRankingLoss
    features = [{{"sentence_embedding": query}}, {{"sentence_embedding": key}}]
    ranking = MultipleNegativesRankingLoss(model, scale=20.0)
    loss = MatryoshkaLoss(model, ranking, [5, 3, 2], [1.0, 0.5, 0.25])(features, None)
    """,
    """
    nested = pnce.matryoshka(pnce.info_nce, [5, 3, 2], weights=[1.0, 0.5, 0.25])
    loss = nested(query, key, temperature=1 / 20)
    """,
    "It gives each prefix unit length first, which the cosine does too.",
)
add(
    "sentence-transformers",
    "MatryoshkaLoss of a loss without normalisation",
    f"""
    {LOSSES} MatryoshkaLoss, TripletLoss
    features = [{{"sentence_embedding": x}} for x in (anchor, positive, negative)]
    loss = MatryoshkaLoss(model, TripletLoss(model, triplet_margin=0.5), [5, 2])(features, None)
    """,
    """
    nested = pnce.matryoshka(pnce.triplet, [5, 2])
    similarity = pnce.similarities.normalized("neg_euclidean")
    loss = nested(anchor, positive, negative, margin=0.5, similarity=similarity)
    """,
    "It gives each prefix unit length first; here `normalized(...)` does.",
)
add(
    "sentence-transformers",
    "GISTEmbedLoss of queries and keys",
    f"""
    {LOSSES} GISTEmbedLoss
    features = [
        {{"sentence_embedding": query, "guide": guide_query}},
        {{"sentence_embedding": key, "guide": guide_key}},
    ]
    criterion = GISTEmbedLoss(model, guide, temperature=0.2, contrast_anchors=False, contrast_positives=False)
    loss = criterion(features, None)
    """,
    "loss = pnce.gist_embed(query, key, guide_query, guide_key, temperature=0.2)",
    "Negatives that the guide finds more similar to the query than its key are left out; the positive never is.",
)
add(
    "sentence-transformers",
    "GISTEmbedLoss with an absolute margin and hard negatives",
    f"""
    {LOSSES} GISTEmbedLoss
    features = [
        {{"sentence_embedding": query, "guide": guide_query}},
        {{"sentence_embedding": key, "guide": guide_key}},
        {{"sentence_embedding": negative, "guide": guide_key.flip(0)}},
    ]
    same_kind = {{"contrast_anchors": False, "contrast_positives": False}}
    criterion = GISTEmbedLoss(model, guide, temperature=0.2, margin=0.3, **same_kind)
    loss = criterion(features, None)
    """,
    """
    keys, guide_keys = torch.cat([key, negative]), torch.cat([guide_key, guide_key.flip(0)])
    loss = pnce.gist_embed(query, keys, guide_query, guide_keys, temperature=0.2, margin=0.3)
    """,
    "What the guide finds more similar than the key, less the margin, is left out: hard negatives too.",
)
add(
    "sentence-transformers",
    'CachedGISTEmbedLoss(margin_strategy="relative")',
    f"""
    {LOSSES} CachedGISTEmbedLoss
    features = [
        {{"sentence_embedding": query, "guide": guide_query}},
        {{"sentence_embedding": key, "guide": guide_key}},
    ]
    same_kind = {{"contrast_anchors": False, "contrast_positives": False}}
    margin = {{"margin_strategy": "relative", "margin": 0.5}}
    criterion = CachedGISTEmbedLoss(model, guide, temperature=0.2, mini_batch_size=4, **margin, **same_kind)
    loss = criterion(features, None)
    """,
    """
    margin = {"margin_strategy": "relative", "margin": 0.5}
    loss = pnce.gist_embed(query, key, guide_query, guide_key, temperature=0.2, **margin)
    """,
    "The margin is a share of the absolute similarity of the guide's positive pair.",
)
add(
    "sentence-transformers",
    "GISTEmbedLoss(contrast_positives=False)",
    f"""
    {LOSSES} GISTEmbedLoss
    features = [
        {{"sentence_embedding": query, "guide": guide_query}},
        {{"sentence_embedding": key, "guide": guide_key}},
    ]
    loss = GISTEmbedLoss(model, guide, temperature=0.2, contrast_positives=False)(features, None)
    """,
    """
    keys, guide_keys = torch.cat([key, query]), torch.cat([guide_key, guide_query])
    loss = pnce.gist_embed(query, keys, guide_query, guide_keys, temperature=0.2)
    """,
    (
        "The queries are negatives of each other too. On both sides it is the guide that leaves a query out as its own "
        "negative: to the guide it is more similar to itself than to its key."
    ),
)
add(
    "sentence-transformers",
    "GISTEmbedLoss, as it comes",
    f"""
    {LOSSES} GISTEmbedLoss
    features = [
        {{"sentence_embedding": query, "guide": guide_query}},
        {{"sentence_embedding": key, "guide": guide_key}},
    ]
    loss = GISTEmbedLoss(model, guide, temperature=0.2)(features, None)
    """,
    """
    q, k, g, h = (F.normalize(x) for x in (query, key, guide_query, guide_key))
    scores = torch.cat([q @ k.T, q @ q.T, k @ k.T], dim=1) / 0.2
    guides = torch.cat([g @ h.T, g @ g.T, h @ h.T], dim=1)
    own = torch.eye(len(q), 3 * len(q), dtype=torch.bool)
    loss = pnce.from_scores.info_nce(scores, mask=own | (guides <= (g * h).sum(1, keepdim=True)))
    """,
    (
        "By default the scores among queries and among keys are negatives too, in one softmax. Of a row, those of its "
        "key with other keys have no query in them, so that `gist_embed` does not take them."
    ),
)
add(
    "sentence-transformers",
    "DistillKLDivLoss",
    f"""
    {LOSSES} DistillKLDivLoss
    criterion = DistillKLDivLoss(model, temperature=2.0)
    loss = criterion.compute_loss_from_embeddings([query, key, negative], teacher_scores)
    """,
    """
    scores = torch.stack([(query * key).sum(1), (query * negative).sum(1)], dim=1)
    targets = (teacher_scores.detach() / 2.0).softmax(1)
    entropy = torch.special.entr(targets).sum(1).mean()
    loss = 2.0**2 * (pnce.from_scores.info_nce(scores / 2.0, positives=targets) - entropy)
    """,
    (
        "The divergence is the cross-entropy less the entropy of the targets, which have no gradient; its loss is "
        "multiplied by the temperature squared. `distillation` has the embeddings of the teacher, not its scores."
    ),
)
add(
    "sentence-transformers",
    "MultiVectorMultipleNegativesRankingLoss (ColBERT)",
    """
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    features = [
        {"token_embeddings": F.normalize(query_tokens, dim=2), "attention_mask": query_mask},
        {"token_embeddings": F.normalize(document_tokens, dim=2), "attention_mask": document_mask},
    ]
    loss = MultiVectorMultipleNegativesRankingLoss(model, scale=2.0)(features).double()
    """,
    """
    similarity = pnce.similarities.max_sim(query_mask=query_mask, document_mask=document_mask)
    loss = pnce.info_nce(query_tokens, document_tokens, temperature=1 / 2, similarity=similarity)
    """,
    (
        "Its scores are float32, whatever the embeddings are. It takes normalised tokens; ours normalises them, or "
        "with `normalize=False` takes them as they are. A document without valid tokens has a large negative score "
        "there, and one of -inf here."
    ),
)

# libauc

add(
    "libauc",
    "GCLoss_v2 (SogCLR of two modalities), three steps",
    """
    from libauc.losses import GCLoss_v2
    criterion = GCLoss_v2(N=10, tau=0.2, gamma=0.8)
    index = torch.tensor([7, 2, 9, 0, 4, 5])
    loss = 0.0
    for x, y in ((query, key), (view_a, view_b), (image, text)):
        surrogate, _ = criterion(F.normalize(x), F.normalize(y), index)
        log_u = criterion.u1[index].log() + criterion.b1[index]
        log_v = criterion.u2[index].log() + criterion.b2[index]
        loss = loss + (surrogate - surrogate.detach()) / (len(x) - 1) + 0.2 * (log_u + log_v).mean() / 2
    """,
    """
    log_u, log_v = torch.full((2, 10), -torch.inf, dtype=query.dtype)
    index = torch.tensor([7, 2, 9, 0, 4, 5])
    loss = 0.0
    for x, y in ((query, key), (view_a, view_b), (image, text)):
        forth, log_u[index] = pnce.sogclr(x, y, log_u[index], gamma=0.8, temperature=0.2)
        back, log_v[index] = pnce.sogclr(y, x, log_v[index], gamma=0.8, temperature=0.2)
        loss = loss + 0.2 * (forth + back) / 2
    """,
    (
        "Its loss is multiplied by the temperature, and its gradient by the number of negatives. Its memory is "
        "`u * exp(b)`, with a running maximum b of each sample; ours is the logarithm. Each direction has one of its "
        "own. It does not normalise."
    ),
)
add(
    "libauc",
    "GCLoss_v2 with individual temperatures (iSogCLR), three steps",
    """
    from libauc.losses import GCLoss_v2
    scheme = {"temperature_scheme": "individual_learnable", "tau_min": 0.1, "tau_max": 0.5}
    criterion = GCLoss_v2(N=6, tau=0.2, gamma=0.8, rho=0.3, eta=0.05, beta=1.0, **scheme)
    loss = 0.0
    for x, y in ((query, key), (view_a, view_b), (image, text)):
        surrogate, _ = criterion(F.normalize(x), F.normalize(y), torch.arange(len(x)))
        loss = loss + (surrogate - surrogate.detach()) / (len(x) - 1)
    loss = loss + criterion.learnable_tau_img.square().sum() + criterion.learnable_tau_txt.square().sum()
    """,
    """
    memories = torch.full((2, len(query)), -torch.inf, dtype=query.dtype)
    temperatures = torch.full_like(memories, 0.2)
    loss = 0.0
    for x, y in ((query, key), (view_a, view_b), (image, text)):
        for k, (a, b) in enumerate([(x, y), (y, x)]):
            tau = temperatures[k].clone().requires_grad_()
            step, memories[k] = pnce.sogclr(a, b, memories[k], gamma=0.8, temperature=tau, rho=0.3)
            (slope,) = torch.autograd.grad(len(x) * step, tau, retain_graph=True)
            temperatures[k] = (temperatures[k] - 0.05 * slope).clamp(0.1, 0.5)
            loss = loss + (step - step.detach()) / 2
    loss = loss + temperatures.square().sum()
    """,
    (
        "It updates the temperatures itself, by gradient descent with momentum (`beta=1.0` is none); here they are an "
        "argument with a gradient, for any optimiser. The default of rho is 6 there; ours has none."
    ),
)
add(
    "libauc",
    "GCLoss_v1 (SogCLR of two views), the first step",
    """
    from libauc.losses import GCLoss_v1
    criterion = GCLoss_v1(N=len(view_a), tau=0.2)
    surrogate = criterion(view_a, view_b, torch.arange(len(view_a)))
    loss = surrogate - surrogate.detach() + criterion.u.mean()
    """,
    """
    views, partners = torch.cat([view_a, view_b]), torch.cat([view_b, view_a])
    rows = len(views)
    itself = torch.eye(rows, dtype=torch.bool).roll(rows // 2, dims=1)
    memory = torch.full((rows,), -torch.inf, dtype=views.dtype)
    step, memory = pnce.sogclr(views, partners, memory, temperature=0.2, mask=~itself)
    positives = F.cosine_similarity(views, partners).detach()
    loss = 2 * 0.2 * (step - step.detach()) + (memory + positives / 0.2).exp().mean()
    """,
    (
        "The views of both sides are rows, and each meets the other views of both: N pairs make 2N rows here. Its loss "
        "is the sum of both sides, times the temperature."
    ),
)
add(
    "libauc",
    "GCLoss_v1 (SogCLR of two views), three steps",
    """
    from libauc.losses import GCLoss_v1
    criterion = GCLoss_v1(N=len(view_a), tau=0.2, gamma=0.8)
    loss = 0.0
    for x, y in ((view_a, view_b), (view_c, view_a), (image, text)):
        surrogate = criterion(x, y, torch.arange(len(x)))
        loss = loss + surrogate - surrogate.detach() + criterion.u.log().mean()
    """,
    """
    def of_negatives(x, y):
        scores = F.normalize(x) @ F.normalize(y).T
        return scores - scores.diagonal().diag()


    rows = len(view_a)
    itself = torch.eye(2 * rows, dtype=torch.bool).roll(rows, dims=1)
    options = {"gamma": 0.8, "temperature": 0.2, "similarity": of_negatives, "mask": ~itself, "block_size": None}
    memory = torch.full((rows,), -torch.inf, dtype=view_a.dtype)
    loss = 0.0
    for x, y in ((view_a, view_b), (view_c, view_a), (image, text)):
        step, both = pnce.sogclr(torch.cat([x, y]), torch.cat([y, x]), memory.repeat(2), **options)
        memory = both.reshape(2, rows).exp().mean(0).log()
        step = 2 * (0.2 * step - F.cosine_similarity(x, y).mean())
        loss = loss + step - step.detach() + memory.mean()
    """,
    (
        "Its memory is of the mean of exp(s / tau) over the negatives, one for both views of a sample; ours and that "
        "of `GCLoss_v2` are of that mean divided by the positive's exp(s / tau). So the positives have the score 0 in "
        "these lines, and their similarity is a term of its own."
    ),
)

# optax

add(
    "optax",
    "ntxent, two views",
    """
    loss = optax.ntxent(jnp.concatenate([view_a, view_b]), jnp.tile(jnp.arange(len(view_a)), 2), temperature=0.1)
    """,
    "loss = pnce.nt_xent(view_a, view_b, temperature=0.1)",
    "The default temperature is 0.07 there, 0.1 here.",
)
add(
    "optax",
    "ntxent, three views",
    """
    views = jnp.concatenate([view_a, view_b, view_c])
    loss = optax.ntxent(views, jnp.tile(jnp.arange(len(view_a)), 3), temperature=0.1)
    """,
    "loss = pnce.nt_xent(view_a, view_b, view_c, temperature=0.1)",
    "Each positive against the negatives alone, without the other positives.",
)
add(
    "optax",
    "ntxent, any labels",
    "loss = optax.ntxent(embeddings, labels, temperature=0.1)",
    """
    positives = (labels[:, None] == labels).sum(1) - 1
    loss = pnce.supcon(embeddings, labels, temperature=0.1, multi_positive="separate", weights=positives)
    """,
    "The mean is over positive pairs, not over rows: weights.",
)
add(
    "optax",
    "losses.triplet_margin_loss",
    "loss = optax.losses.triplet_margin_loss(anchor, positive, negative, margin=1.0, eps=0.0).mean()",
    "loss = pnce.triplet(anchor, positive, negative, margin=1.0)",
    (
        "By default optax adds eps = 1e-6 under the root, where torch adds it to every component; ours adds nothing. "
        'It returns one value for each row: our `reduction="none"`.'
    ),
)
add(
    "optax",
    "softmax_cross_entropy_with_integer_labels",
    "loss = optax.softmax_cross_entropy_with_integer_labels(scores, target).mean()",
    "loss = pnce.from_scores.info_nce(scores, positives=target)",
    "It returns one value for each row.",
)
add(
    "optax",
    "sigmoid_binary_cross_entropy over all pairs",
    "loss = optax.sigmoid_binary_cross_entropy(scores, jnp.eye(len(scores))).sum() / len(scores)",
    "loss = pnce.from_scores.logistic(scores)",
    "A row is worth the sum over its pairs; the mean is over rows, not over pairs.",
)


def page() -> str:
    """Write the page of the table."""
    names = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in INPUTS.items())
    head = f"""
# Coming from another library

For each loss of another library: what you wrote there, and what you write here. Value and gradients of both are the
same to six digits. `tests/full/peers` executes these very lines in float64, with the versions named here, and this page
is made from its table.

{
        paragraph('''
What most often differs is not the loss but the convention: what is averaged (rows, pairs, or only terms that are not
zero), whether embeddings are normalised, and what a row without positives is worth. Here a row without positives never
counts.''')
    }

The lines stand after these imports:

```python
import torch
import torch.nn.functional as F
import jax.numpy as jnp
import optax
import portable_nce as pnce
```

and use these names:

| name | what it is |
|---|---|
{names}
"""
    return "\n".join([head.strip(), *(section(peer) for peer in PEERS)]) + "\n"


def section(peer: str) -> str:
    """Write the section of a library."""
    parts = [f"\n## {peer} {PEERS[peer].version}"]
    if PEERS[peer].note:
        parts.append(paragraph(PEERS[peer].note))
    for row in ROWS:
        if row.peer == peer:
            parts += [f"### {row.name}", *([paragraph(row.note)] if row.note else [])]
            parts.append(f"```python\n# {peer}\n{row.there}\n```")
            parts.append(f"```python\n# portable_nce\n{row.here}\n```")
    return "\n\n".join(parts)


def paragraph(text: str) -> str:
    """Fill the lines of a paragraph."""
    return fill(" ".join(text.split()), width=120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(page())
