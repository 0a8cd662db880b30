"""The PyTorch modules in models, optimizers and trainers."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import CheckpointError, checkpoint

import portable_nce as pnce
from portable_nce.modules.torch import (
    CLIP,
    DCL,
    FlatNCE,
    InfoNCE,
    Loss,
    MemoryQueue,
    MoCo,
    MultipleNegatives,
    NTXent,
    SentenceLoss,
    SigLIP,
    SupCon,
    encode_in_chunks,
)
from portable_nce.testing import run_ranks

from calls import mostly_full

pytestmark = [
    # torch.compile instantiates functions, of which torch itself warns.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

ROWS, WIDTH = 6, 4
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def draw(count: int, rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(count))


A, B, C = draw(3)


def close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    """Compare tensors, or lists and dicts of them: dtypes, devices, keys and numbers."""
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def same(found: Any, wanted: Any) -> None:
    close(found, wanted, tolerance=0.0)


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in module.state_dict().items()}


def names_of(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def gradients_of(step: Callable[[], Any], leaves: Iterable[torch.Tensor]) -> list[Any]:
    """Give the value and leaf gradients of a step, from fixed random numbers."""
    leaves = [*leaves]
    for x in leaves:
        x.grad = None
    torch.manual_seed(11)
    value = step()
    value.backward()
    return [value.detach(), *(x.grad for x in leaves)]


def same_gradients(found: Callable[[], Any], wanted: Callable[[], Any], leaves: Iterable[torch.Tensor]) -> None:
    leaves = [*leaves]
    close(gradients_of(found, leaves), gradients_of(wanted, leaves))


def test_a_module_is_its_function() -> None:
    halves = LABELS // 2
    prefixes = pnce.matryoshka(pnce.info_nce, [2, 4])
    options: Any = {"symmetric": True, "hardness": 2.0, "similarity": "dot", "reduction": "sum"}
    pooled: Any = {"temperature": 0.5, "multi_positive": "pooled"}
    every: Any = {"positives": torch.arange(ROWS), "temperature": 0.5, "hardness": 3.0, "symmetric": False}
    rows: list[tuple[Loss, tuple[torch.Tensor, ...], Any]] = [
        (InfoNCE(0.2), (A, B), pnce.info_nce(A, B, temperature=0.2)),
        (InfoNCE(0.2, block_size=2, **options), (A, B), pnce.info_nce(A, B, temperature=0.2, **options)),
        (InfoNCE(), (A, B, C), pnce.info_nce(A, B, C)),
        (NTXent(0.5), (A, B, C), pnce.nt_xent(A, B, C, temperature=0.5)),
        (FlatNCE(0.5, include_positive=True), (A, B), pnce.flat_nce(A, B, temperature=0.5, include_positive=True)),
        (FlatNCE(0.5, form="detach"), (A, B), A.new_ones(())),
        (DCL(0.5), (A, B), pnce.dcl(A, B, temperature=0.5)),
        (SupCon(**pooled), (A, halves), pnce.supcon(A, halves, **pooled)),
        (CLIP(), (A, B), pnce.clip(A, B, logit_scale=1 / 0.07)),
        (CLIP(150.0, learnable=False), (A, B), pnce.clip(A, B, logit_scale=100.0)),
        (CLIP(150.0, max_scale=None), (A, B), pnce.clip(A, B, logit_scale=150.0, max_logit_scale=None)),
        (SigLIP(), (A, B), pnce.siglip(A, B, logit_scale=10.0, logit_bias=-10.0)),
        (SigLIP(5.0, -3.0, learnable=False), (A, B), pnce.siglip(A, B, logit_scale=5.0, logit_bias=-3.0)),
        (MultipleNegatives(0.5, hardness=3.0), (A, B, C), pnce.info_nce(A, torch.cat([B, C]), **every)),
        (MultipleNegatives(0.5, hardness=3.0), (A, B, C, A), pnce.info_nce(A, torch.cat([B, C, A]), **every)),
        (Loss(pnce.nca), (A, LABELS), pnce.nca(A, LABELS)),
        (Loss(pnce.cosent, scale=10.0, learnable=True), (A, B, C[:, 0]), pnce.cosent(A, B, C[:, 0], scale=10.0)),
        (Loss(prefixes, temperature=0.5, learnable=True), (A, B), prefixes(A, B, temperature=0.5)),
    ]
    for module, arrays, wanted in rows:
        # The initial value of a learned scale is rounded to float32.
        tolerance = 1e-6 if names_of(module) else 1e-14
        value = module.double()(*arrays)
        assert value.ndim == 0, module
        message = partial("{}: {}".format, module)
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance, msg=message)


def test_options_of_a_call_go_before_those_of_the_module() -> None:
    loss = InfoNCE(0.2, reduction="sum", learnable=True)
    options: Any = {"weights": torch.linspace(0.5, 1.0, ROWS, dtype=torch.float64), "reduction": "none"}
    torch.testing.assert_close(loss(A, B, temperature=0.7, **options), pnce.info_nce(A, B, temperature=0.7, **options))


# --- errors ---------------------------------------------------------------------------------------------------------


def head(x: Any, /) -> Any:
    return x[0, 0]


def row(x: Any, /) -> Any:
    return x[0, :3]


def in_fours(encoder: Any, *inputs: Any) -> Callable[[], Any]:
    return lambda: encode_in_chunks(encoder, *inputs, chunk_size=4)


LOSS: Any = Loss
LEARNABLE = "learnable: expected False for a loss without any of temperature, logit_scale, scale, got True for head"
REFUSED: dict[type[Exception], dict[str, Callable[[], Any]]] = {
    AttributeError: {"'Loss' object has no attribute 'logit_scale'": lambda: Loss(lambda x: x).logit_scale},
    TypeError: {
        "function: expected a function, got str": lambda: LOSS("info_nce"),
        "temprature: expected an option of nca, .*did you mean 'temperature'": lambda: Loss(pnce.nca, temprature=1),
        # A name that type checkers see.
        "temperatur: expected an option of info_nce": lambda: InfoNCE(temperatur=0.1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        "query: expected an option of info_nce": lambda: Loss(pnce.info_nce, query=A),
        "learnable: expected True or False, got 1": lambda: InfoNCE(learnable=1),  # type: ignore[arg-type]
        "name: expected an option of info_nce": lambda: SentenceLoss(nn.Identity(), InfoNCE(), labels_as="name"),
        "temperature: expected a number, got Tensor": lambda: LOSS(pnce.nca, temperature=torch.ones(3), learnable=True),
        "logit_bias: expected a number, got str": lambda: SigLIP(logit_bias="-10"),  # type: ignore[arg-type]
        "width: expected an integer, got float": lambda: MemoryQueue(4, 4.0),  # type: ignore[arg-type]
        "labels: expected True or False": lambda: MemoryQueue(4, 4, labels=None),  # type: ignore[arg-type]
        "model: expected an nn.Module, got function": lambda: SentenceLoss(head, InfoNCE()),  # type: ignore[arg-type]
        "loss: expected a Loss, got function": lambda: SentenceLoss(nn.Identity(), head),  # type: ignore[arg-type]
        "encoder: expected tensors, in tuples, lists and dicts, got ndarray": in_fours(lambda x: (x, x.numpy()), A),
        "encoder: expected tensors, in tuples, lists and dicts, got float": in_fours(lambda x: float(x.mean()), A),
        "encoder: expected a function": in_fours(None, A),
    },
    ValueError: {
        LEARNABLE: lambda: Loss(head, learnable=True),
        "temperature: expected a finite number greater than 0, got 0": lambda: InfoNCE(0.0, learnable=True),
        "temperature: expected a scale .* from 1 to max_scale=100.0, got 0.5": lambda: InfoNCE(2.0, learnable=True),
        "logit_scale: expected a scale .* got 150.0; max_scale=None": lambda: CLIP(150.0),
        "max_scale: expected a finite number greater than 1": lambda: CLIP(max_scale=0.5),
        "size: expected at least 1, got 0": lambda: MemoryQueue(0, 4),
        "labels: expected those of the rows for SupCon": lambda: SentenceLoss(Words(), SupCon())([column(0)]),
        "labels_as: expected None for SupCon": lambda: SentenceLoss(nn.Identity(), SupCon(), labels_as="weights"),
        r"ids: expected shape \(6, 2\), got \(6, 3\)": lambda: MultipleNegatives()(A, B, C, ids=IDS_OF_COLUMNS),
        "chunk_size: expected at least 1, got 0": lambda: encode_in_chunks(head, A, chunk_size=0),
        r"positive: expected as many rows in all columns, got \[6, 6, 3\]": lambda: MultipleNegatives()(A, B, C[:3]),
        "inputs: expected tensors with as many rows each, got no tensor": in_fours(head, 3),
        r"inputs: expected tensors with as many rows each, got \[3, 6\]": in_fours(head, A, B[:3]),
        r"encoder: expected an output with the 4 rows of its chunk, or a number, got shape \(3,\)": in_fours(row, A),
        "encoder: expected an output with the 2 rows of its chunk": in_fours(lambda x: x if len(x) == 4 else x[:1], A),
    },
}


@pytest.mark.parametrize(("kind", "message"), [(kind, message) for kind, of in REFUSED.items() for message in of])
def test_modules_refuse_arguments_that_do_not_fit(kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"^{message}"):
        REFUSED[kind][message]()


# --- learned scales -------------------------------------------------------------------------------------------------


LEARNED: list[Callable[[], Loss]] = [CLIP, SigLIP, lambda: InfoNCE(0.2, learnable=True)]


def slope(loss: Loss, value: float, *, closer: bool) -> tuple[float, float]:
    """Give the gradient by a log scale, for matching or mismatched pairs, and the loss."""
    parameter = loss.get_parameter("log_scale")
    parameter.data.fill_(value)
    # Cosines of 0.1 or -0.1 with the matching text, and 0 with the others.
    image = torch.eye(ROWS, 2 * ROWS, dtype=torch.float64)
    text = 0.1 * image + 0.99**0.5 * image.roll(ROWS, 1)
    found = loss(image, text if closer else -text)
    (gradient,) = torch.autograd.grad(found, parameter)
    return float(gradient), float(found.detach())


@pytest.mark.filterwarnings("ignore:logit_scale. expected the factor")
@pytest.mark.parametrize("make", LEARNED)
def test_a_scale_is_limited_and_comes_back(make: Callable[[], Loss]) -> None:
    loss = make().double()
    high, low = math.log(100.0), 0.0
    for limit, outside, leads_back in ((high, high + 3.0, False), (low, low - 3.0, True)):
        # A larger scale is better if the pairs match, a smaller one if not.
        inwards = slope(loss, outside, closer=leads_back)
        assert float(loss.logit_scale.detach().log()) == pytest.approx(limit, abs=1e-9)
        assert inwards == pytest.approx(slope(loss, limit, closer=leads_back), rel=1e-9)  # as at the limit
        assert (inwards[0] > 0) == (limit == high)
        assert abs(inwards[0]) > 1e-9
        outwards = slope(loss, outside, closer=not leads_back)
        assert outwards[0] == 0.0
        assert outwards[1] == pytest.approx(slope(loss, limit, closer=not leads_back)[1], rel=1e-9)


def test_the_limits_of_a_scale() -> None:
    """The limits are inclusive, and exact in float32 also for a 16-bit parameter."""
    for loss, start, largest in (
        (InfoNCE(0.5, learnable=True, max_scale=5.0), 2.0, 5.0),
        (InfoNCE(1.0, learnable=True, max_scale=5.0), 1.0, 5.0),
        (InfoNCE(0.2, learnable=True, max_scale=5.0), 5.0, 5.0),
        (InfoNCE(2.0, learnable=True, max_scale=None), 0.5, math.exp(9.0)),
        (CLIP().to(torch.bfloat16), math.exp(2.65625), 100.0),
    ):
        torch.testing.assert_close(loss.logit_scale, torch.tensor([start]))
        loss.get_parameter("log_scale").data.fill_(9.0)
        torch.testing.assert_close(loss.logit_scale, torch.tensor([largest]))


@pytest.mark.parametrize("temperature", [0.5, torch.tensor(0.5), nn.Parameter(torch.tensor(0.5))])
def test_temperature_and_scale_in_use(temperature: Any) -> None:
    """Each is the inverse of the other, for every way to set them."""
    fixed = InfoNCE(temperature)
    assert fixed.temperature is temperature
    with pytest.raises((AttributeError, TypeError)):
        setattr(fixed, "temperature", 0.1)  # noqa: B010  (mypy knows that it cannot be set)
    learned = InfoNCE(0.5, learnable=True), CLIP(2.0)
    for loss in (fixed, *learned, CLIP(1.0 / temperature, learnable=False)):
        assert torch.as_tensor(loss.temperature).item() == pytest.approx(0.5)
        assert torch.as_tensor(loss.logit_scale).item() == pytest.approx(2.0)
    assert all(loss.temperature.requires_grad for loss in learned)
    x = torch.eye(4)
    compiled: Any = torch.compile(fixed, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, x), fixed(x, x))
    assert InfoNCE().temperature == 0.07


def test_each_loss_starts_where_its_paper_does_and_has_its_own_parameters() -> None:
    clip, other = CLIP(), CLIP()
    same(clip.state_dict(), {"log_scale": torch.tensor([math.log(1 / 0.07)])})
    bias_and_scale = {"logit_bias": torch.tensor([-10.0]), "log_scale": torch.tensor([math.log(10.0)])}
    same(SigLIP().state_dict(), bias_and_scale)
    assert not SigLIP(learnable=False).state_dict()
    clip(A, B).backward()
    assert clip.get_parameter("log_scale").grad is not None
    assert other.get_parameter("log_scale").grad is None


@pytest.mark.parametrize("make", LEARNED)
def test_the_gradients_of_what_is_learned(make: Callable[[], Loss]) -> None:
    loss = make().double()
    values = tuple(x.detach().clone().requires_grad_() for x in loss.parameters())

    def function(*values: torch.Tensor) -> Any:
        return torch.func.functional_call(loss, dict(zip(names_of(loss), values, strict=True)), (A, B))

    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


def test_a_user_learns_what_else_a_loss_has() -> None:
    margin = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    loss = Loss(pnce.triplet_from_labels, margin=margin)
    loss(A, LABELS).backward()
    assert names_of(loss) == ["margin"]
    assert margin.grad is not None
    assert margin.grad > 0
    constant = Loss(pnce.triplet_from_labels, margin=torch.tensor(0.5)).double()
    assert constant.get_buffer("margin").dtype == torch.float64
    assert not constant.state_dict()
    assert float(constant(A, LABELS)) == float(loss(A, LABELS).detach())


def _scores(a: Any, b: Any, scale: float = 2.0) -> Any:
    return (a * b).sum() * scale


def test_options_of_a_users_function_may_have_places() -> None:
    for learnable in (False, True):
        loss = Loss(_scores, scale=3.0, learnable=learnable)
        assert float(loss(A, B).detach()) == pytest.approx(3.0 * float((A * B).sum()), rel=1e-6)


def test_all_tensors_among_the_options_are_buffers() -> None:
    weights, mask = torch.linspace(0.5, 1.0, ROWS, dtype=torch.float64), torch.ones(ROWS, ROWS, dtype=torch.bool)
    mask[0, 1:3] = False
    loss = Loss(pnce.info_nce, temperature=0.2, weights=weights, mask=mask)
    assert [name for name, _ in loss.named_buffers()] == ["weights", "mask"]
    torch.testing.assert_close(loss(A, B), pnce.info_nce(A, B, temperature=0.2, weights=weights, mask=mask))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))

    def forward(self, x: Any, y: Any) -> Any:
        return x @ self.weight.to(x.dtype) @ y.mT  # 16-bit inputs arrive as float32


def test_a_similarity_is_learned() -> None:
    loss = InfoNCE(0.5, similarity=Bilinear())
    value = loss(A, B)
    torch.testing.assert_close(value, pnce.info_nce(A, B, temperature=0.5, similarity="dot"))
    assert names_of(loss) == ["similarity.weight"]
    assert torch.autograd.grad(value, loss.get_parameter("similarity.weight"))[0].abs().sum() > 0


# --- use of modules -------------------------------------------------------------------------------------------------


def filled(*, labels: bool = False) -> MemoryQueue:
    memory = MemoryQueue(5, WIDTH, labels=labels, dtype=torch.float64)
    memory.push(C[:3], labels=LABELS[:3] if labels else None)
    return memory


class WithIds(MultipleNegatives):
    """Loss with ids of the positives alone."""

    def forward(self, *columns: Any) -> Any:  # type: ignore[override]
        return super().forward(*columns, ids=torch.arange(len(columns[0]), device=columns[0].device) // 2)


class OfColumns(SentenceLoss):
    """Loss of the embeddings of its model, in chunks."""

    def forward(self, *columns: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward([{"sentence_embedding": x} for x in columns])


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "InfoNCE": lambda: (InfoNCE(0.3, learnable=True), (A, B)),
    "NTXent, keys": lambda: (NTXent(0.3, keys=filled()), (A, B)),
    "SupCon, memory": lambda: (SupCon(0.3, learnable=True, keys=filled(labels=True)), (A, LABELS)),
    "CLIP": lambda: (CLIP(), (A, B)),
    "SigLIP": lambda: (SigLIP(), (A, B)),
    "MoCo": lambda: (MoCo(8, WIDTH, learnable=True).eval(), (A, B)),
    "similarity": lambda: (InfoNCE(similarity=Bilinear()), (A, B)),
    "MultipleNegatives": lambda: (MultipleNegatives(0.3, learnable=True), (A, B, C)),
    "MultipleNegatives, ids": lambda: (WithIds(0.3, learnable=True), (A, B, C)),
    "margin": lambda: (Loss(pnce.triplet_from_labels, margin=nn.Parameter(torch.tensor(0.5))), (A, LABELS)),
    "in chunks": lambda: (OfColumns(nn.Identity(), MultipleNegatives(0.3, learnable=True), chunk_size=32), (A, B, C)),
}
each_module = pytest.mark.parametrize("name", MODULES)


def moved(module: nn.Module) -> nn.Module:
    """Change parameters and buffers."""
    for x in module.parameters():
        x.data.add_(0.25)
    for memory in module.modules():
        if isinstance(memory, MemoryQueue):
            memory.push(B[:2], labels=None if memory.labels is None else LABELS[:2])
    return module


def copied(name: str, module: nn.Module, way: str) -> nn.Module:
    """Copy a module, or load its state into a new one."""
    if way == "deepcopy":
        return copy.deepcopy(module)
    if way == "pickle":
        return pickle.loads(pickle.dumps(module))  # noqa: S301
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = MODULES[name]()[0].double()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@each_module
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "state"])
def test_a_copy_is_equal_and_by_itself(name: str, way: str) -> None:
    module, arrays = MODULES[name]()
    moved(module.double())
    before = module(*arrays)
    other = copied(name, module, way)
    assert torch.equal(other(*arrays), before)
    assert repr(other) == repr(module)
    after = moved(other)(*arrays)
    assert not torch.equal(after, before)
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    assert torch.equal(torch.func.functional_call(module, state, arrays), after)
    assert torch.equal(module(*arrays), before)


@each_module
def test_a_module_moves(name: str) -> None:
    module, arrays = MODULES[name]()
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        found = module.to(dtype)(*(x.to(dtype) if x.is_floating_point() else x for x in arrays))
        assert found.dtype == dtype
        assert found.isfinite()
    meta = copy.deepcopy(module).to("meta")
    assert {x.device.type for x in meta.state_dict().values()} <= {"meta"}
    found = meta(*(x.to("meta") for x in arrays))
    assert (found.device.type, found.shape) == ("meta", ())


@pytest.mark.parametrize("make", [*LEARNED, lambda: MoCo(4, WIDTH)])
def test_a_module_made_on_meta_is_set_up_later(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for buffer in module.buffers():
        buffer.fill_(1)  # memory that was in use before
    assert isinstance(module, Loss | MemoryQueue)
    module.reset_parameters()
    same(module.state_dict(), make().state_dict())


class Exponential(nn.Module):
    """A parametrization by an exponential."""

    def forward(self, x: Any) -> Any:
        return x.exp()

    def right_inverse(self, x: Any) -> Any:
        return x.log()


def test_parametrized_scales_are_reset() -> None:
    loss, other = InfoNCE(0.1, learnable=True), SigLIP(logit_bias=2.0)
    nn.utils.parametrize.register_parametrization(loss, "log_scale", Exponential())
    nn.utils.parametrize.register_parametrization(other, "logit_bias", Exponential())
    for module, name, wanted in ((loss, "log_scale", math.log(10.0)), (other, "logit_bias", 2.0)):
        (original,) = (x for key, x in module.named_parameters() if key.endswith(f"{name}.original"))
        with torch.no_grad():
            original.fill_(-3.0)
        module.reset_parameters()
        assert float(getattr(module, name).detach()) == pytest.approx(wanted)


COMPILED = "SupCon, memory", "SigLIP", "MoCo", "similarity", "MultipleNegatives", "MultipleNegatives, ids", "in chunks"


@pytest.mark.parametrize("name", mostly_full(COMPILED, ["MoCo"]))
def test_a_module_is_compiled_for_all_batch_sizes(name: str) -> None:
    """One graph for the first batch size, one for all others, also while a queue is filled."""
    torch.compiler.reset()
    module, arrays = MODULES[name]()
    other = copy.deepcopy(module.double().train())
    graphs = CompileCounterWithBackend("aot_eager" if name == "MoCo" else "eager")
    compiled = torch.compile(other, fullgraph=True, backend=graphs)
    for rows in (6, 6, 4, 5, 3, 7, 8, 10, 12, 14, 16, 20):
        first, *others = [torch.cat([x, x.flip(0), x, x])[:rows] for x in arrays]
        first.requires_grad_()
        found = gradients_of(partial(compiled, first, *others), [first, *other.parameters()])
        close(found, gradients_of(partial(module, first, *others), [first, *module.parameters()]))
        same(other.state_dict(), module.state_dict())
    assert graphs.frame_count <= 2


@pytest.mark.parametrize("make", [*LEARNED, lambda: MoCo(4, WIDTH, learnable=True)])
def test_mixed_precision(make: Callable[[], Loss]) -> None:
    """A loss is float32 under autocast; GradScaler's factor is removed."""
    slopes: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for mixed, found in slopes.items():
        torch.manual_seed(0)
        loss, tower = make(), nn.Linear(WIDTH, WIDTH)
        parameters = [*tower.parameters(), *loss.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=mixed, init_scale=2.0**10)
        for _ in range(2):  # the second call has a filled queue
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                value = loss(tower(A.float()), tower(B.float()).detach())
            assert value.dtype == torch.float32
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            found += [x.grad.clone() for x in parameters if x.grad is not None]
            scaler.step(optimizer)
            scaler.update()
    assert len(slopes[False]) == 2 * (2 + len(names_of(make())))
    for x, y in zip(slopes[False], slopes[True], strict=True):
        torch.testing.assert_close(y, x, rtol=0.1, atol=0.05 * float(x.abs().max()) + 1e-6)


