"""The modules for PyTorch, as models, optimizers and trainers use them."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
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

pytestmark = [
    # Of torch itself: torch.jit.script warns of its own deprecation, and torch.compile instantiates functions.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

ROWS, WIDTH = 6, 4
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def draw(count: int, rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(count))


A, B, C = draw(3)

LOSSES: dict[str, tuple[Callable[[], Loss], tuple[Any, ...], Callable[[], Any]]] = {
    "InfoNCE": (lambda: InfoNCE(0.2), (A, B), lambda: pnce.info_nce(A, B, temperature=0.2)),
    "InfoNCE, options": (
        lambda: InfoNCE(0.2, symmetric=True, hardness=2.0, similarity="dot", reduction="sum", block_size=2),
        (A, B),
        lambda: pnce.info_nce(A, B, temperature=0.2, symmetric=True, hardness=2.0, similarity="dot", reduction="sum"),
    ),
    "InfoNCE, negatives": (InfoNCE, (A, B, C), lambda: pnce.info_nce(A, B, C)),
    "NTXent": (lambda: NTXent(0.5), (A, B, C), lambda: pnce.nt_xent(A, B, C, temperature=0.5)),
    "FlatNCE": (
        lambda: FlatNCE(0.5, include_positive=True),
        (A, B),
        lambda: pnce.flat_nce(A, B, temperature=0.5, include_positive=True),
    ),
    "DCL": (lambda: DCL(0.5), (A, B), lambda: pnce.dcl(A, B, temperature=0.5)),
    "FlatNCE, detached": (lambda: FlatNCE(0.5, form="detach"), (A, B), lambda: A.new_ones(())),
    "SupCon": (
        lambda: SupCon(0.5, multi_positive="pooled"),
        (A, LABELS // 2),
        lambda: pnce.supcon(A, LABELS // 2, temperature=0.5, multi_positive="pooled"),
    ),
    "CLIP": (CLIP, (A, B), lambda: pnce.clip(A, B, logit_scale=1 / 0.07)),
    "CLIP, fixed": (lambda: CLIP(150.0, learnable=False), (A, B), lambda: pnce.clip(A, B, logit_scale=100.0)),
    "CLIP, without limit": (
        lambda: CLIP(150.0, max_scale=None),
        (A, B),
        lambda: pnce.clip(A, B, logit_scale=150.0, max_logit_scale=None),
    ),
    "SigLIP": (SigLIP, (A, B), lambda: pnce.siglip(A, B, logit_scale=10.0, logit_bias=-10.0)),
    "SigLIP, fixed": (
        lambda: SigLIP(5.0, -3.0, learnable=False),
        (A, B),
        lambda: pnce.siglip(A, B, logit_scale=5.0, logit_bias=-3.0),
    ),
    "MultipleNegatives": (
        lambda: MultipleNegatives(0.5, hardness=3.0),
        (A, B, C),
        lambda: pnce.info_nce(
            A, torch.cat([B, C]), positives=torch.arange(ROWS), temperature=0.5, hardness=3.0, symmetric=False
        ),
    ),
    "Loss of labels": (lambda: Loss(pnce.nca), (A, LABELS), lambda: pnce.nca(A, LABELS)),
    "Loss with a scale": (
        lambda: Loss(pnce.cosent, scale=10.0, learnable=True),
        (A, B, C[:, 0]),
        lambda: pnce.cosent(A, B, C[:, 0], scale=10.0),
    ),
    "Loss of prefixes": (
        lambda: Loss(pnce.matryoshka(pnce.info_nce, [2, 4]), temperature=0.5, learnable=True),
        (A, B),
        lambda: pnce.matryoshka(pnce.info_nce, [2, 4])(A, B, temperature=0.5),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_module_is_its_function(name: str) -> None:
    make, arrays, function = LOSSES[name]
    module = make().double()
    # The start of a learned scale is rounded to float32.
    tolerance = 1e-6 if any(True for _ in module.parameters()) else 1e-14
    torch.testing.assert_close(module(*arrays), function(), rtol=tolerance, atol=tolerance, check_dtype=True)
    assert module(*arrays).ndim == 0


def test_options_of_a_call_go_before_those_of_the_module() -> None:
    loss = InfoNCE(0.2, reduction="sum", learnable=True)
    weights = torch.linspace(0.5, 1.0, ROWS, dtype=torch.float64)
    found = loss(A, B, weights=weights, reduction="none", temperature=0.7)
    torch.testing.assert_close(found, pnce.info_nce(A, B, weights=weights, reduction="none", temperature=0.7))


# -------------------------------------------------------------------------------------------------- what is refused


UNKNOWN: Any = None
REFUSED: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "no function": (TypeError, "function: expected a function, got str", lambda: Loss("info_nce")),  # type: ignore[arg-type]
    "another option": (
        TypeError,
        "temprature: expected an option of nca: .*temperature",
        lambda: Loss(pnce.nca, temprature=1),
    ),
    "a name that type checkers see": (
        TypeError,
        "temperatur: expected an option of info_nce",
        lambda: InfoNCE(temperatur=0.1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ),
    "an array": (TypeError, "query: expected an option of info_nce", lambda: Loss(pnce.info_nce, query=A)),
    "nothing to learn": (
        ValueError,
        "learnable: expected False for a loss without any of temperature, logit_scale, scale, got True for head",
        lambda: Loss(head, learnable=True),
    ),
    "learnable": (TypeError, "learnable: expected True or False, got 1", lambda: InfoNCE(learnable=1)),  # type: ignore[arg-type]
    "a temperature": (
        TypeError,
        "temperature: expected a number, got Tensor",
        lambda: Loss(pnce.info_nce, temperature=torch.ones(3), learnable=True),
    ),
    "below": (
        ValueError,
        "temperature: expected a finite number greater than 0, got 0",
        lambda: InfoNCE(0.0, learnable=True),
    ),
    "outside": (
        ValueError,
        "temperature: expected a scale .* from 1 to max_scale=100.0, got 0.5",
        lambda: InfoNCE(2.0, learnable=True),
    ),
    "above": (ValueError, "logit_scale: expected a scale .* got 150.0; max_scale=None", lambda: CLIP(150.0)),
    "max_scale": (ValueError, "max_scale: expected a finite number greater than 1", lambda: CLIP(max_scale=0.5)),
    "bias": (TypeError, "logit_bias: expected a number, got str", lambda: SigLIP(logit_bias="-10")),  # type: ignore[arg-type]
    "no scale": (
        AttributeError,
        "log_scale: expected a loss with learnable=True, got DCL",
        lambda: DCL().current_scale(),
    ),
    "size": (ValueError, "size: expected at least 1, got 0", lambda: MemoryQueue(0, 4)),
    "width": (TypeError, "width: expected an integer, got float", lambda: MemoryQueue(4, 4.0)),  # type: ignore[arg-type]
    "labels": (TypeError, "labels: expected True or False", lambda: MemoryQueue(4, 4, labels=None)),  # type: ignore[arg-type]
    "model": (TypeError, "model: expected an nn.Module, got function", lambda: SentenceLoss(head, InfoNCE())),  # type: ignore[arg-type]
    "loss": (TypeError, "loss: expected a Loss, got function", lambda: SentenceLoss(nn.Identity(), head)),  # type: ignore[arg-type]
    "no labels": (
        ValueError,
        "labels: expected those of the rows for SupCon",
        lambda: SentenceLoss(Words(), SupCon())([column(0)]),
    ),
    "chunk_size": (
        ValueError,
        "chunk_size: expected at least 1, got 0",
        lambda: encode_in_chunks(head, A, chunk_size=0),
    ),
    "columns": (
        ValueError,
        r"positive: expected as many rows in all columns, got \[6, 6, 3\]",
        lambda: MultipleNegatives()(A, B, C[:3]),
    ),
    "no tensor": (
        ValueError,
        "inputs: expected tensors with as many rows each, got no tensor",
        lambda: encode_in_chunks(head, 3, chunk_size=2),
    ),
    "rows": (
        ValueError,
        r"inputs: expected tensors with as many rows each, got \[3, 6\]",
        lambda: encode_in_chunks(head, A, B[:3], chunk_size=2),
    ),
    "output": (
        ValueError,
        r"encoder: expected an output with the 4 rows of its chunk, or a number, got shape \(3,\)",
        lambda: encode_in_chunks(lambda x: x[0, :3], A, chunk_size=4),
    ),
    "output of a later chunk": (
        ValueError,
        "encoder: expected an output with the 2 rows of its chunk",
        lambda: encode_in_chunks(lambda x: x if len(x) == 4 else x[:1], A, chunk_size=4),
    ),
    "arrays": (
        TypeError,
        "encoder: expected tensors, in tuples, lists and dicts, got ndarray",
        lambda: encode_in_chunks(lambda x: (x, x.detach().numpy()), A, chunk_size=4),
    ),
    "float": (
        TypeError,
        "encoder: expected tensors, in tuples, lists and dicts, got float",
        lambda: encode_in_chunks(lambda x: float(x.mean()), A, chunk_size=4),
    ),
    "encoder": (TypeError, "encoder: expected a function", lambda: encode_in_chunks(UNKNOWN, A, chunk_size=4)),
}


def head(x: Any, /) -> Any:
    return x[0, 0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    kind, message, call = REFUSED[name]
    with pytest.raises(kind, match=rf"^{message}"):
        call()


# --------------------------------------------------------------------------------------------------- learned scales


def slope(loss: Loss, value: float, *, closer: bool) -> tuple[float, float]:
    """Give the gradient to a log scale, of pairs that belong together or not, and the loss."""
    with torch.no_grad():
        loss.get_parameter("log_scale").fill_(value)
    loss.zero_grad()
    # Cosines of 0.1 or of -0.1 with the own text, and of 0 with the others.
    image = torch.eye(ROWS, 2 * ROWS, dtype=torch.float64)
    text = 0.1 * image + 0.99**0.5 * image.roll(ROWS, 1)
    found = loss(image, text if closer else -text)
    found.backward()
    return float(loss.get_parameter("log_scale").grad), float(found.detach())  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [CLIP, SigLIP, lambda: InfoNCE(learnable=True)])
def test_a_scale_is_limited_and_comes_back(make: Callable[[], Loss]) -> None:
    loss = make().double()
    high, low = math.log(100.0), 0.0
    for limit, outside, leads_back in ((high, high + 3.0, False), (low, low - 3.0, True)):
        # Where the pairs match, a larger scale is better; where they do not, a smaller one.
        inwards = slope(loss, outside, closer=leads_back)
        assert inwards == pytest.approx(slope(loss, limit, closer=leads_back), rel=1e-9)  # as at the limit
        assert (inwards[0] > 0) == (limit == high)
        assert abs(inwards[0]) > 1e-9
        outwards = slope(loss, outside, closer=not leads_back)
        assert outwards[0] == 0.0
        assert outwards[1] == pytest.approx(slope(loss, limit, closer=not leads_back)[1], rel=1e-9)


def test_a_scale_of_16_bits_is_limited_in_float32() -> None:
    loss = CLIP().to(torch.bfloat16)
    parameter = loss.get_parameter("log_scale")
    assert loss.current_scale().dtype == torch.float32
    assert torch.equal(loss.current_scale(), parameter.float().exp())
    parameter.data.fill_(9.0)
    torch.testing.assert_close(loss.current_scale(), torch.tensor([100.0]))


def test_the_limits_are_those_that_are_given() -> None:
    loss = InfoNCE(0.5, learnable=True, max_scale=5.0)
    loss.get_parameter("log_scale").data.fill_(9.0)
    torch.testing.assert_close(loss.current_scale(), torch.tensor([5.0]))
    free = InfoNCE(2.0, learnable=True, max_scale=None)
    torch.testing.assert_close(free.current_scale(), torch.tensor([0.5]))
    free.get_parameter("log_scale").data.fill_(9.0)
    torch.testing.assert_close(free.current_scale(), torch.tensor([math.exp(9.0)]))


def test_the_limits_of_a_scale_are_within_them() -> None:
    for temperature, scale in ((1.0, 1.0), (0.2, 5.0)):
        loss = InfoNCE(temperature, learnable=True, max_scale=5.0)
        torch.testing.assert_close(loss.current_scale(), torch.tensor([scale]))


def test_each_loss_starts_where_its_paper_does_and_has_its_own_parameters() -> None:
    clip, siglip, other = CLIP(), SigLIP(), CLIP()
    assert dict(clip.state_dict()) == {"log_scale": torch.tensor([math.log(1 / 0.07)])}
    assert dict(siglip.state_dict()) == {
        "logit_bias": torch.tensor([-10.0]),
        "log_scale": torch.tensor([math.log(10.0)]),
    }
    assert dict(SigLIP(learnable=False).state_dict()) == {}
    clip(A, B).backward()
    assert clip.get_parameter("log_scale").grad is not None
    assert other.get_parameter("log_scale").grad is None
    assert other.get_parameter("log_scale") is not clip.get_parameter("log_scale")


@pytest.mark.parametrize("make", [CLIP, SigLIP, lambda: InfoNCE(0.5, learnable=True)])
def test_the_gradients_of_what_is_learned(make: Callable[[], Loss]) -> None:
    loss = make().double()
    names = [name for name, _ in loss.named_parameters()]
    values = tuple(x.detach().clone().requires_grad_() for x in loss.parameters())

    def function(*values: torch.Tensor) -> Any:
        return torch.func.functional_call(loss, dict(zip(names, values, strict=True)), (A, B))

    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


def test_training_moves_the_scale_and_stays_within_the_limits() -> None:
    loss = CLIP(90.0)
    optimizer = torch.optim.SGD(loss.parameters(), lr=50.0)
    embeddings = A.float()
    noise = 0.3 * B.float()
    for _ in range(60):
        optimizer.zero_grad()
        loss(embeddings, embeddings + noise).backward()
        optimizer.step()
        assert 1.0 <= float(loss.current_scale().detach()) <= 100.0 * (1 + 1e-6)
    pushed = float(loss.get_parameter("log_scale").detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss(embeddings, -embeddings).backward()
        optimizer.step()
    assert float(loss.get_parameter("log_scale").detach()) < pushed


def test_a_user_learns_what_else_a_loss_has() -> None:
    margin = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    loss = Loss(pnce.triplet_from_labels, margin=margin)
    loss(A, LABELS).backward()
    assert [name for name, _ in loss.named_parameters()] == ["margin"]
    assert margin.grad is not None
    assert margin.grad > 0
    constant = Loss(pnce.triplet_from_labels, margin=torch.tensor(0.5)).double()
    assert constant.get_buffer("margin").dtype == torch.float64
    assert not constant.state_dict()
    assert float(constant(A, LABELS)) == float(loss(A, LABELS).detach())


def test_options_of_a_users_function_may_have_places() -> None:
    def scores(a: Any, b: Any, scale: float = 2.0) -> Any:
        return (a * b).sum() * scale

    assert float(Loss(scores, scale=3.0)(A, B)) == pytest.approx(3.0 * float((A * B).sum()))
    learned = Loss(scores, scale=3.0, learnable=True)
    assert float(learned(A, B).detach()) == pytest.approx(3.0 * float((A * B).sum()), rel=1e-6)


def test_all_tensors_among_the_options_are_buffers() -> None:
    weights, mask = torch.linspace(0.5, 1.0, ROWS, dtype=torch.float64), torch.rand(ROWS, ROWS) < 2.0
    mask[0, 1:3] = False
    loss = Loss(pnce.info_nce, temperature=0.2, weights=weights, mask=mask)
    assert [name for name, _ in loss.named_buffers()] == ["weights", "mask"]
    torch.testing.assert_close(loss(A, B), pnce.info_nce(A, B, temperature=0.2, weights=weights, mask=mask))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))

    def forward(self, x: Any, y: Any) -> Any:
        return x @ self.weight.to(x.dtype) @ y.mT  # 16 bits come in as float32


def test_a_similarity_is_learned() -> None:
    loss = InfoNCE(0.5, similarity=Bilinear())
    loss(A, B).backward()
    torch.testing.assert_close(loss(A, B), pnce.info_nce(A, B, temperature=0.5, similarity="dot"))
    assert [name for name, _ in loss.named_parameters()] == ["similarity.weight"]
    assert loss.get_parameter("similarity.weight").grad.abs().sum() > 0  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------ what modules are for


def filled(labels: bool = False) -> MemoryQueue:  # noqa: FBT001, FBT002
    memory = MemoryQueue(5, WIDTH, labels=labels, dtype=torch.float64)
    memory.push(C[:3], labels=LABELS[:3] if labels else None)
    return memory


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "InfoNCE": lambda: (InfoNCE(0.3, learnable=True), (A, B)),
    "NTXent, keys": lambda: (NTXent(0.3, keys=filled()), (A, B)),
    "SupCon, memory": lambda: (SupCon(0.3, learnable=True, keys=filled(labels=True)), (A, LABELS)),
    "CLIP": lambda: (CLIP(), (A, B)),
    "SigLIP": lambda: (SigLIP(), (A, B)),
    "MoCo": lambda: (MoCo(5, WIDTH).double().eval(), (A, B)),
    "similarity": lambda: (InfoNCE(similarity=Bilinear()), (A, B)),
    "MultipleNegatives": lambda: (MultipleNegatives(0.3, learnable=True), (A, B, C)),
    "margin": lambda: (Loss(pnce.triplet_from_labels, margin=nn.Parameter(torch.tensor(0.5))), (A, LABELS)),
}


class Plain(nn.Module):
    """A model whose embeddings are its features."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {"sentence_embedding": features["x"]}


