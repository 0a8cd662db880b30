"""``python -m portable_nce mi``: mutual information of two arrays in files."""

from __future__ import annotations

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimation import ConditionalInformation, MutualInformation, mutual_information
from .libraries import Unavailable, require

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

__all__ = ["information", "read_table"]

SEPARATORS = "\t;,"
"""Separators of cells, by precedence: where tabs or semicolons separate numbers, commas may be decimal points."""


def information(options: Namespace) -> int:
    """Print the estimate of two arrays, and draw it if Matplotlib is installed."""
    require({"numpy": "NumPy"}, "numpy")
    x, y = _loaded(options.files)
    groups, order = (None if path is None else _labels(path) for path in (options.groups, options.order))
    given = None if options.given is None else _array(options.given, whole=True)
    try:
        result = mutual_information(
            x,
            y,
            given=given,
            rng=options.seed,
            critic=options.critic,
            transform=options.transform,
            groups=groups,
            order=order,
            folds=options.folds,
            splits=options.splits,
            seeds=options.seeds,
            steps=options.steps,
            batch=options.batch,
        )
    except (TypeError, ValueError) as error:
        raise Unavailable(str(error)) from error
    where = sys.stderr if options.json else sys.stdout
    if isinstance(result, ConditionalInformation):
        print(json.dumps(result.to_dict()) if options.json else result)
        print("no picture: there is none given numbers", file=where)
        return 0
    print(json.dumps(_plain(result)) if options.json else f"{result}\n{result.sentence()}\n\n{result.report()}")
    if find_spec("matplotlib") is None:
        print("no picture: Matplotlib is not installed", file=where)
        return 0
    axes = result.plot()
    axes.set_title(" and ".join(path.name for path in options.files))
    replaced = ", in place of the file of that name" if options.output.exists() else ""
    axes.figure.savefig(options.output, dpi=120)
    print(f"picture: {options.output}{replaced}", file=where)
    return 0


def _plain(result: MutualInformation) -> dict[str, Any]:
    """Fields of a result with its texts; numbers that a flag rules out are null."""
    return {**result.to_dict(), "sentence": result.sentence(), "report": result.report()}


def _loaded(files: list[Path]) -> tuple[Values, Values]:
    """Arrays of two files, or x and y of one npz file, or its only two arrays."""
    import numpy as np

    if len(files) == 2:  # noqa: PLR2004  (x and y)
        x, y = map(_array, files)
    elif len(files) == 1 and files[0].suffix == ".npz":
        archive = _opened(files[0])
        names = ["x", "y"] if {"x", "y"} <= set(archive) else list(archive)
        if len(names) != 2:  # noqa: PLR2004  (x and y)
            raise Unavailable(f"{files[0]}: expected arrays x and y, got {', '.join(names)}")
        x, y = (np.asarray(archive[name]) for name in names)
    else:
        raise Unavailable("expected two files, or one npz file with the arrays x and y")
    return x, y


def _array(path: Path, *, whole: bool = False) -> Values:
    """Array of an npy, npz or csv file; `whole` keeps whole numbers of a csv file as integers."""
    import numpy as np

    result = _opened(path, whole=whole)
    if isinstance(result, np.ndarray):
        return result
    if len(result) != 1:
        raise Unavailable(f"{path}: expected one array, got {', '.join(result)}")
    return np.asarray(next(iter(result.values())))


def _labels(path: Path) -> list[Any]:
    """Label of each row."""
    found = _array(path)
    if found.ndim != 1 and found.size != found.shape[0]:
        raise Unavailable(f"{path}: expected one column, got shape {found.shape}")
    return list(found.ravel().tolist())


def _opened(path: Path, *, whole: bool = False) -> Any:
    """Array, or dict of arrays, read by NumPy from a file."""
    import numpy as np

    try:
        if path.suffix == ".npz":
            with np.load(path) as archive:
                return dict(archive)
        if path.suffix == ".npy":
            return np.load(path)
        return read_table(path, whole=whole)
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise Unavailable(f"{path}: {error}") from error


def read_table(path: Path, *, whole: bool = False) -> Values:
    """Numbers or names of a file of lines, with commas, semicolons or tabs between them, and perhaps a header.

    With semicolons or tabs, numbers may have decimal commas.
    The first line is a header if none of its cells is a number, and the second line has one.
    With `whole`, a table of numbers without decimal point and exponent has integers.
    """
    import numpy as np

    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    separator = next((one for one in SEPARATORS if one in first), ",")
    lines = [line for line in csv.reader(text.splitlines(), delimiter=separator) if any(cell.strip() for cell in line)]
    if separator != ",":
        lines = [[_with_point(cell) for cell in line] for line in lines]
    if not lines:
        raise ValueError("the file has no rows")
    if len({len(line) for line in lines}) > 1:
        raise ValueError(f"expected {len(lines[0])} values in each line, got {sorted({len(line) for line in lines})}")
    if len(lines) > 1 and not any(map(_is_number, lines[0])) and any(map(_is_number, lines[1])):
        print(f"{path}: using the first line as a header", file=sys.stderr)
        lines = lines[1:]
    missing = [k for k, line in enumerate(lines, 1) if any(not cell.strip() for cell in line)]
    if missing:
        raise ValueError(f"row {missing[0]} has an empty cell; leave such rows out of both files")
    cells = [cell for line in lines for cell in line]
    numbers, integers = all(map(_is_number, cells)), whole and all(map(_is_integer, cells))
    entry: Callable[[str], Any] = int if integers else float if numbers else str.strip
    table = np.asarray([[entry(cell) for cell in line] for line in lines])
    return table[:, 0] if table.shape[1] == 1 else table


def _with_point(cell: str) -> str:
    """Cell with a decimal point, if it is a number with a decimal comma."""
    other = cell.replace(",", ".", 1)
    return other if _is_number(other) else cell


def _reads(kind: Callable[[str], Any], cell: str) -> bool:
    """Whether a cell is a number of this kind."""
    try:
        kind(cell)
    except ValueError:
        return False
    return True


_is_number, _is_integer = partial(_reads, float), partial(_reads, int)
