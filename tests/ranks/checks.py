"""Checks that run in the processes of a group. Each returns the largest errors against one process, by name."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import portable_nce as pnce
from portable_nce.modules import torch as modules
from portable_nce.testing import make_cases
from portable_nce.testing.sharding import CLASSES, Place, cut_case, is_shared, samples_of

CONVENTIONS: tuple[pnce.typing.GradientsOfRanks, ...] = ("averaged", "summed")
WHOLE = {"temperature", "logit_scale", "logit_bias", "scale"}
"""Numbers whose gradient is the whole on each rank, if gradients are averaged."""

Errors = dict[str, Any]
Check = Callable[[Any], Errors]

COUNTS = (5, 3, 1, 3)
SAMPLES = sum(COUNTS)


def bounds(size: int, samples: int = SAMPLES) -> list[tuple[int, int]]:
    """Split the samples among ranks: five, three, one, three; the last rank takes the rest."""
    scale = samples // SAMPLES
    ends = [scale * sum(COUNTS[: rank + 1]) for rank in range(size - 1)]
    return list(zip([0, *ends], [*ends, samples], strict=True))


def own_rows(group: Any, samples: int = SAMPLES) -> slice:
    """Return the rows of this process."""
    return slice(*bounds(group.size(), samples)[group.rank()])


def tensor(nested: Any) -> torch.Tensor:
    """Make a tensor from a nested list, with floats in float64."""
    found = torch.tensor(nested)
    return found.double() if found.is_floating_point() else found


def gradients(function: Callable[..., Any], arrays: list[torch.Tensor], count: int) -> tuple[Any, list[Any]]:
    """Differentiate with respect to the first arrays, by torch's autograd."""
    leaves = [x.clone().requires_grad_() for x in arrays[:count]]
    value = function(*leaves, *arrays[count:])
    value.backward()
    return value.detach(), [x.grad for x in leaves]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference, relative to numbers above 1."""
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def largest(value: Any, found: Sequence[Any], wanted: Any, slopes: Sequence[Any]) -> float:
    """Return the largest error of a value and of gradients."""
    return max(distance(value, wanted), *(distance(x, y) for x, y in zip(found, slopes, strict=True)))


def part_of(place: Place, whole: torch.Tensor) -> torch.Tensor:
    """Take a rank's part of a tensor."""
    if place.entries is None:
        return whole
    return whole.index_select(place.axis, torch.tensor(place.entries))


def check_case(group: Any, case: Any, convention: pnce.typing.GradientsOfRanks) -> float:
    """Compare a rank's value and gradients of a case with those of one process."""
    arrays = [tensor(x) for x in (*case.arguments.values(), *case.constants.values())]
    wanted, slopes = gradients(case.function, arrays, len(case.arguments))
    own, places = cut_case(case, bounds(group.size(), samples_of(case)))[group.rank()]
    ranks = pnce.across(group, gradients=convention)
    function = replace(own, options={**own.options, "across": ranks}).function
    parts = [tensor(x) for x in (*own.arguments.values(), *own.constants.values())]
    value, found = gradients(function, parts, len(own.arguments))
    errors = [distance(value, wanted)]
    factor = group.size() if convention == "averaged" else 1
    for name, whole, part in zip(case.arguments, slopes, found, strict=True):
        if name in WHOLE and convention == "averaged" and not whole.ndim:
            errors.append(distance(part, whole))
            continue
        if whole is None:
            errors.append(0.0 if part is None else float(part.abs().max()))
            continue
        if places[name].entries is None:
            dist.all_reduce(part, group=group)
        own_factor = 1 if name in CLASSES else factor  # only one rank has these classes
        errors.append(distance(part, own_factor * part_of(places[name], whole)))
    return max(errors)


