"""Nested containers of mappings, tuples, named tuples and lists; all other objects are leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """Leaves in order."""
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (tuple, list)) else None
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Tree with the results of a function of the leaves of trees of equal structure."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, *(each[key] for each in (tree, *others))) for key in tree}
    if isinstance(tree, (tuple, list)):
        parts = [mapped(function, *column) for column in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)
