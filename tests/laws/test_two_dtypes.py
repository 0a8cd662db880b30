"""Arrays of two dtypes, as from towers under autocast: the wider one decides, each gradient has its array's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import CASES, LOSSES, Case

from calls import FIRST_OF_ITS_FORM, OF_SCORES, WAYS, Call

EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}


SILENT = {
    *(
        "bias",
        "bilinear",
        "concentrations",
        "guide_key",
        "guide_query",
        "log_q",
        "log_u",
        "pair_weights",
        "teacher_key",
        "teacher_query",
        "teacher_scores",
    ),
}
"""Arrays that do not affect the dtype of a loss of embeddings."""


def of_floats(name: str) -> list[str]:
    """Names of the float arrays of a call, except parameters."""
    call = Call(name)
    return [key for key, x in (call.learned | call.fixed).items() if x.ndim and x.dtype.kind == "f"]


NAMES = [*LOSSES, *OF_SCORES]
ODD = [(name, key) for name in NAMES for key in of_floats(name) if len(of_floats(name)) > 1]
"""Each array of each loss with several arrays."""

FLOAT16, BFLOAT16 = ([(half, "float32"), ("float32", half)] for half in ("float16", "bfloat16"))


class Mixed:
    """A loss of arrays of one dtype, except one of another; parameters are float32."""

    def __init__(self, name: str, odd: str, dtypes: tuple[str, str], **options: Any) -> None:
        self.name = f"{name}, {odd} of {dtypes[1]}, others of {dtypes[0]}"
        self.call = Call(name, rows=6, **options)
        kinds = {key: dtypes[key == odd] for key in of_floats(name)}
        self.arrays = [
            x if x.dtype.kind in "bi" else x.astype(jnp.dtype(kinds.get(key, "float32")))
            for key, x in (self.call.learned | self.call.fixed).items()
        ]
        learned = self.arrays[: len(self.call.learned)]
        self.places = tuple(range(len(learned)))
        first, *others = [dtype for key, dtype in kinds.items() if key not in SILENT]
        of_scores = name in OF_SCORES and "embeddings" not in kinds
        alike = of_scores or {*others} <= {first}  # of scores, the first array decides
        self.dtypes = [first if alike else "float32", *(x.dtype.name for x in learned)]

    def torch(self) -> list[torch.Tensor]:
        """Arrays as PyTorch tensors; NumPy has no bfloat16."""
        return [torch.tensor(x.astype(np.float64)).to(getattr(torch, x.dtype.name)) for x in self.arrays]

    def check(self, found: list[Any]) -> None:
        """Compare value and gradients with those in float64, and check their dtypes."""
        wide = [x if x.dtype.kind in "bi" else x.astype(np.float64) for x in self.arrays]
        value, slopes = pnce.value_and_grad(lambda *x: self.call(*x).sum(), self.places)(*wide)
        for got, want, dtype in zip(found, [value, *slopes], self.dtypes, strict=True):
            assert str(got.dtype).removeprefix("torch.") == dtype, self.name
            ours = got.detach().double().numpy() if isinstance(got, torch.Tensor) else np.asarray(got, dtype=np.float64)
            # An array used twice has a gradient that is a rounded sum of two rounded ones.
            assert np.abs(ours - want).max() <= max(3 * EPS[dtype], 1e-5) * np.abs(want).max(), self.name


@pytest.mark.parametrize("dtypes", [*FLOAT16, *BFLOAT16])
@pytest.mark.parametrize("autocast", ["", "autocast"])
@pytest.mark.parametrize(("block_size", "reduction"), [(None, "mean"), (2, "none")], ids=["dense", "streamed"])
def test_torch(dtypes: tuple[str, str], autocast: str, block_size: int | None, reduction: str) -> None:
    for name, odd in ODD:
        mixed = Mixed(name, odd, dtypes, block_size=block_size, reduction=reduction)
        arrays = mixed.torch()
        learned = [arrays[k].requires_grad_() for k in mixed.places]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(autocast)):
            value = mixed.call(*arrays)
        if autocast:  # under autocast, losses are float32
            mixed.dtypes[0] = "float32"
        gradients = torch.autograd.grad(value.sum(), learned, allow_unused=True, materialize_grads=True)
        mixed.check([value.sum(), *gradients])


@pytest.mark.parametrize("dtypes", FLOAT16)
@pytest.mark.parametrize("block_size", [None, 2])
def test_numpy(dtypes: tuple[str, str], block_size: int | None) -> None:
    for name, odd in ODD:
        mixed = Mixed(name, odd, dtypes, block_size=block_size)
        value, gradients = pnce.value_and_grad(mixed.call, mixed.places)(*mixed.arrays)
        mixed.check([value, *gradients])


@pytest.mark.parametrize(("name", "odd"), ODD)
def test_jax_infers_the_dtypes(name: str, odd: str) -> None:
    mixed = Mixed(name, odd, ("bfloat16", "float32"))
    value, gradients = jax.eval_shape(pnce.value_and_grad(mixed.call, mixed.places), *map(jnp.asarray, mixed.arrays))
    assert [x.dtype.name for x in (value, *gradients)] == mixed.dtypes


@pytest.mark.parametrize(("name", "odd"), {name: odd for name, odd in ODD if name in WAYS}.items())
def test_jax(name: str, odd: str) -> None:
    mixed = Mixed(name, odd, ("bfloat16", "float32"))
    value, gradients = jax.jit(pnce.value_and_grad(mixed.call, mixed.places))(*map(jnp.asarray, mixed.arrays))
    mixed.check([value, *gradients])


@pytest.mark.parametrize("dtypes", [*FLOAT16, *BFLOAT16])
def test_ranks(dtypes: tuple[str, str]) -> None:
    """Arrays that a loss concatenates are sent in a dtype that represents all of their numbers."""
    cuts = [slice(2), slice(2, None)]
    for name in ("nt_xent", "nt_xent three views", "nt_xent keys", "joint_info_nce", "relic keys"):
        for odd in [key for loss, key in ODD if loss == name]:
            mixed = Mixed(name, odd, dtypes)

            whole = mixed.torch()

            def on_a_rank(group: Any, name: str = name, whole: list[torch.Tensor] = whole) -> list[Any]:
                own = [(z[cuts[group.rank]] if z.ndim else z).clone().requires_grad_() for z in whole]
                value = Call(name, across=pnce.across(group, gradients="summed"))(*own)
                return [value.detach(), *torch.autograd.grad(value, own)]

            (value, *slopes), (other, *others) = run_ranks(2, on_a_rank)
            assert value == other
            both = zip(slopes, others, strict=True)
            mixed.check([value, *(torch.cat([x, y]) if x.ndim else x + y for x, y in both)])


def test_two_forms_of_sixteen_bits_meet_in_float32() -> None:
    for name, odd in ODD:
        mixed = Mixed(name, odd, ("float16", "bfloat16"))
        assert str(mixed.call(*mixed.torch()).dtype) == f"torch.{mixed.dtypes[0]}", mixed.name


OF_INTEGERS = [
    (case, name)
    for case in CASES
    if case.name in FIRST_OF_ITS_FORM
    for name, x in case.constants.items()
    if np.asarray(x).dtype.kind == "i" and np.min(x) >= 0
]


@pytest.mark.parametrize(("case", "name"), OF_INTEGERS, ids=lambda x: getattr(x, "name", x))
def test_torch_takes_unsigned_integers_beside_others(case: Case, name: str) -> None:
    """PyTorch neither compares nor sorts most of them."""
    arrays = {key: torch.tensor(x) for key, x in {**case.arguments, **case.constants}.items()}
    wanted = case.call(arrays)
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        found = case.call({**arrays, name: arrays[name].to(dtype)})
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_labels_beyond_int64_are_refused_beside_negative_ones(convert: Any) -> None:
    """In one dtype, 2^64 - 1 would equal -1."""
    x, y, more = (np.linspace(k, k + 1.0, 12).reshape(4, 3) ** 2 for k in range(3))
    signed, beyond = np.asarray([0, 0, -1, -2]), np.asarray([0, 1, 2**64 - 1, 5], dtype=np.uint64)
    calls: list[Callable[[Any, Any], Any]] = [
        lambda a, b: pnce.supcon(convert(x), a, keys=convert(y), key_labels=b),
        lambda a, b: pnce.two_tower(convert(x), convert(y), convert(more), ids=a, negative_ids=b),
        lambda a, b: pnce.contrast(convert(x), convert(y), objective="info_nce", pairing=pnce.pairings.ids(a, b)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"labels: expected none from 2.63 on beside negative ones, got .*int64"):
            call(convert(signed), convert(beyond))
        positive = convert(np.asarray([0, 0, 1, 2]))
        assert np.isfinite(float(call(positive, convert(beyond))))
        assert np.isfinite(float(call(convert(beyond), convert(beyond))))
