"""``python -m portable_nce check``: errors of each backend against exact arithmetic.

Errors are in units ``eps * scale``: the machine epsilon of the dtype times the largest magnitude of the exact result
(the value, or the gradient by one argument). A cell of the table is the worst error over the cases of
`portable_nce.testing` that call the loss, and over their arguments.

By default, cases that differ only in bookkeeping (sums, weights, masks, indices, most streamed executions), or repeat a
named loss by `contrast`, are skipped, since JAX compiles each of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._core.autodiff import value_and_grad
from .._core.registry import backends_available
from ..testing import make_cases
from ..testing.variants import flatten
from .libraries import OpenLibrary, Unavailable, open_library

if TYPE_CHECKING:
    from ..testing import Case

__all__ = ["LIMITS", "check", "errors"]

ROWS = 3
"""Rows of the examples; few, since exact arithmetic is slow."""

DIGITS = 50

WIDTH = 40
"""Width of the bar of progress."""

BOOKKEEPING = re.compile(
    r"sum|weights|mask|detach|own|shared|index|normalized|flat_nce, |themselves|two views|\w.* streamed"
)
"""Pattern in the names of skipped cases, after the name of the loss."""

EXACT = "mparray"
"""Library of the exact oracle, not a backend to check."""

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}

LIMITS = {"value": 64.0, "gradient": 64.0}
"""Largest error, in units in the last place, that counts as agreement.