def moved(module: nn.Module) -> nn.Module:
    """Change what is learned, and what is remembered."""
    with torch.no_grad():
        for x in module.parameters():
            x.add_(0.25)
        for memory in module.modules():
            if isinstance(memory, MemoryQueue):
                memory.push(B[:2].to(memory.rows.dtype), labels=None if memory.labels is None else LABELS[:2])
    return module


@pytest.mark.parametrize("name", MODULES)
def test_a_state_is_saved_and_loaded(name: str) -> None:
    module, arrays = MODULES[name]()
    moved(module.double())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = MODULES[name]()[0].double()
    assert not torch.equal(fresh(*arrays), module(*arrays))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(*arrays), module(*arrays))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])  # noqa: S301
def test_a_copy_is_equal_and_by_itself(name: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    module, arrays = MODULES[name]()
    moved(module.double())
    before = module(*arrays)
    other = copied(module)
    assert torch.equal(other(*arrays), before)
    assert repr(other) == repr(module)
    moved(other)
    assert torch.equal(module(*arrays), before)
    assert not torch.equal(other(*arrays), before)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_moves(name: str) -> None:
    module, arrays = MODULES[name]()
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        module.to(dtype)
        found = module(*(x.to(dtype) if x.is_floating_point() else x for x in arrays))
        assert found.dtype == dtype
        assert found.isfinite()
    meta = copy.deepcopy(module).to("meta")
    assert {x.device.type for x in meta.state_dict().values()} <= {"meta"}
    found = meta(*(x.to("meta") for x in arrays))
    assert found.device.type == "meta"
    assert found.shape == ()


@pytest.mark.parametrize("make", [CLIP, SigLIP, lambda: InfoNCE(learnable=True), lambda: MoCo(4, WIDTH)])
def test_a_module_made_on_meta_is_set_up_later(make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for part in module.modules():
        if isinstance(part, Loss | MemoryQueue):
            part.reset_parameters()
    wanted = make().state_dict()
    assert all(torch.equal(x, wanted[name]) for name, x in module.state_dict().items())
    assert set(wanted) == set(module.state_dict())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_called_with_other_parameters(name: str) -> None:
    module, arrays = MODULES[name]()
    module.double()
    other = moved(copy.deepcopy(module))
    before = module(*arrays)
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    assert torch.equal(torch.func.functional_call(module, state, arrays), other(*arrays))
    assert torch.equal(module(*arrays), before)


def test_what_a_loss_learns_has_no_weight_decay_under_the_usual_rule() -> None:
    """Parameters of fewer than two axes, as in open_clip, nanoGPT and timm."""
    losses = nn.ModuleList([CLIP(), SigLIP(), InfoNCE(learnable=True), MoCo(4, WIDTH, learnable=True)])
    decayed = [name for name, x in losses.named_parameters() if x.ndim >= 2]
    assert decayed == []
    parameters = list(losses.parameters())
    assert len(parameters) == 5
    optimizer = torch.optim.AdamW([{"params": parameters, "weight_decay": 0.0}])
    torch.stack([loss(A.float(), B.float()) for loss in losses]).sum().backward()
    optimizer.step()
    assert all(x.grad is not None for x in parameters)


COMPILED: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    **{name: MODULES[name] for name in ("SupCon, memory", "SigLIP", "similarity", "MultipleNegatives")},
    "SentenceLoss": lambda: (SentenceLoss(Plain(), MultipleNegatives(0.3, learnable=True), chunk_size=32), (A, B, C)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_module_is_compiled_for_all_batch_sizes(name: str) -> None:
    """One graph for the first, and one for all others."""
    torch.compiler.reset()
    module, arrays = COMPILED[name]()
    module.double()
    graphs = CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=graphs)
    for rows in (6, 4, 5, 7, 8, 10, 12, 14, 16, 20):
        part = [torch.cat([x, x.flip(0), x, x])[:rows] for x in arrays]
        slopes = []
        for function in (module, compiled):
            module.zero_grad()
            leaf = part[0].clone().requires_grad_()
            inputs: Any = [leaf, *part[1:]]
            value = function([{"x": x} for x in inputs]) if name == "SentenceLoss" else function(*inputs)
            value.backward()
            slopes.append(
                [value.detach(), leaf.grad, *(x.grad.clone() for x in module.parameters() if x.grad is not None)]
            )
        torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-12, atol=1e-12)
    assert graphs.frame_count <= 2


@pytest.mark.parametrize(
    "make", [CLIP, SigLIP, lambda: InfoNCE(0.2, learnable=True), lambda: MoCo(4, WIDTH, learnable=True)]
)
def test_mixed_precision(make: Callable[[], Loss]) -> None:
    """Under autocast a loss is of float32; GradScaler's factor is taken out again."""
    slopes: list[list[torch.Tensor]] = []
    for mixed in (False, True):
        torch.manual_seed(0)
        loss, tower = make(), nn.Linear(WIDTH, WIDTH)
        parameters = [*tower.parameters(), *loss.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=mixed, init_scale=2.0**10)
        for _ in range(2):  # the second sees a queue
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                value = loss(tower(A.float()), tower(B.float()).detach())
            assert value.dtype == torch.float32
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            slopes.append([x.grad.clone() for x in parameters if x.grad is not None])
            scaler.step(optimizer)
            scaler.update()
    assert [len(x) for x in slopes] == [2 + len(list(make().parameters()))] * 4
    for plain, mixed_slopes in zip(slopes[:2], slopes[2:], strict=True):
        for x, y in zip(plain, mixed_slopes, strict=True):
            torch.testing.assert_close(y, x, rtol=0.1, atol=0.05 * float(x.abs().max()) + 1e-6)


def _own_loss(a: Any, b: Any) -> Any:
    return (a * b).sum()


def test_a_loss_shows_its_options() -> None:
    assert repr(Loss(_own_loss)) == "Loss(own_loss)"
    assert repr(CLIP()) == "CLIP(learned logit_scale=14.2857)"
    assert repr(InfoNCE(0.1)) == "InfoNCE(temperature=0.1, symmetric=False, multi_positive=each, hardness=0.0)"
    assert repr(Loss(pnce.nca)) == "Loss(nca)"
    assert repr(MemoryQueue(3, 2, labels=True)) == "MemoryQueue(3, 2, labels=True)"


# ------------------------------------------------------------------------------------------------------------- queues


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in module.state_dict().items()}