def test_a_loss_shows_its_options() -> None:
    for module, text in (
        (Loss(_scores), "Loss(scores)"),
        (Loss(pnce.nca), "Loss(nca)"),
        (CLIP(), "CLIP(learned logit_scale=14.2857)"),
        (InfoNCE(0.1), "InfoNCE(temperature=0.1, symmetric=False, multi_positive=each, hardness=0.0)"),
        (MemoryQueue(3, 2, labels=True), "MemoryQueue(3, 2, labels=True)"),
    ):
        assert repr(module) == text


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_that_of_the_package() -> None:
    memory = MemoryQueue(5, WIDTH, labels=True, dtype=torch.float64)
    queue = pnce.queue_init(A, 5, labels=LABELS)
    for rows, labels in ((A[:3], LABELS[:3]), (B, LABELS), (C[:1], LABELS[:1])):
        memory.push(rows.clone().requires_grad_(), labels=labels)
        queue = pnce.queue_push(queue, rows, labels=labels)
        found = memory()
        assert isinstance(found, pnce.Queue)
        same([*found], [*queue])
        assert not found.rows.requires_grad
    assert set(memory.state_dict()) == {"rows", "valid", "labels"}


def test_a_queue_is_not_changed_by_what_it_refuses() -> None:
    memory = filled(labels=True)
    before = state_of(memory)
    wrong: list[tuple[Any, Any]] = [
        *((rows, LABELS) for rows in (A[:, :3], A.long(), A.float(), A.to("meta"), A.numpy())),
        *((A, labels) for labels in (None, LABELS[:3], LABELS.double(), LABELS.to("meta"))),
        (A[0], LABELS[:1]),
    ]
    for rows, labels in wrong:
        with pytest.raises((TypeError, ValueError)):
            memory.push(rows, labels=labels)
        same(memory.state_dict(), before)


