"""Faster functions of PyTorch's namespace have equal results and derivatives."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from array_api_compat import torch as compat
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

from portable_nce._core.namespace import namespace_of
from portable_nce._core.registry import adapter_of
from portable_nce.backends.torch_namespace import namespace

SHAPE = (192, 200)
"""As many entries as those from which all functions of PyTorch are replaced."""

SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 1e-42, 3e38)


def flags() -> Any:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) < 0.3


def numbers(dtype: Any = torch.float32, shape: tuple[int, ...] = SHAPE) -> Any:
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for k, number in enumerate(torch.tensor(SPECIAL).to(dtype)):  # torch 2.15 refuses Python numbers out of range
        x[..., k::7] = number if shape[-1] > 1 else x[..., k::7]
    return x


def assert_same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["where", "logical_and", "less", "any", "astype", "exp"])
def test_compilers_make_one_graph_for_small_and_large_arrays(name: str) -> None:
    """They would make two if they were asked which is large."""
    functions: dict[str, Any] = {
        "where": lambda x: namespace.where(x > 0.0, x, 0.0),
        "logical_and": lambda x: namespace.logical_and(x > 0.0, x < 1.0),
        "less": lambda x: namespace.less(x, x[:, :1]),
        "any": lambda x: namespace.any(x > 0.0, axis=1),
        "astype": lambda x: namespace.astype(x > 0.0, torch.float32),
        "exp": namespace.exp,
    }
    graphs = CompileCounter()
    compiled = torch.compile(functions[name], fullgraph=True, backend=graphs, dynamic=True)
    for rows in (8, 300):
        x = numbers(shape=(rows, rows))
        assert_same(compiled(x), functions[name](x))  # type: ignore[no-untyped-call]
    assert graphs.frame_count == 1


def test_arrays_of_torch_have_this_namespace() -> None:
    assert adapter_of(torch.ones(1)).name == "torch"  # calls of losses know the adapter first
    assert namespace_of(torch.ones(1)) is namespace
    assert namespace.__name__ == compat.__name__
    assert namespace.float32 is torch.float32


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("options", [{"axis": 0}, {"axis": 1}, {"axis": -1, "keepdims": True}, {}])
def test_any(options: dict[str, Any], *, turned: bool) -> None:
    chosen = flags() & (torch.arange(SHAPE[0]) % 3 > 0)[:, None] & (torch.arange(SHAPE[1]) % 5 > 0)
    chosen = chosen.T if turned else chosen
    for x in (chosen, torch.zeros_like(chosen), chosen[:3, :2], chosen[:0], chosen.to(torch.int64)):
        if 0 not in x.shape or options.get("axis") == 1:
            assert_same(namespace.any(x, **options), compat.any(x, **options))
            assert_same(namespace.all(x, **options), compat.all(x, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_conversions_of_flags(dtype: Any) -> None:
    for x in (flags(), flags().T, flags()[:2], numbers() if dtype.is_floating_point else flags()):
        assert_same(namespace.astype(x, dtype), compat.astype(x, dtype))
    x = flags()
    assert namespace.astype(x, torch.bool).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ["logical_and", "logical_or"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_flags_of_rows_join_those_of_a_matrix(name: str, dtype: Any) -> None:
    """By bytes if they are booleans; of the bits of numbers, 2 and 1 would have none in common."""
    matrix, column = (2 * flags()).to(dtype), flags()[:, :1].to(dtype)
    assert_same(getattr(namespace, name)(matrix, column), getattr(compat, name)(matrix, column))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_where(dtype: Any) -> None:
    """Bitwise equal for special values, with scalars and arrays of all dtypes."""
    x, column, row = (numbers(dtype, shape) for shape in (SHAPE, (SHAPE[0], 1), SHAPE[1:]))
    for first, second in [
        *[(x, number) for number in (0.0, -0.0, 1.5, -math.inf, math.nan, 1)],
        *[(number, x) for number in (0.0, -math.inf)],
        *[(x, other) for other in (x + 1, column, row, x[0, 0], torch.zeros(1, dtype=dtype))],
        *[(other, x) for other in (column, row)],
        (column, 0.0),
        (column, row),
        (x.T[:, : SHAPE[0]].T, -1.0),
    ]:
        condition = flags()[:, : first.shape[1]] if isinstance(first, torch.Tensor) and first.dim() > 1 else flags()
        condition = condition if condition.shape[1] > 1 else flags()
        before = [z.clone() if isinstance(z, torch.Tensor) else z for z in (condition, first, second)]
        found, wanted = namespace.where(condition, first, second), compat.where(condition, first, second)
        assert_same(found, wanted)
        assert torch.equal(torch.signbit(found), torch.signbit(wanted))
        for z, was in zip((condition, first, second), before, strict=True):
            assert not isinstance(z, torch.Tensor) or torch.equal(z.nan_to_num(nan=7.0), was.nan_to_num(nan=7.0))


@pytest.mark.parametrize("least", [0.0, -86.0, -95.0, -1e4, -math.inf])
def test_the_exponential(least: float) -> None:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    x = torch.where(flags(), 10.0 * x, least)
    wanted = torch.exp(x.double())
    found = namespace.exp(x).double()
    assert bool(((found - wanted).abs() <= 1.2e-7 * wanted + 1.5e-45).all())
    assert torch.equal(found[x == -math.inf], torch.zeros_like(found[x == -math.inf]))
    x[::2, :] = math.nan
    x[1::2, 0] = math.inf
    assert torch.equal(namespace.exp(x).isnan(), x.isnan())
    assert torch.equal(namespace.exp(x) == math.inf, x > 88.0)


def squares(xp: Any, condition: Any, x: Any) -> Any:
    chosen = xp.where(condition, xp.exp(x), 0.0) + xp.where(condition, -1.0, x) * xp.astype(condition, x.dtype)
    return (xp.astype(xp.any(x > 0, axis=1), x.dtype)[:, None] * chosen**2).sum()


def test_derivatives_and_transforms_are_torch_s_own() -> None:
    x, t = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    grads = []
    for function in (partial(squares, xp, flags()) for xp in (namespace, compat)):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
        (second,) = torch.autograd.grad((gradient * t).sum(), leaf)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, t)  # type: ignore[no-untyped-call]
            tangent = torch.autograd.forward_ad.unpack_dual(function(dual)).tangent  # type: ignore[no-untyped-call]
        batched = torch.func.vmap(torch.func.grad(function))(torch.stack([x, t]))
        jvp = torch.func.jvp(function, (x,), (t,))[1]
        grads.append((gradient.detach(), second, tangent, batched, jvp))
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted)
    graph = make_fx(partial(squares, namespace, flags()))(100.0 * x)  # under tracing, where entries cannot be read
    torch.testing.assert_close(graph(x), squares(compat, flags(), x))
    compiled = torch.compile(squares, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(namespace, flags(), x), squares(compat, flags(), x))
