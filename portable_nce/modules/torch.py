"""Losses as `torch.nn.Module`: learned scales, queues, sentence-transformers' trainer, gradient caching.

A module holds a loss function's options, learned scale and queue. The package does not import this module.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from .. import clip, contrast, dcl, flat_nce, info_nce, moco, nt_xent, queue_push, siglip, supcon
from .._core.checks import (
    check_bool,
    check_callable,
    check_integers,
    check_number,
    check_scale_of_cosines,
    check_whole_number,
    explained_method,
    refuses_other_names,
    unknown_option,
)
from .._core.namespace import common_namespace, is_number, namespace_of
from .._core.protocol import Array
from .._core.ranks import Ranks
from .._core.registry import adapter_of
from .._core.trees import leaves, mapped
from .._core.types import BlockSize, FlatForm, MultiPositive, Parameters, Precision, ReductionName, Result
from .._losses.in_batch import at_most
from .._losses.queue import Queue
from ..pairings import Pairing, Tile, diagonal, labels
from ..pairings import ids as pairing_of_ids
from ..similarities import AnySimilarity

__all__ = [
    "CLIP",
    "DCL",
    "FlatNCE",
    "InfoNCE",
    "Loss",
    "MemoryQueue",
    "MoCo",
    "MultipleNegatives",
    "NTXent",
    "Options",
    "SentenceLoss",
    "SigLIP",
    "SupCon",
    "encode_in_chunks",
]

__dir__ = __all__.copy  # what completion offers

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = refuses_other_names(__name__)

for _kind in (Tensor, nn.Parameter):  # registered early: registering a type later would recompile graphs
    adapter_of(_kind(torch.empty(0)))
    namespace_of(_kind(torch.empty(0)))

SCALES = ("temperature", "logit_scale", "scale")
"""Arguments that can be learned as the logarithm of a scale; a temperature is the inverse of a scale."""

OF_ROWS = {"labels", "grades"}
"""Positional arguments of losses that are not embeddings."""


class Options(TypedDict, total=False):
    """Options of most losses; see the docstrings of the functions.

    Attributes
    ----------
    similarity : str, Similarity, callable or Module
        How embeddings are compared; a module is trained with the loss.
    reduction : {"mean", "sum", "none"}
        Reduction of the losses of the rows.
    block_size : int, None or "auto"
        Rows per block of the streamed execution.
    precision : {"high", "highest"}
        Precision of matrix products on accelerators.
    across : Ranks
        Ranks that hold the other rows of the batch.
    """

    similarity: AnySimilarity
    reduction: ReductionName
    block_size: BlockSize
    precision: Precision | None
    across: Ranks | None


class Loss(nn.Module):
    r"""Loss function with its options as a module: ``Loss(pnce.nca, temperature=0.5)``.

    The module takes the arguments of the function; options in a call override the options given here. An option that is
    an `nn.Parameter` becomes a parameter of this module, an `nn.Module` a submodule, and another tensor a
    non-persistent buffer. Tensors inside other objects, such as ``similarities.bilinear(weight)``, are not registered:
    for a learned similarity, write a module of two arrays, which gets float32 for 16-bit embeddings.

    A learned scale is the parameter `log_scale`, of one entry: the logarithm t of the scale, or of the inverse
    temperature. The loss gets :math:`e^t`, with t clipped to [0, log `max_scale`], as open_clip clips it after each
    step. The parameter itself may leave that interval; then a gradient that would push it further out is 0, and a
    gradient that leads back is the gradient at the limit. Each backward pass decides separately, even if gradients are
    accumulated (micro-batches, "summed" ranks).

    Parameters
    ----------
    function : callable
        Loss: a function of tensors and keyword options that returns a tensor.
    learnable : bool, default: False
        Whether the temperature (or `scale`, or `logit_scale`) is learned. It starts at the given option, or at the
        default of the function.
    max_scale : float or None, default: 100.0
        Largest learned scale; the smallest is 1. None disables both limits.
    **options : Any
        Options of the function.

    Raises
    ------
    TypeError
        If `function` is not callable or lacks an option, or the temperature to learn is not a number.
    ValueError
        If there is no temperature or scale to learn, or it starts outside the limits.

    Examples
    --------
    >>> import torch
    >>> import portable_nce as pnce
    >>> from portable_nce.modules.torch import Loss
    >>> loss = Loss(pnce.nca, temperature=0.5, learnable=True)
    >>> loss
    Loss(nca, learned temperature=0.5)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).backward()
    >>> loss.log_scale.grad.shape
    torch.Size([1])
    """

    log_scale: nn.Parameter | None
    __call__: Callable[..., Tensor]  # for type checkers, as torch's returns Any

    def __init__(
        self,
        function: Callable[..., Array],
        /,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_callable("function", function)
        self.function = function
        self.scaled = _check_options(function, options)
        if self.scaled is not None and is_number(options.get(self.scaled)):
            check_number(self.scaled, options[self.scaled], above=0.0)
        self.max_scale = None if max_scale is None else check_number("max_scale", max_scale, above=1.0)
        self.start: float | None = None
        if check_bool("learnable", learnable):
            self.start = self._start(options.pop(self.scaled or "", None), options.get("similarity"))
        self.options: dict[str, Any] = {}
        self.registered: tuple[str, ...] = ()
        for name, value in options.items():
            self._keep(name, value)
        # Shape (1,), since FSDP2 does not shard scalars.
        self.register_parameter("log_scale", None if self.start is None else nn.Parameter(torch.zeros(1)))
        self.reset_parameters()

    def _start(self, given: Any, similarity: Any) -> float:
        """Initial logarithm of the scale."""
        if self.scaled is None:
            raise ValueError(
                f"learnable: expected False for a loss without any of {', '.join(SCALES)}, got True for "
                f"{_name_of(self.function)}"
            )
        default = inspect.signature(self.function).parameters[self.scaled].default
        number = check_number(self.scaled, default if given is None else given, above=0.0)
        scale = 1.0 / number if self.scaled == "temperature" else number
        if self.max_scale is not None and not 1.0 <= scale <= self.max_scale:
            raise ValueError(
                f"{self.scaled}: expected a scale (the inverse of a temperature) from 1 to max_scale={self.max_scale}, "
                f"got {scale}; max_scale=None limits no scale"
            )
        by_default = inspect.signature(self.function).parameters.get("similarity")
        if similarity is None and by_default is not None:
            similarity = by_default.default
        if isinstance(similarity, str) and similarity == "cosine":
            check_scale_of_cosines(self.scaled, number)
        return math.log(scale)

    def _keep(self, name: str, value: Any) -> None:
        """Store an option, registering parameters, modules and tensors."""
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, nn.Module):
            self.add_module(name, value)
        elif isinstance(value, Tensor):
            self.register_buffer(name, value, persistent=False)
        else:
            self.options[name] = _SameInCopies(value) if isinstance(value, Ranks) else value
            return
        self.registered += (name,)

    def reset_parameters(self) -> None:
        """Reset the learned scale to its initial value, as needed after `to_empty`."""
        if self.log_scale is not None and self.start is not None:
            self._fill("log_scale", self.start)

    def _fill(self, name: str, number: float) -> None:
        """Set a parameter, or what a parametrization computes, to a number."""
        value = getattr(self, name)
        with torch.no_grad():
            if parametrize.is_parametrized(self, name):
                setattr(self, name, torch.full_like(value, number))
            else:
                value.fill_(number)

    def _learned_scale(self, log_scale: Tensor) -> Tensor:
        """Return the scale within its limits."""
        # In bfloat16 the limit log 100 would round to 4.594, a scale of 98.9.
        exponent = log_scale.to(torch.promote_types(log_scale.dtype, torch.float32))
        if self.max_scale is not None:
            exponent = -at_most(-at_most(exponent, math.log(self.max_scale)), 0.0)
        return exponent.exp()

    @property
    def temperature(self) -> Any:
        """Temperature in use: a tensor of one entry if learned, else the given value or the default."""
        return self._in_use("temperature")

    @property
    def logit_scale(self) -> Any:
        """Scale of the similarities in use, the inverse of `temperature`."""
        return self._in_use("logit_scale")

    def _in_use(self, name: str) -> Any:
        """Return the temperature or the scale; a tensor if learned or given as one."""
        if self.scaled is None:
            raise AttributeError(name)
        # AttributeError before `log_scale` is registered, so that a tensor of that name can be registered.
        if self.log_scale is not None:
            scale = self._learned_scale(self.log_scale)
            return 1.0 / scale if name == "temperature" else scale
        result: Any = self._given(self.scaled)
        return result if (self.scaled == "temperature") == (name == "temperature") else 1.0 / result

    def _given(self, name: str) -> Any:
        """Return an option as given, or its default."""
        if name in self.registered:
            held = {**self._parameters, **self._buffers, **self._modules}
            return held[name] if name in held else getattr(self, name)  # of FSDP, or of a parametrization
        return self.options[name] if name in self.options else inspect.signature(self.function).parameters[name].default

    def _value(self, *arrays: Any, **options: Any) -> Tensor:
        """Return the value of the function.

        Parameters
        ----------
        *arrays : Tensor
            Positional arguments of the function.
        **options : Any
            Options of the function, which override the module's.

        Returns
        -------
        Tensor
            Result of the function.
        """
        given = {**self.options, **{name: self._given(name) for name in self.registered}}
        if self.log_scale is not None and self.scaled is not None:
            given[self.scaled] = self._in_use(self.scaled)
        given.update(options)
        value: Tensor = self.function(*map(_plain, arrays), **{name: _plain(x) for name, x in given.items()})
        return value

    forward: Callable[..., Tensor] = _value

    def config(self) -> dict[str, Any]:
        """Return the options of the module as numbers and text.

        Returns
        -------
        dict
            Options by name; other objects as text.
        """
        shown: dict[str, Any] = {name: _shown(_plain(value)) for name, value in self.options.items()}
        if self.start is not None and self.scaled is not None:
            shown[self.scaled] = float(f"{math.exp(self.start if self.scaled != 'temperature' else -self.start):.6g}")
            shown.update(learnable=True, max_scale=self.max_scale)
        return shown

    def extra_repr(self) -> str:
        """Return the function, unless the class implies it, and the options."""
        hidden = {"learnable", "max_scale", "max_logit_scale"}
        shown = {name: value for name, value in self.config().items() if name not in hidden}
        learned = self.scaled if self.start is not None else None
        options = [f"{'learned ' * (name == learned)}{name}={value}" for name, value in shown.items()]
        return ", ".join([*([_name_of(self.function)] if type(self) is Loss else []), *options])


class InfoNCE(Loss):
    """InfoNCE of queries and keys, `portable_nce.info_nce`, as a module.

    Parameters
    ----------
    temperature : float, default: 0.07
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    symmetric : bool, default: False
        Whether to average the losses of queries against keys and of keys against queries.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives.
    hardness : float, default: 0.0
        Strength of the emphasis on hard negatives.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import InfoNCE
    >>> loss = InfoNCE(temperature=0.1, learnable=True)
    >>> query, key = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
    >>> loss(query, key)
    tensor(0.1269, grad_fn=...)
    """

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        symmetric: bool = False,
        multi_positive: MultiPositive = "each",
        hardness: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        own: dict[str, Any] = {"symmetric": symmetric, "multi_positive": multi_positive, "hardness": hardness}
        super().__init__(info_nce, learnable=learnable, max_scale=max_scale, temperature=temperature, **own, **options)

    @explained_method()
    def forward(
        self, query: Tensor, positive_key: Tensor, negative_keys: Tensor | None = None, /, **options: Any
    ) -> Tensor:
        """Return the loss; see `portable_nce.info_nce`.

        Parameters
        ----------
        query : Tensor, shape (N, D)
            Embeddings of the queries.
        positive_key : Tensor, shape (N, D)
            Embeddings of the keys; key i belongs to query i.
        negative_keys : Tensor, shape (M, D) or (N, M, D), optional
            Negatives shared by all queries, or separate for each query, in place of in-batch negatives.
        **options : Any
            Further options, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(query, positive_key, negative_keys, **options)


