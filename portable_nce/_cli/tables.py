"""Arrays of files for the command line: npy, npz, and lines of numbers or names."""

from __future__ import annotations

import csv
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from ..estimation.host import on_host
from .libraries import Refused

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

__all__ = ["Columns", "arrays_of", "read_array", "read_labels", "read_table"]

SEPARATORS = "\t;,"
"""Separators of cells, by precedence: where tabs or semicolons separate numbers, commas may be decimal points."""

NPY, ZIP = b"\x93NUMPY", b"PK"
"""First bytes of files that NumPy writes."""

MISSING = {"#n/a", "-", "--", ".", "?", "missing", "n/a", "na", "nil", "none", "null"}
"""Cells that stand for a missing number."""

DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?")


def arrays_of(path: Path) -> dict[str, Values]:
    """Arrays of an npz file by name."""
    result = _opened(path)
    return result if isinstance(result, dict) else {path.stem: result}


def read_array(path: Path, *, whole: bool = False, rows: int | None = None) -> Values:
    """Array of an npy, npz or csv file; `whole` keeps whole numbers of a csv file as integers.

    `rows`: number of rows that the array should have; names with one row more have a header.
    """
    result = _opened(path, whole=whole, rows=rows)
    if not isinstance(result, dict):
        return result
    if len(result) != 1:
        raise Refused(f"{path}: expected one array, got {', '.join(result)}")
    return next(iter(result.values()))


def read_labels(path: Path, rows: int) -> list[Any]:
    """Label of each row."""
    found = read_array(path, rows=rows)
    if found.ndim == 0 or found.size != found.shape[0]:
        raise Refused(f"{path}: expected one column, got shape {found.shape}")
    return list(found.ravel().tolist())


@dataclass(frozen=True)
class Columns:
    """Columns of a file of lines with a header, or arrays of an npz file, by name."""

    path: Path
    cells: Mapping[str, Sequence[str]]
    arrays: Mapping[str, Values]

    @classmethod
    def of(cls, path: Path) -> Columns:
        """Read the names, and the cells or arrays under them."""
        with _refusals(path):
            if _is_saved(path):
                return cls(path, {}, arrays_of(path))
            names, *lines = _lines(path)
            names = [name.strip() for name in names]
            if not lines or any(map(_is_number, names)):
                raise ValueError(f"expected names of columns in the first line, and rows, got {', '.join(names)}")
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"expected different names of columns, got {twice!r} twice")
            return cls(path, dict(zip(names, zip(*lines, strict=True), strict=True)), {})

    def has(self, names: str) -> bool:
        """Whether each name, between commas, is one of a column."""
        return all(name.strip() in {*self.cells, *self.arrays} for name in names.split(","))

    def read(self, names: str, *, whole: bool = False) -> Values:
        """Array of some columns, with commas between their names; `whole` as in `read_table`."""
        import numpy as np

        wanted = [name.strip() for name in names.split(",")]
        if not self.has(names):
            raise Refused(
                f"{self.path}: expected some of the columns {', '.join([*self.cells, *self.arrays])}, got {names}"
            )
        with _refusals(self.path):
            if self.arrays:
                found = [self.arrays[name] for name in wanted]
                return found[0] if len(found) == 1 else np.column_stack(found)
            return _array(self.path, wanted, [self.cells[name] for name in wanted], whole=whole)


def _is_saved(path: Path) -> bool:
    """Whether NumPy wrote the file, by its first bytes."""
    with path.open("rb") as file:
        first = file.read(len(NPY))
    if first == NPY or (first.startswith(ZIP) and path.suffix == ".npz"):
        return True
    if path.suffix in {".npy", ".npz"}:
        raise ValueError("expected a file that NumPy wrote, got another or a damaged one; name text .csv")
    return False


