"""MLX: transformations, laziness, and replaced functions."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mpmath
import numpy as np
import pytest
from mlx import nn as layers
from mlx import optimizers

import portable_nce as pnce
from portable_nce._core.namespace import namespace_of
from portable_nce._core.registry import adapter_of
from portable_nce.testing import run_ranks
from portable_nce.testing.cases import CASES, Case

from calls import shares

mx.set_default_device(mx.cpu)

nn: Any = layers  # has no `__all__`

ROWS, WIDTH = 24, 5
BYTES = 4

without_compiler = sys.platform != "darwin" and shutil.which("g++") is None


def embeddings(rows: int = ROWS, width: int = WIDTH) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, width)), generator.normal(size=(rows, width))


def to_mlx(*arrays: Any, dtype: Any = mx.float64) -> tuple[Any, ...]:
    return tuple(mx.array(x, dtype=dtype) for x in arrays)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "info_nce": lambda x, y: pnce.info_nce(x, y, temperature=0.2),
    "info_nce, streamed": lambda x, y: pnce.info_nce(x, y, temperature=0.2, block_size=7),
    "info_nce, rows": lambda x, y: pnce.info_nce(x, y, reduction="none").mean(),
    "nt_xent": pnce.nt_xent,
    "nt_xent, streamed": lambda x, y: pnce.nt_xent(x, y, block_size=7),
    "siglip": lambda x, y: pnce.siglip(x, y, logit_scale=5.0, logit_bias=-2.0),
    "relic": lambda x, y: pnce.relic(x, y, temperature=0.5),
}


def assert_close(found: Any, wanted: Any, rtol: float = 1e-11, atol: float = 1e-14) -> None:
    """Compare MLX arrays with NumPy arrays."""
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=rtol, atol=atol)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_transformations_of_mlx_agree_with_numpy(loss: Callable[[Any, Any], Any]) -> None:
    x, y = embeddings()
    a, b = to_mlx(x, y)
    wanted, slopes = pnce.value_and_grad(loss, argnums=(0, 1))(x, y)
    value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(a, b)
    assert value.item() == pytest.approx(float(wanted), rel=1e-13)
    assert_close(gradients, slopes)
    # Forward mode, and many at once.
    values, tangents = mx.jvp(lambda x: loss(x, b), [a], [mx.ones_like(a)])
    assert values[0].item() == pytest.approx(float(wanted), rel=1e-12)
    assert tangents[0].item() == pytest.approx(slopes[0].sum(), rel=1e-9, abs=1e-12)
    both = mx.vmap(mx.grad(loss), in_axes=(0, None))(mx.stack([a, 2.0 * a]), b)
    assert_close([both[0]], [slopes[0]])
    outside = mx.grad(lambda x: mx.vmap(loss, in_axes=(0, None))(x, b).sum())(mx.stack([a, 2.0 * a]))
    assert_close([outside], [np.asarray(both)])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_derivatives_of_second_order(loss: Callable[[Any, Any], Any]) -> None:
    x, y = embeddings(9)
    a, b = to_mlx(x, y)
    direction = np.cos(np.arange(x.size, dtype=np.float64)).reshape(x.shape)
    (along,) = to_mlx(direction)
    wanted = pnce.grad(lambda x, y: (pnce.grad(loss)(x, y) * direction).sum(), argnums=(0, 1))(x, y)
    found = mx.grad(lambda x, y: (mx.grad(loss)(x, y) * along).sum(), argnums=(0, 1))(a, b)
    assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    _, products = mx.jvp(lambda x: mx.grad(loss)(x, b), [a], [along])
    assert_close(products, wanted[:1], rtol=1e-9, atol=1e-12)


NORMAL = shares(case for case in CASES if case.regime == "normal")


def of_mlx(x: Any) -> Any:
    """An argument of a case, in float64 if it is floating."""
    x = np.asarray(x)
    return (
        mx.array(x, dtype=mx.float64)
        if x.dtype.kind == "f"
        else mx.array(x.astype("i4" if x.dtype.kind == "i" else x.dtype))
    )


@pytest.mark.parametrize("cases", NORMAL)
def test_each_array_alone_can_be_mapped(cases: list[Case]) -> None:
    """`mx.vmap` of arguments, labels, masks or weights; its ``!=`` turns arrays of which the second is mapped alone."""
    for case in cases:
        given = {name: of_mlx(x) for name, x in {**case.arguments, **case.constants}.items()}
        for name, x in given.items():

            def loss(x: Any, name: str = name, given: dict[str, Any] = given, case: Case = case) -> Any:
                return case.call({**given, name: x})

            both = [x, x[::-1] if x.ndim else x * 1]
            wanted = np.stack([np.asarray(loss(each)) for each in both])
            found = np.asarray(mx.vmap(loss)(mx.stack(both)))
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9, err_msg=f"{case.name}: {name}")


@pytest.mark.parametrize("cases", NORMAL)
def test_gradients_of_gradients_agree_with_numpy(cases: list[Case]) -> None:
    def second(library: Any, case: Case, convert: Callable[[Any], Any]) -> Any:
        given = {name: convert(x) for name, x in {**case.arguments, **case.constants}.items()}
        names, places = [*case.arguments], tuple(range(len(case.arguments)))

        def loss(*arrays: Any) -> Any:
            return case.call({**given, **dict(zip(names, arrays, strict=True))})

        def gradients(function: Any, arrays: Any) -> Any:
            found = library.grad(function, argnums=places)(*arrays)
            return found if isinstance(found, (tuple, list)) else (found,)  # MLX's, of one array

        def of_squares(*arrays: Any) -> Any:
            return sum((slope * slope).sum() for slope in gradients(loss, arrays))

        return gradients(of_squares, [given[name] for name in names])

    for case in cases:
        for found, wanted in zip(second(mx, case, of_mlx), second(pnce, case, np.asarray), strict=True):
            scale = 1.0 + np.abs(wanted).max(initial=0.0)
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-8 * scale, err_msg=case.name)


def test_ranks_that_are_threads() -> None:
    """Ranks exchange copies, since MLX evaluates an array only in the thread that made it."""
    x, y = embeddings(8)
    wanted, slopes = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))(x, y)
    tangent = mx.jvp(pnce.info_nce, list(to_mlx(x, y)), list(to_mlx(y, x)))[1][0].item()

    def on_a_rank(group: Any) -> Any:
        own = [z[4 * group.rank : 4 * group.rank + 4] for z in (x, y)]

        def loss(a: Any, b: Any) -> Any:
            return pnce.info_nce(a, b, across=pnce.across(group, gradients="summed"))

        value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(*to_mlx(*own))
        (slope,) = mx.jvp(loss, list(to_mlx(*own)), list(to_mlx(*own[::-1])))[1]
        return value.item(), [np.asarray(g) for g in gradients], slope.item()

    found = run_ranks(2, on_a_rank)
    for value, _, slope in found:
        assert value == pytest.approx(float(wanted), rel=1e-13)
        assert slope == pytest.approx(tangent, rel=1e-9)
    assert_close([np.concatenate([gradients[k] for _, gradients, _ in found]) for k in range(2)], slopes)


@pytest.mark.skipif(without_compiler, reason="mlx.core.compile calls g++ for the processor, which is not installed")
@pytest.mark.parametrize("inside", [True, False], ids=["gradient compiled", "gradient of what is compiled"])
def test_compiled(*, inside: bool) -> None:
    x, y = embeddings()
    loss = LOSSES["info_nce, streamed"]
    transformed: Any = mx.compile(mx.value_and_grad(loss)) if inside else mx.value_and_grad(mx.compile(loss))
    wanted, slope = pnce.value_and_grad(loss)(x, y)
    for _ in range(2):
        value, gradient = transformed(*to_mlx(x, y, dtype=mx.float32))
        assert value.item() == pytest.approx(float(wanted), rel=1e-6)
        assert_close([gradient], [slope], rtol=2e-5, atol=1e-7)


def peak(rows: int, *, block_size: int | None, asked_for: bool = True) -> int:
    """Give the bytes that a gradient of InfoNCE takes above its arguments and result."""
    x, y = to_mlx(*embeddings(rows, 32), dtype=mx.float32)
    mx.eval(x, y)
    mx.clear_cache()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    results = mx.value_and_grad(functools.partial(pnce.info_nce, block_size=block_size), argnums=(0, 1))(x, y)
    if asked_for:
        mx.eval(results)
    return mx.get_peak_memory() - held


def test_a_streamed_gradient_holds_some_blocks_alone() -> None:
    rows, block = 2048, 64
    matrix = BYTES * rows * rows
    assert peak(rows, block_size=None, asked_for=False) < matrix / 4  # nothing is computed before evaluation
    assert peak(rows, block_size=None) > 4 * matrix
    # MLX allocates a few operations ahead.
    assert peak(rows, block_size=block) < matrix
    assert peak(2 * rows, block_size=block) < 3 * peak(rows, block_size=block)


def test_a_gradient_that_is_not_asked_for_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    adapter = adapter_of(mx.zeros(1))
    bind = type(adapter).value_and_vjp

    def watching(self: Any, function: Callable[..., Any]) -> Any:
        def watched(static: Any, *arrays: Any, need_grad: Any) -> Any:
            asked.append(need_grad)
            return function(static, *arrays, need_grad=need_grad)

        return bind(self, watched)

    monkeypatch.setattr(type(adapter), "value_and_vjp", watching)
    x, y = to_mlx(*embeddings())
    pnce.info_nce(x, y)
    mx.grad(lambda x: pnce.info_nce(x, y))(x)
    assert not asked[0]
    assert [bool(flag) for flag in asked[1][:2]] == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_computed_in_float32(dtype: str) -> None:
    kind = getattr(mx, dtype)
    x, y = to_mlx(*embeddings(64, 8), dtype=kind)
    loss = functools.partial(pnce.info_nce, temperature=0.05)
    value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(x, y)
    assert [z.dtype for z in (value, *gradients)] == [kind] * 3
    wide = [np.asarray(z.astype(mx.float32)).astype(np.float64) for z in (x, y)]
    wanted, slopes = pnce.value_and_grad(loss, argnums=(0, 1))(*wide)
    eps = float(mx.finfo(kind).eps)
    assert value.item() == pytest.approx(float(wanted), rel=eps)
    for gradient, slope in zip(gradients, slopes, strict=True):
        assert np.abs(np.asarray(gradient.astype(mx.float32)) - slope).max() <= eps * np.abs(slope).max()


def test_a_training_loop_with_its_modules_and_optimizers() -> None:
    """Two views of clusters: the encoder learns to tell them apart."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(32, 12))
    views = [mx.array(centres + 0.05 * generator.normal(size=centres.shape), dtype=mx.float32) for _ in range(2)]
    mx.random.seed(0)
    encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = optimizers.Adam(learning_rate=0.02)

    def loss(encoder: Any, a: Any, b: Any) -> Any:
        return pnce.nt_xent(encoder(a), encoder(b), temperature=0.1)

    step = nn.value_and_grad(encoder, loss)
    losses = []
    for _ in range(200):
        value, gradients = step(encoder, *views)
        optimizer.update(encoder, gradients)
        mx.eval(encoder.parameters(), optimizer.state, value)
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]
    assert pnce.diagnostics.top_k_accuracy(encoder(views[0]) @ encoder(views[1]).T, k=1).item() > 0.5


