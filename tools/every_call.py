"""Run every call of the table, with gradients, on some variants: ``python -W error tools/every_call.py numpy jax-x64``.

It shows that a release of an array library runs them without an error or a warning, and prints that release.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version
from typing import Any

import portable_nce as pnce
from portable_nce.testing.cases import CASES, WITHOUT_GRADIENT, Case
from portable_nce.testing.variants import Variant, case_arrays, started


def run(variant: Variant, case: Case) -> None:
    """Compute value and gradients; on JAX, whose compiler would take long, trace them."""
    function: Any = case.function
    if case.loss not in WITHOUT_GRADIENT:
        function = pnce.value_and_grad(function, tuple(range(len(case.arguments))))
    arrays = case_arrays(variant, case, variant.dtypes[0])
    if variant.module == "jax":
        importlib.import_module("jax").eval_shape(function, *arrays)
    else:
        function(*arrays)


def main(names: list[str]) -> int:
    """Run the calls on each variant; return the number of calls that failed."""
    failed = 0
    for variant in map(started, names):
        errors: list[str] = []
        with variant.active():
            for case in CASES:
                try:
                    run(variant, case)
                except Exception as error:  # noqa: BLE001  (warnings are errors; all are reported)
                    errors.append(f"{case.name}: {type(error).__name__}: {error}")
        release = f"{variant.library} {version(variant.library)}"
        print(f"{variant.name}: {release}, {len(CASES)} calls, {len(errors)} failed", flush=True)
        print(*errors, sep="\n", end="\n" if errors else "")
        failed += len(errors)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