def check_cases(group: Any, *, each_loss: bool = False) -> Errors:
    """Every case of every loss, in both gradient conventions; or one of each loss, with averaged gradients."""
    cases = [case for case in make_cases(SAMPLES) if is_shared(case)]
    if each_loss:
        cases = [*{case.loss: case for case in reversed(cases)}.values()]
    conventions = itertools.cycle(CONVENTIONS[:1] if each_loss else CONVENTIONS)
    return {case.name: check_case(group, case, next(conventions)) for case in cases}


LOSSES: dict[str, Callable[..., Any]] = {
    "info_nce": lambda a, b, _, t, **k: pnce.info_nce(a, b, temperature=t, **k),
    "clip": lambda a, b, _, t, **k: pnce.clip(a, b, logit_scale=1.0 / t, **k),
    "siglip": lambda a, b, _, t, **k: pnce.siglip(a, b, logit_scale=1.0 / t, logit_bias=-t, **k),
    "nt_xent": lambda a, b, _, t, **k: pnce.nt_xent(a, b, temperature=t, **k),
    "dclw": lambda a, b, _, t, **k: pnce.dclw(a, b, temperature=t, **k),
    "supcon": lambda a, _, labels, t, **k: pnce.supcon(a, labels, temperature=t, **k),
    "relic": lambda a, b, _, t, **k: pnce.relic(a, b, temperature=t, **k),
    "joint_info_nce": lambda a, b, _, t, **k: pnce.joint_info_nce(a, b, temperature=t, **k),
    "nt_xent keys": lambda a, b, _, t, **k: pnce.nt_xent(a, b, keys=b / 2, temperature=t, **k),
    "relic keys": lambda a, b, _, t, **k: pnce.relic(a, b, keys=a / 2, temperature=t, **k),
}
"""Losses of two embeddings, of labels and of a temperature."""


