"""Repeated calls, which use cached plans and programs, give the result of a first call."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import portable_nce as pnce
from portable_nce._core import calls as kept_calls
from portable_nce._core import tracing
from portable_nce.testing.cases import CASES
from portable_nce.testing.suite.calls import arrays_of
from portable_nce.testing.variants import differentiate, started

from calls import WAYS, Call, by_form, options_of, shares

if TYPE_CHECKING:
    from portable_nce.testing.cases import Case
    from portable_nce.testing.variants import Variant


def forget() -> None:
    """Clear the caches of calls."""
    kept_calls.KINDS.clear()


AWKWARD = {"NaN": math.nan, "infinite": math.inf, "zero": 0.0, "huge": 1e30, "tiny": 1e-30, "long": 1e3}
"""What a row is multiplied by, or filled with."""


def with_row(variant: Variant, x: Any, number: float) -> Any:
    """Array of floats with its second row multiplied by a number, or filled with one that is not finite."""
    rows = variant.to_list(x)
    if not (isinstance(rows, list) and len(rows) > 1):
        return x

    def changed(entry: Any) -> Any:
        if isinstance(entry, list):
            return [*map(changed, entry)]
        return entry * number if math.isfinite(number) else number

    return variant.floats([rows[0], changed(rows[1]), *rows[2:]], "float64")


def awkward_numbers(case: Case) -> list[float]:
    """Two for each case, in turn."""
    numbers = [*AWKWARD.values()]
    k = CASES.index(case) % len(numbers)
    return [numbers[k], numbers[k - 3]]


def of_torch(function: Callable[..., Any], arrays: list[Any], count: int) -> list[Any]:
    """Value, and gradients by autograd with a cotangent; the value is written into, as by ``loss /= steps``."""
    leaves = [x.detach().clone().requires_grad_() for x in arrays[:count]]
    value = function(*leaves, *arrays[count:])
    value *= 0.5
    if not value.requires_grad:
        return [value]
    cotangent = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
    return [value, *torch.autograd.grad(value, leaves, cotangent, allow_unused=True)]


def of_numpy(function: Callable[..., Any], arrays: list[Any], count: int) -> list[Any]:
    """Value and gradients on the tape."""
    value, gradients = differentiate(function, arrays, count)
    return [value, *gradients]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")  # NumPy's, of infinities; of small scales
@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("case", by_form(CASES), ids=lambda case: case.name)
def test_repeated_calls_equal_first_calls(variant: Variant, case: Case) -> None:
    """Calls are noted, recorded, and run by programs, or a guard is met; values, and so recorded branches, differ."""
    arrays = arrays_of(variant, case, "float64")
    first = next(iter(case.arguments))
    each = [arrays, {key: x * 1.25 if key in case.arguments else x for key, x in arrays.items()}]
    each += [{**arrays, first: with_row(variant, arrays[first], number)} for number in awkward_numbers(case)]
    way = of_torch if variant.name == "torch" else of_numpy

    def results(given: dict[str, Any]) -> str:
        """Text of the numbers, because NaN is not equal to NaN; or of an error."""
        try:
            found = way(case.function, [*given.values()], len(case.arguments))
        except ValueError as error:
            return str(error)
        return repr([None if x is None else variant.to_list(x) for x in found])

    wanted = []
    for given in each:
        forget()
        wanted.append(results(given))
    forget()
    order = (0, 0, 0, 1, 1, 0, *range(2, len(each)), *range(len(each)))
    # Programs let large arrays go after their last use: in every second case, arrays of 6 entries are large.
    with mock.patch.object(tracing, "LARGE", (tracing.LARGE, 6)[CASES.index(case) % 2]):
        assert [results(each[k]) for k in order] == [wanted[k] for k in order]
    with mock.patch.object(kept_calls, "enabled", new=False):  # no loss needs them
        assert [results(each[k]) for k in range(2)] == wanted[:2]


ONE_OF_EACH = [*{case.name.split()[0]: case for case in reversed(CASES)}.values()]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of small scales
@pytest.mark.parametrize("variant", ["torch"], indirect=True)
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_gradients_share_no_memory(variant: Variant, case: Case) -> None:
    """Neither with one another nor with the cotangent: optimizers scale them in place."""
    forget()
    for _ in range(3):
        given = [*arrays_of(variant, case, "float64").values()]
        leaves = [x.detach().clone().requires_grad_() for x in given[: len(case.arguments)]]
        value = case.function(*leaves, *given[len(leaves) :])
        if not value.requires_grad:
            return
        cotangent = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
        value.backward(cotangent)
        found = [x.numpy() for x in (value.detach(), cotangent, *[x.grad for x in leaves if x.grad is not None])]
        assert not any(np.shares_memory(x, y) for k, x in enumerate(found) for y in found[:k])


@pytest.mark.filterwarnings("ignore::UserWarning")  # of small scales
@pytest.mark.parametrize("cases", shares(case for case in CASES if case.regime == "normal"))
def test_second_derivatives_where_every_array_asks_for_a_gradient(cases: list[Case]) -> None:
    """Also those that a loss takes as constant, as of a teacher that is not detached."""
    for case in cases:
        arrays = of_one_dtype(case, torch.float64)
        leaves = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in arrays.items()}
        asking = [x for x in leaves.values() if x.requires_grad]

        def slopes(case: Case = case, leaves: Any = leaves, asking: list[Any] = asking) -> str:
            value = case.function(*leaves.values()).sum()
            if not value.requires_grad:
                return repr(value)
            first = torch.autograd.grad(value, asking, create_graph=True, materialize_grads=True)
            total = torch.stack([(x * x).sum() for x in first]).sum()
            total = total + 0.0 * asking[0].sum()  # linear functions
            second = torch.autograd.grad(total, asking, materialize_grads=True)
            return repr([x.detach().tolist() for x in (value, *first, *second)])

        forget()
        wanted = slopes()
        assert [slopes() for _ in range(3)] == [wanted] * 3, case.name


def of_one_dtype(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Arrays of a case, also its constants of floats, in one dtype."""
    arrays = arrays_of(started("torch"), case, "float64")
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in arrays.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of small scales
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_what_is_written_into_before_the_backward_pass_is_a_copy_or_an_error_in_each_call(case: Case) -> None:
    """A program saves all arrays; where a first call needs fewer, training would stop at its third step."""
    arrays = of_one_dtype(case, torch.bfloat16)

    def slopes(written: str | None = None) -> list[torch.Tensor | None] | str:
        given = {name: x.clone().requires_grad_(name in case.arguments) for name, x in arrays.items()}
        value = case.call(dict(given))
        if not value.requires_grad:
            return "no gradient"
        if written is not None:
            with torch.no_grad():
                given[written].zero_()
        try:
            value.sum().backward()
        except RuntimeError as error:
            return "written into" if "modified by an inplace operation" in str(error) else str(error)
        return [given[name].grad for name in case.arguments]

    forget()
    wanted = slopes()
    for written, x in arrays.items():
        forget()
        found = [slopes(written) for _ in range(4)]
        if wanted == "no gradient" or written in case.arguments or x.ndim > 1:
            assert len({*map(str, found)}) == 1, written
            assert isinstance(found[0], str), written
        else:
            for each in found:
                torch.testing.assert_close(each, wanted, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of small scales
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_constants_may_be_made_in_inference_mode(case: Case) -> None:
    """As by a teacher; autograd saves no such tensor, and programs would save all."""
    arrays = of_one_dtype(case, torch.float32)
    call = functools.partial(of_torch, case.function, count=len(case.arguments))
    forget()
    wanted = repr(call([*arrays.values()]))
    with torch.inference_mode():
        given = [x if name in case.arguments else x.clone() for name, x in arrays.items()]
    forget()
    assert [repr(call(given)) for _ in range(4)] == [wanted] * 4


Loss: TypeAlias = Callable[..., torch.Tensor]
World: TypeAlias = Callable[[Loss, list[torch.Tensor]], Any]
DENSE = [case for case in CASES if "streamed" not in case.name]


TUPLES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "mine": lambda x, y, row: pnce.bounds.mine(x @ y.T, row[0]),
    "sogclr": lambda x, y, row: pnce.sogclr(x, y, row, temperature=0.5),
    "queue": lambda x, y, _: pnce.queue_push(pnce.queue_init(x, 6), y),
}
"""Calls whose results are tuples; a queue has None as an item."""