def test_a_queue_is_not_changed_by_a_state_that_does_not_fit() -> None:
    model = nn.ModuleDict({"memory": filled(labels=True)})
    before = state_of(model)
    for state in (
        MemoryQueue(4, WIDTH, labels=True).state_dict(),
        MemoryQueue(5, WIDTH + 1, labels=True).state_dict(),
        MemoryQueue(5, WIDTH).state_dict(),
        {"valid": torch.zeros(5, dtype=torch.bool)},
    ):
        with pytest.raises(RuntimeError, match=r"memory\.: expected the shapes .*'rows': \(5, 4\)"):
            model.load_state_dict({f"memory.{name}": x for name, x in state.items()}, strict=False)
        same(model.state_dict(), before)
    assert model.load_state_dict({}, strict=False).missing_keys == [*before]


def test_rows_that_come_in_before_backward_change_no_gradient() -> None:
    losses: list[Callable[..., Any]] = [
        lambda x, memory: Loss(pnce.moco)(x, B, memory),
        lambda x, memory: SupCon(keys=memory)(x, LABELS),
        lambda x, memory: NTXent(0.3)(x, B, keys=memory),
        lambda x, memory: Loss(pnce.nnclr)(B, x, memory),
    ]
    for number, loss in enumerate(losses):
        memory, x = filled(labels=True), A.clone().requires_grad_()
        early, late = loss(x, memory), loss(x, memory)
        (wanted,) = torch.autograd.grad(early, x)
        memory.push(B, labels=LABELS)
        assert torch.equal(torch.autograd.grad(late, x)[0], wanted), number