def test_a_queue_is_that_of_the_package() -> None:
    memory = MemoryQueue(5, WIDTH, labels=True, dtype=torch.float64)
    queue = pnce.queue_init(A, 5, labels=LABELS)
    for rows, labels in ((A[:3], LABELS[:3]), (B, LABELS), (C[:1], LABELS[:1])):
        memory.push(rows.clone().requires_grad_(), labels=labels)
        queue = pnce.queue_push(queue, rows, labels=labels)
        found: Any = memory()
        for mine, its in zip(found, queue, strict=True):
            assert its is not None
            assert torch.equal(mine, its)
            assert mine.dtype == its.dtype
            assert not mine.requires_grad
    assert set(memory.state_dict()) == {"rows", "valid", "labels"}
    assert isinstance(memory(), pnce.Queue)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (A[:, :3], LABELS),
        (A, LABELS[:3]),
        (A, None),
        (A, LABELS.double()),
        (A.long(), LABELS),
        (A.float(), LABELS),
        (A[0], LABELS[:1]),
        (A.to("meta"), LABELS),
        (A, LABELS.to("meta")),
        (A.numpy(), LABELS),
    ],
)
def test_a_queue_is_not_changed_by_what_it_refuses(rows: Any, labels: Any) -> None:
    memory = filled(labels=True)
    before = state_of(memory)
    with pytest.raises((TypeError, ValueError)):
        memory.push(rows, labels=labels)
    assert all(torch.equal(x, before[name]) for name, x in memory.state_dict().items())


