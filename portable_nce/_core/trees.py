"""Nested containers: dicts and other mappings, tuples, named tuples and lists, with anything else for leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """The leaves in order."""
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (tuple, list)) else None
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with the values of a function of its leaves, and of those of other trees of the same shape."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, *(each[key] for each in (tree, *others))) for key in tree}
    if isinstance(tree, (tuple, list)):
        parts = [mapped(function, *column) for column in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)
