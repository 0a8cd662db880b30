"""Value and gradients of the losses of other libraries and of ours: the lines of docs/from-*.md, on both sides."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import portable_nce as pnce

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Annotated in part, or not at all: they are Any here.
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
optax: Any = importlib.import_module("optax")

pytestmark = pytest.mark.usefixtures("jax_x64")

TOLERANCE = 1e-6
"""How far value and gradients may be apart, relative to the largest entry."""

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("from-*.md"))]


@dataclass(frozen=True)
class Row:
    """A loss of another library: the lines that compute `loss` there and here."""

    peer: str
    name: str
    there: str
    here: str


def rows() -> Iterator[Row]:
    """Read the pages: imports at the top, then a heading for each loss, and two blocks below it."""
    for page in PAGES:
        peer = page.removeprefix("# Coming from ").partition(" ")[0]
        top, *parts = page.split("\n## ")
        imports = "".join(re.findall(r"^```python\n(.*?)^```$", top, re.MULTILINE | re.DOTALL))
        for part in parts:
            there, here = re.findall(r"^```python\n# (.*?)\n(.*?)\n```$", part, re.MULTILINE | re.DOTALL)
            assert (there[0], here[0]) == (peer, "portable_nce")
            yield Row(peer, part.partition("\n")[0], imports + there[1], here[1])


ROWS = list(rows())
VERSIONS = dict(re.findall(r"^# Coming from (\S+) (\S+)$", "\n".join(PAGES), re.MULTILINE))

SHELLS: Mapping[str, Mapping[str, str]] = {
    "lightly": {},
    "lightly.loss": {
        "NTXentLoss": "ntx_ent_loss",
        "DCLLoss": "dcl_loss",
        "DCLWLoss": "dcl_loss",
        "HypersphereLoss": "hypersphere_loss",
    },
    "lightly.models": {},
    "lightly.models.modules": {"NNMemoryBankModule": "nn_memory_bank"},
    "solo": {},
    "solo.losses": {
        "simclr_loss_func": "simclr",
        "manual_simclr_loss_func": "simclr",
        "moco_loss_func": "moco",
        "nnclr_loss_func": "nnclr",
        "ressl_loss_func": "ressl",
    },
    "open_clip": {},
    "libauc": {},
    "libauc.losses": {"GCLoss_v1": "contrastive", "GCLoss_v2": "contrastive"},
}
"""Packages whose own __init__ wants what their losses do not need: which module has which name."""

BLANKS = ("lightly.models.utils",)
"""Modules that a loss imports and does not use here."""


def shell(name: str, contents: Mapping[str, str]) -> ModuleType:
    """Make the package of that name without running its __init__; its modules are imported when they are asked for."""
    top, _, below = name.partition(".")
    spec = importlib.util.find_spec(top)
    assert spec is not None, f"{top} is not installed"
    assert spec.submodule_search_locations is not None
    package = ModuleType(name)
    package.__path__ = [str(Path(folder, *below.split("."))) for folder in spec.submodule_search_locations]

    def find(attribute: str) -> Any:
        if attribute not in contents:
            raise AttributeError(attribute)
        return getattr(importlib.import_module(f"{name}.{contents[attribute]}"), attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    return package


@pytest.fixture(scope="module", autouse=True)
def packages() -> Iterator[None]:
    shells = {name: shell(name, contents) for name, contents in SHELLS.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {**shells, **{name: ModuleType(name) for name in BLANKS}}.items():
            patch.setitem(sys.modules, name, module)
        yield


def inputs() -> dict[str, Any]:
    """Make the inputs that the page names, in float64 what is not integer."""
    rng = np.random.default_rng(3)
    rows, batch, width = 6, 12, 5

    def near(x: Any) -> Any:
        return 0.7 * x + 0.7 * rng.normal(size=x.shape)

    query, view_a, image, anchor = rng.normal(size=(4, rows, width))
    labels = np.asarray([0, 1, 2, 0, 1, 2, 0, 1, 3, 0, 2, 1])
    centres = rng.normal(size=(4, width))
    queue = rng.normal(size=(9, width))
    query_tokens, guide = rng.normal(size=(rows, 3, width)), rng.normal(size=(rows, 4))
    return {
        "query": query,
        "key": near(query),
        "view_a": view_a,
        "view_b": near(view_a),
        "view_c": near(view_a),
        "image": image,
        "text": near(image),
        "anchor": anchor,
        "positive": near(anchor),
        "negative": rng.normal(size=(rows, width)),
        "negatives": rng.normal(size=(7, width)),
        "own_negatives": rng.normal(size=(rows, 4, width)),
        "embeddings": centres[labels] + 1.2 * rng.normal(size=(batch, width)),
        "labels": labels,
        "classes": np.where(labels == 3, 0, labels),
        "queue": queue / np.linalg.norm(queue, axis=1, keepdims=True),
        "earlier": rng.normal(size=(8, width)),
        "earlier_labels": np.asarray([2, 1, 0, 0, 1, 2, 3, 1]),
        "grades": np.asarray([2, 0, 4, 1, 2, 0]),
        "query_tokens": query_tokens,
        "document_tokens": near(query_tokens)[:, [2, 0, 1, 1], :],
        "query_mask": np.arange(3) < np.asarray([3, 2, 3, 1, 3, 2])[:, None],
        "document_mask": np.arange(4) < np.asarray([4, 3, 4, 2, 1, 4])[:, None],
        "guide_query": guide,
        "guide_key": near(guide),
        "teacher_scores": rng.normal(size=(rows, 2)),
        "same": np.asarray([1, 0, 1, 0, 0, 1]),
        "scores": 2 * rng.normal(size=(rows, rows)),
        "target": np.asarray([2, 0, 0, 5, 3, 1]),
        "class_weights": rng.uniform(0.5, 2.0, size=rows),
        "logit_scale": np.asarray(9.0),
        "logit_bias": np.asarray(-3.0),
    }


class Embedded(torch.nn.Sequential):
    """Stands for a model of sentence-transformers: the features hold its embeddings already, under a name."""

    max_seq_length = 1

    def __init__(self, name: str) -> None:
        super().__init__(torch.nn.Identity())  # some losses look at the first module
        words = importlib.import_module("tokenizers.models").WordLevel({"": 0})
        tokenizer = importlib.import_module("tokenizers").Tokenizer(words)
        self.tokenizer = importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        self.name = name

    def forward(self, input: dict[str, Any], task: str | None = None) -> dict[str, Any]:  # noqa: A002  (torch's name)
        """Name the embeddings as the losses want them."""
        del task
        return {**input, "sentence_embedding": input.get(self.name)}

    def get_embedding_dimension(self) -> None:
        """Say that the width is not known."""


@cache
def models() -> dict[str, Any]:
    """Make the model and the guide of the losses that call them."""
    return {"model": Embedded("sentence_embedding"), "guide": Embedded("guide")}


VALUES = inputs()
CONSTANT = {"queue", "earlier", "class_weights"}
DIFFERENTIATED = {name for name, value in VALUES.items() if value.dtype == np.float64} - CONSTANT
TORCH = {"torch": torch, "F": torch.nn.functional, "pnce": pnce}
JAX = {"jnp": jnp, "optax": optax, "pnce": pnce}


def used(*sources: str) -> set[str]:
    """Find the names that the lines use."""
    return {node.id for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def outcome(source: str, row: Row) -> tuple[Any, dict[str, Any]]:
    """Execute one side of a row: the loss, and its gradients by name."""
    names = used(row.there, row.here)
    wanted = sorted(names & DIFFERENTIATED)

    def execute(space: dict[str, Any]) -> Any:
        exec(source, space)  # noqa: S102  (the lines of the page)
        return space["loss"]

    if row.peer == "optax":
        fixed = {name: jnp.asarray(VALUES[name]) for name in names & VALUES.keys() - set(wanted)}

        def loss(floats: dict[str, Any]) -> Any:
            return execute({**JAX, **fixed, **floats})

        value, gradients = jax.jit(jax.value_and_grad(loss))({name: jnp.asarray(VALUES[name]) for name in wanted})
        return value, gradients
    # Every side has arrays of its own, so that none can spoil the other's.
    space = {name: torch.tensor(VALUES[name], requires_grad=name in wanted) for name in names & VALUES.keys()}
    further = models() if "model" in names else {}
    value = execute({**TORCH, **further, **space})
    value.backward()
    zeros = {name: torch.zeros_like(space[name]) for name in wanted}
    gradients = {name: zeros[name] if space[name].grad is None else space[name].grad for name in wanted}
    return value.detach(), gradients


def quiet(*, peer: bool) -> Any:
    """Ignore the warnings of a peer; ours are errors."""
    return warnings.catch_warnings(action="ignore") if peer else nullcontext()


@contextmanager
def doubles() -> Iterator[None]:
    """Make float64 PyTorch's default, for what a peer keeps in the default dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.peer}: {row.name}")