def embeddings(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Draw two embeddings and labels."""
    draw = torch.Generator().manual_seed(7)
    a, b = (torch.randn(SAMPLES, 4, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2))
    return a, b, torch.arange(SAMPLES) % 4


def check_options(group: Any) -> Errors:
    """Reductions, weights, blocks and conventions of some losses."""
    a, b, labels = embeddings()
    weights = torch.linspace(0.25, 2.0, SAMPLES, dtype=torch.float64)
    rows, size = own_rows(group), group.size()
    errors: Errors = {}
    options = itertools.product(("mean", "sum"), (False, True), (None, "auto", 2), CONVENTIONS)
    for (name, loss), (reduction, weighted, block_size, convention) in itertools.product(LOSSES.items(), options):
        tau, count = torch.tensor(0.5, dtype=torch.float64), 2 if name == "supcon" else 3

        def of(a: Any, b: Any, t: Any, own: slice = slice(None), **further: Any) -> Any:
            if weighted:  # noqa: B023
                further["weights"] = weights[own]
            return loss(a, b, labels[own], t, reduction=reduction, block_size=block_size, **further)  # noqa: B023

        wanted, slopes = gradients(of, [a, b, tau], count)
        part = partial(of, own=rows, across=pnce.across(group, gradients=convention))
        value, found = gradients(part, [a[rows], b[rows], tau], count)
        factor = size if convention == "averaged" else 1
        pairs = [(x, factor * y[rows]) for x, y in zip(found[:2], slopes[:2], strict=True) if y is not None]
        if len(found) > 2:
            if convention == "summed":
                dist.all_reduce(found[2], group=group)
            pairs.append((found[2], slopes[2]))
        errors[name] = max(errors.get(name, 0.0), distance(value, wanted), *(distance(x, y) for x, y in pairs))
    return errors


def check_a_rank_without_rows(group: Any) -> Errors:
    """The last rank has no rows, then the first."""
    a, b, labels = embeddings()
    rank, size, tau = group.rank(), group.size(), torch.tensor(0.5, dtype=torch.float64)
    errors: Errors = {}
    for (name, loss), convention in itertools.product(LOSSES.items(), CONVENTIONS if size > 1 else ()):
        for ends in ([*range(size - 1), SAMPLES, SAMPLES], [0, *range(size - 1), SAMPLES]):
            rows, count = slice(ends[rank], ends[rank + 1]), 1 if name == "supcon" else 2
            wanted, slopes = gradients(lambda *x, f=loss: f(*x, labels, tau), [a, b], count)
            ranks = pnce.across(group, gradients=convention)
            part = partial(loss, across=ranks)
            value, found = gradients(lambda *x, f=part: f(*x, labels[rows], tau), [a[rows], b[rows]], count)  # noqa: B023
            factor = size if convention == "averaged" else 1
            own = [distance(x, factor * y[rows]) for x, y in zip(found, slopes, strict=True) if x.numel()]
            errors[name] = max(errors.get(name, 0.0), distance(value, wanted), *own)
    return errors or {"one process": 0.0}


def hessian_product(loss: Callable[..., Any], x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Hessian of a loss times a vector, by reverse mode twice."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (found,) = torch.autograd.grad((slope * v).sum(), x)
    return found


def check_second_order_without_rows(group: Any) -> Errors:
    """The last rank has no rows; the other ones have them all."""
    a, b, labels = embeddings()
    direction = torch.linspace(-1.0, 1.0, a.numel(), dtype=torch.float64).reshape(a.shape)
    rank, size, errors = group.rank(), group.size(), dict[str, float]()
    ends = [*range(size - 1), SAMPLES, SAMPLES]
    rows = slice(ends[rank], ends[rank + 1])
    for (name, loss), temperature in itertools.product(LOSSES.items() if size > 1 else (), (0.5, 0.02)):

        def part(x: Any, own: slice, temperature: float = temperature, loss: Any = loss, **options: Any) -> Any:
            return loss(x, b[own], labels[own], temperature, **options)

        across = pnce.across(group, gradients="summed")
        wanted = hessian_product(partial(part, own=slice(None)), a, direction)
        found = hessian_product(partial(part, own=rows, across=across), a[rows], direction[rows])
        if found.numel():
            errors[name] = max(errors.get(name, 0.0), distance(found, wanted[rows]))
    return errors or {"no rows": 0.0}


def check_second_order(group: Any) -> Errors:
    """Hessian-vector products, by reverse mode twice."""
    a, b, labels = embeddings()
    direction = torch.linspace(-1.0, 1.0, a.numel(), dtype=torch.float64).reshape(a.shape)
    rows, product = own_rows(group), hessian_product
    errors: Errors = {}

    for (name, loss), convention in itertools.product(LOSSES.items(), ("averaged", "summed")):
        ranks = pnce.across(group, gradients=convention)
        for block_size, seen_once in ((None, False), (2, False), (2, True)):
            wanted = product(lambda x: loss(x, b, labels, 0.5, block_size=block_size), a, direction)  # noqa: B023

            def part(x: torch.Tensor) -> Any:
                return loss(x, b[rows], labels[rows], 0.5, across=ranks, block_size=block_size)  # noqa: B023

            with mock.patch("portable_nce._execution.choice.is_large", return_value=seen_once):
                found = [product(part, a[rows], direction[rows])]
            if name in {"info_nce", "clip", "nt_xent"}:  # and in forward mode over reverse mode
                forward: Any = torch.func.jvp(torch.func.grad(part), (a[rows],), (direction[rows],))
                found.append(forward[1])
            exact, key = (group.size() if convention == "averaged" else 1) * wanted[rows], f"{name}, {convention}"
            errors[key] = max(errors.get(key, 0.0), *(distance(x, exact) for x in found))
    return errors


class Towers(nn.Module):
    """Two linear towers and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.image, self.text = (nn.Linear(6, 4, dtype=torch.float64) for _ in range(2))
        for x in self.parameters():
            x.data = torch.randn(x.shape, generator=draw, dtype=torch.float64) / 2
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, image: Any, text: Any) -> tuple[Any, Any, Any]:
        return self.image(image), self.text(text), self.scale.exp()


