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
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from ..estimation.host import on_host
from .libraries import Refused

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

__all__ = ["Columns", "read_array"]

SEPARATORS = "\t;,"
"""Separators of cells, by precedence: where tabs or semicolons separate numbers, commas may be decimal points."""

NPY, ZIP = b"\x93NUMPY", b"PK"
"""First bytes of files that NumPy writes."""

MISSING = {"", "#n/a", "-", "--", "-nan", ".", "?", "missing", "n/a", "na", "nan", "nil", "none", "null"}
"""Cells that stand for a missing number or name."""

DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?")


def read_array(path: Path, *, whole: bool = False, rows: int | None = None) -> Values:
    """Array of an npy, npz or csv file; `whole` keeps whole numbers of a csv file as integers.

    `rows`: number of rows that the array should have; names with one row more have a header.
    """
    with _refusals(path):
        content = path.read_bytes()  # once: a pipe has no second time
        saved = _saved(path, content)
        arrays = {path.stem: _table(path, content, whole=whole, rows=rows)} if saved is None else saved
        if len(arrays) != 1:
            raise ValueError(f"expected one array, got {', '.join(arrays)}")
        return _rows(*next(iter(arrays.items())))


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
            content = path.read_bytes()
            saved = _saved(path, content)
            if saved is not None:
                return cls(path, {}, saved)
            names, *lines = _lines(content)
            if not lines or any(map(_is_number, names)):
                raise ValueError(f"expected names of columns in the first line, and rows, got {', '.join(names)}")
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"expected different names of columns, got {twice!r} twice")
            return cls(path, dict(zip(names, zip(*lines, strict=True), strict=True)), {})

    def has(self, names: str) -> bool:
        """Whether each name, between commas, is one of a column."""
        return all(name.strip() in {*self.cells, *self.arrays} for name in names.split(","))

    def array(self, name: str) -> Values:
        """Array of an npz file."""
        with _refusals(self.path):
            return _rows(name, self.arrays[name])

    def read(self, names: str, *, whole: bool = False) -> Values:
        """Array of some columns, with commas between their names; `whole` as in `read_array`."""
        wanted = [name.strip() for name in names.split(",")]
        if not self.has(names):
            raise Refused(
                f"{self.path}: expected some of the columns {', '.join([*self.cells, *self.arrays])}, got {names}"
            )
        with _refusals(self.path):
            if self.arrays:
                return _joined(self.path, wanted, [_rows(name, self.arrays[name]) for name in wanted], whole=whole)
            return _array(self.path, wanted, [self.cells[name] for name in wanted], whole=whole)