@pytest.mark.parametrize("name", TUPLES)
@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
def test_tuples_are_results_of_programs(variant: Variant, name: str) -> None:
    """All items are those of the first call, the one that has a gradient with the same, the others without."""
    call, rng = TUPLES[name], np.random.default_rng(0)
    x, y, row = (variant.floats(rng.normal(size=shape).tolist(), "float64") for shape in ((4, 3), (4, 3), (4,)))

    def results() -> str:
        found = call(x, y, row)
        items = [type(found).__name__, *[z if z is None else variant.to_list(z) for z in found]]
        if name in {"mine", "sogclr"}:
            items.append([*map(variant.to_list, differentiate(lambda x, y: call(x, y, row)[0], [x, y], 2)[1])])
        if variant.name == "torch":
            leaf = x.detach().clone().requires_grad_()
            items.append([z.requires_grad for z in call(leaf, y, row) if z is not None])
        return repr(items)

    forget()
    first = results()
    assert [results() for _ in range(4)] == [first] * 4
    kinds = [kind for kind in kept_calls.KINDS.values() if kind.number > 1]
    assert kinds
    assert all(kind.programs for kind in kinds)


def test_records_among_results() -> None:
    """A loss with the statistics of its rows, which have gradients, too."""
    hidden, weight = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 3, 1, 2])

    def results() -> str:
        leaf = hidden.clone().requires_grad_()
        loss, row = pnce.density.linear_softmax(leaf, weight, target, return_statistics=True)
        both = (
            torch.autograd.grad(loss, leaf, retain_graph=True),
            torch.autograd.grad((row.log_sum_exp + row.target_score).sum(), leaf),
        )
        return repr([type(row).__name__, loss.tolist(), [x.tolist() for x in row], [x.tolist() for (x,) in both]])

    forget()
    first = results()
    assert [results() for _ in range(4)] == [first] * 4