@pytest.mark.parametrize(
    ("dtype", "eps", "low", "high"), [("float32", 2.0**-23, -87.0, 88.0), ("float64", 2.0**-52, -700.0, 700.0)]
)
def test_the_exponential_is_exact(dtype: str, eps: float, low: float, high: float) -> None:
    """MLX's own has an error of 60 units in the last place of float32 for x = -75 on the CPU."""
    x = np.linspace(low, high, 997).astype(dtype)
    found = np.asarray(namespace_of(mx.zeros(1)).exp(mx.array(x, dtype=getattr(mx, dtype))))
    assert found.dtype == dtype
    for number, value in zip(x.tolist(), found.tolist(), strict=True):
        assert abs(value - mpmath.exp(number)) <= 2 * eps * mpmath.exp(number)


def test_the_exponential_of_what_is_not_finite_and_its_derivatives() -> None:
    exp = namespace_of(mx.zeros(1)).exp
    x = mx.array([-np.inf, np.inf, np.nan, -200.0, 200.0, 0.0])
    np.testing.assert_array_equal(np.asarray(exp(x)), [0.0, np.inf, np.nan, 0.0, np.inf, 1.0])
    x = mx.array([-60.0, -1.0, 0.0, 3.0], dtype=mx.float64)
    for order in range(1, 4):

        def derivative(x: Any, order: int = order) -> Any:
            return mx.grad(lambda x: derivative(x, order - 1).sum())(x) if order else exp(x)

        np.testing.assert_allclose(np.asarray(derivative(x)), np.exp(np.asarray(x)), rtol=1e-15)
    assert_close(mx.jvp(exp, [x], [mx.ones_like(x)])[1], [np.exp(np.asarray(x))], rtol=1e-15, atol=0.0)