Rounding a similarity costs about one unit, which a temperature of 0.03 in the saturated cases turns into 30 units of
the score. Sums of a few terms cost the rest.
"""

Results = list[list[Any]]
"""Value and gradients of a case, as flat lists of floats or mpmath numbers."""


@dataclass
class Column:
    """Worst errors of one backend in one dtype, by loss and kind, in units in the last place.

    `largest` is the worst of all, with its kind and the name of its case.
    """

    library: OpenLibrary
    dtype: str
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    largest: tuple[float, str, str] = (0.0, "value", "")

    def add(self, case: Case, exact: Results) -> None:
        """Compute a case and record its errors if they are the worst of its loss."""
        result = differentiate(self.library.asarray, case, self.dtype)
        numbers = [flatten(self.library.to_list(x)) for x in result]
        for kind, error in errors(numbers, exact, EPS[self.dtype]):
            key = (case.loss, kind)
            self.worst[key] = max(self.worst.get(key, 0.0), error)
            self.largest = max(self.largest, (error, kind, case.name))


def check(backends: Sequence[str] | None = None, *, every: bool = False, verbose: bool = False) -> int:
    """Print the worst errors, and the table if `verbose`; return 0 if every error is within the limits, else 1."""
    libraries = _libraries(backends)
    oracle, title = _oracle()
    columns = [Column(library, dtype) for library in libraries for dtype in EPS if dtype in library.adapter.dtypes]
    cases = [c for c in make_cases(ROWS) if every or not BOOKKEEPING.search(c.name.removeprefix(c.loss))]
    for case in _shown(cases):
        exact = oracle(case)
        for column in columns:
            column.add(case, exact)
    beyond = [
        f"{column.library.name} {column.dtype}: {loss}, {kind}: {error:.3g}"
        for column in columns
        for (loss, kind), error in column.worst.items()
        if not error <= LIMITS[kind]  # NaN is a disagreement
    ]
    limits = ", ".join(f"{kind} {limit:g}" for kind, limit in LIMITS.items())
    if beyond:
        print(f"Beyond the limits ({limits}):", *beyond, sep="\n  ")
    else:
        print(f"Every error is within the limits ({limits}).")
    for dtype in dict.fromkeys(column.dtype for column in columns):
        worst = max((column for column in columns if column.dtype == dtype), key=lambda column: column.largest)
        error, kind, name = worst.largest
        print(f"Worst in {dtype}: {error:.1f} ulp, the {kind} of {name!r} on {worst.library.name}.")
    print(f"\nErrors are in units in the last place (ulp), over {len(cases)} cases of {ROWS} rows.")
    print("1 ulp = eps(dtype) * largest magnitude of the exact value, or of the exact gradient of an argument.")
    print(f"Reference: {title}.")
    if verbose:
        _table(columns, list(dict.fromkeys(case.loss for case in cases)))
    else:
        print("--verbose prints the errors of every loss.")
    return 1 if beyond else 0


def _shown(cases: Sequence[Case]) -> Iterator[Case]:
    """Give the cases, with a bar of progress on a terminal."""
    for done, case in enumerate(cases):
        if sys.stderr.isatty():
            bar = "#" * (WIDTH * done // len(cases))
            print(f"\r[{bar:<{WIDTH}}] {done} of {len(cases)} cases", end="", file=sys.stderr, flush=True)
        yield case
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def errors(result: Results, exact: Results, eps: float) -> Iterator[tuple[str, float]]:
    """Errors of the value and of each gradient, in units in the last place."""
    for kind, numbers, wanted in zip(["value", *["gradient"] * (len(exact) - 1)], result, exact, strict=True):
        difference = max(abs(x - y) for x, y in zip(numbers, wanted, strict=True))
        scale = max(map(abs, wanted))
        unit = eps * (scale or 1)  # an exact 0 has no last place: relative to 1
        yield kind, float(difference / unit)


def differentiate(asarray: Callable[[Any, str], Any], case: Case, dtype: str) -> list[Any]:
    """Value and gradients of a case."""
    arguments = [asarray(nested, dtype) for nested in case.arguments.values()]
    constants = [asarray(nested, _kind(nested) or dtype) for nested in case.constants.values()]
    value, gradients = value_and_grad(case.function, argnums=tuple(range(len(arguments))))(*arguments, *constants)
    return [value, *gradients]


def _kind(nested: Any) -> str | None:
    """Dtype of booleans and integers, None for floats."""
    while isinstance(nested, list):
        nested = nested[0]
    return "bool" if isinstance(nested, bool) else "int64" if isinstance(nested, int) else None


def _oracle() -> tuple[Callable[[Case], Results], str]:
    """Function that computes the exact results of a case, and its description."""
    exactly = _working([EXACT] if EXACT in backends_available() else [])
    if exactly:
        import mpmath

        library = exactly[0]
        mpmath.mp.dps = DIGITS

        def exact(case: Case) -> Results:
            results = differentiate(library.asarray, case, "float64")
            return [x._data.reshape(-1).tolist() for x in results]  # noqa: SLF001  (no public way)

        return exact, f"the same code in {DIGITS} digits (mparray {library.adapter.version})"
    library = _double(backends_available())

    def double(case: Case) -> Results:
        return [flatten(library.to_list(x)) for x in differentiate(library.asarray, case, "float64")]

    return double, f"{library.name} {library.adapter.version} in float64; exact with an mparray that works"


def _double(names: Sequence[str]) -> OpenLibrary:
    """NumPy, or else the first working library with float64."""
    for name in sorted(names, key=lambda name: name != "numpy"):
        try:
            library = open_library(name)
        except Unavailable:
            continue
        if "float64" in library.adapter.dtypes:
            return library
    raise Unavailable('a reference in float64 is needed; pip install "portable_nce[numpy]"')


def _libraries(backends: Sequence[str] | None) -> list[OpenLibrary]:
    """Libraries to check: the requested ones, which must all work, or all that work."""
    if backends:
        if EXACT in backends:
            raise Unavailable(f"--backend {EXACT}: it is the exact arithmetic that the others are checked against")
        return [open_library(name) for name in dict.fromkeys(backends)]
    result = _working([name for name in backends_available() if name != EXACT])
    if not result:
        raise Unavailable('no backend to check is installed; pip install "portable_nce[numpy]"')
    return result


def _working(names: Sequence[str]) -> list[OpenLibrary]:
    """Working libraries among these names; print why the others do not work."""
    result = []
    for name in names:
        try:
            result.append(open_library(name))
        except Unavailable as error:
            print(f"left out: {error}")
    return result


def _table(columns: list[Column], losses: list[str]) -> None:
    print()
    width = max(map(len, losses))
    cells = {name: max(len(name), 16) // 2 for name in (column.library.name for column in columns)}
    libraries = {column.library.name: "" for column in columns}
    for column in columns:
        libraries[column.library.name] += column.dtype.rjust(cells[column.library.name] + 1)
    print(" " * (width + 10) + "".join(f"{name:>{len(head) + 1}}" for name, head in libraries.items()))
    header = "loss".ljust(width + 10) + "".join(f" {head}" for head in libraries.values())
    print(header, "-" * len(header), sep="\n")
    for loss in losses:
        for kind in LIMITS:
            line = f"{loss if kind == 'value' else '':<{width}}  {kind:<8}"
            for name in libraries:
                own = [column.worst[loss, kind] for column in columns if column.library.name == name]
                line += " " + "".join(f"{error:{cells[name] + 1}.1f}" for error in own)
            print(line)