def train(model: nn.Module, batch: list[torch.Tensor], **options: Any) -> None:
    """Take some steps of SGD on CLIP's loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        image, text, scale = model(*batch)
        pnce.clip(image, text, logit_scale=scale, **options).backward()
        optimizer.step()


def rows_of(group: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return two inputs of all ranks, and this rank's rows of them."""
    draw = torch.Generator().manual_seed(17)
    whole = [torch.randn(SAMPLES, 6, generator=draw, dtype=torch.float64) for _ in range(2)]
    return whole, [x[own_rows(group)] for x in whole]


def check_ddp(group: Any) -> Errors:
    """DistributedDataParallel averages: the parameters are those of one process."""
    return check_training(group, nn.parallel.DistributedDataParallel(Towers(), process_group=group), group)


def check_fsdp(group: Any) -> Errors:
    """FSDP2 averages too, with sharded parameters."""
    model, mesh = sharded_towers(group)
    return check_training(group, model, mesh)


def sharded_towers(group: Any) -> tuple[Towers, Any]:
    """Shard the parameters of towers over a mesh of the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (group.size(),)), Towers()
    for part in (model.image, model.text, model):
        fully_shard(part, mesh=mesh)
    return model, mesh


def check_training(group: Any, model: nn.Module, ranks: Any) -> Errors:
    """Train on the rows of this rank, and compare the parameters with those of training in one process."""
    whole, own = rows_of(group)
    alone = Towers()
    train(alone, whole)
    train(model, own, across=pnce.across(ranks, gradients="averaged"))
    found = [x.detach() for x in model.parameters()]
    pairs = zip(map(unsharded, found), alone.parameters(), strict=True)
    return {"parameters": max(distance(x, y.detach()) for x, y in pairs)}


def unsharded(x: Any) -> torch.Tensor:
    """Return the full tensor of one that may be sharded."""
    whole: torch.Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return whole


@torch._dynamo.config.patch(recompile_limit=2)  # type: ignore[untyped-decorator]  # noqa: SLF001  (a third graph is an error)
def check_compile(group: Any, names: Sequence[str] = ("info_nce", "clip", "siglip", "nt_xent")) -> Errors:
    """torch.compile of the whole graph: one graph for the first batch size, one for all others."""
    errors: Errors = {}
    ranks = pnce.across(group, gradients="averaged", check=False)
    size, rank = group.size(), group.rank()
    draw = torch.Generator().manual_seed(5)
    for name in names:
        loss = LOSSES[name]
        torch.compiler.reset()
        compiled = torch.compile(
            lambda a, b, t: loss(a, b, None, t, across=ranks),  # noqa: B023
            fullgraph=True,
            backend="aot_eager",
        )
        worst = 0.0
        for own in (3, 6, 4, 5):
            a, b = (torch.randn(own * size, 4, generator=draw, dtype=torch.float64) for _ in range(2))
            rows = slice(own * rank, own * (rank + 1))
            tau = torch.tensor(0.5, dtype=torch.float64)
            wanted, slopes = gradients(lambda a, b, t: loss(a, b, None, t), [a, b, tau], 3)  # noqa: B023
            value, found = gradients(compiled, [a[rows], b[rows], tau], 3)
            exact = [*(size * y[rows] for y in slopes[:2]), slopes[2]]
            worst = max(worst, largest(value, found, wanted, exact))
        errors[name] = worst
    return errors


def check_bfloat16(group: Any) -> Errors:
    """bfloat16 and float32: as exact as in one process, to an ulp of the result."""
    errors: Errors = {}
    rows = own_rows(group)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b, labels = embeddings(dtype)
        for name in ("info_nce", "clip", "nt_xent"):
            loss = LOSSES[name]
            exact = gradients(lambda a, b: loss(a, b, labels, 0.5), [a.double(), b.double()], 2)[1]  # noqa: B023
            ranks = pnce.across(group, gradients="summed")
            _, found = gradients(lambda a, b: loss(a, b, labels, 0.5, across=ranks), [a[rows], b[rows]], 2)  # noqa: B023
            unit = torch.finfo(dtype).eps
            errors[f"{name}, {dtype}, units"] = max(
                float((x.double() - y[rows]).abs().max() / (unit * y.abs().max()))
                for x, y in zip(found, exact, strict=True)
            )
    return errors


def check_queue(group: Any) -> Errors:
    """The queues stay equal on all ranks, and hold the rows of all ranks."""
    a, *_ = embeddings()
    rows = own_rows(group)
    ranks = pnce.across(group, gradients="averaged")
    queue = pnce.queue_push(pnce.queue_init(a[rows], 15), a[rows], across=ranks)
    wanted = pnce.queue_push(pnce.queue_init(a, 15), a)
    return {"rows": distance(queue.rows, wanted.rows), "valid": float((queue.valid != wanted.valid).sum())}


def check_top_k(group: Any) -> Errors:
    """The nearest keys among all ranks, with ties, are those of one process."""
    a, b, _ = (torch.round(2 * x.detach()) for x in embeddings())
    rows, keys = own_rows(group), own_rows(group, len(b))
    options: dict[str, Any] = {"k": 5, "similarity": "dot"}
    known = torch.arange(len(a)) % len(b)
    wanted = pnce.diagnostics.top_k(a, b, exclude=known, **options)
    ranks = pnce.across(group, gradients="averaged")
    found = pnce.diagnostics.top_k(a[rows], b[keys], exclude=known[rows], across=ranks, **options)
    return {
        "scores": distance(found.scores, wanted.scores[rows]),
        "indices": float((found.indices != wanted.indices[rows]).sum()),
    }


# ------------------------------------------------------------------------------------------------------------ modules


def check_modules(group: Any) -> Errors:
    """Losses with parameters and buffers, with DDP around the encoder, around the loss, and around both."""
    errors: Errors = {}
    ranks = pnce.across(group, gradients="averaged")
    whole, own = rows_of(group)

    def step(kind: Any, *, shared: bool, **options: Any) -> tuple[nn.Module, list[torch.Tensor]]:
        torch.manual_seed(1)
        encoder, loss = nn.Linear(6, 4).double(), kind(**options).double()
        both: nn.Module = nn.ModuleDict({"encoder": encoder, "loss": loss})
        embed: nn.Module = encoder
        score: nn.Module = loss
        if shared:
            embed = nn.parallel.DistributedDataParallel(encoder, process_group=group)
            if any(x.requires_grad for x in loss.parameters()):
                score = nn.parallel.DistributedDataParallel(loss, process_group=group)
        optimizer = torch.optim.SGD(both.parameters(), lr=0.05)
        for k in range(3):
            optimizer.zero_grad()
            x, y = own if shared else whole
            score(embed(x + k), embed(y).detach() if kind is modules.MoCo else embed(y)).backward()
            optimizer.step()
        return both, [*both.state_dict().values()]

    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "clip": (modules.CLIP, {}),
        "siglip": (modules.SigLIP, {}),
        "info_nce": (modules.InfoNCE, {"temperature": 0.2, "learnable": True, "symmetric": True}),
        "moco": (modules.MoCo, {"size": 15, "width": 4, "learnable": True}),
        "several columns": (modules.MultipleNegatives, {"temperature": 0.2, "learnable": True}),
    }
    for name, (kind, options) in kinds.items():
        _, wanted = step(kind, shared=False, **options)
        both, found = step(kind, shared=True, across=ranks, **options)
        errors[name] = max(distance(x.double(), y.double()) for x, y in zip(found, wanted, strict=True))
        again = copy.deepcopy(both["loss"])  # type: ignore[index]
        errors[f"{name}, copied"] = float(set(again.state_dict()) != set(both["loss"].state_dict()))  # type: ignore[index]
        pickled = refused(lambda: pickle.dumps(again))  # noqa: B023
        errors[f"{name}, pickled without its ranks"] = float(pickled["type"] is None)
    # Hard negatives: the columns of each rank are contiguous.
    a, b, c = embeddings()[0], *embeddings()[:2]
    loss, rows = modules.MultipleNegatives(0.5, hardness=2.0), own_rows(group)
    wanted, slopes = gradients(loss, [a, b, c - a], 3)
    value, mine = gradients(lambda *x: loss(*x, across=ranks), [a[rows], b[rows], (c - a)[rows]], 3)
    errors["hard negatives"] = largest(value, mine, wanted, [group.size() * y[rows] for y in slopes])
    return errors


class Encoder(Towers):
    """Two towers with dropout, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.image, self.text = (  # type: ignore[assignment]
            nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)).double() for _ in range(2)
        )
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))