@pytest.mark.parametrize(
    "state",
    [
        MemoryQueue(4, WIDTH, labels=True).state_dict(),
        MemoryQueue(5, WIDTH + 1, labels=True).state_dict(),
        MemoryQueue(5, WIDTH).state_dict(),
        {"valid": torch.zeros(5, dtype=torch.bool)},
    ],
)
def test_a_queue_is_not_changed_by_a_state_that_does_not_fit(state: Any) -> None:
    model = nn.ModuleDict({"memory": filled(labels=True)})
    before = state_of(model)
    with pytest.raises(RuntimeError, match=r"memory\.: expected the shapes .*'rows': \(5, 4\)"):
        model.load_state_dict({f"memory.{name}": x for name, x in state.items()}, strict=False)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert model.load_state_dict({}, strict=False).missing_keys == [
        f"memory.{name}" for name in ("rows", "valid", "labels")
    ]


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, memory: Loss(pnce.moco)(x, B, memory),
        lambda x, memory: SupCon(keys=memory)(x, LABELS),
        lambda x, memory: NTXent(0.3)(x, B, keys=memory),
        lambda x, memory: Loss(pnce.nnclr)(B, x, memory),
    ],
)
def test_rows_that_come_in_before_backward_change_no_gradient(loss: Callable[..., Any]) -> None:
    slopes = []
    for early in (False, True):
        memory, x = filled(labels=True), A.clone().requires_grad_()
        value = loss(x, memory)
        if early:
            memory.push(B, labels=LABELS)
        value.backward()
        slopes.append(x.grad)
    assert torch.equal(slopes[0], slopes[1])  # type: ignore[arg-type]


