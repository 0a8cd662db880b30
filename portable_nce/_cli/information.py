"""``python -m portable_nce mi``: mutual information of two arrays in files."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..estimation import ConditionalInformation, MutualInformation, mutual_information
from .libraries import Refused, require
from .tables import arrays_of, read_array, read_labels

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]

__all__ = ["information"]


def information(options: Namespace) -> int:
    """Print the estimate of two arrays, and draw it if Matplotlib is installed."""
    require({"numpy": "NumPy"}, "numpy")
    x, y = _loaded(options.files)
    rows = len(x)
    groups, order = (None if path is None else read_labels(path, rows) for path in (options.groups, options.order))
    given = None if options.given is None else read_array(options.given, whole=True, rows=rows)
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
        raise Refused(str(error)) from error
    where = sys.stderr if options.json else sys.stdout
    # The report given numbers begins with the sentence.
    text = result.report()
    if isinstance(result, MutualInformation):
        text = f"{result.sentence()}\n\n{text}"
    print(json.dumps(_plain(result)) if options.json else f"{result}\n{text}")
    if isinstance(result, ConditionalInformation):
        print("no picture: there is none given numbers", file=where)
        return 0
    if find_spec("matplotlib") is None:
        print("no picture: Matplotlib is not installed", file=where)
        return 0
    axes = result.plot()
    axes.set_title(" and ".join(path.name for path in options.files))
    replaced = ", in place of the file of that name" if options.output.exists() else ""
    axes.figure.savefig(options.output, dpi=120)
    print(f"picture: {options.output}{replaced}", file=where)
    return 0


def _plain(result: MutualInformation | ConditionalInformation) -> dict[str, Any]:
    """Fields of a result with its texts; numbers that a flag rules out are null."""
    return {**result.to_dict(), "sentence": result.sentence(), "report": result.report()}


def _loaded(files: list[Path]) -> tuple[Values, Values]:
    """Arrays of two files, or x and y of one npz file, or its only two arrays."""
    if len(files) == 2:  # noqa: PLR2004  (x and y)
        x = _rows(files[0], read_array(files[0]))
        return x, read_array(files[1], rows=len(x))
    if len(files) != 1 or files[0].suffix != ".npz":
        raise Refused("expected two files, or one npz file with the arrays x and y")
    found = arrays_of(files[0])
    names = ["x", "y"] if {"x", "y"} <= found.keys() else [*found]
    if len(names) != 2:  # noqa: PLR2004  (x and y)
        raise Refused(f"{files[0]}: expected arrays x and y, got {', '.join(names)}")
    x, y = (found[name] for name in names)
    return _rows(files[0], x), y


def _rows(path: Path, x: Values) -> Values:
    """Array of at least one axis."""
    if x.ndim == 0:
        raise Refused(f"{path}: expected rows of values, got a single one")
    return x