def check_chunks(group: Any) -> Errors:
    """Gradient caching: equal to gradients without chunks, and each is reduced once."""
    errors: Errors = {}
    ranks = pnce.across(group, gradients="averaged")
    _, (image, text) = rows_of(group)

    def gradients_of(forward: Callable[..., Any], model: nn.Module, *options: Any) -> list[Any]:
        model.zero_grad()
        torch.manual_seed(100 + group.rank())
        first, second, scale = forward(model, *options)
        pnce.clip(first, second, logit_scale=scale, across=ranks).backward()
        return [x.grad for x in model.parameters()]

    def held(model: nn.Module) -> Any:
        parts = [model(image[k : k + 2], text[k : k + 2]) for k in range(0, len(image), 2)]
        return torch.cat([x for x, _, _ in parts]), torch.cat([y for _, y, _ in parts]), parts[0][2]

    def cached(model: nn.Module) -> Any:
        return modules.encode_in_chunks(model, image, text, chunk_size=2)

    wanted = gradients_of(held, Encoder())
    for x in wanted:
        dist.all_reduce(x, group=group)
        x.div_(group.size())

    kinds: dict[str, dict[str, Any]] = {
        "ddp": {},
        "ddp, views of buckets": {"gradient_as_bucket_view": True},
        "ddp, unused": {"find_unused_parameters": True},
    }
    for name, options in kinds.items():
        reduced: list[int] = []

        def counted(bucket: Any) -> Any:
            reduced.append(bucket.buffer().numel())  # noqa: B023
            return bucket

        model = nn.parallel.DistributedDataParallel(Encoder(), process_group=group, **options)
        model.register_comm_hook(group, lambda state, bucket: allreduce_hook(state, counted(bucket)))
        for _ in range(3):  # the second step has other buckets
            reduced.clear()
            found = gradients_of(cached, model)
            errors[name] = max(errors.get(name, 0.0), *(distance(x, y) for x, y in zip(found, wanted, strict=True)))
            errors[f"{name}, reduced again"] = float(sum(reduced) != sum(x.numel() for x in wanted))
    return errors