def gives_row_losses(case: Case) -> bool:
    """Whether there is one loss for each row: with two directions, there must be as many columns."""
    one_length = not re.search("further (texts|columns)|symmetric, (several|index)", case.name)
    return "reduction" in options_of(case.loss) and one_length


@pytest.mark.parametrize("case", by_form(DENSE), ids=lambda case: case.name)
def test_batched_backward_passes_equal_single_ones_and_leave_nothing_behind(case: Case) -> None:
    """PyTorch batches them by its older vmap, whose tensors must not enter programs."""
    arrays = arrays_of(started("torch"), case, "float64")
    function = case.bound(**{"reduction": "none"} if gives_row_losses(case) else {})

    def passes(*, batched: bool = False) -> list[torch.Tensor]:
        given = {name: arrays[name].clone().requires_grad_() for name in case.arguments}
        value = function({**arrays, **given})
        if not value.requires_grad:
            return [value]
        units = torch.eye(value.numel(), dtype=value.dtype).reshape(-1, *value.shape)
        grad = functools.partial(torch.autograd.grad, value, [*given.values()], retain_graph=True, allow_unused=True)
        slopes: Any
        if batched:
            slopes = grad(units, is_grads_batched=True)
        else:
            single = zip(*map(grad, units), strict=True)
            slopes = [None if column[0] is None else torch.stack(column) for column in single]
        return [value.detach(), *(x for x in slopes if x is not None)]

    forget()
    wanted = passes()
    forget()
    for _ in range(2):
        torch.testing.assert_close(passes(batched=True), wanted, rtol=1e-12, atol=1e-12, equal_nan=True)
    found = passes()
    assert repr([x.tolist() for x in found]) == repr([x.tolist() for x in wanted])  # NaN is not equal to NaN


def changed(function: Any, result: Any) -> Any:
    """Change new floating-point tensors."""
    name = getattr(function, "__name__", "").partition(".")[0]
    return result + 0.25 if name in {"zeros_like", "ones_like", "full_like"} and result.is_floating_point() else result


class Functions(TorchFunctionMode):
    """A mode that changes what functions return."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return changed(func, func(*args, **(kwargs or {})))


class Dispatched(TorchDispatchMode):
    """A mode that changes what operators return."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return changed(func, func(*args, **(kwargs or {})))