def test_moco_is_its_function_and_its_queue() -> None:
    module, queue = MoCo(8, WIDTH, temperature=0.2).double(), pnce.queue_init(A, 8)
    for seed in (1, 2, 3):
        query, key = draw(2, seed=seed)
        assert torch.equal(module(query, key), pnce.moco(query, key, queue, temperature=0.2))
        queue = pnce.queue_push(queue, key)
        assert torch.equal(module.queue.rows, queue.rows)
    before = state_of(module)
    module.eval()(A, B)
    with pytest.raises(ValueError, match="queue: expected 3 features"):
        module.train()(A, B[:, :3])
    same(module.state_dict(), before)


@pytest.mark.parametrize("of_call", [False, True])
def test_the_keys_of_all_ranks_enter_the_queue(*, of_call: bool) -> None:
    """With ranks as an option of the module or of a call; copies of the module share them."""

    def on_a_rank(group: Any) -> dict[str, torch.Tensor]:
        across = pnce.across(group, gradients="summed")
        module = copy.deepcopy((MoCo(8, WIDTH) if of_call else MoCo(8, WIDTH, across=across)).double())
        rows = slice(0, 2) if group.rank == 0 else slice(2, None)
        module(A[rows], B[rows], **({"across": across} if of_call else {}))
        return state_of(module)

    queue = pnce.queue_push(pnce.queue_init(A, 8), B)
    for state in run_ranks(2, on_a_rank):
        same(state, {"queue.rows": queue.rows, "queue.valid": queue.valid})


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", ["plain", "inside", "around", "push, then SupCon", "SupCon, then push"])
def test_a_queue_is_not_read_again_in_a_recomputation(way: str, reentrant: bool) -> None:  # noqa: FBT001
    """A recomputation would read the queue after the push, and push twice; also with torch.compile inside or around."""
    torch.compiler.reset()
    module = MoCo(5, WIDTH).double()
    memory = filled(labels=True) if "SupCon" in way else module.queue

    def step(x: torch.Tensor) -> Any:
        if "SupCon" not in way:
            return module(x.tanh(), B)
        if way == "push, then SupCon":
            memory.push(B, labels=LABELS)
        value = SupCon(keys=memory)(x.tanh(), LABELS)
        if way == "SupCon, then push":
            memory.push(B, labels=LABELS)
        return value

    compiled: Any = partial(torch.compile, backend="aot_eager")
    inner = compiled(step) if way == "inside" else step
    outer: Any = partial(checkpoint, inner, use_reentrant=reentrant)
    value = (compiled(outer) if way == "around" else outer)(A.clone().requires_grad_())
    before = state_of(memory)
    assert before["valid"].all()
    with pytest.raises(RuntimeError, match=r"^queue: expected to be read in the forward pass, .* outside"):
        value.backward()
    same(memory.state_dict(), before)