def test_the_namespace_keeps_to_the_standard_where_its_own_does_not() -> None:
    xp: Any = namespace_of(mx.zeros(1))
    x = mx.array([[3.0, 1.0, 2.0, 1.0], [0.0, 5.0, 5.0, -1.0]])
    plain = np.asarray(x)
    for descending in (False, True):
        order = xp.argsort(x, axis=1, descending=descending, stable=True)
        wanted = np.argsort(-plain if descending else plain, axis=1, kind="stable")
        np.testing.assert_array_equal(np.asarray(order), wanted)
        assert order.dtype == mx.int32
        found = np.asarray(xp.sort(x, axis=1, descending=descending))
        np.testing.assert_array_equal(found, np.take_along_axis(plain, wanted, axis=1))
    assert xp.bool == mx.bool_
    assert xp.argmax(x, axis=1).tolist() == [0, 1]
    assert xp.argmin(x, axis=1, keepdims=True).tolist() == [[1], [3]]
    assert xp.argmax(x, axis=1).dtype == xp.argmin(x, axis=1).dtype == mx.int32
    assert xp.searchsorted(mx.array([1.0, 2.0, 3.0]), mx.array([2.0, 2.5]), side="right").tolist() == [2, 2]
    assert xp.searchsorted(mx.array([3.0, 1.0, 2.0]), mx.array([2.0]), sorter=mx.array([1, 2, 0])).tolist() == [1]
    sums = np.cumulative_sum(plain, axis=1, include_initial=True)
    np.testing.assert_array_equal(np.asarray(xp.cumulative_sum(x, axis=1, include_initial=True)), sums)
    assert xp.cumulative_sum(x[0], dtype=mx.float16).dtype == mx.float16
    assert xp.sum(x, axis=0, dtype=mx.float16, keepdims=True).dtype == mx.float16
    assert xp.zeros((2,), dtype=mx.float16, device=None).dtype == mx.float16
    assert xp.full_like(x, 2.0, device=mx.cpu).tolist() == [[2.0] * 4] * 2
    assert xp.arange(3, device=None).dtype == mx.int32
    assert xp.take(x, mx.array([2, 0]), axis=1).tolist() == [[2.0, 3.0], [5.0, 0.0]]
    assert xp.where(x > 0, mx.array([1, 2, 3, 4]), 0).tolist() == [[1, 2, 3, 4], [0, 2, 3, 0]]
    assert xp.astype(x, mx.int32, copy=False).dtype == mx.int32
    assert xp.asarray([1.0], dtype=mx.float16, device=None, copy=True).dtype == mx.float16
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    assert (u.shape, vh.shape) == ((2, 2), (2, 4))
    np.testing.assert_allclose(np.asarray((u * s) @ vh), plain, atol=1e-5)
    assert [part.shape for part in xp.linalg.svd(x)] == [(2, 2), (2,), (4, 4)]
    values, vectors = xp.linalg.eigh(x @ x.T)
    np.testing.assert_allclose(np.asarray((vectors * values) @ vectors.T), plain @ plain.T, atol=1e-4)


