"""Programs: traced array operations of a function and of its pullback, replayed without it."""

from __future__ import annotations

import gc
import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from portable_nce._core.checks import largest, least, readable_entries, readable_entry
from portable_nce._core.namespace import namespace_of
from portable_nce._core.programs import GuardError
from portable_nce._core.registry import adapter_of
from portable_nce._core.tracing import LARGE, traced
from portable_nce.backends.traced import MOST_BLOCKS

from calls import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from portable_nce.testing.variants import Variant

EAGER = pytest.mark.parametrize("variant", ["numpy", "torch", "array-api-strict", "mparray"], indirect=True)


def softmax(x: Any, y: Any) -> Any:
    """A function with everything that sweeps use: operators, functions, kernels, blocks, guards, in-place writes."""
    xp, adapter = namespace_of(x), adapter_of(x)

    def step(carry: Any, block: Any, start: int) -> Any:
        (rows,) = block
        scores = (0.5 * rows) @ y.T - 1.0
        scores = adapter.fill_diagonal(scores, start, 0, rows.shape[0], 0.5)
        bound = readable_entry(x, largest)
        if bound is None or not bound <= 30.0:
            scores -= xp.max(scores, axis=1)[:, None]
        exps = adapter.exp_in_place(scores, bounded=False)
        low, high = readable_entries(exps, least, largest)
        if low is not None and high is not None and low > 0.1 and abs(high) < 2.0:
            exps = exps * 2.0
        return carry, (adapter.sum_along(exps, 1), -exps)

    _, found = adapter.scan(step, (), (x,), x.shape[0])
    ones = xp.ones_like(found[0])
    parts = xp.concat([found[0], ones], axis=0), xp.reshape(found[1], (-1,)), adapter.row_dots(x, y) ** 2
    return xp.concat([*parts], axis=0)