# --- sentence-transformers ------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Model like sentence-transformers', which writes into its input dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(20, WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(0.2)
        self.sizes: list[int] = []

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        self.sizes.append(len(features["input_ids"]))
        features["token_embeddings"] = self.dropout(self.embedding(features["input_ids"]))
        mask = features["attention_mask"].unsqueeze(-1)
        features["sentence_embedding"] = (features["token_embeddings"] * mask).sum(1) / mask.sum(1)
        return features


def column(seed: int, length: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(20, (ROWS, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones(ROWS, length, dtype=torch.int64), "modality": "text"}


SENTENCES: dict[str, tuple[Loss, int, Any]] = {
    "pairs": (InfoNCE(0.05, symmetric=True), 2, None),
    "columns": (MultipleNegatives(0.05, hardness=5.0), 4, None),
    "classes": (SupCon(0.1), 1, LABELS),
    "grades": (Loss(pnce.cosent), 2, C[:, 0]),
    "triplets": (Loss(pnce.triplet, margin=5.0), 3, None),
}


@pytest.mark.parametrize("chunk_size", [None, 4, 100])
@pytest.mark.parametrize("name", SENTENCES)
def test_sentences(name: str, chunk_size: int | None) -> None:
    """Loss of the columns' embeddings, each in chunks, and of labels if it takes them."""
    function, count, labels = SENTENCES[name]
    model = Words().eval()
    loss = SentenceLoss(model, function, chunk_size=chunk_size)
    columns = [column(k, length=3 + k) for k in range(count)]
    keys = [set(features) for features in columns]
    found = gradients_of(partial(loss, columns, labels), model.parameters())
    assert [set(features) for features in columns] == keys
    chunks = {None: [6], 4: [4, 2], 100: [6]}[chunk_size]
    twice = 1 if chunk_size is None else 2  # forward and recomputation
    assert sorted(model.sizes) == sorted(chunks * count * twice)

    def step() -> Any:
        embeddings = [model(dict(features))["sentence_embedding"] for features in columns]
        return function(*embeddings, *([] if labels is None else [labels]))

    close(found, gradients_of(step, model.parameters()))


IDS = torch.tensor([3, 5, 3, 7, 5, 9])
IDS_OF_COLUMNS: torch.Tensor = torch.stack([IDS, IDS.flip(0), torch.tensor([3, 1, 2, 5, 7, 8])], dim=1)


@pytest.mark.parametrize("ids", [IDS, IDS_OF_COLUMNS, IDS_OF_COLUMNS.to(torch.int16)])
def test_texts_with_the_id_of_a_positive_are_no_negatives(ids: torch.Tensor) -> None:
    """Ids of the positives alone, or of all columns; on one process, and on two with uneven numbers of rows."""
    arrays = A, B, C, 0.5 * A + C
    names: list[Any] = [*IDS.tolist(), *[None] * (2 * ROWS)] if ids.ndim == 1 else ids.T.flatten().tolist()
    mask = torch.tensor([[k == i or names[k] != names[i] for k in range(3 * ROWS)] for i in range(ROWS)])
    wanted: list[torch.Tensor] = []

    def on_a_rank(group: Any) -> list[torch.Tensor]:
        rows = slice(0, 2) if group.rank == 0 else slice(2, None)
        leaves = [x[rows].clone().requires_grad_() for x in arrays]
        loss = MultipleNegatives(0.5, across=pnce.across(group, gradients="summed"))
        return gradients_of(partial(loss, *leaves, ids=ids[rows]), leaves)

    for options in ({"ids": ids}, {"mask": mask}):
        leaves = [x.clone().requires_grad_() for x in arrays]
        found = gradients_of(partial(MultipleNegatives(0.5), *leaves, **options), leaves)
        close(found, wanted or found)
        wanted = found
    values, *parts = zip(*run_ranks(2, on_a_rank), strict=True)
    close([*values, *(torch.cat(part) for part in parts)], [wanted[0], *wanted])


def test_pairs_with_ids_on_ranks() -> None:
    wanted = MultipleNegatives(0.5)(A, B, ids=IDS)
    assert wanted < MultipleNegatives(0.5)(A, B)

    def on_a_rank(group: Any) -> torch.Tensor:
        rows = slice(0, 2) if group.rank == 0 else slice(2, None)
        return MultipleNegatives(0.5, across=pnce.across(group, gradients="summed"))(A[rows], B[rows], ids=IDS[rows])

    close(run_ranks(2, on_a_rank), [wanted, wanted])


@pytest.mark.parametrize("count", [2, 3])
def test_labels_of_sentences_become_an_option(count: int) -> None:
    """The trainer's labels are ids of the positives, or weights."""
    columns, model, loss = [column(k) for k in range(count)], Words().eval(), MultipleNegatives(0.05)
    embeddings = [model(dict(features))["sentence_embedding"] for features in columns]
    for name, labels in (("ids", IDS), ("weights", torch.linspace(0.5, 1.0, ROWS, dtype=torch.float64))):
        sentences = SentenceLoss(model, loss, labels_as=name)
        close([sentences(columns, labels)], [loss(*embeddings, **{name: labels})])
        assert sentences.get_config_dict()["labels_as"] == name
    with pytest.raises(ValueError, match="labels: expected those of the rows"):
        SentenceLoss(model, loss, labels_as="ids")(columns)


def test_columns_of_negatives_of_all_ranks() -> None:
    """Ranks with uneven numbers of rows equal one process with all rows; also without negatives."""
    arrays = (A, B, C, 0.5 * A + C)
    for count in (2, 4):

        def on_a_rank(group: Any, count: int = count) -> list[torch.Tensor]:
            rows = slice(0, 2) if group.rank == 0 else slice(2, None)
            leaves = [x[rows].clone().requires_grad_() for x in arrays[:count]]
            loss = MultipleNegatives(0.5, across=pnce.across(group, gradients="summed"))
            return gradients_of(partial(loss, *leaves), leaves)

        every = [x.clone().requires_grad_() for x in arrays[:count]]
        value, *slopes = gradients_of(partial(MultipleNegatives(0.5), *every), every)
        values, *parts = zip(*run_ranks(2, on_a_rank), strict=True)
        close([*values], [value, value])
        close([torch.cat(part) for part in parts], slopes)


def test_the_trainer_finds_what_it_asks_of_a_loss() -> None:
    loss = SentenceLoss(Words(), MultipleNegatives(0.05, learnable=True), chunk_size=16)
    learned = {"temperature": 0.05, "learnable": True, "max_scale": 100.0}
    assert loss.get_config_dict() == {"loss": "MultipleNegatives", "hardness": 0.0, **learned, "chunk_size": 16}
    assert names_of(loss) == ["model.embedding.weight", "loss.log_scale"]
    loss.model = Words()  # the trainer replaces the model by DDP's wrapper
    assert SentenceLoss(Words(), Loss(pnce.cosent)).get_config_dict()["loss"] == "cosent"


# --- gradient caching -----------------------------------------------------------------------------------------------


class Tower(nn.Module):
    def __init__(self, seed: int = 5, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layers = nn.Linear(width, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, WIDTH)
        self.layers = nn.Sequential(*layers).double()
        self.rows: list[int] = []

    def forward(self, x: Any) -> Any:
        self.rows.append(len(x))
        return self.layers(x)


def by_hand(encoder: Callable[..., Any], x: torch.Tensor, *, chunk_size: int) -> Any:
    """Call an encoder chunk by chunk without recomputation."""
    return torch.cat([encoder(part) for part in x.split(chunk_size)])


def in_chunks_as_by_hand(step: Callable[[Any], Any], leaves: Iterable[torch.Tensor]) -> None:
    """Check that a step with chunks gives the value and gradients of one that calls the encoder chunk by chunk."""
    leaves = [*leaves]
    wanted = gradients_of(partial(step, by_hand), leaves)
    state = torch.get_rng_state()
    close(gradients_of(partial(step, encode_in_chunks), leaves), wanted)
    assert torch.equal(torch.get_rng_state(), state)


def loss_of(embeddings: Any) -> Any:
    return pnce.nt_xent(embeddings, embeddings + A, temperature=0.5)


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 6, 100])
def test_gradients_are_those_of_an_encoder_in_chunks(chunk_size: int) -> None:
    """Two towers with dropout, a learned scale and a partial last chunk."""
    image, text = draw(2, rows=11, width=7)
    first, second, loss = Tower(1, 7), Tower(2, 7), CLIP(5.0).double()
    in_chunks_as_by_hand(
        lambda encode: loss(encode(first, image, chunk_size=chunk_size), encode(second, text, chunk_size=chunk_size)),
        [*first.parameters(), *second.parameters(), *loss.parameters()],
    )
    assert max(first.rows) == min(chunk_size, 11)


def test_a_shared_encoder_and_inputs_that_need_a_gradient() -> None:
    x, y = (x.requires_grad_() for x in draw(2, rows=9))
    tower = Tower()
    in_chunks_as_by_hand(
        lambda encode: pnce.nt_xent(encode(tower, x, chunk_size=4), encode(tower, y, chunk_size=2), temperature=0.5),
        [*tower.parameters(), x, y],
    )


def test_gradients_of_chunks_follow_later_operations() -> None:
    """A sum of losses, GradScaler, and torch.autograd.grad."""
    x, y = draw(2, rows=9)
    tower = Tower().eval()

    def step(encode: Callable[..., Any]) -> Any:
        a, b = (encode(tower, z, chunk_size=4) for z in (x, y))
        return 3.0 * pnce.clip(a, b, logit_scale=5.0) + a.square().mean()

    plain = torch.autograd.grad(step(lambda tower, z, **_: tower(z)), [*tower.parameters()])
    value = step(encode_in_chunks)
    close(torch.autograd.grad(value, [*tower.parameters()], retain_graph=True), plain)
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(value).backward()
    scaler.unscale_(optimizer)
    close([x.grad for x in tower.parameters()], [*plain])


@pytest.mark.parametrize("inside", [False, True])
def test_chunks_under_autocast(inside: bool) -> None:  # noqa: FBT001
    """Recomputation uses the same dtypes, also if backward is called within autocast."""
    x, y = (x.float() for x in draw(2, rows=9))
    tower, loss = Tower().float(), CLIP(5.0)
    leaves = [*tower.parameters(), *loss.parameters()]

    def step(encode: Callable[..., Any]) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a, b = encode(tower, x, chunk_size=4), encode(tower, y, chunk_size=4)
            assert a.dtype == torch.bfloat16
            return loss(a, b)

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
        found, wanted = (gradients_of(partial(step, encode), leaves) for encode in (encode_in_chunks, by_hand))
    # Gradients of bfloat16 weights are summed in another order.
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-7 * float(theirs.abs().max()))