class NTXent(Loss):
    """NT-Xent of SimCLR, `portable_nce.nt_xent`, as a module.

    Parameters
    ----------
    temperature : float, default: 0.1
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    keys : MemoryQueue, optional
        Further negatives: its contents at the time of the call.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import NTXent
    >>> NTXent(temperature=0.5)(torch.eye(3), torch.eye(3))
    tensor(0.4327)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        keys: MemoryQueue | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            nt_xent, learnable=learnable, max_scale=max_scale, temperature=temperature, keys=keys, **options
        )

    @explained_method()
    def forward(self, view_a: Tensor, view_b: Tensor, /, *further_views: Tensor, **options: Any) -> Tensor:
        """Return the loss of two or more views.

        Parameters
        ----------
        view_a, view_b, *further_views : Tensor, shape (N, D)
            Embeddings; row i of all views belongs to sample i.
        **options : Any
            Further options of `portable_nce.nt_xent`, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(view_a, view_b, *further_views, **options)


class FlatNCE(Loss):
    """FlatNCE, `portable_nce.flat_nce`, as a module.

    Parameters
    ----------
    temperature : float, default: 0.1
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    include_positive : bool, default: False
        Whether the positive is in the denominator.
    form : {"log", "detach"}, default: "log"
        Form of the loss: the logarithm, or the form whose value is always 1.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import FlatNCE
    >>> FlatNCE(temperature=0.5, form="detach")(torch.eye(3), torch.eye(3))
    tensor(1.)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        include_positive: bool = False,
        form: FlatForm = "log",
        **options: Unpack[Options],
    ) -> None:
        own: dict[str, Any] = {"include_positive": include_positive, "form": form}
        super().__init__(flat_nce, learnable=learnable, max_scale=max_scale, temperature=temperature, **own, **options)

    @explained_method()
    def forward(self, view_a: Tensor, view_b: Tensor, /, **options: Any) -> Tensor:
        """Return the loss of two views.

        Parameters
        ----------
        view_a, view_b : Tensor, shape (N, D)
            Embeddings; row i of both belongs to sample i.
        **options : Any
            Further options of `portable_nce.flat_nce`, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(view_a, view_b, **options)