def matrices(variant: Variant, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    return [variant.floats((scale * rng.normal(size=(4, 3))).tolist(), "float64") for _ in range(2)]


def program_of(function: Callable[..., Any], *arrays: Any, states: Any = None) -> Any:
    """Program of a function, of plain arrays."""
    return traced(function, arrays, (0,) * len(arrays) if states is None else states)


def run(program: Any, *arrays: Any) -> Any:
    """Result of a program; None if it does not apply."""
    try:
        return program.forward(*arrays)[0][0]
    except GuardError:
        return None


@EAGER
def test_a_program_does_what_the_function_did(variant: Variant) -> None:
    program = program_of(softmax, *matrices(variant))
    for factor in (1.0, 1.001):
        given, as_before = (matrices(variant, factor) for _ in range(2))
        assert variant.to_list(run(program, *given)) == variant.to_list(softmax(*given))
        assert [*map(variant.to_list, given)] == [*map(variant.to_list, as_before)]  # nothing was written there


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
def test_a_program_serves_where_questions_have_the_same_answers(variant: Variant) -> None:
    small, large = matrices(variant, 0.1), matrices(variant, 30.0)
    first, second = program_of(softmax, *small), program_of(softmax, *large)
    assert run(first, *small) is not None
    assert run(first, *large) is None
    assert run(second, *large) is not None
    assert run(second, *small) is None
    not_a_number = variant.floats([[math.nan] * 3] * 4, "float64")
    assert run(first, not_a_number, small[1]) is None


def test_a_program_does_not_serve_where_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with torch while another thread compiles."""
    readable = [True]
    read = type(adapter_of(np.ones(1))).concrete_value
    answer: Any = lambda self, x: read(self, x) if readable[0] else None  # noqa: E731
    monkeypatch.setattr(type(adapter_of(np.ones(1))), "concrete_value", answer)
    x = np.ones(3)
    program = program_of(lambda x: x if (readable_entry(x, least) or 0.0) > 0.0 else -x, x)
    assert run(program, x) is not None
    readable[0] = False
    assert run(program, x) is None


@EAGER
def test_the_pullback_is_that_of_the_tape(variant: Variant) -> None:
    """Of the arrays that need one; also repeated, since it overwrites nothing that is kept."""
    x, y = matrices(variant)

    def function(x: Any, y: Any) -> Any:
        xp = namespace_of(x)
        return xp.sum(xp.exp(x * y) * x + y * y, axis=1)

    xp = namespace_of(x)
    cotangent = variant.floats([0.5, 1.0, -2.0, 0.0], "float64")
    column = cotangent[:, None]
    of_x = column * (xp.exp(x * y) * (1.0 + x * y))
    of_y = column * (xp.exp(x * y) * x * x + 2.0 * y)
    for states in ((2, 2), (2, 0), (0, 2)):
        program = program_of(function, x, y, states=states)
        results, kept, numbers = program.forward(x, y)
        assert len(kept) == program.n_kept
        for _ in range(2):
            found = program.backward((x, y), results, kept, numbers, cotangent)
            for got, wanted, state in zip(found, (of_x, of_y), states, strict=True):
                assert (got is None) == (state == 0)
                if got is not None:
                    each_as_floats = [np.asarray(variant.to_list(z), dtype=float) for z in (got, wanted)]
                    np.testing.assert_allclose(each_as_floats[0], each_as_floats[1], rtol=1e-13)


def by_truth(x: Any) -> Any:
    return x if namespace_of(x).any(x > 0) else -x


def by_number(x: Any) -> Any:
    return x * float(namespace_of(x).max(x))


def of_another(x: Any) -> Any:
    return x + np.ones(4)


def in_blocks(x: Any) -> Any:
    return adapter_of(x).scan(lambda carry, block, _: (carry, block), (), (x,), 1)[1][0]


def one_by_one(x: Any) -> Any:
    return sum(namespace_of(x).stack([*x]))


def as_integer(x: Any) -> Any:
    return x * math.sqrt(readable_entry(x, largest) or 0.0)


def a_constant(x: Any) -> Any:
    return namespace_of(x).arange(4)


@pytest.mark.parametrize("function", [a_constant, by_truth, by_number, of_another, in_blocks, one_by_one, as_integer])
def test_a_function_that_cannot_be_recorded_has_no_program(function: Callable[[Any], Any]) -> None:
    assert program_of(function, np.linspace(1.0, 4.0, MOST_BLOCKS + 1)) is None


def through_views(x: Any) -> Any:
    """An array made of parts of another one, of which one is small."""
    return namespace_of(x).concat([x[1:], x[:1]])


def through_a_tuple(x: Any) -> Any:
    """An item of a function's tuple."""
    return x.trace.call(lambda x: (x, x[:1]), (x,), {})[0] * 1.0


@pytest.mark.parametrize(("through", "most"), [(lambda x: x, 2), (through_views, 1), (through_a_tuple, 1)])
def test_large_arrays_are_let_go_early_and_only_small_constants_are_kept(
    through: Callable[[Any], Any], most: int
) -> None:
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []

    def watched(x: Any) -> Any:
        found = x + 1.0
        made.append(weakref.ref(found))
        alive.append(sum(reference() is not None for reference in made))
        return found

    x = np.ones(LARGE)

    def chain(x: Any) -> Any:
        for _ in range(5):
            x = through(x.trace.call(watched, (x,), {}))
        return x

    program = program_of(chain, x)
    gc.collect()
    assert not any(reference() is not None for reference in made)
    alive.clear()
    run(program, x)
    assert max(alive) == most  # the argument and the result of one step, or of a step alone that others follow


def test_a_large_array_of_small_constants_is_made_in_each_run() -> None:
    def function(x: Any) -> Any:
        ones = namespace_of(x).ones(LARGE - 1)
        return x + namespace_of(x).concat([ones, ones[:1]])

    x = np.arange(float(LARGE))
    assert (run(program_of(function, x), x) == x + 1.0).all()


def written_twice(x: Any) -> Any:
    """Sums of equal exponentials, where one array is written."""
    xp = namespace_of(x)
    first, second = xp.exp(x), xp.exp(x)
    first *= 2.0
    return first + second + xp.exp(x)


def by_a_view(x: Any) -> Any:
    """An entry that is written through a reshaped view."""
    xp = namespace_of(x)
    zeros = xp.zeros_like(x)
    turned = xp.reshape(zeros, (2, 2))
    turned += 1.0
    return xp.reshape(turned, (4,)) + x + xp.zeros_like(x)


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "getitem": lambda _, x: x[:2, 1:],
    "T": lambda _, x: x.T,
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (1, 0)),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, 1),
    "reshape": lambda xp, x: xp.reshape(x, (-1,)),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=0),
    "squeeze": lambda xp, x: xp.squeeze(x[:, :1], axis=1),
    "flip": lambda xp, x: xp.flip(x, axis=0),
    "asarray": lambda xp, x: xp.asarray(x),
    "astype": lambda xp, x: xp.astype(x, x.dtype, copy=False),
    "unstack": lambda xp, x: xp.unstack(x)[1],
}
"""Parts of a matrix that may share its memory."""


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_through_a_view_is_computed_again(variant: Variant, name: str) -> None:
    """Two equal sums, of which one is written in part."""

    def function(x: Any) -> Any:
        xp = namespace_of(x)
        first = x + 1.0
        part = VIEWS[name](xp, first)
        part *= 2.0
        return xp.concat([xp.reshape(part, (-1,)), xp.reshape(x + 1.0, (-1,))], axis=0)

    program = program_of(function, variant.floats([[0.5, -1.0], [2.0, 0.0], [1.0, 3.0]], "float64"))
    assert program is not None
    given = variant.floats([[1.0, 3.0], [-2.0, 0.25], [0.5, 2.0]], "float64")
    assert variant.to_list(run(program, given)) == variant.to_list(function(given))


