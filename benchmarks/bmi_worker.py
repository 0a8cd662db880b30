"""Samples and estimates of benchmark-mi (Czyż et al. 2023), for `mi_benchmark.py`, which starts this script.

benchmark-mi 0.1 needs an old JAX, and so a separate environment. `python bmi_worker.py FOLDER PAIRS SEEDS` writes the
missing samples of all tasks as `FOLDER/TASK-SEED.npz` and prints the tasks. Then it reads requests
`["PATH", "ESTIMATOR"]` line by line and prints the estimates. All lines are JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from bmi import estimators  # pyright: ignore[reportMissingImports]  (in an environment of its own)
from bmi.benchmark import BENCHMARK_TASKS  # pyright: ignore[reportMissingImports]

ESTIMATORS: Final[dict[str, Callable[[], Any]]] = {
    "KSG": estimators.KSGEnsembleFirstEstimator,
    "CCA": estimators.CCAMutualInformationEstimator,
    "InfoNCE": lambda: estimators.InfoNCEEstimator(verbose=False),
    "MINE": lambda: estimators.MINEEstimator(verbose=False),
    "Donsker–Varadhan": lambda: estimators.DonskerVaradhanEstimator(verbose=False),
    "NWJ": lambda: estimators.NWJEstimator(verbose=False),
}
"""Estimators with default options."""


def tasks() -> dict[str, tuple[str, float]]:
    """Name and mutual information of each task."""
    return {key: (task.name, float(task.mutual_information)) for key, task in BENCHMARK_TASKS.items()}


def estimated(path: str, name: str) -> dict[str, Any]:
    """An estimate in nats, and its processor time in seconds."""
    with np.load(path) as sample:
        x, y = sample["x"], sample["y"]
    begin = time.process_time()
    found = float(ESTIMATORS[name]().estimate(x, y))
    seconds = time.process_time() - begin
    return {"estimate": round(found, 4) if math.isfinite(found) else None, "seconds": round(seconds, 2)}


def main() -> None:
    """Write the samples, then answer requests."""
    folder, pairs, seeds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for key, task in BENCHMARK_TASKS.items():
        for seed in range(seeds):
            path = folder / f"{key}-{seed}.npz"
            if not path.exists():
                x, y = task.sample(pairs, seed)
                part = path.with_suffix(".part")
                with part.open("wb") as file:
                    np.savez(file, x=np.asarray(x), y=np.asarray(y))
                part.replace(path)
    print(
        json.dumps({"tasks": tasks(), "estimators": list(ESTIMATORS), "version": version("benchmark-mi")}), flush=True
    )
    for line in sys.stdin:
        print(json.dumps(estimated(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