def test_arguments_and_outputs_of_any_structure() -> None:
    x, y = draw(2, rows=7)
    scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))
    shift = torch.tensor(0.5, dtype=torch.float64)

    def model(pair: dict[str, Any], /, factor: float, *, other: list[Any], text: str, shift: Any) -> Any:
        assert text == "text"
        assert shift.ndim == 0
        first, second = pair["x"] @ weight, (other[0] @ weight) * factor + shift
        return {"both": (first, [second]), "scale": scale.exp(), "mean": first.mean(), "text": text, "flag": True}

    def step(encode: Callable[..., Any]) -> Any:
        output = encode({"x": x}, 2.0, other=[y], text="text", shift=shift)
        assert (output["text"], output["flag"]) == ("text", True)
        first, (second,) = output["both"]
        return pnce.clip(first, second, logit_scale=output["scale"]) + output["mean"]

    in_chunks = partial(encode_in_chunks, model, chunk_size=3)
    same_gradients(partial(step, in_chunks), partial(step, model), [scale, weight])
    named = encode_in_chunks(lambda x: torch.max(x, dim=1), x, chunk_size=3)
    assert torch.equal(named[1], torch.max(x, dim=1).indices)
    queue = encode_in_chunks(lambda x: pnce.Queue(x, x[:, 0] > 0), x, chunk_size=3)
    assert isinstance(queue, pnce.Queue)
    assert torch.equal(queue.rows, x)


