"""Losses of other libraries, and the same losses here: the one table that is tested and that docs/coming-from.md shows.

The lines of both sides stand here as text. The test executes them on the same inputs; ``python tests/peers/table.py``
prints the page. Nothing but the standard library is needed to read the table.
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
            "`model` may be anything. `scale` is the inverse of a temperature."
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
    "Of pairs without hard negatives, `in_batch_negatives` is the same.",
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
same to six digits. `tests/peers` executes these very lines in float64, with the versions named here, and this page is
made from its table.

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