def _opened(path: Path, *, whole: bool = False, rows: int | None = None) -> Values | dict[str, Values]:
    """Array, or arrays by name, of a file."""
    with _refusals(path):
        return _saved(path) if _is_saved(path) else read_table(path, whole=whole, rows=rows)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Say in one line, with the name of the file, why it cannot be read."""
    try:
        yield
    except IsADirectoryError:
        raise Refused(f"{path}: expected a file, got a folder") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        at = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise Refused(f"{path}: expected text in UTF-8, got {at}; save it as csv in UTF-8, or as npy") from error
    except (ValueError, csv.Error) as error:
        raise Refused(f"{path}: {error}") from error


def _saved(path: Path) -> Values | dict[str, Values]:
    """What NumPy saved in a file."""
    import numpy as np

    try:
        with path.open("rb") as file:
            loaded: Any = np.load(file)
            found = dict(loaded) if hasattr(loaded, "files") else {"": loaded}
    except MemoryError as error:
        raise ValueError(f"expected an array that fits into memory, or a whole file: {error}") from error
    except (BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(f"expected a whole file, got a damaged or incomplete one: {error}") from error
    except ValueError as error:
        if "Object arrays" in str(error):
            raise ValueError("expected numbers or names, got Python objects; convert them before saving") from error
        raise ValueError(f"expected a whole file, got a damaged or incomplete one: {error}") from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"expected arrays, got the file {name}")  # noqa: TRY004  (of the content)
    return found[""] if [*found] == [""] else found


def read_table(path: Path, *, whole: bool = False, rows: int | None = None) -> Values:
    """Numbers or names of a file of lines, with commas, semicolons or tabs between them, and perhaps a header.

    With semicolons or tabs, numbers may have decimal commas.
    The first line is a header if none of its cells is a number, and the second line has one, or there is one line more
    than `rows`. A first column without a name that counts the rows is left out.
    With `whole`, a table of numbers without decimal point and exponent has integers.
    """
    lines = _lines(path)
    names = [f"{k}" for k in range(1, len(lines[0]) + 1)]
    if not any(map(_is_number, lines[0])):
        if len(lines) == 1:
            raise ValueError(f"expected rows of values, got the line {','.join(lines[0])!r} alone")
        if any(map(_is_number, lines[1])) or (rows is not None and len(lines) == rows + 1):
            print(f"{path}: using the first line as a header", file=sys.stderr)
            names, *lines = lines
    if len(names) > 1 and not names[0].strip() and _counts([line[0] for line in lines]):
        print(f"{path}: the first column has no name and counts the rows: left out, as an index", file=sys.stderr)
        names, lines = names[1:], [line[1:] for line in lines]
    return _array(path, names, list(zip(*lines, strict=True)), whole=whole)


def _lines(path: Path) -> list[list[str]]:
    """Cells of the lines of a file, as many in each, with decimal points."""
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
    return lines


def _array(path: Path, names: Sequence[str], columns: Sequence[Sequence[str]], *, whole: bool) -> Values:
    """Array of columns; of one column, shape (N,)."""
    missing = [k for k, line in enumerate(zip(*columns, strict=True), 1) if any(not cell.strip() for cell in line)]
    if missing:
        raise ValueError(f"row {missing[0]} has an empty cell; leave such rows out of both files")
    for name, column in zip(names, columns, strict=True):
        _check_numbers(path, name.strip(), column)
    table = _mixed(path, names, columns, whole=whole)
    return table[:, 0] if table.shape[1] == 1 else table


def _check_numbers(path: Path, name: str, cells: Sequence[str]) -> None:
    """Refuse missing numbers, and say if a column of names has numbers, too."""
    others = [(k, cell.strip()) for k, cell in enumerate(cells, 1) if not _is_number(cell)]
    if not 0 < len(others) < len(cells):
        return
    row, first = others[0]
    if all(cell.casefold() in MISSING for _, cell in others):
        raise ValueError(f"row {row} has {first!r} in place of a number; leave such rows out of both files")
    said = f"column {name} holds {first!r} beside numbers, so all its cells are taken for names"
    print(f"{path}: {said}", file=sys.stderr)


def _mixed(path: Path, names: Sequence[str], columns: Sequence[Sequence[str]], *, whole: bool) -> Values:
    """Columns of numbers, of names, or of both, where names become numbers as in an array of names."""
    import numpy as np

    numeric = [all(map(_is_number, column)) for column in columns]
    of_names = [name.strip() for name, is_numeric in zip(names, numeric, strict=True) if not is_numeric]
    dates = [name.strip() for name, column in zip(names, columns, strict=True) if all(map(_is_date, column))]
    if dates:
        said = f"the dates of column {', '.join(dates)} are taken for names; for times, write numbers, such as days"
        print(f"{path}: {said}", file=sys.stderr)
    if all(numeric):
        integers = whole and all(_is_integer(cell) for column in columns for cell in column)
        entry: Callable[[str], Any] = int if integers else float
        return np.asarray([[entry(cell) for cell in column] for column in columns]).T
    if not any(numeric):
        return np.asarray([[cell.strip() for cell in column] for column in columns]).T
    print(f"{path}: column {', '.join(of_names)} holds names, the others numbers", file=sys.stderr)
    parts = [
        np.asarray([float(cell) for cell in column])[:, None]
        if is_numeric
        else on_host(str(path), np.asarray([cell.strip() for cell in column]))
        for column, is_numeric in zip(columns, numeric, strict=True)
    ]
    return np.concatenate(parts, axis=1)


def _counts(cells: Sequence[str]) -> bool:
    """Whether cells count 0, 1, 2 or 1, 2, 3."""
    if not all(map(_is_integer, cells)):
        return False
    numbers = [int(cell) for cell in cells]
    return numbers[0] in {0, 1} and numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def _with_point(cell: str) -> str:
    """Cell with a decimal point, if it is a number with a decimal comma."""
    other = cell.replace(",", ".", 1)
    return other if _is_number(other) else cell


def _is_date(cell: str) -> bool:
    return not _is_number(cell) and DATE.fullmatch(cell.strip()) is not None


def _reads(kind: Callable[[str], Any], cell: str) -> bool:
    """Whether a cell is a number of this kind."""
    try:
        kind(cell)
    except ValueError:
        return False
    return True


_is_number, _is_integer = partial(_reads, float), partial(_reads, int)
