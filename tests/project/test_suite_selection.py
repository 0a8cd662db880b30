"""Selection and order of the tests of the conformance suite, by options and variant."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

import portable_nce
from portable_nce._core import calls
from portable_nce._core.checks import is_readable
from portable_nce._core.registry import adapter_of
from portable_nce.testing import CASES, make_cases, suite
from portable_nce.testing.cases import NOT_REDUCED
from portable_nce.testing.covering import FORMS, covering
from portable_nce.testing.variants import CHOOSE_BY_DEVICE, Variant, started

SUITE = "portable_nce.testing.suite"


def run(*options: str, code: int = 0, path: str = "", part: str = "") -> list[str]:
    """Output of the suite or of one of its modules, with modules of a folder before others."""
    plugin = "-p", f"{SUITE.rpartition('.')[0]}.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"
    command = [sys.executable, "-P", "-m", "pytest", *plugin, "--pyargs", f"{SUITE}{part}", "-q", *options]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == code, result.stdout + result.stderr
    return (result.stdout + result.stderr).splitlines()


def collected(*options: str, code: int = 0, part: str = "") -> list[str]:
    """Tests that pytest selects, or its output if it is expected to fail with a code."""
    return run("--collect-only", *options, code=code, part=part)


CASE_BY_CASE = ".test_values_and_gradients"
"""The module of the tests of each case."""


SHORT = "-p", f"{SUITE.rpartition('.')[0]}.covering"


def test_a_short_run_has_every_case_on_numpy_and_every_loss_elsewhere() -> None:
    lines = collected(*SHORT, "--variant=numpy-readonly", "--variant=torch", "-k", "test_case", part=CASE_BY_CASE)
    cases = {
        name: [line.partition(f"[{name}-")[2].removesuffix("]") for line in lines if f"::test_case[{name}-" in line]
        for name in ("numpy-readonly", "torch")
    }
    assert {f"{case.name}-float64" for case in CASES} <= set(cases["numpy-readonly"])
    kinds = {case.name: (case.loss, case.regime) for case in CASES}
    found = {kinds[case.rpartition("-")[0]] for case in cases["torch"]}
    assert found == set(kinds.values())
    assert len(cases["torch"]) < 1.5 * len(found)
    assert {case.rpartition("-")[2] for case in cases["torch"]} == {"float64", "float32"}


def test_a_short_run_has_every_form_of_call_where_nothing_can_be_read() -> None:
    tests = {"torch-blind": "test_case", "torch-halves": "test_products_of_sixteen_bits"}
    lines = collected(
        *SHORT, *(f"--variant={name}" for name in tests), "-k", " or ".join(tests.values()), part=CASE_BY_CASE
    )
    for variant, test in tests.items():
        ends = (line.partition(f"::{test}[{variant}-")[2].removesuffix("]") for line in lines)
        run = {end.removesuffix("-float64") for end in ends} & FORMS.keys()
        names = {case.name for case in CASES if test == "test_case" or case.loss not in NOT_REDUCED}
        assert {FORMS[name] for name in run} == {FORMS[name] for name in names}
        assert len(run) < 0.7 * len(names)
        # A form that differs from others of its loss: weights, and a queue that is not full.
        assert "dclw queue, weights of pairs" in run


@pytest.mark.parametrize("name", ["torch-blind", "torch-halves"])
def test_a_blind_variant_reads_no_entry(name: str) -> None:
    variant = started(name)
    x = variant.floats([[1.0, 2.0]])
    assert is_readable(x)
    calls.KINDS[name] = None  # type: ignore[assignment]
    try:
        with variant.active():
            assert not is_readable(x)
            assert adapter_of(x).concrete_value(x[0, 0]) is None
            assert adapter_of(x).concrete_values(x[0]) is None
            assert adapter_of(x).has_half_products(x) == variant.half_products
            assert not calls.KINDS
            for module in CHOOSE_BY_DEVICE:
                assert importlib.import_module(f"portable_nce.{module}").on_accelerator(x)
        assert name in calls.KINDS
        assert is_readable(x)
        assert not adapter_of(x).has_half_products(x)
    finally:
        del calls.KINDS[name]


def test_a_blind_variant_knows_every_module_that_asks_for_the_device() -> None:
    root = Path(portable_nce.__file__).parent
    asking = [path for path in root.rglob("*.py") if "testing" not in path.parts and "on_accelerator(" in text(path)]
    modules = {".".join(path.relative_to(root).with_suffix("").parts) for path in asking}
    assert modules - {"_core.registry"} == {*CHOOSE_BY_DEVICE}


def text(path: Path) -> str:
    """Text of a file."""
    return path.read_text(encoding="utf-8")


def test_a_covering_array_holds_every_value() -> None:
    sets = [{"a": i, "b": j, "c": k} for i in range(5) for j in range(6) for k in range(7)]
    chosen = [sets[k] for k in covering(sets, "seed")]
    assert len(chosen) <= 9
    assert [len({of[name] for of in chosen}) for name in "abc"] == [5, 6, 7]
    assert list(covering([{}], "a test without parameters")) == [0]


def test_the_suite_runs_on_one_dtype() -> None:
    tests = [line for line in collected("--dtype=float32") if "::" in line]
    assert not [line for line in tests if "float64" in line or "float16" in line]


def test_no_test_is_left_out_everywhere() -> None:
    """A parameter that the plugin mistakes for a dtype would deselect all tests of a function, on every variant."""
    run = {line.partition("[")[0].rpartition("::")[2] for line in collected() if "::" in line}
    folder = Path(suite.__file__).parent
    written = {
        node.name
        for path in folder.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert len(written) > 100
    # NumPy has one device and no 16-bit products.
    assert written - run == {"test_arrays_on_two_devices_are_refused", "test_products_of_sixteen_bits"}


def test_the_tests_of_a_case_stand_side_by_side() -> None:
    """On all variants, so that a process computes each oracle once."""
    lines = collected(
        "--variant=numpy-readonly", "--variant=torch", "-k", "test_case", "--dtype=float64", part=CASE_BY_CASE
    )
    cases = [re.sub(r".*test_case\[(numpy-readonly|torch)-", "", line) for line in lines if "::test_case[" in line]
    assert len(cases) == 2 * len(CASES)
    assert len(list(groupby(cases))) == len(CASES)


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_a_dtype_that_the_variant_does_not_have_is_refused(name: str) -> None:
    (line,) = (line for line in collected(f"--dtype={name}", code=4) if "--dtype" in line)
    assert f"--dtype {name}: numpy runs in float64, float32, float16" in line


@pytest.mark.parametrize("name", [":", "numpy:", ":VARIANT", "nupmy"])
def test_a_name_of_no_variant_is_refused(name: str) -> None:
    (line,) = (line for line in collected(f"--variant={name}", code=4) if "--variant" in line)
    assert f"--variant {name}: no such variant; expected module:attribute or one of: numpy, " in line


@pytest.mark.parametrize("field", ["dtypes='float64'", "dtypes=()", "dtypes=('float63',)"])
def test_a_module_with_a_wrong_variant_is_refused(field: str, tmp_path: Path) -> None:
    code = f"from portable_nce.testing import Variant\nVARIANT = Variant(name='a', module='a', library='a', {field})\n"
    (tmp_path / "wrong.py").write_text(code, encoding="utf-8")
    lines = run("--variant=wrong:VARIANT", "--collect-only", code=4, path=str(tmp_path))
    (line,) = (line for line in lines if "--variant" in line)
    assert "--variant wrong:VARIANT: dtypes: expected " in line


@pytest.mark.parametrize("name", ["dtypes", "further_dtypes", "slice", "harmless"])
def test_a_text_in_place_of_a_tuple_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}: expected a tuple, got 'float64'; write a comma: \('float64',\)"):
        Variant(name="mylib", module="mylib", library="mylib", **{name: "float64"})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtypes", [(), ("float63",), ("float64", "double")])
def test_a_variant_has_dtypes_that_the_suite_knows(dtypes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="dtypes: expected at least one of float64, float32, float16, bfloat16, got "):
        Variant(name="mylib", module="mylib", library="mylib", dtypes=dtypes)


def test_tests_of_mixed_libraries_need_no_second_library(tmp_path: Path) -> None:
    for name in ("mparray", "torch", "jax"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')\n", encoding="utf-8")
    lines = run(
        "-k",
        "test_wrong_arguments or test_arguments_that_do_not_fit or (test_wrong_arrays and moco)",
        path=str(tmp_path),
    )
    assert " passed" in lines[-1]


@pytest.mark.parametrize(("sizes", "name"), [({"rows": 1}, "rows"), ({"features": 0}, "features")])
def test_cases_have_rows_and_features(sizes: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: expected at least \d, got {sizes[name]}"):
        make_cases(**sizes)
    assert len(make_cases(2, 1)) == len(CASES)