def test_parameters_that_others_hold_are_found() -> None:
    """FSDP keeps a view of its flat parameter as an attribute; a parametrization computes one."""
    flat, parametrized = SigLIP(logit_bias=-3.0), SigLIP(logit_bias=-3.0)
    bias: Any = flat.logit_bias
    del flat.logit_bias
    flat.logit_bias = 2.0 * bias.detach()
    nn.utils.parametrize.register_parametrization(parametrized, "logit_bias", Doubled())
    wanted = SigLIP(logit_bias=-6.0)(A, B)
    for module in (flat, parametrized):
        torch.testing.assert_close(module(A, B), wanted)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, x: Any) -> Any:
        return 2.0 * x


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_numbers_of_chunks_keep_their_digits(dtype: torch.dtype, *, autocast: bool) -> None:
    """Under autocast, and where the number of rows exceeds a float16."""
    x, scale = torch.zeros(70001, 1), torch.tensor(100.0 / 7.0).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = encode_in_chunks(lambda rows: (rows, scale), x, chunk_size=35000)[1]
    assert found.dtype == (dtype if dtype.is_floating_point else torch.float32)
    torch.testing.assert_close(found, scale.to(found.dtype))


def test_chunks_are_computed_once_without_gradients() -> None:
    tower = Tower().eval()
    with torch.no_grad():
        found = encode_in_chunks(tower, A, chunk_size=4)
    assert not found.requires_grad
    assert tower.rows == [4, 2]
    torch.testing.assert_close(found, tower(A))
    assert encode_in_chunks(tower, A[:0], chunk_size=4).shape == (0, WIDTH)