@pytest.mark.parametrize("function", ["argmax", "argmin", "take"])
def test_functions_of_arrays_without_rows(function: str) -> None:
    """MLX refuses these, or their derivatives."""
    xp: Any = namespace_of(mx.zeros(1))
    x, rows = mx.zeros((0, 3)), mx.zeros((0,), dtype=mx.int32)
    if function == "take":
        value, slope = mx.value_and_grad(lambda x: mx.sum(xp.take(x, rows, axis=0)))(x)
        assert value.item() == 0
        assert slope.shape == (0, 3)
        assert xp.take(mx.ones((2, 3)), rows, axis=-1).shape == (2, 0)
    else:
        assert getattr(xp, function)(x, axis=1).shape == (0,)


def test_nan_is_the_largest_entry() -> None:
    """Unspecified by the standard, assumed by the core."""
    xp: Any = namespace_of(mx.zeros(1))
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.float64):
        x = mx.array([1.0, np.nan, 3.0] * 30, dtype=dtype)
        assert np.isnan(xp.max(x).item())
        assert np.isnan(xp.min(x).item())
        assert xp.argmax(mx.array([-np.inf, -np.inf], dtype=dtype)).item() == 0


def test_numbers_of_python_leave_dtypes_alone() -> None:
    for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.float64):
        x = mx.ones((2,), dtype=dtype)
        assert (x * 2.5).dtype == (2 - x).dtype == (x / 3).dtype == mx.where(x > 0, x, -np.inf).dtype == dtype
    assert (mx.array(1.0, dtype=mx.float64) * 0.1).item() == 0.1


