"""``python -m portable_nce mi``: mutual information of two arrays in files."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimation import mutual_information
from .libraries import Unavailable, require

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, Any]

__all__ = ["information"]


def information(options: Namespace) -> int:
    """Print the estimate of two arrays, and draw it if Matplotlib is installed."""
    require({"numpy": "NumPy"}, "numpy")
    x, y = _loaded(options.files)
    groups = None if options.groups is None else [str(label) for label in _array(options.groups)]
    try:
        result = mutual_information(
            x,
            y,
            rng=options.seed,
            critic=options.critic,
            transform=options.transform,
            groups=groups,
            folds=options.folds,
        )
    except (TypeError, ValueError) as error:
        raise Unavailable(str(error)) from error
    print(result)
    if find_spec("matplotlib") is None:
        print("no picture: Matplotlib is not installed")
        return 0
    axes = result.plot()
    axes.set_title(" and ".join(path.name for path in options.files))
    axes.figure.savefig(options.output, dpi=120)
    print(f"picture: {options.output}")
    return 0


def _loaded(files: list[Path]) -> tuple[Numbers, Numbers]:
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
    return x.astype(np.float64), y.astype(np.float64)


def _array(path: Path) -> Numbers:
    """Array of an npy, npz or csv file."""
    import numpy as np

    result = _opened(path)
    if isinstance(result, np.ndarray):
        return result
    if len(result) != 1:
        raise Unavailable(f"{path}: expected one array, got {', '.join(result)}")
    return np.asarray(next(iter(result.values())))


def _opened(path: Path) -> Any:
    """Array, or dict of arrays, read by NumPy from a file."""
    import numpy as np

    try:
        if path.suffix == ".npz":
            with np.load(path) as archive:
                return dict(archive)
        if path.suffix == ".npy":
            return np.load(path)
        return _table(path)
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path}: {error}") from error


def _table(path: Path) -> Numbers:
    """Numbers of a csv file, whose first line may be a header."""
    import numpy as np

    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
    try:
        [float(cell) for cell in first.split(",")]
        skipped = 0
    except ValueError:
        skipped = 1
        print(f"{path}: taking the first line for a header", file=sys.stderr)
    return np.loadtxt(path, delimiter=",", skiprows=skipped)
