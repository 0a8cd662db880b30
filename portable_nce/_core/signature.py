"""Calls that do not fit a function's signature: errors that name the remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .checks import nearest
from .types import Parameters, Result

__all__ = ["explained", "misfit"]

_SCALES = {"temperature": -1, "tau": -1, "logit_scale": 1, "scale": 1}
"""Names of the factor of the scores and of its inverse, with the exponent."""


def explained(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function whose error for arguments that do not fit its signature says what it takes."""

    @wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*args, **options)
        except TypeError:
            reason = misfit(function, args, options)
            if reason is None:
                raise
            raise TypeError(_remedy(function, args, options, reason)) from None

    return call


def misfit(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> str | None:
    """Why arguments do not fit the signature of a function, or None if they fit."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # a built-in function without a signature
        return None
    return None


def _remedy(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], reason: str) -> str:
    """The message for arguments that do not fit the signature of a function for that reason."""
    parameters = inspect.signature(function).parameters
    name, names = function.__name__, [*parameters]
    scale = next((other for other in names if other in _SCALES), None)
    unknown = next((option for option in options if option not in names), None)
    if unknown in _SCALES and scale is not None:
        inverse = f" = 1 / {unknown}" if _SCALES[unknown] != _SCALES[scale] else ""
        return f"{unknown}: expected {scale}{inverse} in {name}, got {unknown}"
    if unknown in _SCALES and names[0] == "scores":
        return f"{unknown}: expected none in {name}, got {options[unknown]!r}; scores include it"
    if unknown is not None:
        return f"{unknown}: expected an option of {name}, got {unknown!r}{nearest(unknown, names)}"
    arrays = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if len(args) <= len(arrays):
        return f"{name}: expected {', '.join(arrays)}, got too few: {reason}"
    wanted = "a K × N matrix of scores, for example critic(x, y)" if names[0] == "scores" else ", ".join(arrays)
    remedy = "".join(f"; options are keywords, as in {option}=..." for option in names[len(arrays) :][:1])
    return f"{name}: expected {wanted}, got {len(args)} positional arguments{remedy}"
