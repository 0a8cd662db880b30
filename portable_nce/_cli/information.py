"""``python -m portable_nce mi``: mutual information of two arrays in files."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimation import (
    ConditionalInformation,
    IndependenceTest,
    MutualInformation,
    independence_test,
    mutual_information,
    table,
)
from .libraries import Refused, require
from .picture import check_writable
from .tables import Columns, read_array

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

__all__ = ["information"]


def information(options: Namespace) -> int:
    """Print the estimate of two arrays, and draw it if Matplotlib is installed."""
    require({"numpy": "NumPy"}, "numpy")
    x, y, columns = _loaded(options.files)
    groups, order = (_labels(name, columns, len(x)) for name in (options.groups, options.order))
    if order and isinstance(order[0], (str, bytes)):
        print(f"{options.order}: the times are names, sorted as text", file=sys.stderr)
    given = _rows_of(options.given, columns, len(x))
    given_numbers = given is not None and given.dtype.kind == "f"
    if options.units == "bits" and given_numbers:
        raise Refused("--units bits: expected categories as a third variable, got numbers; their results are in nats")
    has_matplotlib = find_spec("matplotlib") is not None
    if has_matplotlib and not given_numbers:
        check_writable(options.output)
    rows = {"given": given, "groups": groups, "order": order, "rng": options.seed}
    try:
        tested = independence_test(x, y, **rows) if options.test else None
        result = mutual_information(
            x,
            y,
            **rows,
            critic=options.critic,
            transform=options.transform,
            folds=options.folds,
            splits=options.splits,
            networks=options.networks,
            steps=options.steps,
            batch=options.batch,
        )
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from error
    names = _names(options.files)
    print(_json(result, tested) if options.json else _text(result, tested, options, names))
    where = sys.stderr if options.json else sys.stdout
    if isinstance(result, ConditionalInformation):
        print("no picture: there is none given numbers", file=where)
        return 0
    if not has_matplotlib:
        print("no picture: Matplotlib is not installed", file=where)
        return 0
    axes = result.plot()
    axes.set_title(names, parse_math=False)  # a name may have dollar signs
    replaced = ", in place of the file of that name" if options.output.exists() else ""
    axes.figure.savefig(options.output, dpi=120)
    print(f"picture: {options.output}{replaced}", file=where)
    return 0


def _names(files: list[str]) -> str:
    """Names of the arrays for titles."""
    if len(files) == _WITH_COLUMNS:
        return f"{files[1]} and {files[2]} of {Path(files[0]).name}"
    return " and ".join(Path(name).name for name in files)


def _text(
    result: MutualInformation | ConditionalInformation, tested: IndependenceTest | None, options: Namespace, names: str
) -> str:
    """Result and sentence, and what else was asked for."""
    if isinstance(result, ConditionalInformation):
        shown, report = str(result), result.report
    else:
        in_bits = options.units == "bits"
        shown = f"in bits\n{table({names: result}, units='bits')}" if in_bits else str(result)
        report = partial(result.report, units=options.units)
    # The report given numbers begins with the sentence.
    begun = options.report and isinstance(result, ConditionalInformation)
    parts = [shown] if begun else [shown, result.sentence()]
    if tested is not None:
        parts.append(tested.sentence())
    return "\n".join([*parts, "", report()] if options.report else parts)


def _json(result: MutualInformation | ConditionalInformation, tested: IndependenceTest | None) -> str:
    """Fields of a result with its texts; numbers that a flag rules out are null."""
    fields = {**result.to_dict(), "sentence": result.sentence(), "report": result.report()}
    return json.dumps(fields if tested is None else {**fields, "test": tested.to_dict()})


_WITH_COLUMNS = 3
"""Number of arguments with a file, the columns of x and those of y."""


def _loaded(files: list[str]) -> tuple[Values, Values, Columns | None]:
    """Arrays of two files, of columns of one file, or x and y of one npz file, or its only two arrays."""
    if len(files) == _WITH_COLUMNS:
        columns = Columns.of(Path(files[0]))
        return columns.read(files[1]), columns.read(files[2]), columns
    first, *rest = map(Path, files)
    if len(rest) == 1:
        x = read_array(first)
        return x, read_array(rest[0], rows=len(x)), None
    if rest or first.suffix != ".npz":
        raise Refused("expected two files, one file with names of columns, or one npz file with the arrays x and y")
    found = Columns.of(first)
    names = ["x", "y"] if {"x", "y"} <= found.arrays.keys() else [*found.arrays]
    if len(names) != 2:  # noqa: PLR2004  (x and y)
        raise Refused(f"{first}: expected arrays x and y, got {', '.join(names)}")
    x, y = map(found.array, names)
    return x, y, None


def _labels(name: str | None, columns: Columns | None, rows: int) -> list[Any] | None:
    """Label or time of each row, from a column of the table or from a file."""
    found = _rows_of(name, columns, rows)
    if found is None:
        return None
    if found.size != len(found):
        raise Refused(f"{name}: expected one column, got shape {found.shape}")
    return list(found.ravel().tolist())


def _rows_of(name: str | None, columns: Columns | None, rows: int) -> Values | None:
    """Array of an option, from columns of the table or from a file; whole numbers are integers."""
    if name is None:
        return None
    if columns is not None and columns.has(name):
        return columns.read(name, whole=True)
    return read_array(Path(name), whole=True, rows=rows)