def check_chunks_fsdp(group: Any) -> Errors:
    """Gradient caching with FSDP2, which gathers parameters per chunk: all ranks need equally many chunks."""
    ranks = pnce.across(group, gradients="averaged")
    alone, (sharded, _) = Towers(), sharded_towers(group)
    whole = [x[: 3 * group.size()] for x in rows_of(group)[0]]
    image, text = (x[3 * group.rank() : 3 * group.rank() + 3] for x in whole)
    pnce.clip(*alone(*whole)[:2], logit_scale=2.0).backward()
    for _ in range(2):
        sharded.zero_grad()
        first, second = modules.encode_in_chunks(lambda x, y: sharded(x, y)[:2], image, text, chunk_size=2)
        pnce.clip(first, second, logit_scale=2.0, across=ranks).backward()
    pairs = [(x.grad, y.grad) for x, y in zip(sharded.parameters(), alone.parameters(), strict=True)]
    towers: list[Any] = [pair for pair in pairs if None not in pair]
    return {"gradients": max(distance(x.full_tensor(), y) for x, y in towers), "missing": float(len(towers) != 4)}


# ------------------------------------------------------------------------------------------------------------- faults


def refused(call: Callable[[], Any]) -> Errors:
    """Return the error that a call raised."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  (it is reported)
        return {"type": type(error).__name__, "message": str(error)}
    return {"type": None, "message": ""}


def check_faults(group: Any) -> Errors:
    """An invalid argument on the last rank raises on all ranks, and all can continue."""
    a, b, _ = embeddings()
    rows, last = own_rows(group), group.rank() == group.size() - 1
    x, y = a[rows], b[rows]
    ranks = pnce.across(group, gradients="averaged")

    def frozen() -> Any:
        own = y if last else y.clone().requires_grad_()
        return pnce.clip(x.clone().requires_grad_(), own, logit_scale=2.0, across=ranks)

    def without_gradient() -> Any:
        with torch.no_grad() if last else torch.enable_grad():
            return pnce.clip(x.clone().requires_grad_(), y, logit_scale=2.0, across=ranks)

    calls: dict[str, Callable[[], Any]] = {
        "width": lambda: pnce.info_nce(x[:, :3] if last else x, y[:, :3] if last else y, across=ranks),
        "dtype": lambda: pnce.info_nce(x.float() if last else x, y.float() if last else y, across=ranks),
        "reduction": lambda: pnce.info_nce(x, y, reduction="sum" if last else "mean", across=ranks),
        "temperature": lambda: pnce.info_nce(x, y, temperature=0.2 if last else 0.1, across=ranks),
        "loss": lambda: (pnce.nt_xent if last else pnce.dcl)(x, y, across=ranks),
        "frozen": frozen,
        "no_grad": without_gradient,
        "refused": lambda: pnce.info_nce(x, y, temperature=-1.0 if last else 0.1, across=ranks),
        "refused in the second part": lambda: pnce.moco_v3(x, y, x, x if not last else x[:, :2], across=ranks),
        "zero rows": lambda: pnce.info_nce(x[:0], y[:0], across=ranks),
        "mask": lambda: pnce.info_nce(x, y, mask=torch.ones(len(x), SAMPLES - last, dtype=torch.bool), across=ranks),
        "positives": lambda: pnce.info_nce(x, y, positives=torch.full((len(x),), SAMPLES if last else 0), across=ranks),
    }
    found: Errors = {}
    wanted = float(pnce.clip(a, b, logit_scale=2.0))
    for name, call in calls.items():
        found[name] = refused(call)
        found[name]["after"] = abs(float(pnce.clip(x, y, logit_scale=2.0, across=ranks)) - wanted)
    return found


def check_dying(group: Any) -> Errors:
    """The last rank dies while the others wait for it."""
    a, b, _ = embeddings()
    rows = own_rows(group)
    if group.rank() == group.size() - 1:
        os._exit(3)
    return refused(lambda: pnce.clip(a[rows], b[rows], logit_scale=2.0, across=pnce.across(group, gradients="summed")))


QUICK: dict[str, Check] = {
    "cases": partial(check_cases, each_loss=True),
    "options": check_options,
    "without rows": check_a_rank_without_rows,
    "second order without rows": check_second_order_without_rows,
    "ddp": check_ddp,
    "compile": partial(check_compile, names=["info_nce"]),
    "queue": check_queue,
    "top k": check_top_k,
    "modules": check_modules,
    "chunks": check_chunks,
    "faults": check_faults,
}
TOPICS: dict[str, dict[str, Check]] = {
    "dying": {"dying": check_dying},
    "quick": QUICK,
    "full": {
        **QUICK,
        "cases": check_cases,
        "second order": check_second_order,
        "fsdp": check_fsdp,
        "bfloat16": check_bfloat16,
        "chunks, fsdp": check_chunks_fsdp,
        "compile": check_compile,
    },
}