def _rows(name: str, array: Values) -> Values:
    """Array of at least one axis."""
    if array.ndim == 0:
        raise ValueError(f"expected rows of values in {name}, got a single one")
    return array


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Say in one line, with the name of the file, why it cannot be read."""
    try:
        yield
    except IsADirectoryError:
        raise Refused(f"{path}: expected a file, got a folder") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise Refused(f"{path}: expected an array that fits into memory, or a whole file: {error}") from error
    except UnicodeDecodeError as error:
        at = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise Refused(f"{path}: expected text in UTF-8, got {at}; save it as csv in UTF-8, or as npy") from error
    except (TypeError, ValueError, csv.Error) as error:  # a TypeError of dates beside numbers
        raise Refused(f"{path}: {error}") from error


def _saved(path: Path, content: bytes) -> dict[str, Values] | None:
    """Arrays that NumPy saved, by name, or None for text; the one of an npy file has the name of the file."""
    import numpy as np

    if not content.startswith(NPY) and not (content.startswith(ZIP) and path.suffix == ".npz"):
        if path.suffix in {".npy", ".npz"}:
            raise ValueError("expected a file that NumPy wrote, got another or a damaged one; name text .csv")
        return None
    try:
        loaded: Any = np.load(BytesIO(content))
        found = dict(loaded) if hasattr(loaded, "files") else {path.stem: loaded}
    except (BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(f"expected a whole file, got a damaged or incomplete one: {error}") from error
    except ValueError as error:
        if "Object arrays" in str(error):
            raise ValueError("expected numbers or names, got Python objects; convert them before saving") from error
        raise ValueError(f"expected a whole file, got a damaged or incomplete one: {error}") from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"expected arrays, got the file {name}")  # noqa: TRY004  (of the content)
    return found


def _table(path: Path, content: bytes, *, whole: bool, rows: int | None) -> Values:
    """Numbers or names of a file of lines, with commas, semicolons or tabs between them, and perhaps a header.

    With semicolons or tabs, numbers may have decimal commas.
    The first line is a header if none of its cells is a number, and the second line has one, or there is one line more
    than `rows`. A first column without a name that counts the rows is left out.
    With `whole`, columns of numbers without decimal point and exponent are integers.
    """
    lines = _lines(content)
    names = [f"{k}" for k in range(1, len(lines[0]) + 1)]
    if not any(map(_is_number, lines[0])):
        if len(lines) == 1:
            raise ValueError(f"expected rows of values, got the line {','.join(lines[0])!r} alone")
        if any(map(_is_number, lines[1])) or (rows is not None and len(lines) == rows + 1):
            print(f"{path}: using the first line as a header", file=sys.stderr)
            names, *lines = lines
    if len(names) > 1 and not names[0] and _counts([line[0] for line in lines]):
        print(f"{path}: the first column has no name and counts the rows: left out, as an index", file=sys.stderr)
        names, lines = names[1:], [line[1:] for line in lines]
    return _array(path, names, list(zip(*lines, strict=True)), whole=whole)


def _lines(content: bytes) -> list[list[str]]:
    """Cells of the lines of a file, as many in each, without spaces around them, with decimal points."""
    file = StringIO(content.decode("utf-8-sig"), newline=None)  # lines end at \n, \r and \r\n, not at U+2028
    first = next((line for line in file if line.strip()), "")
    file.seek(0)
    separator = next((one for one in SEPARATORS if one in first), ",")
    lines = [[cell.strip() for cell in line] for line in csv.reader(file, delimiter=separator)]
    lines = [line for line in lines if any(line)]
    if separator != ",":
        lines = [[_with_point(cell) for cell in line] for line in lines]
    if not lines:
        raise ValueError("the file has no rows")
    if len({len(line) for line in lines}) > 1:
        raise ValueError(f"expected {len(lines[0])} values in each line, got {sorted({len(line) for line in lines})}")
    return lines


def _array(path: Path, names: Sequence[str], columns: Sequence[Sequence[str]], *, whole: bool) -> Values:
    """Array of columns of cells."""
    for row, line in enumerate(zip(*columns, strict=True), 1):
        missing = next((cell for cell in line if cell.casefold() in MISSING), None)
        if missing is not None:
            remedy = "leave such rows out, of both files if there are two, or rename the class"
            raise ValueError(f"row {row}: expected a value, got {missing!r}; {remedy}")
    arrays = [_column(path, name, cells, whole=whole) for name, cells in zip(names, columns, strict=True)]
    return _joined(path, names, arrays, whole=whole)


def _column(path: Path, name: str, cells: Sequence[str], *, whole: bool) -> Values:
    """Numbers or names of a column; prints what dates, and numbers beside names, are taken for."""
    import numpy as np

    others = [cell for cell in cells if not _is_number(cell)]
    if not others:
        entry: Callable[[str], Any] = int if whole and all(map(_is_integer, cells)) else float
        return np.asarray([entry(cell) for cell in cells])
    if len(others) < len(cells):
        said = f"column {name} holds {others[0]!r} beside numbers, so all its cells are taken for names"
        print(f"{path}: {said}", file=sys.stderr)
    elif all(map(DATE.fullmatch, cells)):
        said = f"the dates of column {name} are taken for names; for times, write numbers, such as days"
        print(f"{path}: {said}", file=sys.stderr)
    return np.asarray(cells)


def _joined(path: Path, names: Sequence[str], columns: Sequence[Values], *, whole: bool) -> Values:
    """Columns side by side; names beside numbers become numbers as in an array of names.

    With `whole`, integers beside names alone are names, too.
    """
    import numpy as np

    if len(columns) == 1:
        return columns[0]
    of_names = [name for name, column in zip(names, columns, strict=True) if column.dtype.kind in "SU"]
    parts: list[Any] = [*columns]
    if 0 < len(of_names) < len(columns) and not (whole and all(column.dtype.kind != "f" for column in columns)):
        print(f"{path}: column {', '.join(of_names)} holds names, the others numbers", file=sys.stderr)
        parts = [on_host(str(path), column) if column.dtype.kind in "SU" else column for column in columns]
    return np.column_stack(parts)


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


def _reads(kind: Callable[[str], Any], cell: str) -> bool:
    """Whether a cell is a number of this kind."""
    if "_" in cell or not cell.isascii():  # Python reads 1_000, and digits of other scripts
        return False
    try:
        kind(cell)
    except ValueError:
        return False
    return True


_is_number, _is_integer = partial(_reads, float), partial(_reads, int)
