"""Which steps of sweeps are compiled to a few kernels, and why others are not.

On a GPU each operation on a tile reads and writes it in the memory of the device. A compiled step makes one pass of
several operations. A kind of step is compiled at its first call or never, so that equal calls give equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .._core.calls import KINDS
from .._core.checks import check_bool
from .._core.equality import is_fixed
from .._core.namespace import device_of, namespace_of
from .._core.protocol import Array
from .._core.registry import adapter_of, on_accelerator
from .._core.tracing import refuse_trace
from .specs import SweepSpec
from .tiling import pays_to_fuse

MOST_KINDS = 64
"""Largest number of kinds of steps that are compiled."""

STEPS: dict[Hashable, Callable[..., Any]] = {}
"""Compiled steps, by the function that makes a step, its spec, the device, and the dtypes of its arrays."""


class _Switch:
    """Whether steps are compiled, as `fuse_steps` says."""

    on = False


def fuse_steps(enabled: bool = True) -> bool:  # noqa: FBT001, FBT002  (a switch, as in torch.backends)
    """Compile the steps of large uncompiled losses on GPUs, or no longer.

    Without a compiler around a loss, each operation on a block of scores is a kernel of its own, which reads and writes
    the block in the memory of the device. With compiled steps, a block takes a few kernels between its matrix products.

    A kind of call is compiled at its first call, which takes some seconds: some thousand calls repay them. Batch size,
    temperature and bound of the scores are no part of a kind. Calls compile if they need gradients, have 2^26 pairs or
    more (2^24 with labels or masks), and no function of yours. `explain` says which steps are compiled, and why others
    are not. Compiled steps add up in another order, so results differ in their last digits.

    On PyTorch with CUDA alone, from release 2.11 on; elsewhere nothing changes. ``torch.compile`` and ``jax.jit``
    around a loss compile its steps anyway. It has not run on a GPU yet, so it is off by default.

    Parameters
    ----------
    enabled : bool, default: True
        Whether steps are compiled from now on, in all threads.

    Returns
    -------
    bool
        Whether they were compiled before.

    Raises
    ------
    TypeError
        If `enabled` is not a bool.

    See Also
    --------
    explain : Says how a call is computed.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.fuse_steps()
    False
    >>> pnce.fuse_steps(False)
    True
    """
    before, _Switch.on = _Switch.on, check_bool("enabled", enabled)
    if before != _Switch.on:
        KINDS.clear()
    return before


def is_fusible(x: Array) -> bool:
    """Whether steps on arrays like `x` are compiled, if they are large enough."""
    return _Switch.on and adapter_of(x).obstacle_to_fusing(x) is None


def report_of_steps(spec: SweepSpec, x: Array, shape: tuple[int, int], *, need_grad: bool) -> str:
    """Whether the steps of a sweep on arrays like `x` are compiled, or why not; empty on CPUs, where none are."""
    if not (spec.fused or on_accelerator(x)):
        return ""
    reason: str | None = adapter_of(x).obstacle_to_fusing(x)
    if reason is None and not _Switch.on:
        reason = "fuse_steps() compiles them"
    elif reason is None and not pays_to_fuse(*shape, masked=spec.by_rule):
        reason = "there are too few pairs"
    elif reason is None and not need_grad:
        reason = "no gradients are needed"
    elif reason is None and not is_fixed(spec._replace(half=None)):
        reason = "they contain a function of yours"
    return "compiled once for all batch sizes" if reason is None else f"not compiled: {reason}"


def fused(pure: Callable[[Any], Callable[..., Any]], spec: Any, arrays: Sequence[Array]) -> Callable[..., Any] | None:
    """The compiled step ``pure(spec)``; None if this kind is not compiled.

    Its last argument is the position of a tile, whose numbers become arrays: as numbers they would be part of the kind.
    """
    adapter = adapter_of(arrays[0])
    if not (is_fixed(spec) and adapter.is_plain(tuple(arrays))):
        return None
    refuse_trace("compiled steps")
    like = arrays[0]
    xp, device = namespace_of(like), device_of(like)
    key = pure, spec, str(device), *{str(x.dtype): None for x in arrays}
    if key not in STEPS:
        if len(STEPS) >= MOST_KINDS:
            return None
        import logging  # noqa: PLC0415  (takes as long to import as the package)

        log = logging.getLogger("portable_nce")
        log.info("compiling %s of %s, which takes some seconds once", pure.__name__, spec.family)
        STEPS[key] = adapter.fused(pure(spec))
    step = STEPS[key]

    def positioned(*arguments: Any) -> Any:
        *others, position = arguments
        at = [x if x is None else xp.full((), x, dtype=xp.int32, device=device) for x in position]
        return step(*others, tuple(at))

    return positioned
