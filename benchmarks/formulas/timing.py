"""Measure rows of the catalogue on one library and one core: a process that answers requests.

A request is a line of JSON, ``{"row": title, "rows": 1024, "width": 128, "seconds": 1.0}``; so is the answer, with the
largest difference of the checked quantities, the median times, their ratios to the formula's, the number of rounds, and
if the request says ``"memory": true``, the peak memory. Contestants take turns in each round.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from contestants import Setting, memory_of, seconds_of

from portable_nce._core.calls import TRIAL

from . import ROWS, Row, kit

OURS: Final = "portable_nce"
FORMULA: Final = "formula"
ROUNDS: Final = 25
"""Maximum number of rounds."""
SHORTEST: Final = 0.002
"""Shorter calls are repeated within a round, for about this many seconds."""
CHECKED: Final = 128
"""Rows of the batch on which a formula is checked before it is timed."""
MEMORY: Final = 6 * 2**30
"""Bytes that a process may allocate: a row that needs more is skipped, and such a peer fails."""
TOLERANCE: Final = 3e-3
"""Largest allowed difference of float32 values and gradients, relative to the largest entry: formulas cancel."""

Run: TypeAlias = Callable[[], Sequence[Any]]
"""Compute the checked quantities: a value, then gradients."""


class Contestant(NamedTuple):
    """A call, and the bytes that a compiler says it takes above its arguments and results."""

    run: Run
    bytes: int | None = None


def on_torch(function: Callable[..., Any], arrays: Sequence[Any], gradients: int) -> Contestant:
    """Run a function of tensors and its backward pass."""
    import torch  # noqa: PLC0415  (a process imports only its library)

    given = [torch.asarray(x) for x in arrays]
    for x in given[:gradients]:
        x.requires_grad_()

    def run() -> list[Any]:
        value = function(*given)
        if not gradients:
            return [value]
        value.backward()
        found = [value.detach(), *(x.grad for x in given[:gradients])]
        for x in given[:gradients]:
            x.grad = None
        return found

    return Contestant(run)


def on_jax(function: Callable[..., Any], arrays: Sequence[Any], gradients: int) -> Contestant:
    """Run the compiled value and gradients of a function of arrays."""
    import jax  # noqa: PLC0415

    given = [jax.numpy.asarray(x) for x in arrays]
    whole = (
        jax.value_and_grad(function, argnums=tuple(range(gradients))) if gradients else lambda *x: (function(*x), ())
    )
    compiled = jax.jit(whole).lower(*given).compile()
    analysis: Any = compiled.memory_analysis()
    wait: Callable[..., Any] = jax.block_until_ready

    def run() -> list[Any]:
        value, found = wait(compiled(*given))
        return [value, *found]

    return Contestant(run, int(analysis.temp_size_in_bytes))


def ours_on_numpy(function: Callable[..., Any], arrays: Sequence[Any], gradients: int) -> Run:
    """Run our value and gradients of a function of arrays."""
    import portable_nce as pnce  # noqa: PLC0415

    if not gradients:
        return lambda: [function(*arrays)]
    whole = pnce.value_and_grad(function, argnums=tuple(range(gradients)))

    def run() -> list[Any]:
        value, found = whole(*arrays)
        return [value, *found]

    return run


def prepared(row: Row, library: str, rows: int, width: int, *, peers: bool = True) -> dict[str, Contestant]:
    """Draw the arrays of a row, and give our loss, the formula, and the installed peers."""
    arrays, own = row.draw(rows, width, "float32"), kit(library)
    if library == "numpy":
        by_hand = row.by_hand or (lambda *given: [row.formula(own, *given)])
        ours = ours_on_numpy(row.ours, arrays, row.gradients)
        return {OURS: Contestant(ours), FORMULA: Contestant(lambda: by_hand(*arrays))}
    on_library = {"torch": on_torch, "jax": on_jax}[library]
    functions = {OURS: row.ours, FORMULA: lambda *given: row.formula(own, *given)}
    for peer in row.peers if peers else ():
        if peer.library == library:
            with contextlib.suppress(ImportError):
                functions[peer.name] = peer.make()
    return {name: on_library(function, arrays, row.gradients) for name, function in functions.items()}


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Largest difference of arrays, relative to the largest entry of each."""
    worst = 0.0
    for own, other in zip(found, expected, strict=True):
        a, b = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
        if a.shape != b.shape:
            raise ValueError(f"expected shape {b.shape}, got {a.shape}")
        worst = max(worst, float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), 1e-30)))
    return worst if np.isfinite(worst) else float("inf")


