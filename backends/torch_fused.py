"""Steps of sweeps, compiled by torch.compile; importing this file loads the compiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from threading import RLock
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.fx.experimental import _config as shapes
from torch.utils._triton import has_triton

from .torch_compiler import WHOLE

BACKEND = "inductor"
"""Compiler of steps."""


RECOMPUTED = {"realize_reads_threshold": 32, "realize_opcount_threshold": 1000}
"""Settings of inductor, which otherwise stores an exponential of many arrays between two loops of one kernel."""

patched: Any = getattr(shapes, "patch")  # noqa: B009  (defined at run time, unknown to mypy)
"""Context in which settings of lengths that are symbols have other values."""

_ONE_AT_A_TIME = RLock()
"""Held while a step compiles: a setting of the compiler is changed."""


@cache
def obstacle_to_compiling(device: str) -> str | None:
    """Reason why steps cannot be compiled on a kind of device, or None."""
    if not WHOLE:
        return f"they need PyTorch 2.11 or newer, and this is {torch.__version__}"
    if device != "cpu" and not has_triton():
        return "they need Triton, which is not installed or does not support the device"
    return None


def compiled_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a pure function for all shapes and numbers; if that fails, warn and return its results uncompiled."""
    assert isinstance(step, FunctionType)  # noqa: S101
    # The compiler limits the graphs of a code object, and counts all steps made by one function together.
    own = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__)

    def depend_on_arguments(guards: Sequence[Any]) -> list[bool]:
        """Checks to make before each call: not of what the step closes over, nor of modules, which do not change."""
        closed_over = own.__code__.co_freevars
        return [not guard.is_global and _root(guard.name) not in closed_over for guard in guards]

    options: Any = {"guard_filter_fn": depend_on_arguments, **(RECOMPUTED if BACKEND == "inductor" else {})}
    chosen: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=True, backend=BACKEND, options=options)
    compiled_for: set[Hashable] = set()

    def compiled(*arguments: Any) -> Any:
        nonlocal chosen
        arguments = _constant(arguments)
        kind = _kind(arguments)
        try:
            if kind in compiled_for:
                return chosen(*arguments)
            # Otherwise lengths that are equal in the first call would have to be equal in all calls.
            with _ONE_AT_A_TIME, patched(use_duck_shape=False):
                result = chosen(*arguments)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            if chosen is step:
                raise
            reason = " ".join(str(error).split())[:300]
            warnings.warn(f"a step is not compiled, since torch.compile failed: {reason}", stacklevel=2)
            chosen = step
            return step(*arguments)
        compiled_for.add(kind)
        return result

    return compiled


def _root(name: str) -> str:
    """The variable in an expression such as ``spec.facts[0]``."""
    return re.split(r"\W", name.removeprefix("L['"), maxsplit=1)[0]


def _kind(tree: Any) -> Hashable:
    """What the graph of nested tuples depends on: their form, dtypes, axes of length 0 and 1, layouts and numbers."""
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.device, tuple([min(n, 2) for n in tree.shape]), tree.is_contiguous()
    if isinstance(tree, (tuple, list)):
        return tuple([_kind(x) for x in tree])
    return min(tree, 2) if type(tree) is int else tree


def _constant(tree: Any) -> Any:
    """Nested tuples with tensors that need no gradient: whether one does would be part of the kind of a step."""
    if isinstance(tree, torch.Tensor):
        return tree.detach() if tree.requires_grad else tree
    if isinstance(tree, (tuple, list)):
        items = [_constant(x) for x in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree
