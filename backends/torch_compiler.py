"""What torch.compile does not trace on every release: asked while it traces, and answered outside of the graph.

Importing this file loads the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]  (no stub)
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def untraced(function: Callable[..., Any], *constants: Any) -> Any:
    """Return ``function(*constants)`` as a constant of the graph; the function may be any Python code."""
    return function(*constants)


def _called(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return function(*args, **options)


# In errors of `fullgraph=True`, which show the function as text: torch before 2.7 takes no reason.
_called.__qualname__ = "(a call of portable_nce; fullgraph=True needs torch 2.11 or later)"

WHOLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)
"""Whether this release traces losses whole. Older ones raise errors in code that they cannot trace."""

outside: Callable[..., Any] | None = None if WHOLE else torch.compiler.disable(_called)  # type: ignore[no-untyped-call]
"""See `registry.outside_of_compiler`."""


# The compiler enters transforms as it traces them, so that Python sees those around the traced line; those around the
# graph are guarded.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def outside_of_transforms() -> bool:
    """Whether neither a torch.func transform nor forward mode is active."""
    return functorch.get_dynamic_layer_stack_depth() == 0 and forward_ad._current_level < 0  # noqa: SLF001


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def within_one_gradient() -> bool:
    """Whether at most one gradient transform is active, with which torch.compile supports autograd functions."""
    depth = functorch.get_dynamic_layer_stack_depth()
    return depth == 0 or (depth == 1 and retrieve_current_functorch_interpreter().key() == functorch.TransformType.Grad)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_exporting() -> bool:
    """Whether torch.export traces; torch before 2.7 does not tell, and torch.compile of 2.11 traces a wrong answer."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())