class Subclass(torch.Tensor):
    """A tensor whose functions return something else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return changed(func, super().__torch_function__(func, types, args, kwargs or {}))


def differentiated(call: Loss, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    """Value, and gradients with different cotangents of the rows."""
    given = [x.detach().requires_grad_() for x in arrays]
    value = call(*given)
    cotangents = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device).reshape(value.shape)
    return [value.detach(), *torch.autograd.grad(value, given, cotangents)]


def within(context: Callable[[], Any], function: Any = differentiated) -> World:
    """Compute in a context."""

    def world(call: Loss, arrays: list[torch.Tensor]) -> Any:
        with context():
            return function(call, arrays)

    return world


def value(call: Loss, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    """Value alone."""
    return [call(*arrays)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic algorithms."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def by_transform(transform: Any, *more: torch.Tensor) -> World:
    """Add the loss to a function that is transformed."""

    def world(call: Loss, arrays: list[torch.Tensor]) -> Any:
        ones = torch.ones(3, dtype=torch.float64)
        return [*tree_leaves(transform(lambda x: (x * x).sum() + call(*arrays).sum())(ones, *more))]

    return world


def fake(call: Loss, arrays: list[torch.Tensor]) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        call(*map(mode.from_tensor, arrays))
    return []


def functional(call: Loss, arrays: list[torch.Tensor]) -> Any:
    return [torch._from_functional_tensor(call(*map(torch._to_functional_tensor, arrays)))]  # noqa: SLF001


def tangents(call: Loss, arrays: list[torch.Tensor]) -> Any:
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(x, torch.ones_like(x)) for x in arrays]
        unpacked: Any = forward_ad.unpack_dual(call(*dual))
        return [*map(torch.clone, unpacked)]


def checkpointed(call: Loss, arrays: list[torch.Tensor]) -> Any:
    again: Any = functools.partial(checkpoint.checkpoint, call, use_reentrant=False)
    return differentiated(again, arrays)


def batched_over_tensors(call: Loss, arrays: list[torch.Tensor]) -> Any:
    return [*jacobian(call, tuple(arrays), create_graph=True, vectorize=True)]


IN_HOOKS = functools.partial(torch.autograd.graph.saved_tensors_hooks, torch.clone, Subclass)
MODES: dict[str, World] = {
    "a function mode": within(Functions),
    "a dispatch mode": within(Dispatched),
    "a subclass": lambda call, arrays: differentiated(call, [x.as_subclass(Subclass) for x in arrays]),
    "fake tensors": fake,
    "functional tensors": functional,
    "torch.func.grad": by_transform(torch.func.grad),
    "torch.func.vmap": by_transform(torch.func.vmap),
    "tangents": tangents,
    "no_grad": within(torch.no_grad, value),
    "inference mode": within(torch.inference_mode, value),
    "parameters": lambda call, arrays: differentiated(call, [*map(torch.nn.Parameter, arrays)]),
    "autocast": within(functools.partial(torch.autocast, "cpu", torch.bfloat16)),
    "float16 by default": within(functools.partial(default_dtype, torch.float16)),
    "float64 by default": within(functools.partial(default_dtype, torch.float64)),
    "a default device": within(functools.partial(torch.device, "meta")),
    "deterministic algorithms": within(deterministic),
    "saved tensors elsewhere": within(IN_HOOKS),
    "checkpointing": checkpointed,
    "a batched jacobian": batched_over_tensors,
}
"""Ways in which something observes or changes what a call does."""


def kept_arrays() -> list[torch.Tensor]:
    """Constants that programs keep."""
    programs = [program for kind in kept_calls.KINDS.values() for program, *_ in kind.programs]
    values = [inspect.getclosurevars(program.forward).nonlocals["values"] for program in programs]
    return [x for each in values for x in each if isinstance(x, torch.Tensor)]


def _with_others(loss: Call, others: list[torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = loss(*arrays, *others)
    return result


@pytest.mark.parametrize("mode", MODES)
def test_calls_do_not_depend_on_the_modes_of_earlier_ones(mode: str) -> None:
    """Neither plain calls after others, nor others after plain ones; and programs keep only plain constants."""
    for name in (
        *WAYS[::2],
        "info_nce neg_euclidean",
        "dclw",
        "nca",
        "soft_nearest_neighbor",
        "density.linear_softmax",
    ):
        loss = Call(name, reduction="none")
        arrays, others = loss.torch(), loss.others(torch.asarray)
        call = functools.partial(_with_others, loss, others)
        forget()
        wanted = repr(differentiated(call, arrays))
        forget()
        first = repr(MODES[mode](call, arrays))
        MODES[mode](call, arrays)
        assert repr(MODES[mode](call, arrays)) == first, name
        kept = kept_arrays()
        assert all(type(x) is torch.Tensor and x.device.type == "cpu" and not x.requires_grad for x in kept), name
        assert mode == "inference mode" or not any(map(torch.is_inference, kept)), name
        for _ in range(3):
            assert repr(differentiated(call, arrays)) == wanted, name
        assert repr(MODES[mode](call, arrays)) == first, name
