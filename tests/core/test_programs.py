"""Programs: traced array operations of a function, replayed without it."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from portable_nce._core.checks import largest, least, readable_entries, readable_entry
from portable_nce._core.namespace import namespace_of
from portable_nce._core.programs import LARGE, traced
from portable_nce._core.registry import adapter_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from portable_nce.testing.variants import Variant

EAGER = pytest.mark.parametrize("variant", ["numpy", "torch", "array-api-strict", "mparray"], indirect=True)


def softmax(scale: Any, bound: float, x: Any, y: Any) -> tuple[Any, ...]:
    """A function with everything that sweeps use: operators, functions, kernels, blocks, guards, in-place writes."""
    xp, adapter = namespace_of(x), adapter_of(x)

    def step(carry: Any, block: Any, start: int) -> Any:
        (rows,) = block
        scores = (scale * rows) @ y.T - 1.0 / scale
        scores = adapter.fill_diagonal(scores, start, 0, rows.shape[0], 0.5)
        if not bound <= 30.0:
            scores -= xp.max(scores, axis=1)[:, None]
        exps = adapter.exp_in_place(scores, bounded=False)
        low, high = readable_entries(exps, least, largest)
        if low is not None and high is not None and low > 0.1 and abs(high) < 2.0:
            exps = exps * 2.0
        return carry, (adapter.sum_along(exps, 1), -exps)

    _, found = adapter.scan(step, (), (x,), x.shape[0])
    ones = xp.ones_like(found[0])
    return xp.concat([found[0], ones], axis=0), found[1], adapter.row_dots(x, y) ** 2, None


def matrices(variant: Variant, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    return [variant.floats((scale * rng.normal(size=(4, 3))).tolist(), "float64") for _ in range(2)]


def numbers(variant: Variant, found: Any) -> list[Any]:
    """The results as lists."""
    return [x if x is None else variant.to_list(x) for x in found]


@EAGER
def test_a_program_does_what_the_function_did(variant: Variant) -> None:
    x, y = matrices(variant)
    for bound in (3.0, math.inf):
        program, found = traced(softmax, (0.5, bound), (x, y))
        assert program is not None
        assert numbers(variant, found) == numbers(variant, softmax(0.5, bound, x, y))
        for scale, factor in ((0.5, 1.0), (0.25, 1.0), (0.5, 1.5)):
            given, as_before = (matrices(variant, factor) for _ in range(2))
            assert numbers(variant, program(scale, bound, *given)) == numbers(variant, softmax(scale, bound, *given))
            assert numbers(variant, given) == numbers(variant, as_before)  # nothing was written there


@pytest.mark.parametrize("variant", ["numpy", "torch"], indirect=True)
def test_a_program_serves_where_questions_have_the_same_answers(variant: Variant) -> None:
    """Guards on the bound of the scores, and on entries."""
    small, large = matrices(variant, 0.1), matrices(variant, 3.0)
    first, _ = traced(softmax, (0.5, 3.0), small)
    second, _ = traced(softmax, (0.5, math.inf), large)
    assert first is not None
    assert second is not None
    assert first(0.5, 30.0, *small) is not None
    assert first(0.5, 30.5, *small) is None
    assert first(0.5, math.nan, *small) is None
    assert first(0.5, 3.0, *large) is None
    assert second(0.5, math.inf, *large) is not None
    assert second(0.5, 3.0, *large) is None


def test_a_program_does_not_serve_where_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with torch while another thread compiles."""
    readable = [True]
    read = type(adapter_of(np.ones(1))).concrete_value
    answer: Any = lambda self, x: read(self, x) if readable[0] else None  # noqa: E731
    monkeypatch.setattr(type(adapter_of(np.ones(1))), "concrete_value", answer)
    x = np.ones(3)
    program, _ = traced(lambda x: (x if (readable_entry(x, least) or 0.0) > 0.0 else -x,), (), (x,))
    assert program is not None
    assert program(x) is not None
    readable[0] = False
    assert program(x) is None


def by_truth(x: Any) -> Any:
    return x if namespace_of(x).any(x > 0) else -x


def by_number(x: Any) -> Any:
    return x * float(namespace_of(x).max(x))


def of_another(x: Any) -> Any:
    return x + np.ones(4)


def in_blocks(x: Any) -> Any:
    return adapter_of(x).scan(lambda carry, block, _: (carry, block), (), (x,), 2)[1][0]


def by_verb(x: Any) -> Any:
    return adapter_of(x).by_halves(lambda x: x, lambda x: x, x)


def one_by_one(x: Any) -> Any:
    return sum(namespace_of(x).stack([*x]))