def test_value_and_gradients_are_the_same(row: Row) -> None:
    with quiet(peer=True), doubles():
        there, slopes_there = outcome(row.there, row)
    here, slopes_here = outcome(row.here, row)
    assert here.shape == there.shape == ()
    assert here.dtype == there.dtype
    assert float(here) == pytest.approx(float(there), rel=TOLERANCE, abs=0.0)
    assert any(np.any(np.asarray(slope) != 0) for slope in slopes_there.values())
    assert slopes_here.keys() == slopes_there.keys() != set()
    for name, expected in slopes_there.items():
        bound = TOLERANCE * float(abs(expected).max())
        np.testing.assert_allclose(
            np.asarray(slopes_here[name]), np.asarray(expected), rtol=0, atol=bound, err_msg=name
        )


def test_the_versions_are_those_of_the_pages() -> None:
    assert {name: importlib.metadata.version(name).partition("+")[0] for name in VERSIONS} == VERSIONS
    assert {row.peer for row in ROWS} == VERSIONS.keys()


def test_the_index_explains_the_names_that_the_lines_use() -> None:
    names = (DOCS / "coming-from.md").read_text(encoding="utf-8").partition("\n## Names on these pages\n")[2]
    cells = re.findall(r"^\| `(.*?)` \|", names, re.MULTILINE)
    assert {name.strip() for names in cells for name in re.split("[,;]", names)} == VALUES.keys()
    assert VALUES.keys() <= used(*(row.there for row in ROWS))