def checked(entered: Mapping[str, Contestant]) -> float:
    """Compare all contestants with the formula."""
    expected = entered[FORMULA].run()
    differences = {name: difference(each.run(), expected) for name, each in entered.items() if name != FORMULA}
    wrong = {name: number for name, number in differences.items() if not number <= TOLERANCE}
    if wrong:
        raise ValueError(f"expected the values and gradients of the formula, got differences {wrong}")
    return max(differences.values())


def peak(each: Contestant, gradients: int) -> int:
    """Measure the bytes of a first call above its gradients, unless the compiler knows them."""
    measured = memory_of(each.run, gradients)[0]
    return max(0, measured) if each.bytes is None else each.bytes


def timed(runs: Mapping[str, Run], seconds: float) -> dict[str, Any]:
    """Let the contestants take turns for about these seconds; the first round tells how many there are.

    A peer that has used up as many seconds alone leaves the later rounds to the others.
    """
    setting = Setting(0, 0)
    times = {name: [seconds_of(run, setting)] for name, run in runs.items()}
    repeats = {name: max(1, int(SHORTEST / max(own[0], 1e-6))) for name, own in times.items()}
    rounds = min(ROUNDS, int(seconds / sum(times[name][0] * repeats[name] for name in (OURS, FORMULA))))
    for _ in range(rounds):
        for name in [name for name in runs if name in {OURS, FORMULA} or sum(times[name]) * repeats[name] < seconds]:
            run = runs[name]
            times[name].append(statistics.median(seconds_of(run, setting) for _ in range(repeats[name])))
    ratios = {
        name: statistics.median(a / b for a, b in zip(own, times[FORMULA], strict=False))
        for name, own in times.items()
        if name != FORMULA
    }
    return {
        "rounds": rounds + 1,
        "seconds": {name: statistics.median(own) for name, own in times.items()},
        "ratio": ratios,
    }


def failures(entered: dict[str, Contestant]) -> list[str]:
    """Call each contestant once, and remove the peers that fail."""
    failed = []
    for name, each in [*entered.items()]:
        try:
            each.run()
        except (MemoryError, RuntimeError):
            if name in {OURS, FORMULA}:
                raise
            failed.append(name)
            del entered[name]
    return failed


def measured(row: Row, library: str, rows: int, width: int, seconds: float, *, memory: bool) -> dict[str, Any]:
    """Measure a row; peak memory of large batches, without peers, some of which take the cube of the rows."""
    entered, found = prepared(row, library, rows, width, peers=not memory), dict[str, Any]()
    if memory:
        gradients = sum(x.nbytes for x in row.draw(rows, width, "float32")[: row.gradients])
        found["memory"] = {name: peak(each, gradients) for name, each in entered.items()}
    failed = failures(entered)  # first calls, as that of the peak, are slow
    found |= {"failed peers": failed} if failed else {}
    if not memory:  # until a program is recorded, of large arrays too
        for _ in range(TRIAL):
            entered[OURS].run()
    return {**found, **timed({name: each.run for name, each in entered.items()}, seconds)}


def main(library: str, core: str) -> None:
    """Answer requests on one core: the processor time of all threads is measured."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print, too
    os.sched_setaffinity(0, {int(core)})
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    by_title, differences = {row.title: row for row in ROWS}, dict[str, float]()
    for line in sys.stdin:
        request = json.loads(line)
        row = by_title[request.pop("row")]
        try:
            if row.title not in differences:
                differences[row.title] = checked(prepared(row, library, CHECKED, request["width"]))
            answer = {"difference": differences[row.title], **measured(row, library, **request)}
        except Exception as error:  # noqa: BLE001  (the other rows go on)
            said = f"{type(error).__name__}: {error}"
            memory = isinstance(error, MemoryError) or re.search("allocat|out of memory", said, re.IGNORECASE)
            answer = {"skipped": True} if memory else {"failed": said[:500]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
