"""Two libraries that nothing in the package knows of: one with its own adapter, and Dask, on the tape."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import dask
import dask.array
import numpy as np
import pytest

import portable_nce as pnce
from portable_nce.testing.cases import CASES, LOSSES, example

import metered
from dask_arrays import MORE_PIECES
from dask_arrays import VARIANT as DASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portable_nce.testing import Case

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 6, 4))

LAZY = """
import sys
import metered
import numpy as np
import portable_nce as pnce

x = np.eye(3)
assert "metered" in pnce.backends_available()
expected = pnce.info_nce(x, x)
assert "metered.adapter" not in sys.modules, "loaded before its time"
found = pnce.info_nce(metered.asarray(x), metered.asarray(x))
assert "metered.adapter" in sys.modules, "not loaded"
assert isinstance(found, metered.Array) and float(found) == float(expected)
"""


def test_the_adapter_is_found_by_its_entry_point_and_loaded_when_an_array_arrives() -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", LAZY], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_arithmetic_is_that_of_the_library() -> None:
    metered.COUNTS.clear()
    differentiated = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))
    value, gradients = differentiated(metered.asarray(X), metered.asarray(Y), temperature=0.5)
    expected, expected_gradients = differentiated(X, Y, temperature=0.5)
    assert isinstance(value, metered.Array)
    np.testing.assert_allclose(value.data, expected, rtol=1e-14)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        assert isinstance(gradient, metered.Array)
        np.testing.assert_allclose(gradient.data, wanted, rtol=1e-13, atol=1e-16)
    assert metered.COUNTS["matmul"] >= 3, metered.COUNTS
    assert metered.COUNTS["exp"] >= 1, metered.COUNTS


def test_two_libraries_do_not_mix() -> None:
    with pytest.raises(TypeError, match="positive_key: expected an array of the same library as query"):
        pnce.info_nce(metered.asarray(X), Y)


@pytest.fixture
def registered() -> Iterator[None]:
    DASK.start()
    yield
    dask.config.set(scheduler="synchronous")


def of_dask(nested: Any, dtype: str | None = None) -> Any:
    return DASK.place(nested, dtype or np.asarray(nested).dtype.name, None)


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("something was computed before it was asked for")


EACH = {case.loss: case for case in reversed(CASES)} | {name: example(name) for name in LOSSES}
"""A call of every function, and one for each way through the library."""


SHORT = [*EACH][::3]
"""What the default run tries."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[] if name in SHORT else pytest.mark.full) for name, case in EACH.items()],
)
@pytest.mark.filterwarnings(MORE_PIECES)
@pytest.mark.usefixtures("registered")
def test_dask_computes_nothing_until_asked(case: Case) -> None:
    arrays = [of_dask(nested, "float64") for nested in case.arguments.values()]
    arrays += [of_dask(nested) for nested in case.constants.values()]
    with dask.config.set(scheduler=refuse):
        value, gradients = pnce.value_and_grad(case.function, argnums=tuple(range(len(case.arguments))))(*arrays)
    assert all(isinstance(x, dask.array.Array) for x in (value, *gradients))
    assert [x.shape for x in gradients] == [x.shape for x in arrays[: len(gradients)]]


@pytest.mark.usefixtures("registered")
def test_dask_arrays_of_unknown_length_are_refused() -> None:
    x = of_dask(X)
    unknown = x[x[:, 0] > -9.0]
    with pytest.raises(ValueError, match=r"query: expected known lengths of \(N, D\), got shape \(nan, 4\)"):
        pnce.info_nce(unknown, unknown)
    with pytest.raises(ValueError, match="scores: expected known lengths"):
        pnce.from_scores.info_nce(unknown)
    known = unknown.compute_chunk_sizes()
    assert float(pnce.info_nce(known, known)) == pytest.approx(float(pnce.info_nce(known.compute(), known.compute())))


def test_dask_is_one_line_away() -> None:
    # In a process of its own: here the line has been written.
    code = "import dask.array as da, portable_nce as p; x = da.ones((3, 2)); p.info_nce(x, x)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'portable_nce.register_backend("dask")' in result.stderr
    code = code.replace("x = ", 'p.register_backend("dask"); x = ')
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