def by_a_constant(x: Any) -> Any:
    """A constant that is written, and one that is not."""
    xp = namespace_of(x)
    counted, zeros = xp.arange(4), xp.zeros((4,), dtype=x.dtype)
    zeros += 1.0
    return x * zeros + xp.astype(counted, x.dtype)


def of_the_shape(x: Any) -> Any:
    """A result that does not depend on the entries of the argument."""
    return namespace_of(x).ones_like(x)


@EAGER
@pytest.mark.parametrize("function", [written_twice, by_a_view, by_a_constant, of_the_shape])
def test_runs_of_a_program_share_no_arrays(variant: Variant, function: Callable[[Any], Any]) -> None:
    given = [[0.5, -1.0, 2.0, 0.0], [1.0, 3.0, -2.0, 0.25]]
    program = program_of(function, variant.floats(given[0], "float64"))
    assert program is not None
    for entries in given * 2:
        found = run(program, variant.floats(entries, "float64"))
        assert variant.to_list(found) == variant.to_list(function(variant.floats(entries, "float64")))
        if variant.name == "numpy":
            found[...] = 7.0  # callers may write into results


def test_a_run_calls_what_is_used_and_each_only_once() -> None:
    each: list[str] = []

    def add(name: str) -> Callable[..., Any]:
        def function(*args: Any) -> Any:
            each.append(name)
            return sum(args)

        return function

    of_constants, unused, twice, other = map(add, ("of constants", "unused", "twice", "of another"))

    def sums(x: Any) -> Any:
        constant = x.trace.call(of_constants, (namespace_of(x).zeros(3), 1.0), {})
        x.trace.call(unused, (x, constant), {})
        both = [x.trace.call(twice, (x, constant), {}) for _ in range(2)]
        return both[0] * both[1] - x.trace.call(other, (x, x), {})

    program = program_of(sums, np.ones(3))
    each.clear()
    np.testing.assert_array_equal(run(program, np.full(3, 2.0)), 5.0)
    assert each == ["twice", "of another"]


def test_threads_trace_at_once() -> None:
    failed: list[int] = []

    def work(k: int) -> None:
        x = np.full((3, 2), 1.0 + k)
        for _ in range(50):
            program = program_of(lambda x: namespace_of(x).arange(3) + x[:, 0] * k, x)
            if not np.array_equal(run(program, x), np.arange(3) + x[:, 0] * k):
                failed.append(k)

    in_threads(work)
    assert not failed