def test_labels_of_any_integers() -> None:
    x, _ = embeddings()
    labels = np.arange(ROWS) % 5
    wanted = pnce.supcon(x, labels)
    for dtype in (mx.int8, mx.uint8, mx.int32, mx.uint32, mx.int64):
        value = pnce.supcon(to_mlx(x)[0], mx.array(labels + 2**40 if dtype == mx.int64 else labels, dtype=dtype))
        assert value.item() == pytest.approx(float(wanted), rel=1e-13)


def test_mlx_is_named_in_messages() -> None:
    x, y = embeddings()
    with pytest.raises(TypeError, match=r"same library as query, got numpy and mlx"):
        pnce.info_nce(to_mlx(x)[0], y)
    with pytest.raises(TypeError, match=r"got mlx\.core\.int32; convert it with query.astype"):
        pnce.info_nce(*to_mlx(x, y, dtype=mx.int32))


def test_the_adapter_describes_itself() -> None:
    adapter = adapter_of(mx.zeros(1))
    assert (adapter.name, adapter.mode) == ("mlx", "eager")
    assert adapter.devices[0] == "cpu"
    assert adapter.dtypes == ("float64", "float32", "float16", "bfloat16")


def test_float64_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = to_mlx(*embeddings())
    adapter: Any = adapter_of(x)

    class Elsewhere:
        type = mx.gpu

    monkeypatch.setattr(mx, "default_device", Elsewhere)
    assert "float64" not in adapter.dtypes
    with pytest.raises(TypeError, match=r"float64, which MLX computes with on the processor alone"):
        pnce.info_nce(x, y)


@pytest.mark.parametrize("kind", ["terms", "parameters", "slopes", "objective", "elementwise", "similarity"])
def test_functions_of_users_in_forward_mode_and_checkpoints(kind: str) -> None:
    """Auxiliary results of MLX lose their tangents, and its checkpoints take every array for a learned one."""
    x, y = mx.array(np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32))
    terms = pnce.objectives
    objectives: dict[str, Any] = {
        "terms": terms.Pairwise(None, lambda s: s * s),
        "parameters": terms.Pairwise(None, lambda s, w: w * s * s, parameters=(0.7,)),
        "slopes": terms.Pairwise(None, terms.Term(lambda s: s * s, lambda s: (2.0 * s,))),
        "objective": terms.Objective(lambda row: row.log_odds * row.log_odds),
    }
    similarities: dict[str, Any] = {
        "elementwise": pnce.similarities.elementwise("dot", mx.tanh, lambda s: 1 - mx.tanh(s) ** 2),
        "similarity": pnce.similarities.Similarity(
            lambda x, y, scale: ((x * scale,), (y,)),
            lambda rows, columns: rows[0] @ columns[0].T,
            lambda rows, columns, g: ((g @ columns[0],), (g.T @ rows[0],)),
        ),
    }

    def loss(x: Any, y: Any) -> Any:
        return pnce.contrast(x, y, objective=objectives.get(kind, "info_nce"), similarity=similarities.get(kind, "dot"))

    gradients = mx.grad(loss, (0, 1))(x, y)
    wanted = sum(float((a * b).sum()) for a, b in zip(gradients, (y, x), strict=True))
    assert abs(wanted) > 0.1
    assert float(mx.jvp(loss, [x, y], [y, x])[1][0]) == pytest.approx(wanted, rel=1e-5)
    for found, own in zip(mx.grad(mx.checkpoint(loss), (0, 1))(x, y), gradients, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(own), rtol=1e-5, atol=1e-6)
