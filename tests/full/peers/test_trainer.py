"""The losses for sentence-transformers, in its own trainer and beside its own losses, with a random BERT."""

from __future__ import annotations

import importlib
import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import portable_nce as pnce
from portable_nce.modules.torch import Loss, MultipleNegatives, SentenceLoss, SupCon

# Of the trainer and of what it calls, which say nothing about the losses.
pytestmark = pytest.mark.filterwarnings("ignore")

LETTERS = "abcdefghijklmnop"
ROWS = 32
PAGE = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text(encoding="utf-8")
(CALLBACK,) = (code for code in re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE, re.MULTILINE) if "class LossState" in code)
"""The code of the page that saves and restores the state of the loss."""


@pytest.fixture(scope="module")
def library() -> Any:
    return importlib.import_module("sentence_transformers")


@pytest.fixture
def model(library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a model without any download."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers: Any = importlib.import_module("transformers")
    modules: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    parts = [modules.Transformer(str(tmp_path)), modules.Pooling(16)]
    return library.SentenceTransformer(modules=parts, device="cpu")


def texts(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(LETTERS, k=draw.randint(2, 6))) for _ in range(ROWS)]


COLUMNS: dict[str, dict[str, list[Any]]] = {
    "columns": {"anchor": texts(0), "positive": [x[::-1] for x in texts(0)], "negative": texts(1)},
    "classes": {"text": texts(0), "label": [k % 4 for k in range(ROWS)]},
    "grades": {"first": texts(0), "second": texts(1), "score": [k / ROWS for k in range(ROWS)]},
}

LOSSES: dict[str, Callable[[], Loss]] = {
    "columns": lambda: MultipleNegatives(0.05, learnable=True, hardness=2.0),
    "classes": lambda: SupCon(0.1, learnable=True),
    "grades": lambda: Loss(pnce.cosent, learnable=True),
}


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("name", COLUMNS)
def test_the_trainer_trains(name: str, chunk_size: int | None, library: Any, model: Any, tmp_path: Path) -> None:
    """The model and what the loss learns; and the card names the loss."""
    datasets: Any = importlib.import_module("datasets")
    loss = SentenceLoss(model, LOSSES[name](), chunk_size=chunk_size)
    before = {key: x.detach().clone() for key, x in loss.named_parameters()}
    arguments = library.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "runs"),
        num_train_epochs=8,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = library.SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_dict(COLUMNS[name]), loss=loss
    )
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(history) == 16
    assert sum(history[-4:]) < sum(history[:4])
    moved = {key for key, x in loss.named_parameters() if not torch.equal(x.detach(), before[key])}
    assert {"loss.log_scale"} < moved
    model.save(str(tmp_path / "saved"))
    assert "SentenceLoss" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")


def test_the_callback_of_the_page_resumes_what_the_loss_learns(library: Any, model: Any, tmp_path: Path) -> None:
    """Two steps end with the same temperature whether or not they are resumed after the first."""
    datasets: Any = importlib.import_module("datasets")
    code = textwrap.dedent(CALLBACK)
    start = {key: x.clone() for key, x in model.state_dict().items()}
    folder = tmp_path / "runs"
    arguments = library.SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=16,
        learning_rate=1e-1,
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = datasets.Dataset.from_dict(COLUMNS["columns"])
    ends = []
    for step in ("trainer.train()", "trainer.train(resume_from_checkpoint=first)"):
        model.load_state_dict(start)
        loss = SentenceLoss(model, MultipleNegatives(0.05, learnable=True))
        space = {"model": model, "args": arguments, "data": data, "loss": loss, "first": str(folder / "checkpoint-1")}
        exec(code.replace("trainer.train()", step), space)  # noqa: S102  (what the page shows)
        ends.append(float(loss.state_dict()["loss.log_scale"]))
    assert ends[0] == ends[1]
    steps = [torch.load(folder / f"checkpoint-{k}" / "loss.pt")["log_scale"] for k in (1, 2)]
    assert float(steps[0]) != float(steps[1]) == ends[1]


@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("hardness", [0.0, 5.0])
def test_gradients_are_those_of_its_own_losses(hardness: float, chunk_size: int | None, model: Any) -> None:
    losses: Any = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    model.double().eval()
    features = [model.preprocess(column) for column in COLUMNS["columns"].values()]
    options = {"hardness_mode": "all_negatives", "hardness_strength": hardness} if hardness else {}
    theirs: dict[str, Any] = {
        "whole": losses.MultipleNegativesRankingLoss(model, scale=20.0, **options),
        "cached": losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=5, **options),
    }
    ours = SentenceLoss(model, MultipleNegatives(0.05, hardness=hardness), chunk_size=chunk_size)

    def gradients(loss: Any) -> list[torch.Tensor]:
        model.zero_grad()
        value = loss([dict(column) for column in features], None)
        value.backward()
        return [value.detach(), *(x.grad.clone() for x in model.parameters() if x.grad is not None)]

    found = gradients(ours)
    for its in theirs.values():
        torch.testing.assert_close(found, gradients(its), rtol=1e-9, atol=1e-10)
