"""Which tests of the conformance suite the options and the variant select, and in which order."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from portable_nce.testing import CASES, suite

SUITE = "portable_nce.testing.suite"


def collected(*options: str, code: int = 0) -> list[str]:
    """List the tests that pytest selects, or what it prints if it should fail with a code."""
    plugin = "-p", f"{SUITE.rpartition('.')[0]}.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"
    command = [sys.executable, "-P", "-m", "pytest", *plugin, "--pyargs", SUITE, "--collect-only", "-q", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (what stands above)
    assert result.returncode == code, result.stdout + result.stderr
    return (result.stdout + result.stderr).splitlines()


def test_one_dtype_and_no_repetitions() -> None:
    tests = [line for line in collected("--dtype=float32", "-m", "not repetition") if "::" in line]
    assert not [line for line in tests if "float64" in line or "float16" in line]
    cases = [line for line in tests if "::test_independent_oracle[" in line]
    streamed = {case.loss for case in CASES if case.name.endswith("streamed")}
    assert len([line for line in cases if "streamed-" in line]) >= len(streamed)
    assert len([line for line in cases if "streamed-" not in line]) == len(
        [case for case in CASES if not case.name.endswith("streamed")]
    )


def test_no_test_is_left_out_everywhere() -> None:
    """A parameter that the plugin takes for a dtype would leave out all tests of a function, on every variant."""
    run = {line.partition("[")[0].rpartition("::")[2] for line in collected() if "::" in line}
    folder = Path(suite.__file__).parent
    written = {
        node.name
        for path in folder.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert len(written) > 100
    # NumPy has one device.
    assert written - run == {"test_two_devices"}


def test_the_tests_of_a_case_stand_side_by_side() -> None:
    lines = collected("-k", "independent_oracle or exact_core or belong_to_the_input", "--dtype=float64")
    cases = [
        line.partition("[")[2] for line in lines if "::test_independent_oracle[" in line or "::test_exact_core[" in line
    ]
    assert len(cases) == 2 * len(CASES)
    assert len(list(groupby(cases))) == len(CASES)


def test_mparray_is_not_compared_with_itself() -> None:
    lines = collected("--variant=mparray", "-k", "values_and_gradients")
    assert [line for line in lines if "::test_independent_oracle[" in line]
    assert not [line for line in lines if "::test_exact_core[" in line]


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_a_dtype_that_the_variant_does_not_have_is_refused(name: str) -> None:
    (line,) = (line for line in collected(f"--dtype={name}", code=4) if "--dtype" in line)
    assert f"--dtype {name}: numpy runs in float64, float32, float16" in line
