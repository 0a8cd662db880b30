"""Value and gradients of the losses of sbi, which are methods of its trainers, and of ours.

The methods are read from the source of the installed distribution: importing its package needs what trains and plots.
"""

from __future__ import annotations

import ast
import importlib.metadata
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from portable_nce import density

RNG = np.random.default_rng(5)
DATA, NOISE = 2.0 * RNG.normal(size=7), 2.0 * RNG.normal(size=(7, 5))


def method(module: str, name: str) -> Any:
    """Compile a method of a trainer, without what its module imports."""
    path = next(
        p for p in importlib.metadata.files("sbi") or () if p.as_posix() == f"sbi/inference/trainers/nre/{module}.py"
    )
    tree = ast.parse(Path(str(path.locate())).read_text(encoding="utf-8"))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    found.decorator_list = []
    names = {
        "torch": torch,
        "nn": torch.nn,
        "ones": partial(torch.ones, dtype=torch.float64),
        "Tensor": torch.Tensor,
        "Tuple": tuple,
    }
    space: dict[str, Any] = {**names, "assert_all_finite": lambda *_: None}
    exec(compile(ast.Module([found], []), str(path), "exec"), space)  # noqa: S102  (of the peer)
    return space[name]


def theirs(module: str, atoms: list[list[torch.Tensor]], *options: Any) -> Any:
    """Their loss of logits: those of the data first, then those of the samples, for each call of the network."""
    calls = iter(torch.stack(columns, dim=1).reshape(-1) for columns in atoms)
    trainer = SimpleNamespace(_classifier_logits=lambda *_: next(calls), _device="cpu")
    if module == "nre_c":
        trainer._get_prior_probs_marginal_and_joint = method(module, "_get_prior_probs_marginal_and_joint")  # noqa: SLF001
    rows = torch.zeros(len(atoms[0][0]), 1)
    return method(module, "_loss")(trainer, rows, rows, *options)


def nre_a(data: Any, noise: Any) -> Any:
    return theirs("nre_a", [[data, noise[:, 0]]], 2)


def bnre(data: Any, noise: Any) -> Any:
    return theirs("bnre", [[data, noise[:, 0]]], 2, 100.0)


def nre_b(data: Any, noise: Any) -> Any:
    return theirs("nre_b", [[data, *noise.unbind(1)]], 6)


def nre_c(data: Any, noise: Any, gamma: float) -> Any:
    """Their K - 1 samples beside the data are drawn by themselves: here, each choice of ours takes its turn."""
    columns = noise.unbind(1)
    total = 0.0
    for m in range(len(columns)):
        others = [column for j, column in enumerate(columns) if j != m]
        total = total + theirs("nre_c", [[data, *columns], [data, *others]], 6, gamma)
    return total / len(columns)


def ours_bnre(data: Any, noise: Any) -> Any:
    return density.nre_a(data, noise[:, :1]) + 100.0 * density.balance_penalty(data, noise[:, :1])


PAIRS = {
    "nre_a": (nre_a, lambda data, noise: density.nre_a(data, noise[:, :1])),
    "bnre": (bnre, ours_bnre),
    "nre_b": (nre_b, density.nre_b),
    **{f"nre_c, {g}": (partial(nre_c, gamma=g), partial(density.nre_c, gamma=g)) for g in (0.1, 1.0, 50.0)},
}


def outcome(loss: Any) -> list[Any]:
    data, noise = (torch.tensor(x, requires_grad=True) for x in (DATA, NOISE))
    value = loss(data, noise)
    value.backward()
    return [value.detach(), data.grad, noise.grad]


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradients_are_those_of_sbi(name: str) -> None:
    peer, own = PAIRS[name]
    for expected, found in zip(outcome(peer), outcome(own), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