def test_moco_is_its_function_and_its_queue() -> None:
    module, queue = MoCo(8, WIDTH, temperature=0.2).double(), pnce.queue_init(A, 8)
    for query, key in (draw(2, seed=1), draw(2, seed=2), draw(2, seed=3)):
        assert torch.equal(module(query, key), pnce.moco(query, key, queue, temperature=0.2))
        queue = pnce.queue_push(queue, key)
        assert torch.equal(module.queue.rows, queue.rows)
    before = state_of(module)
    module.eval()(A, B)
    with pytest.raises(ValueError, match="queue: expected 3 features"):
        module.train()(A, B[:, :3])
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


@pytest.mark.parametrize("of_call", [False, True])
def test_the_keys_of_all_ranks_enter_the_queue(*, of_call: bool) -> None:
    """Whether the ranks are an option of the module or of a call; a copy of the module has the same."""

    def on_a_rank(group: Any) -> dict[str, torch.Tensor]:
        across = pnce.across(group, gradients="summed")
        module = (MoCo(8, WIDTH) if of_call else MoCo(8, WIDTH, across=across)).double()
        module = copy.deepcopy(module)
        rows = slice(0, 2) if group.rank == 0 else slice(2, None)
        module(A[rows], B[rows], **({"across": across} if of_call else {}))
        return state_of(module)

    queue = pnce.queue_push(pnce.queue_init(A, 8), B)
    for state in run_ranks(2, on_a_rank):
        assert torch.equal(state["queue.rows"], queue.rows)
        assert torch.equal(state["queue.valid"], queue.valid)


