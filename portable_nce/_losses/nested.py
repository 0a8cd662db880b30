"""Losses of nested embeddings, whose prefixes are embeddings too.

`matryoshka`, the plain formula: the sum of a loss over prefixes of the features.

>>> import numpy as np
>>> import portable_nce as pnce
>>> x, y = np.random.default_rng(0).standard_normal((2, 6, 4))
>>> loss = sum(pnce.info_nce(x[:, :d], y[:, :d]) for d in (4, 2))
>>> bool(np.isclose(loss, pnce.matryoshka(pnce.info_nce, (4, 2))(x, y)))
True
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, partial
from typing import Any

from .._core.checks import (
    check_callable,
    check_number,
    check_whole_number,
    common_dtype,
    explained,
    is_floating,
)
from .._core.equality import EqualByContents
from .._core.namespace import is_array, is_number, namespace_of
from .._core.numerics import upcast
from .._core.protocol import Array
from .._core.ranks import agreed_on
from .._core.reduction import add
from .._core.trees import leaves, mapped
from .._core.types import ArrayT, Parameters, ReductionName, Result

__all__ = ["left_whole", "matryoshka"]


def left_whole(*names: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Mark positional arguments of a loss that belong to another model and are never cut to a prefix."""

    def mark(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        loss.left_whole = names  # type: ignore[attr-defined]
        return loss

    return mark


@explained
def matryoshka(
    loss: Callable[Parameters, ArrayT],
    widths: Sequence[int],
    /,
    *,
    weights: Sequence[float] | None = None,
    arrays: Sequence[str] = (),
) -> Callable[Parameters, ArrayT]:
    r"""Return the loss of nested embeddings: the sum of a loss over prefixes of its embeddings.

    .. math:: \ell(x, y, \ldots) = \sum_k w_k\, \ell_0(x_{:, :d_k}, y_{:, :d_k}, \ldots)

    Embeddings are the floating-point arrays with two or three axes among the positional arguments and the keyword
    arguments named in `arrays`, also inside queues, tuples, lists and dicts. The first of them sets the full width;
    arrays of another width are not cut. Everything else (labels, weights, masks, options, embeddings of teachers and
    guides) is passed unchanged.

    Parameters
    ----------
    loss : callable
        A loss of embeddings: of this package, a `functools.partial` of one, or any function that returns an array.
    widths : sequence of int
        The widths d, from 1 to the full width, in any order. The full width is used only if listed.
    weights : sequence of float, optional
        Weight w ≥ 0 of each width; 1 by default.
    arrays : sequence of str, default: ()
        Names of keyword arguments that are embeddings too.

    Returns
    -------
    callable
        Takes the arguments of `loss` and returns the sum. It can be pickled if `loss` can, and compares equal by
        contents. 16-bit embeddings are upcast once for all widths; the sum and its gradients are rounded once, at the
        end.

    Raises
    ------
    TypeError
        If `loss` is not callable, or a width or weight is not a number; when called: if there are no embeddings, or the
        loss does not return an array.
    ValueError
        If there are no widths, the number of weights differs, or a value is out of range; when called: if a width
        exceeds the full width.

    Notes
    -----
    sentence-transformers' ``MatryoshkaLoss`` normalises each prefix before the loss. That has no effect on the cosine;
    for other similarities, use ``similarities.normalized(...)``.

    References
    ----------
    Kusupati et al. (2022), "Matryoshka Representation Learning", arXiv:2205.13147, equation 1.

    Examples
    --------
    PyTorch, with InfoNCE on the first 32, 64 and all 128 features:

    >>> import torch
    >>> import portable_nce as pnce
    >>> query = torch.randn(256, 128, requires_grad=True)
    >>> key = torch.randn(256, 128, requires_grad=True)
    >>> loss = pnce.matryoshka(pnce.info_nce, [32, 64, 128], weights=[0.25, 0.5, 1.0])
    >>> loss
    <matryoshka of info_nce, widths (32, 64, 128), weights (0.25, 0.5, 1.0)>
    >>> loss(query, key, temperature=0.05).backward()
    >>> query.grad.shape
    torch.Size([256, 128])

    NumPy, with a loss of labels:

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).standard_normal((256, 128)), np.arange(256) % 8
    >>> value, gradient = pnce.value_and_grad(pnce.matryoshka(pnce.supcon, [64, 128]))(x, y)
    >>> value, gradient.shape
    (array(12.26249...), (256, 128))
    """
    return _Matryoshka(loss, widths, weights, arrays)


class _Matryoshka(EqualByContents):
    """Callable returned by `matryoshka`."""

    def __init__(self, loss: Callable[..., Array], widths: Any, weights: Any, arrays: Any) -> None:
        check_callable("loss", loss)
        for name in WRAPPER_ASSIGNMENTS:  # not `update_wrapper`, which torch.compile before 2.13 cannot trace
            if hasattr(loss, name):
                setattr(self, name, getattr(loss, name))
        self.loss = self.__wrapped__ = loss
        self.widths = tuple(check_whole_number("widths", width) for width in _listed("widths", widths))
        if not self.widths:
            raise ValueError("widths: expected at least one width, got none")
        values = [1.0] * len(self.widths) if weights is None else _listed("weights", weights)
        self.weights = tuple(check_number("weights", weight) for weight in values)
        if len(self.weights) != len(self.widths):
            raise ValueError(f"weights: expected one for each of {len(self.widths)} widths, got {len(self.weights)}")
        if min(self.weights) < 0:
            raise ValueError(f"weights: expected numbers of at least 0, got {min(self.weights)}")
        marked: Any = loss
        while isinstance(marked, partial):
            marked = marked.func
        names = self.left_whole = getattr(marked, "left_whole", ())
        parameters: Mapping[str, inspect.Parameter] = {}
        with suppress(ValueError):  # a built-in function without a signature
            parameters = inspect.signature(loss).parameters
        self.whole = {[*parameters].index(name) for name in names if name in parameters}
        self.optional = {name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD} - {*names}
        self.arrays = tuple(_listed("arrays", arrays))
        if not all(isinstance(name, str) for name in self.arrays):
            raise TypeError(f"arrays: expected names of keyword arguments, got {self.arrays!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.loss, self.widths, self.weights, self.arrays)

    def __repr__(self) -> str:
        name = getattr(self.loss, "__name__", None) or repr(self.loss)
        return f"<matryoshka of {name}, widths {self.widths}, weights {self.weights}>"

    def _contents(self) -> tuple[Any, ...]:
        return (self.loss, self.widths, self.weights, self.arrays)

    def __call__(self, *arguments: Any, **options: Any) -> Array:
        named = {*self.arrays, *(self.optional & {*options})}
        compared = {"widths": self.widths, "weights": self.weights}
        embeddings = agreed_on(self._ranks(options), compared, self._embeddings, arguments, options, named)
        full = embeddings[0].shape[-1]
        dtype = common_dtype(namespace_of(embeddings[0]), *embeddings)
        arguments = tuple(x if k in self.whole else mapped(_widened, x) for k, x in enumerate(arguments))
        options = {name: mapped(_widened, tree) for name, tree in options.items()}

        parts: list[Array] = []
        for width in self.widths:

            def prefix(x: Any, width: int = width) -> Any:
                return x[..., :width] if _is_embedding(x) and x.shape[-1] == full and width < full else x

            cut = {name: mapped(prefix, options[name]) for name in named}
            own = [x if place in self.whole else mapped(prefix, x) for place, x in enumerate(arguments)]
            part = self.loss(*own, **{**options, **cut})
            if not is_array(part):
                raise TypeError(f"loss: expected a function that returns an array, got {type(part).__name__}")
            parts.append(part)
        reduction: ReductionName = "none" if len(parts[0].shape) else "sum"
        flat = [namespace_of(part).reshape(part, (-1,)) for part in parts]
        weighted = [x if weight == 1 else x * weight for x, weight in zip(flat, self.weights, strict=True)]
        return add(weighted, dtype, reduction)

    def _ranks(self, options: dict[str, Any]) -> Any:
        """Ranks of a call, of its own or of a `functools.partial`."""
        ranks, loss = options.get("across"), self.loss
        while ranks is None and isinstance(loss, partial):
            ranks, loss = loss.keywords.get("across"), loss.func
        return ranks

    def _embeddings(self, arguments: tuple[Any, ...], options: dict[str, Any], named: set[str]) -> list[Array]:
        """Embeddings of the full width among the arguments."""
        for name in self.arrays:
            if name not in options:
                raise TypeError(f"arrays: expected names of keyword arguments that are given, got {name!r}")
        nested = [tree for place, tree in enumerate(arguments) if place not in self.whole]
        nested += [options[name] for name in named]
        embeddings = [x for tree in nested for x in leaves(tree) if _is_embedding(x)]
        if not embeddings:
            raise TypeError(
                "loss: expected embeddings among the arguments, floating-point arrays of two or three axes, got none; "
                "name keyword arguments in arrays=..."
            )
        full = embeddings[0].shape[-1]
        for width in self.widths:
            if width > full:
                raise ValueError(f"widths: expected at most the {full} features of the embeddings, got {width}")
        return [x for x in embeddings if x.shape[-1] == full]


def _listed(name: str, values: Any) -> list[Any]:
    """Entries of a sequence of numbers or names."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or is_array(values):
        raise TypeError(f"{name}: expected a sequence such as a list, got {type(values).__name__}")
    return list(values)


def _is_embedding(x: Any) -> bool:
    return is_array(x) and not is_number(x) and len(x.shape) in (2, 3) and is_floating(namespace_of(x), x.dtype)


def _widened(x: Any) -> Any:
    """Upcast array; a 16-bit gradient is then rounded once for all widths."""
    return upcast(namespace_of(x), x) if is_array(x) and not is_number(x) else x