def test_an_encoder_holds_no_activations() -> None:
    """Number of entries that autograd holds after the forward pass."""
    tower, (x,) = Tower(), draw(1, rows=64)

    def held(encode: Callable[..., Any]) -> int:
        sizes: list[int] = []
        hooks: Any = torch.autograd.graph.saved_tensors_hooks
        with hooks(lambda saved: sizes.append(saved.numel()), lambda _: None):
            encode(tower, x, chunk_size=8)
        return sum(sizes)

    assert held(by_hand) >= 64 * (WIDTH + 2 * 16)
    assert held(encode_in_chunks) == 0


def test_chunks_are_computed_again_for_their_gradients() -> None:
    """Only after the previous chunk is done, so that one is held at a time."""
    events: list[str] = []
    tower = Tower()

    def encoder(x: Any) -> Any:
        events.append("forward")
        found = tower(x)
        found.register_hook(lambda _: events.append("gradient"))
        return found

    value = encode_in_chunks(encoder, A, chunk_size=2)
    assert events == ["forward"] * 3
    (value * B).sum().backward()
    assert events[3:] == ["gradient", "forward"] * 3


def test_an_encoder_that_changes_between_the_passes_is_an_error() -> None:
    width = WIDTH
    weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))
    found = encode_in_chunks(lambda x: (x[:, :width] @ weight[:width]).tanh(), A, chunk_size=4)
    width = 2
    with pytest.raises(CheckpointError):
        found.sum().backward()


@pytest.mark.parametrize("inside", [False, True])
def test_chunks_and_compiled_code(inside: bool) -> None:  # noqa: FBT001
    """A compiled encoder in chunks, and a compiled step that contains chunks."""
    torch.compiler.reset()
    tower = Tower().layers.eval()
    encoder: Any = torch.compile(tower, fullgraph=True, backend="aot_eager") if inside else tower

    def in_chunks(x: Any) -> Any:
        return encode_in_chunks(encoder, x, chunk_size=4)

    chunked: Any = in_chunks if inside else torch.compile(in_chunks, backend="aot_eager")
    same_gradients(lambda: loss_of(chunked(A)), lambda: loss_of(tower(A)), tower.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_encoder_that_checkpoints_its_layers(reentrant: bool) -> None:  # noqa: FBT001
    tower = Tower()

    def encoder(x: Any) -> Any:
        return checkpoint(tower, x.clone().requires_grad_(), use_reentrant=reentrant)

    def step(encode: Any) -> Any:
        return loss_of(encode(tower if encode is by_hand else encoder, A, chunk_size=4))

    in_chunks_as_by_hand(step, tower.parameters())


def test_derivatives_of_second_order() -> None:
    tower = Tower()
    parameters = [*tower.parameters()]

    def second(encode: Callable[..., Any]) -> Any:
        torch.manual_seed(5)
        value = pnce.info_nce(encode(tower, A, chunk_size=4), B, temperature=0.5)
        slopes = torch.autograd.grad(value, parameters, create_graph=True)
        return torch.autograd.grad(torch.stack([x.square().sum() for x in slopes]).sum(), parameters, allow_unused=True)

    close(second(encode_in_chunks), second(by_hand))
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: encode_in_chunks(tower, x, chunk_size=4).sum())(A)


def test_batch_normalisation_sees_chunks_twice() -> None:
    layer = nn.BatchNorm1d(WIDTH).double()
    encode_in_chunks(layer, A, chunk_size=3).sum().backward()
    assert layer.num_batches_tracked == 4