def test_a_queue_is_compiled_while_it_is_filled() -> None:
    torch.compiler.reset()
    module = MoCo(8, WIDTH, temperature=0.2, learnable=True).double()
    other = copy.deepcopy(module)
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(other, fullgraph=True, backend=graphs)
    for rows in (6, 6, 4, 5, 3, 7, 8, 10, 12, 14, 20):
        query, key = draw(2, rows=rows, seed=rows)
        value, its = module(query, key), compiled(query, key)
        its.backward()
        torch.testing.assert_close(its, value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.state_dict(), module.state_dict(), rtol=0, atol=0)
    assert graphs.frame_count <= 2


def push_then_supcon(memory: MemoryQueue, x: torch.Tensor) -> torch.Tensor:
    memory.push(B, labels=LABELS)
    return SupCon(keys=memory)(x, LABELS)


def supcon_then_push(memory: MemoryQueue, x: torch.Tensor) -> torch.Tensor:
    value = SupCon(keys=memory)(x, LABELS)
    memory.push(B, labels=LABELS)
    return value


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("step", "compiled"),
    [(None, ""), (None, "inside"), (None, "around"), (push_then_supcon, ""), (supcon_then_push, "")],
)
def test_a_queue_is_not_read_again_in_a_recomputation(step: Any, compiled: str, reentrant: bool) -> None:  # noqa: FBT001
    """It would be the queue after the push, and the push would be made twice."""
    torch.compiler.reset()
    module = MoCo(5, WIDTH).double()
    memory = module.queue if step is None else filled(labels=True)
    x = A.clone().requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        return module(x.tanh(), B) if step is None else step(memory, x.tanh())

    inner = torch.compile(function, backend="aot_eager") if compiled == "inside" else function

    def checkpointed(x: torch.Tensor) -> Any:
        return checkpoint(inner, x, use_reentrant=reentrant)

    value = (torch.compile(checkpointed, backend="aot_eager") if compiled == "around" else checkpointed)(x)
    before = state_of(memory)
    assert before["valid"].all()
    with pytest.raises(RuntimeError, match=r"^queue: expected to be read in the forward pass, .* outside"):
        value.backward()
    assert all(torch.equal(x, before[name]) for name, x in memory.state_dict().items())


# ---------------------------------------------------------------------------------------------- sentence-transformers


