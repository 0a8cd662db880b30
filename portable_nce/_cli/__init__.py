"""Command line: list backends, check them against exact arithmetic, run a demonstration, estimate information."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from .libraries import Unavailable

__all__ = ["main"]

PROGRAM = "python -m portable_nce"
LOSSES = ("info_nce", "flat_nce", "nt_xent", "dcl", "clip")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)  # an error at exit could not be caught
    except BrokenPipeError:  # as of `| head`
        _drop_output()
    except OSError as error:
        _drop_output()
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """Discard what standard output does not take: Python would write it again at exit, and print a traceback."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit status."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        match options.command:
            case "check":
                from .agreement import check

                return check(options.backend, every=options.all, verbose=options.verbose)
            case "demo":
                from .demo import demo

                return demo(options.backend, options.loss, options.output, options.iterations, options.seed)
            case "mi":
                from .information import information

                return information(options)
            case _:
                from .listing import listing

                return listing()
    except Unavailable as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Help with the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Noise-contrastive losses on any array library. Without a command: list the backends found here.",
    )
    parser.add_argument("--version", action="version", version=f"portable_nce {__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(dest="command", metavar="{check,demo,mi}")
    check = commands.add_parser(
        "check",
        help="measure the rounding errors of every loss on each backend",
        description="Measure the error of every loss on every backend, value and gradient, in units in the last place "
        "against the same formulas in 50 digits if mparray is installed, else against NumPy in float64. Prints the "
        "worst errors, and returns 1 if one is beyond the limits.",
    )
    check.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="check this backend; repeat the option for several (default: all that work here)",
    )
    check.add_argument("--all", action="store_true", help="check every case of the conformance suite, not a selection")
    check.add_argument("--verbose", action="store_true", help="print the errors of every loss as a table")
    demo = commands.add_parser(
        "demo",
        help="train two encoders on halves of handwritten digits",
        description="Train two small encoders to match the left half of a handwritten digit with its right half, and "
        "measure retrieval and a bound on mutual information on held-out digits. Takes about ten seconds and 200 MB of "
        "memory on NumPy.",
        formatter_class=_Defaults,
    )
    demo.add_argument(
        "--backend",
        default="numpy",
        metavar="NAME",
        help="array library to train on: numpy, torch, jax, mlx, cupy or another",
    )
    demo.add_argument("--loss", choices=LOSSES, default="info_nce", help="loss to minimise")
    demo.add_argument(
        "--output",
        type=_picture,
        default=Path("demo.png"),
        metavar="FILE.png",
        help="file for the picture",
    )
    demo.add_argument(
        "--iterations", type=_count, default=80, metavar="COUNT", help="maximum number of iterations of L-BFGS"
    )
    demo.add_argument("--seed", type=_seed, default=0, help="seed of the initial parameters and the batches")
    information = commands.add_parser(
        "mi",
        help="estimate the mutual information of two arrays",
        description="Estimate the mutual information of two arrays of paired samples, in nats, with a lower limit and "
        "flags that tell when not to report it.",
        formatter_class=_Defaults,
    )
    information.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="files with the arrays: x.npy y.npy, x.csv y.csv, one npz file with x and y; or one file and names of its "
        "columns: table.csv x1,x2 y",
    )
    information.add_argument(
        "--groups",
        metavar="FILE",
        help="file with a label for each row; dependent rows share a label. --given, --order and this option also "
        "take the name of a column of table.csv",
    )
    information.add_argument(
        "--given",
        metavar="FILE",
        help="file with the columns of a third variable: whole numbers and names are categories, with a lower limit; "
        "decimal numbers give a range without a limit",
    )
    information.add_argument("--order", metavar="FILE", help="file with the time of each row of a series")
    information.add_argument("--test", action="store_true", help="test independence, too, by permutations")
    information.add_argument(
        "--critic",
        choices=("best", "separable", "joint"),
        default="best",
        help="critics from which the best one is chosen",
    )
    information.add_argument(
        "--transform",
        choices=("ranks", "standardize"),
        default="ranks",
        help="what critics see of a column: normal scores of ranks, or standardised values",
    )
    information.add_argument("--folds", type=_count, metavar="COUNT", help="number of folds for cross-fitting")
    information.add_argument(
        "--splits",
        type=_count,
        metavar="COUNT",
        help="number of random divisions into folds, whose bounds are averaged",
    )
    information.add_argument(
        "--networks", type=_count, default=1, metavar="COUNT", help="number of networks whose scores are averaged"
    )
    information.add_argument(
        "--steps", type=_count, default=3000, metavar="COUNT", help="maximum number of training steps of a network"
    )
    information.add_argument(
        "--batch", type=_count, default=256, metavar="COUNT", help="number of pairs in a training step"
    )
    information.add_argument("--seed", type=_seed, default=0, help="seed of the folds, the networks and the batches")
    information.add_argument(
        "--units", choices=("nats", "bits"), default="nats", help="units of what is printed; JSON is in nats"
    )
    information.add_argument(
        "--report", action="store_true", help="print a paragraph for a methods section, too, with its references"
    )
    information.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    information.add_argument(
        "--output",
        type=_picture,
        default=Path("mutual-information.png"),
        metavar="FILE.png",
        help="file for the picture",
    )
    for command in (check, demo, information):
        command.set_defaults(parser=command)  # prints its usage for an unknown option
    return parser


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _seed(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {number}")
    return number


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, got {text!r}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, got {text!r}")
    return path