def as_integer(x: Any) -> Any:
    return x * math.sqrt(readable_entry(x, largest) or 0.0)


@pytest.mark.parametrize("function", [by_truth, by_number, of_another, in_blocks, by_verb, one_by_one, as_integer])
def test_a_function_that_cannot_be_recorded_has_no_program(function: Callable[[Any], Any]) -> None:
    """The function itself is called."""
    x = np.asarray([1.0, 2.0, 3.0, 4.0])
    program, found = traced(lambda x: (function(x),), (), (x,))
    assert program is None
    np.testing.assert_array_equal(found[0], function(x))


def test_errors_are_those_of_the_function() -> None:
    with pytest.raises(ValueError, match="matmul"):
        traced(lambda x, y: (x @ y,), (), (np.ones((2, 3)), np.ones((2, 3))))


def test_an_array_may_come_twice() -> None:
    """Its program takes two arrays, and applies to different ones."""
    x = np.asarray([1.0, 2.0])
    program, found = traced(lambda a, b: (a if a is b else a - b,), (), (x, x))
    assert program is not None
    np.testing.assert_array_equal(found[0], [0.0, 0.0])
    np.testing.assert_array_equal(program(x, x + 1.0)[0], [-1.0, -1.0])  # type: ignore[index]


def test_programs_hold_no_array_and_let_go_of_large_ones_early() -> None:
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []

    def watched(x: Any) -> Any:
        found = x + 1.0
        made.append(weakref.ref(found))
        alive.append(sum(reference() is not None for reference in made))
        return found

    x = np.ones(LARGE)

    def chain(x: Any) -> tuple[Any]:
        for _ in range(5):
            x = x.trace.call(watched, (x,), {}) if hasattr(x, "trace") else watched(x)
        return (x,)

    program, found = traced(chain, (), (x,))
    del found
    gc.collect()
    assert not any(reference() is not None for reference in made)
    alive.clear()
    assert program is not None
    program(x)
    assert max(alive) == 2  # the argument and the result of one step


def written_twice(x: Any) -> Any:
    """Sums of equal exponentials, where one array is written."""
    xp = namespace_of(x)
    first, second = xp.exp(x), xp.exp(x)
    first *= 2.0
    return first + second, xp.exp(x)


def by_a_view(x: Any) -> Any:
    """An entry that is written through a reshaped view."""
    xp = namespace_of(x)
    zeros = xp.zeros_like(x)
    turned = xp.reshape(zeros, (2, 2))
    turned += 1.0
    return xp.reshape(turned, (4,)) + x, xp.zeros_like(x) + x


def alike(x: Any) -> Any:
    """Results that are equal in each run: each call returns a new array."""
    xp = namespace_of(x)
    ones = xp.ones_like(x)
    return ones, xp.reshape(xp.ones_like(x), (2, 2)), ones


@EAGER
@pytest.mark.parametrize("function", [written_twice, by_a_view, alike])
def test_runs_of_a_program_share_no_arrays(variant: Variant, function: Callable[[Any], Any]) -> None:
    given = [[0.5, -1.0, 2.0, 0.0], [1.0, 3.0, -2.0, 0.25]]
    program, _ = traced(function, (), (variant.floats(given[0], "float64"),))
    assert program is not None
    for entries in given * 2:
        found = program(variant.floats(entries, "float64"))
        assert numbers(variant, found) == numbers(variant, function(variant.floats(entries, "float64")))
        if variant.name == "numpy":
            for own in found or ():
                own[...] = 7.0  # callers may write into results


def test_a_run_repeats_the_calls_of_the_function() -> None:
    calls: list[str] = []

    def sums(x: Any) -> Any:
        def called(name: str, *args: Any) -> Any:
            def add(*args: Any) -> Any:
                calls.append(name)
                return sum(args)

            return x.trace.call(add, args, {})

        constant = called("of constants", namespace_of(x).zeros_like(x), 1.0)
        called("unused", x, constant)
        return called("twice", x, constant) * called("twice", x, constant), called("of another", x, x)

    program, _ = traced(sums, (), (np.ones(3),))
    assert program is not None
    calls.clear()
    program(np.ones(3))
    assert calls == ["of constants", "unused", "twice", "twice", "of another"]


def test_threads_trace_at_once() -> None:
    failed: list[int] = []

    def work(k: int) -> None:
        x = np.full((3, 2), 1.0 + k)
        for _ in range(50):
            program, found = traced(lambda x: (namespace_of(x).arange(3) + x[:, 0] * k,), (), (x,))
            same = program is not None and np.array_equal(program(x)[0], found[0])  # type: ignore[index]
            if not (same and np.array_equal(found[0], np.arange(3) + x[:, 0] * k)):
                failed.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