class Words(nn.Module):
    """A model in the manner of sentence-transformers, which writes into the dict that it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(20, WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(0.2)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        features["token_embeddings"] = self.dropout(self.embedding(features["input_ids"]))
        mask = features["attention_mask"].unsqueeze(-1)
        features["sentence_embedding"] = (features["token_embeddings"] * mask).sum(1) / mask.sum(1)
        return features


def column(seed: int, length: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(20, (ROWS, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones(ROWS, length, dtype=torch.int64), "modality": "text"}


SENTENCES: dict[str, tuple[Callable[[], Loss], int, Any, Callable[..., Any]]] = {
    "pairs": (
        lambda: InfoNCE(0.05, symmetric=True),
        2,
        None,
        lambda a, b: pnce.info_nce(a, b, temperature=0.05, symmetric=True),
    ),
    "columns": (
        lambda: MultipleNegatives(0.05, hardness=5.0),
        4,
        None,
        lambda a, *b: pnce.info_nce(a, torch.cat(b), positives=torch.arange(ROWS), temperature=0.05, hardness=5.0),
    ),
    "classes": (lambda: SupCon(0.1), 1, LABELS, lambda a: pnce.supcon(a, LABELS, temperature=0.1)),
    "grades": (lambda: Loss(pnce.cosent), 2, C[:, 0], lambda a, b: pnce.cosent(a, b, C[:, 0])),
    "triplets": (lambda: Loss(pnce.triplet, margin=5.0), 3, None, lambda a, b, c: pnce.triplet(a, b, c, margin=5.0)),
}


@pytest.mark.parametrize("chunk_size", [None, 4, 100])
@pytest.mark.parametrize("name", SENTENCES)
def test_sentences(name: str, chunk_size: int | None) -> None:
    make, count, labels, function = SENTENCES[name]
    model = Words().eval()
    loss = SentenceLoss(model, make(), chunk_size=chunk_size)
    columns = [column(k, length=3 + k) for k in range(count)]
    keys = [set(features) for features in columns]
    value = loss(columns, labels)
    value.backward()
    assert [set(features) for features in columns] == keys
    found = model.embedding.weight.grad
    model.zero_grad()
    wanted = function(*(model(dict(features))["sentence_embedding"] for features in columns))
    wanted.backward()
    torch.testing.assert_close(value, wanted, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found, model.embedding.weight.grad, rtol=1e-12, atol=1e-12)


def test_sentences_are_embedded_in_chunks() -> None:
    sizes: list[int] = []

    class Told(Words):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            sizes.append(len(features["input_ids"]))
            return super().forward(features)

    SentenceLoss(Told(), InfoNCE(0.5), chunk_size=4)([column(0), column(1)]).backward()
    assert sorted(sizes) == [2] * 4 + [4] * 4  # each twice, for the loss and for its gradients


def test_columns_of_negatives_of_all_ranks() -> None:
    """Of ranks with several numbers of rows, as of one process that has them all; and without negatives."""
    arrays = (A, B, C, 0.5 * A + C)

    def gradients(loss: Loss, own: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in own]
        value = loss(*leaves)
        value.backward()
        return [value.detach(), *(x.grad for x in leaves if x.grad is not None)]

    for count in (2, 4):

        def on_a_rank(group: Any, count: int = count) -> list[torch.Tensor]:
            rows = slice(0, 2) if group.rank == 0 else slice(2, None)
            loss = MultipleNegatives(0.5, across=pnce.across(group, gradients="summed"))
            return gradients(loss, tuple(x[rows] for x in arrays[:count]))

        value, *slopes = gradients(MultipleNegatives(0.5), arrays[:count])
        found = run_ranks(2, on_a_rank)
        for rank in found:
            torch.testing.assert_close(rank[0], value, rtol=1e-12, atol=1e-12)
        for k, slope in enumerate(slopes):
            torch.testing.assert_close(torch.cat([rank[1 + k] for rank in found]), slope, rtol=1e-12, atol=1e-12)


def test_the_trainer_finds_what_it_asks_of_a_loss() -> None:
    loss = SentenceLoss(Words(), MultipleNegatives(0.05, learnable=True), chunk_size=16)
    assert loss.get_config_dict() == {
        "loss": "MultipleNegatives",
        "hardness": 0.0,
        "temperature": 0.05,
        "learnable": True,
        "max_scale": 100.0,
        "chunk_size": 16,
    }
    assert [name for name, _ in loss.named_parameters()] == ["model.embedding.weight", "loss.log_scale"]
    loss.model = Words()  # as the trainer puts in the model that DDP wraps
    assert SentenceLoss(Words(), Loss(pnce.cosent)).get_config_dict()["loss"] == "cosent"


# --------------------------------------------------------------------------------------------------- gradient caching


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
    """Call an encoder chunk by chunk, holding everything."""
    return torch.cat([encoder(part) for part in x.split(chunk_size)])


def gradients_of(step: Callable[[Any], Any], *modules: nn.Module) -> list[torch.Tensor]:
    """Give what a step leaves in the parameters, from the same random numbers."""
    for module in modules:
        module.zero_grad()
    torch.manual_seed(11)
    value = step(None)
    return [value.detach(), *(x.grad.clone() for module in modules for x in module.parameters() if x.grad is not None)]


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 6, 100])
def test_gradients_are_those_of_an_encoder_in_chunks(chunk_size: int) -> None:
    """Two towers with dropout, a learned scale, a batch that the chunks do not divide."""
    image, text = draw(2, rows=11, width=7)
    first, second, loss = Tower(1, 7), Tower(2, 7), CLIP(5.0).double()

    def step(encode: Callable[..., Any]) -> Any:
        value = loss(encode(first, image, chunk_size=chunk_size), encode(second, text, chunk_size=chunk_size))
        value.backward()
        return value

    wanted = gradients_of(lambda _: step(by_hand), first, second, loss)
    state = torch.get_rng_state()
    found = gradients_of(lambda _: step(encode_in_chunks), first, second, loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found) == 1 + 4 + 4 + 1
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert max(first.rows) == min(chunk_size, 11)


def test_a_shared_encoder_and_inputs_that_need_a_gradient() -> None:
    x, y = (x.requires_grad_() for x in draw(2, rows=9))
    tower = Tower()

    def step(encode: Callable[..., Any]) -> Any:
        x.grad = y.grad = None
        value = pnce.nt_xent(encode(tower, x, chunk_size=4), encode(tower, y, chunk_size=2), temperature=0.5)
        value.backward()
        return value

    wanted = [*gradients_of(lambda _: step(by_hand), tower), x.grad, y.grad]
    found = [*gradients_of(lambda _: step(encode_in_chunks), tower), x.grad, y.grad]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert found[-1] is not None


def test_what_comes_after_the_embeddings_scales_their_gradients() -> None:
    """A sum of losses, GradScaler, and torch.autograd.grad."""
    x, y = draw(2, rows=9)
    tower = Tower().eval()
    plain = torch.autograd.grad(
        3.0 * pnce.clip(tower(x), tower(y), logit_scale=5.0) + tower(x).square().mean(), [*tower.parameters()]
    )
    a = encode_in_chunks(tower, x, chunk_size=4)
    b = encode_in_chunks(tower, y, chunk_size=4)
    value = 3.0 * pnce.clip(a, b, logit_scale=5.0) + a.square().mean()
    torch.testing.assert_close(
        torch.autograd.grad(value, [*tower.parameters()], retain_graph=True), plain, rtol=1e-12, atol=1e-12
    )
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(value).backward()
    scaler.unscale_(optimizer)
    torch.testing.assert_close([x.grad for x in tower.parameters()], [*plain], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inside", [False, True])
def test_chunks_under_autocast(inside: bool) -> None:  # noqa: FBT001
    """What is computed again is computed in the same dtypes, also where backward is called within autocast."""
    x, y = (x.float() for x in draw(2, rows=9))
    tower, loss = Tower().float(), CLIP(5.0)

    def step(encode: Callable[..., Any]) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a, b = encode(tower, x, chunk_size=4), encode(tower, y, chunk_size=4)
            assert a.dtype == torch.bfloat16
            value = loss(a, b)
            if inside:
                value.backward()
        if not inside:
            value.backward()
        return value

    wanted = gradients_of(lambda _: step(by_hand), tower, loss)
    found = gradients_of(lambda _: step(encode_in_chunks), tower, loss)
    # Gradients of bfloat16 weights are added up in another order.
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=2**-6, atol=2**-7 * float(y.abs().max()))


def test_arguments_and_outputs_of_any_structure() -> None:
    x, y = draw(2, rows=7)
    scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))

    def model(pair: dict[str, Any], /, factor: float, *, other: list[Any], text: str, shift: Any) -> Any:
        assert text == "text"
        assert shift.ndim == 0
        first, second = pair["x"] @ weight, (other[0] @ weight) * factor + shift
        return {"both": (first, [second]), "scale": scale.exp(), "mean": first.mean(), "text": text, "flag": True}

    shift = torch.tensor(0.5, dtype=torch.float64)
    wanted = model({"x": x}, 2.0, other=[y], text="text", shift=shift)
    found = encode_in_chunks(model, {"x": x}, 2.0, other=[y], text="text", shift=shift, chunk_size=3)
    slopes = []
    for output in (wanted, found):
        first, (second,) = output["both"]
        value = pnce.clip(first, second, logit_scale=output["scale"]) + output["mean"]
        slopes.append([value, *torch.autograd.grad(value, [scale, weight])])
        assert output["text"] == "text"
        assert output["flag"] is True
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-12, atol=1e-12)
    named = encode_in_chunks(lambda x: torch.max(x, dim=1), x, chunk_size=3)
    assert torch.equal(named[1], torch.max(x, dim=1).indices)
    queue = encode_in_chunks(lambda x: pnce.Queue(x, x[:, 0] > 0), x, chunk_size=3)
    assert isinstance(queue, pnce.Queue)
    assert torch.equal(queue.rows, x)


def test_without_gradients_the_chunks_are_computed_once() -> None:
    tower = Tower().eval()
    with torch.no_grad():
        found = encode_in_chunks(tower, A, chunk_size=4)
    assert not found.requires_grad
    assert tower.rows == [4, 2]
    torch.testing.assert_close(found, tower(A))
    assert encode_in_chunks(tower, A[:0], chunk_size=4).shape == (0, WIDTH)


def test_nothing_of_an_encoder_is_held_but_one_chunk() -> None:
    """Numbers that autograd holds after the forward pass, and the order in which chunks are computed and freed."""
    x, y = draw(2, rows=64)
    tower = Tower()
    held = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal held
        held += tensor.numel()
        return tensor

    def count(encode: Callable[..., Any]) -> int:
        nonlocal held
        held = 0
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encode(tower, x, chunk_size=8)
        return held

    assert count(by_hand) >= 64 * (WIDTH + 2 * 16)
    assert count(encode_in_chunks) == 0
    events: list[str] = []

    class Told(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            events.append("forward")
            ctx.save_for_backward(x)
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, *slopes: Any) -> Any:
            ctx.saved_tensors  # noqa: B018  (which computes the chunk again)
            events.append("backward")
            return slopes[0]

    value = encode_in_chunks(lambda x: Told.apply(tower(x)), x, chunk_size=16)
    assert events == ["forward"] * 4
    (value * y).sum().backward()
    assert events[4:] == ["forward", "backward"] * 4


def test_an_encoder_that_changes_between_the_passes_is_an_error() -> None:
    width = WIDTH

    def encoder(x: Any) -> Any:
        return (x[:, :width] @ weight[:width]).tanh()

    weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64))
    found = encode_in_chunks(encoder, A, chunk_size=4)
    width = 2
    with pytest.raises(CheckpointError):
        found.sum().backward()


@pytest.mark.parametrize("inside", [False, True])
def test_chunks_and_compiled_code(inside: bool) -> None:  # noqa: FBT001
    """A compiled encoder in chunks, and a compiled step with chunks in it."""
    torch.compiler.reset()
    tower = Tower().layers.eval()
    compiled: Any = torch.compile(tower, fullgraph=True, backend="aot_eager")

    def in_chunks(x: Any) -> Any:
        return encode_in_chunks(tower, x, chunk_size=4)

    chunked = (
        (lambda x: encode_in_chunks(compiled, x, chunk_size=4))
        if inside
        else torch.compile(in_chunks, backend="aot_eager")
    )
    wanted = gradients_of(lambda _: backward_of(tower(A)), tower)
    found = gradients_of(lambda _: backward_of(chunked(A)), tower)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_encoder_that_checkpoints_its_layers(reentrant: bool) -> None:  # noqa: FBT001
    tower = Tower()

    def encoder(x: Any) -> Any:
        return checkpoint(tower, x.clone().requires_grad_(), use_reentrant=reentrant)

    wanted = gradients_of(lambda _: backward_of(by_hand(tower, A, chunk_size=4)), tower)
    found = gradients_of(lambda _: backward_of(encode_in_chunks(encoder, A, chunk_size=4)), tower)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_derivatives_of_second_order() -> None:
    tower = Tower()
    parameters = [*tower.parameters()]

    def second(encode: Callable[..., Any]) -> Any:
        torch.manual_seed(5)
        value = pnce.info_nce(encode(tower, A, chunk_size=4), B, temperature=0.5)
        slopes = torch.autograd.grad(value, parameters, create_graph=True)
        return torch.autograd.grad(torch.stack([x.square().sum() for x in slopes]).sum(), parameters, allow_unused=True)

    for found, wanted in zip(second(encode_in_chunks), second(by_hand), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: encode_in_chunks(tower, x, chunk_size=4).sum())(A)


def test_batch_normalisation_sees_chunks_twice() -> None:
    layer = nn.BatchNorm1d(WIDTH).double()
    encode_in_chunks(layer, A, chunk_size=3).sum().backward()
    assert layer.num_batches_tracked == 4


def backward_of(embeddings: Any) -> Any:
    value = pnce.nt_xent(embeddings, embeddings + A, temperature=0.5)
    value.backward()
    return value