class DCL(Loss):
    """Decoupled contrastive loss, `portable_nce.dcl`, as a module.

    Parameters
    ----------
    temperature : float, default: 0.1
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import DCL
    >>> DCL(temperature=0.5)(torch.eye(3), torch.eye(3))
    tensor(-0.6137)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(dcl, learnable=learnable, max_scale=max_scale, temperature=temperature, **options)

    @explained_method()
    def forward(self, view_a: Tensor, view_b: Tensor, /, **options: Any) -> Tensor:
        """Return the loss of two views.

        Parameters
        ----------
        view_a, view_b : Tensor, shape (N, D)
            Embeddings; row i of both belongs to sample i.
        **options : Any
            Further options of `portable_nce.dcl`, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(view_a, view_b, **options)


class SupCon(Loss):
    """SupCon, `portable_nce.supcon`, as a module; with `keys`, against a cross-batch memory.

    Parameters
    ----------
    temperature : float, default: 0.1
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    multi_positive : {"each", "pooled", "separate"}, default: "each"
        Treatment of several positives.
    keys : MemoryQueue, optional
        Labelled columns in place of the batch: its contents at the time of the call.
    ignore_index : int, optional
        Label of rows and keys to leave out; with None, every label is a class, also -1.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import MemoryQueue, SupCon
    >>> memory = MemoryQueue(8, 2, labels=True)
    >>> loss = SupCon(temperature=0.5, keys=memory)
    >>> embeddings, labels = torch.eye(2), torch.tensor([0, 1])
    >>> memory.push(embeddings, labels=labels)
    >>> loss(embeddings, labels)
    tensor(0.1269)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        multi_positive: MultiPositive = "each",
        keys: MemoryQueue | None = None,
        ignore_index: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        own: dict[str, Any] = {"multi_positive": multi_positive, "keys": keys, "ignore_index": ignore_index}
        super().__init__(supcon, learnable=learnable, max_scale=max_scale, temperature=temperature, **own, **options)

    @explained_method()
    def forward(self, embeddings: Tensor, labels: Tensor, /, **options: Any) -> Tensor:
        """Return the loss of labelled embeddings.

        Parameters
        ----------
        embeddings : Tensor, shape (N, D)
            Embeddings.
        labels : Tensor of int, shape (N,)
            Labels.
        **options : Any
            Further options of `portable_nce.supcon`, such as `keys`, `key_labels`, `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(embeddings, labels, **options)


class CLIP(Loss):
    """CLIP loss, `portable_nce.clip`, with a learned scale.

    Parameters
    ----------
    logit_scale : float, default: 1 / 0.07
        Initial scale of the similarities; not its logarithm.
    learnable : bool, default: True
        Whether the scale is learned, as its logarithm; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest scale.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import CLIP
    >>> loss = CLIP()
    >>> loss.logit_scale.detach(), loss.temperature.detach()
    (tensor([14.2857]), tensor([0.0700]))
    >>> loss(torch.eye(3), torch.eye(3)) < 1e-5
    tensor(True)
    """

    def __init__(
        self,
        logit_scale: float = 1.0 / 0.07,
        *,
        learnable: bool = True,
        max_scale: float | None = 100.0,
        **options: Unpack[Options],
    ) -> None:
        # A learned scale is limited by the module, on both sides.
        own: dict[str, Any] = {"logit_scale": logit_scale, "max_logit_scale": None if learnable else max_scale}
        super().__init__(clip, learnable=learnable, max_scale=max_scale, **own, **options)

    @explained_method()
    def forward(self, image: Tensor, text: Tensor, /, **options: Any) -> Tensor:
        """Return the loss of images and texts.

        Parameters
        ----------
        image, text : Tensor, shape (N, D)
            Embeddings; row i of one belongs to row i of the other.
        **options : Any
            Further options of `portable_nce.clip`, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(image, text, **options)


class SigLIP(Loss):
    """SigLIP loss, `portable_nce.siglip`, with learned scale and bias.

    Parameters
    ----------
    logit_scale : float, default: 10.0
        Initial scale of the similarities; not its logarithm.
    logit_bias : float, default: -10.0
        Initial bias added to the scaled similarities; the parameter `logit_bias`.
    learnable : bool, default: True
        Whether scale and bias are learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest learned scale.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import SigLIP
    >>> [name for name, _ in SigLIP().named_parameters()]
    ['logit_bias', 'log_scale']
    """

    def __init__(
        self,
        logit_scale: float = 10.0,
        logit_bias: float = -10.0,
        *,
        learnable: bool = True,
        max_scale: float | None = 100.0,
        **options: Unpack[Options],
    ) -> None:
        self.first_bias = check_number("logit_bias", logit_bias)
        bias = nn.Parameter(torch.zeros(1)) if learnable else self.first_bias
        super().__init__(
            siglip, learnable=learnable, max_scale=max_scale, logit_scale=logit_scale, logit_bias=bias, **options
        )

    def reset_parameters(self) -> None:
        """Reset scale and bias to their initial values, as needed after `to_empty`."""
        super().reset_parameters()
        if "logit_bias" in self.registered:
            self._fill("logit_bias", self.first_bias)

    @explained_method()
    def forward(self, image: Tensor, text: Tensor, /, **options: Any) -> Tensor:
        """Return the loss of images and texts.

        Parameters
        ----------
        image, text : Tensor, shape (N, D)
            Embeddings; row i of one belongs to row i of the other.
        **options : Any
            Further options of `portable_nce.siglip`, such as `mask`, `weights` and `negative_only`.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(image, text, **options)


class MultipleNegatives(Loss):
    r"""InfoNCE of anchors and positives against all other texts of the batch, including hard negatives.

    The columns of a batch are anchors, positives, and any number of negatives. The negatives of an anchor are the other
    positives and all negatives, as in sentence-transformers' ``MultipleNegativesRankingLoss`` (whose ``scale`` is the
    inverse temperature; ``hardness_mode`` is ``"all_negatives"`` here). With `ids`, texts with the id of the anchor's
    positive are no negatives: a text that is drawn twice does not repel its own anchors.

    Parameters
    ----------
    temperature : float, default: 0.05
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    hardness : float, default: 0.0
        Strength of the emphasis on hard negatives; see `portable_nce.info_nce`.
    **options : Unpack[Options]
        Options of most losses; see `Options`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import MultipleNegatives
    >>> MultipleNegatives(temperature=1.0)(torch.eye(2), torch.eye(2), -torch.eye(2))
    tensor(0.6265)
    >>> ids = torch.tensor([7, 7])  # both anchors have the same positive
    >>> MultipleNegatives(temperature=1.0)(torch.eye(2), torch.eye(2), -torch.eye(2), ids=ids)
    tensor(0.4076)
    """

    def __init__(
        self,
        temperature: float = 0.05,
        *,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        hardness: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        own: dict[str, Any] = {"temperature": temperature, "hardness": hardness}
        super().__init__(_multiple_negatives, learnable=learnable, max_scale=max_scale, **own, **options)

    @explained_method()
    def forward(
        self, anchor: Tensor, positive: Tensor, /, *negatives: Tensor, ids: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Return the loss of the columns of a batch.

        Parameters
        ----------
        anchor, positive, *negatives : Tensor, shape (N, D)
            Embeddings; row i of each column belongs to anchor i.
        ids : Tensor of int, shape (N,) or (N, C), optional
            Ids of the positives, or of the C columns of positives and negatives. Columns with the id of an anchor's
            positive are no negatives of that anchor; negatives without ids always are.
        **options : Any
            Further options of `portable_nce.contrast`, such as `weights`, and `mask` (N, K), whose columns are the
            positives, then each column of negatives.

        Returns
        -------
        Tensor
            The loss.
        """
        return self._value(anchor, positive, *negatives, ids=ids, **options)


class MemoryQueue(nn.Module):
    """First-in, first-out queue of embeddings without gradient: a `Queue` as a module with persistent buffers.

    Modules take it in place of a `Queue`, and functions take the `Queue` that a call of it returns: for MoCo, or with
    labels as a cross-batch memory. Only `push` changes it, and not if an argument is invalid. All buffers are in
    `state_dict`; loading another size or width raises before anything changes. Reading it in a backward pass raises
    `RuntimeError`, since a function recomputed by `torch.utils.checkpoint` would see the queue after the push.

    Parameters
    ----------
    size : int
        Number M of slots.
    width : int
        Features D of an embedding.
    labels : bool, default: False
        Whether each embedding has a label.
    dtype : torch.dtype, optional
        Dtype of the embeddings; torch's default if None.
    device : torch.device or str, optional
        Device; torch's default if None.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a number is not positive.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import MemoryQueue
    >>> memory = MemoryQueue(3, 2)
    >>> memory.push(torch.eye(2))
    >>> memory.valid
    tensor([False,  True,  True])
    >>> sorted(memory.state_dict())
    ['rows', 'valid']
    """

    rows: Tensor
    valid: Tensor
    labels: Tensor | None

    def __init__(
        self,
        size: int,
        width: int,
        *,
        labels: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        shape = check_whole_number("size", size), check_whole_number("width", width)
        labelled = check_bool("labels", labels)
        self.register_buffer("rows", torch.zeros(shape, dtype=dtype, device=device))
        self.register_buffer("valid", torch.zeros(shape[0], dtype=torch.bool, device=device))
        self.register_buffer("labels", torch.zeros(shape[0], dtype=torch.int64, device=device) if labelled else None)

    @explained_method("; push(rows) appends rows")
    def forward(self) -> Queue:
        """Return the current contents; a later `push` does not change them.

        Returns
        -------
        Queue
            A copy of the buffers.
        """
        # Copies, since a loss saves them for its backward pass.
        return Queue(self.rows.clone(), _read(self.valid), None if self.labels is None else self.labels.clone())

    def push(self, rows: Tensor, /, *, labels: Tensor | None = None, across: Ranks | None = None) -> None:
        """Append rows and drop the oldest; see `portable_nce.queue_push`.

        Parameters
        ----------
        rows : Tensor, shape (B, D)
            Embeddings to append, oldest first.
        labels : Tensor of int, shape (B,), optional
            Labels of these rows, if and only if the queue has labels.
        across : Ranks, optional
            Ranks whose rows are appended too, in rank order, so that all ranks keep the same queue.

        Raises
        ------
        TypeError
            If `rows` or `labels` belong to another library or have an incompatible dtype.
        ValueError
            If `rows` has another width, or `labels` another length; if either is on another device; if `labels` are
            missing, or the queue has none.
        """
        held = Queue(self.rows, _read(self.valid), self.labels)
        # Check and compute everything before the first write.
        new = queue_push(held, rows, labels=labels, across=across)
        buffers: Any = (self.rows, self.valid, self.labels)
        for buffer, array in zip(buffers, new, strict=True):
            if buffer is not None:
                buffer.copy_(array)

    def reset_parameters(self) -> None:
        """Empty the queue, as needed after `to_empty`."""
        for buffer in self.buffers():
            buffer.zero_()

    def extra_repr(self) -> str:
        """Return the sizes."""
        size, width = self.rows.shape
        return f"{size}, {width}{'' if self.labels is None else ', labels=True'}"

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]  (torch passes all by position)
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Reject an incompatible state before any buffer is written, so that rows and flags stay consistent."""
        given = {k.removeprefix(prefix): tuple(x.shape) for k, x in state_dict.items() if k.startswith(prefix)}
        wanted = {name: tuple(x.shape) for name, x in self.named_buffers()}
        if given and given != wanted:
            messages = arguments[-1]
            messages.append(f"{prefix or 'MemoryQueue'}: expected the shapes {wanted}, got {given}")
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _explained_if_eager(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate as `explained_method`, but compile the method itself: an effect under `try` makes a graph per size."""
    explained = explained_method()(method)

    @wraps(method)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return (method if torch.compiler.is_compiling() else explained)(*args, **options)

    return call


class MoCo(Loss):
    """MoCo loss, `portable_nce.moco`, with its queue, which collects the keys of each batch in training mode.

    Parameters
    ----------
    size : int
        Number of slots of the queue.
    width : int
        Width of the embeddings.
    temperature : float, default: 0.07
        Temperature, or its initial value if learned.
    learnable : bool, default: False
        Whether the temperature is learned; see `Loss`.
    max_scale : float or None, default: 100.0
        Largest inverse of a learned temperature; see `Loss`.
    **options : Unpack[Options]
        Options of most losses; see `Options`. With `across`, the keys of all ranks enter every rank's queue.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import MoCo
    >>> loss = MoCo(size=4, width=2)
    >>> loss(torch.eye(2), torch.eye(2))
    tensor(0.)
    >>> loss.queue.valid
    tensor([False, False,  True,  True])
    """

    def __init__(
        self,
        size: int,
        width: int,
        *,
        temperature: float = 0.07,
        learnable: bool = False,
        max_scale: float | None = 100.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(moco, learnable=learnable, max_scale=max_scale, temperature=temperature, **options)
        self.queue = MemoryQueue(size, width)

    def reset_parameters(self) -> None:
        """Reset the learned scale to its initial value and empty the queue, as needed after `to_empty`."""
        super().reset_parameters()
        if hasattr(self, "queue"):  # not yet while it is made
            self.queue.reset_parameters()

    @_explained_if_eager
    def forward(self, query: Tensor, key: Tensor, /, **options: Any) -> Tensor:
        """Return the loss against the current queue; in training mode, then append the keys.

        Parameters
        ----------
        query, key : Tensor, shape (N, D)
            Embeddings; row i of one belongs to row i of the other. The keys come from the momentum encoder.
        **options : Any
            Further options of `portable_nce.moco`, such as `mask` and `weights`.

        Returns
        -------
        Tensor
            The loss.
        """
        loss = self._value(query, key, self.queue, **options)
        if self.training:
            self.queue.push(key, across=options.get("across", _plain(self.options.get("across"))))
        return loss


def _copy(valid: Tensor) -> Tensor:
    """Copy of the validity flags; raises in a backward pass."""
    if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  (as torch.utils.checkpoint asks)
        raise RuntimeError(
            "queue: expected to be read in the forward pass, got a backward pass, where torch.utils.checkpoint "
            "computes a function again after rows have entered; call the loss and push outside of that function"
        )
    return valid.clone()


# A compiled graph also runs in a recomputation, so the check must be an operation of the graph.
_compiled_copy = torch.library.custom_op(
    f"{__name__.replace('.', '_')}::copy", _copy, mutates_args=(), schema="(Tensor valid) -> Tensor"
)
_compiled_copy.register_fake(torch.empty_like)


def _read(valid: Tensor) -> Tensor:
    return _compiled_copy(valid) if torch.compiler.is_compiling() else _copy(valid)


class SentenceLoss(nn.Module):
    """Loss for the trainer of sentence-transformers.

    The model embeds each column of the data set. The loss gets the embeddings in column order, and the labels if it
    takes `labels` or `grades`: ``MultipleNegatives()`` for (anchor, positive, negative, ...),
    ``InfoNCE(symmetric=True)`` for pairs, ``SupCon()`` for texts with classes, ``Loss(pnce.cosent)`` for pairs with a
    similarity, ``Loss(pnce.triplet)`` for triplets. The trainer also trains the loss's parameters. On several processes
    it wraps the model alone: give the loss `across`, so that its parameters stay equal on all ranks.

    Parameters
    ----------
    model : Module
        A SentenceTransformer, or any module that takes a dict of tensors and returns one with "sentence_embedding".
    loss : Loss
        Loss of the embeddings.
    chunk_size : int, optional
        Texts of a column to embed at once; activations are then recomputed in the backward pass (see
        `encode_in_chunks`), so that batches can be large. None embeds all at once.
    labels_as : str, optional
        Option of the loss that gets the labels of the data set, such as ``"ids"`` of `MultipleNegatives` for the ids of
        the positives, or ``"weights"``. With None, losses that take no `labels` or `grades` ignore them.

    Raises
    ------
    TypeError
        If `model` or `loss` has the wrong type, or the loss lacks the option `labels_as`.
    ValueError
        If the loss takes labels by position, and `labels_as` is given.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import MultipleNegatives, SentenceLoss
    >>> class Model(torch.nn.Module):
    ...     def forward(self, features):
    ...         return {"sentence_embedding": torch.nn.functional.one_hot(features["input_ids"], 4).float().mean(1)}
    >>> loss = SentenceLoss(Model(), MultipleNegatives(temperature=1.0))
    >>> loss([{"input_ids": torch.tensor([[0, 1], [2, 3]])}] * 2, None)
    tensor(0.3133)
    >>> loss.get_config_dict()
    {'loss': 'MultipleNegatives', 'temperature': 1.0, 'hardness': 0.0, 'chunk_size': None}
    """

    def __init__(
        self, model: nn.Module, loss: Loss, *, chunk_size: int | None = None, labels_as: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
        if not isinstance(loss, Loss):
            raise TypeError(f"loss: expected a Loss, got {type(loss).__name__}; make one by Loss(function, ...)")
        self.model = model
        self.loss = loss
        self.chunk_size = None if chunk_size is None else check_whole_number("chunk_size", chunk_size)
        positional = inspect.signature(loss.function).parameters.values()
        places = [x for x in positional if x.kind in {x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD}]
        self.takes_labels = any(x.name in OF_ROWS for x in places)
        self.labels_as = labels_as
        if labels_as is not None:
            _check_options(loss.function, {labels_as: None})
            if self.takes_labels:
                raise ValueError(f"labels_as: expected None for {loss!r}, which takes labels itself, got {labels_as!r}")

    @explained_method()
    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None) -> Tensor:
        """Return the loss of a batch; called by the trainer.

        Parameters
        ----------
        sentence_features : iterable of dict
            Features of each column.
        labels : Tensor, shape (N,), optional
            Labels of the rows.

        Returns
        -------
        Tensor
            The loss.

        Raises
        ------
        ValueError
            If the loss needs labels and there are none.
        """
        columns = [self._embeddings(features) for features in sentence_features]
        if not self.takes_labels and self.labels_as is None:
            return self.loss(*columns)
        if labels is None:
            raise ValueError(f"labels: expected those of the rows for {self.loss!r}, got None")
        if self.labels_as is not None:
            return self.loss(*columns, **{self.labels_as: labels})
        return self.loss(*columns, labels)

    def _embeddings(self, features: Mapping[str, Any]) -> Tensor:
        if self.chunk_size is None:
            return self._embed(features)
        embeddings: Tensor = encode_in_chunks(self._embed, features, chunk_size=self.chunk_size)
        return embeddings

    def _embed(self, features: Mapping[str, Any]) -> Tensor:
        # Copied, since the model writes into the dict.
        embedding: Tensor = self.model(dict(features))["sentence_embedding"]
        return embedding

    def get_config_dict(self) -> dict[str, Any]:
        """Return the description of the loss for the model card.

        Returns
        -------
        dict
            Names and options.
        """
        name = _name_of(self.loss.function) if type(self.loss) is Loss else type(self.loss).__name__
        labels_as = {} if self.labels_as is None else {"labels_as": self.labels_as}
        return {"loss": name, **self.loss.config(), "chunk_size": self.chunk_size, **labels_as}


def encode_in_chunks(encoder: Callable[..., Any], /, *inputs: Any, chunk_size: int, **named: Any) -> Any:
    """Return the encoding of a batch in chunks; the backward pass holds the activations of one chunk.

    This is gradient caching (GradCache): the loss sees the embeddings of the whole batch, but the encoder's activations
    are held for one chunk only. The embeddings are computed once. In the backward pass, each chunk is recomputed with
    the same random state (dropout) and autocast state, and its rows of the embeddings' gradient. Gradients equal those
    of the encoder called chunk by chunk, and everything composes: several encoders, learned temperatures, `GradScaler`,
    sums with other losses, `across`. DDP reduces each gradient once for all chunks, and FSDP2 works; neither needs
    `no_sync`. If each forward pass communicates (FSDP2, and DDP with buffers), all ranks need the same number of
    chunks. Batch statistics, as in batch normalisation, are per chunk and updated twice.

    Parameters
    ----------
    encoder : callable
        Module or function of a part of the batch.
    *inputs : Any
        Arguments of the encoder: tensors whose first axis is the batch, also in dicts, tuples and lists. Other objects
        are passed unchanged to each chunk. Tensors should be on the encoder's device: the random states of their
        devices and of the CPU are kept.
    chunk_size : int
        Rows per chunk; the last may have fewer.
    **named : Any
        Keyword arguments of the encoder, treated alike.

    Returns
    -------
    Any
        Output of the encoder, a tensor or a tuple, list or dict of tensors, with the rows of all chunks concatenated. A
        0-d output, such as a scale or a mean over rows, is averaged, weighted by rows.

    Raises
    ------
    TypeError
        If `encoder` is not callable or does not return tensors, or `chunk_size` is not an integer.
    ValueError
        If `chunk_size` is not positive, there is no tensor, tensors have different numbers of rows, or an output lacks
        the rows of its chunk.

    References
    ----------
    Gao, Zhang, Han and Callan (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    arXiv:2101.06983. The chunks are computed again by `torch.utils.checkpoint`.

    Examples
    --------
    >>> import torch
    >>> from portable_nce.modules.torch import CLIP, encode_in_chunks
    >>> image_tower, text_tower, loss = torch.nn.Linear(8, 4), torch.nn.Linear(6, 4), CLIP()
    >>> image = encode_in_chunks(image_tower, torch.randn(10, 8), chunk_size=4)
    >>> text = encode_in_chunks(text_tower, torch.randn(10, 6), chunk_size=4)
    >>> loss(image, text).backward()
    >>> image_tower.weight.grad.shape
    torch.Size([4, 8])
    """
    check_callable("encoder", encoder)
    chunk_size = check_whole_number("chunk_size", chunk_size)
    counts = [len(x) for x in leaves((inputs, named)) if isinstance(x, Tensor) and x.ndim]
    if not counts or any(count != counts[0] for count in counts):
        got = sorted({*counts}) or "no tensor with an axis"
        raise ValueError(f"inputs: expected tensors with as many rows each, got {got}")
    parts, sizes = [], []
    for k in range(max(-(-counts[0] // chunk_size), 1)):  # torch.compile makes one graph per number of chunks
        first = k * chunk_size
        sizes.append(min(chunk_size, counts[0] - first))
        # Positional, since checkpoint finds the devices whose random state it keeps among these.
        chunk = mapped(partial(_cut, slice(first, first + chunk_size)), (inputs, named))
        parts.append(checkpoint(_call, encoder, *chunk, use_reentrant=False))
    return mapped(partial(_joined, sizes), *parts)


def _call(encoder: Callable[..., Any], inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return encoder(*inputs, **named)


def _cut(rows: slice, x: Any) -> Any:
    """Rows of a tensor; other objects unchanged."""
    return x[rows] if isinstance(x, Tensor) and x.ndim else x


def _joined(sizes: list[int], first: Any, *others: Any) -> Any:
    """Outputs of the chunks: concatenated, averaged if 0-d, or the first one if not tensors."""
    if first is None or isinstance(first, (str, bool)):
        return first
    if not isinstance(first, Tensor):
        raise TypeError(f"encoder: expected tensors, in tuples, lists and dicts, got {type(first).__name__}")
    parts = [first, *others]
    if first.ndim == 0:
        dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()
        wide, rows = torch.promote_types(dtype, torch.float32), sum(sizes)
        mean: Any = sum(part.to(wide) * (size / rows) for part, size in zip(parts, sizes, strict=True))
        return mean.to(dtype)  # not by a product of vectors, which autocast would round
    for part, size in zip(parts, sizes, strict=True):
        if len(part) != size:
            raise ValueError(
                f"encoder: expected an output with the {size} rows of its chunk, or a number, got shape "
                f"{tuple(part.shape)}"
            )
    return torch.cat(parts)


def _multiple_negatives(
    anchor: Tensor,
    positive: Tensor,
    /,
    *negatives: Tensor,
    temperature: float | Tensor = 0.05,
    ids: Tensor | None = None,
    across: Ranks | None = None,
    **options: Any,
) -> Tensor:
    """InfoNCE of anchors with the positives, the first column, and all negatives."""
    counts = [len(x) for x in (anchor, positive, *negatives)]
    if any(count != counts[0] for count in counts):  # a set of symbolic sizes would make torch.compile specialise them
        raise ValueError(f"positive: expected as many rows in all columns, got {counts}")
    columns = torch.cat([positive, *negatives])
    pairing = _pairing_of_columns(anchor, len(negatives), ids, across)
    loss: Tensor = contrast(
        anchor, columns, objective="info_nce", pairing=pairing, temperature=temperature, across=across, **options
    )
    return loss


def _pairing_of_columns(anchor: Tensor, n_negatives: int, ids: Any, across: Ranks | None) -> Pairing:
    """Pairing of anchors with the column of positives, then columns of negatives, some of which have ids."""
    n_rows, n_ids = len(anchor), 0
    if ids is not None:
        xp, (_, given) = common_namespace(anchor=anchor, ids=ids)
        n_ids = 1 if len(given.shape) == 1 else n_negatives + 1
        check_integers(xp, "ids", given, (n_rows,) if len(given.shape) == 1 else (n_rows, n_ids))
        ids = torch.reshape(torch.reshape(given, (n_rows, n_ids)).T, (-1,))
    if ids is not None and n_ids == n_negatives + 1 and (across is None or not n_negatives):
        return pairing_of_ids(ids[:n_rows], ids)
    if n_negatives == 0 or (ids is None and across is None):
        return diagonal()
    # Rows are labelled by rank and index, negatives by -1, since ranks may have different numbers of rows.
    rank = 0 if across is None else across.communicator.rank
    own = (rank << 32) + torch.arange(n_rows, device=anchor.device)
    numbers = torch.cat([own, own.new_full((n_rows * n_negatives,), -1)])
    if ids is None:
        return labels(own, numbers)
    missing = n_rows * (n_negatives + 1 - n_ids)
    has_id = torch.cat([torch.ones_like(ids, dtype=torch.bool), ids.new_zeros((missing,), dtype=torch.bool)])
    rows, of_columns = (own, ids[:n_rows]), (numbers, torch.cat([ids, ids.new_zeros((missing,))]), has_id)
    return Pairing(_without_hits, rows=rows, columns=of_columns, one_per_row=True)


def _without_hits(tile: Tile) -> tuple[Any, Any]:
    """Positives by number; other columns are negatives unless they have the id of the row."""
    own = tile.rows[0] == tile.columns[0]
    hit = (tile.rows[1] == tile.columns[1]) & tile.columns[2]
    return own, ~(own | hit)


class _SameInCopies:
    """Object shared by copies of a module, such as a process group, which cannot be copied."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> _SameInCopies:
        return self


def _plain(value: Any) -> Any:
    """Argument in the form that the functions take."""
    if isinstance(value, MemoryQueue):
        return value()
    return value.value if isinstance(value, _SameInCopies) else value


def _check_options(function: Callable[..., Array], options: Mapping[str, Any]) -> str | None:
    """Check that a loss has these options; return the name of its scale."""
    parameters = inspect.signature(function).parameters
    takes_all = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
    names = [name for name, x in parameters.items() if x.kind in {x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD}]
    strangers = [name for name in options if name not in names]
    if strangers and not takes_all:
        module = getattr(function, "__module__", None)
        raise TypeError(unknown_option(strangers[0], options[strangers[0]], _name_of(function), names, module=module))
    return next((name for name in SCALES if name in names), None)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).lstrip("_")


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)
