"""The experiments of benchmarks/, shortened: that they run, and what must hold even so."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = (2.0, 6.0, 10.0)


@cache
def printed(name: str) -> list[tuple[str, list[list[str]]]]:
    """Run an experiment, and give the tables it prints: the heading above each, and its rows, cell by cell."""
    before = files()
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}  # the safe path leaves out the script's folder
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)  # noqa: S603  (see above)
    assert result.returncode == 0, result.stderr
    assert files() == before
    tables: list[tuple[str, list[list[str]]]] = []
    heading, inside = "", False
    for line in result.stdout.splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if line.startswith("|"):
            tables += [] if inside else [(heading, [])]
            tables[-1][1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return [(heading, rows[2:]) for heading, rows in tables]  # less the head and the rule under it


def files() -> dict[str, int]:
    """Give the documents, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (ROOT / "docs").iterdir()}


def first_number(cell: str) -> float:
    """Read the number that a cell begins with."""
    return float(cell.split(maxsplit=1)[0])


def gaussians() -> dict[str, list[float]]:
    """Give the bias at each level and the squared error at the last one, by estimator."""
    ((_, table),) = printed("gaussians")
    return {row[0]: [first_number(cell) for cell in row[2:]] for row in table}


def biases() -> dict[str, list[float]]:
    """Give the bias at each level, by estimator."""
    return {name: row[: len(LEVELS)] for name, row in gaussians().items()}


def toy_language(k: str) -> dict[str, tuple[float, float, float]]:
    """Give divergence, and mean and deviation of log Z, by estimator."""
    ((_, table),) = printed("toy_language")
    rows = ((row[0], [first_number(cell) for cell in row[2:]]) for row in table if row[1] == k)
    return {name: (numbers[0], numbers[1], numbers[2]) for name, numbers in rows}


def test_every_estimator_has_a_finite_number_at_every_level() -> None:
    table = gaussians()
    assert len(table) == 21
    assert all(len(row) == len(LEVELS) + 1 and all(map(math.isfinite, row)) for row in table.values())


def test_the_squared_error_is_not_less_than_that_of_the_bias() -> None:
    # The bias is that of one seed, in two digits after the point.
    assert all(error >= (abs(bias) - 0.005) ** 2 - 0.001 for *_, bias, error in gaussians().values())


def test_the_kinds_of_the_bounds_are_printed() -> None:
    kinds = {row[0]: row[1] for row in printed("gaussians")[0][1]}
    assert set(kinds.values()) == {"lower", "upper", "neither"}
    assert [name for name, kind in kinds.items() if kind == "upper"] == [
        "leave_one_out, known density",
        "club, known density",
    ]
    assert {kinds[name] for name in ("dv", "mine", "smile, clip 5", "dual, alternating")} == {"neither"}


@pytest.mark.parametrize("name", ["info_nce", "fdv", "fdv, cosine critic", "info_nce, best critic"])
def test_info_nce_is_never_above_log_n(name: str) -> None:
    estimates = [bias + truth for bias, truth in zip(biases()[name], LEVELS, strict=True)]
    assert max(estimates) <= math.log(64) + 0.005  # as printed


def test_the_best_critic_nearly_reaches_the_ceiling() -> None:
    assert biases()["info_nce, best critic"][-1] > math.log(64) - 10.0 - 0.1


def test_the_upper_bounds_are_in_order() -> None:
    # Leave-one-out is below CLUB batch by batch, by Jensen's inequality. CLUB's excess is known: dρ² / (1 − ρ²) − I.
    table = biases()
    leave_one_out, club = table["leave_one_out, known density"], table["club, known density"]
    assert all(low < high for low, high in zip(leave_one_out, club, strict=True))
    for truth, excess in zip(LEVELS, club, strict=True):
        assert excess == pytest.approx(20.0 * math.expm1(truth / 10.0) - truth, rel=0.3)


def test_alternating_is_fdv_that_reports_another_number() -> None:
    # The same networks, by the same gradient. u is below the critic that counts the positive where it is negative.
    table = biases()
    pairs = list(zip(table["dual, alternating"], table["fdv"], strict=True))
    assert all(flat >= bound - 0.005 for flat, bound in pairs)
    assert all(flat == pytest.approx(bound, abs=0.05) for flat, bound in pairs)


def test_every_loss_has_finite_numbers() -> None:
    few, many, every = (toy_language(k) for k in ("5", "50", "all"))
    assert list(few) == list(many)
    assert len(few) == 7
    assert list(every) == ["full_softmax"]
    assert all(math.isfinite(x) for table in (few, many, every) for row in table.values() for x in row)
    assert all(row[0] >= 0.0 for table in (few, many, every) for row in table.values())


@pytest.mark.parametrize("name", ["gaussians", "toy_language"])
def test_a_page_is_what_its_script_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the numbers, which only a whole run gives."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module(name)
    for folder, template in (("docs", script.DOCUMENT), ("benchmarks", script.DETAILS)):
        parts = re.split(r"\{\w+(?::[^}]*)?\}", template.replace("{{", "{").replace("}}", "}"))
        page = (ROOT / folder / f"{name}.md").read_text(encoding="utf-8")
        assert re.fullmatch("(.*?)".join(map(re.escape, parts)), page, re.DOTALL)


@pytest.mark.parametrize("k", ["5", "50"])
def test_the_losses_of_the_toy_language_are_related(k: str) -> None:
    table = toy_language(k)
    assert table["sampled_softmax"] == pytest.approx(table["ranking_nce"], abs=1e-3)
    assert table["ranking_nce"][0] < math.log(300)
    for name in ("ranking_nce without q", "negative_sampling"):
        assert table[f"{name}, recovered"][0] < 0.5 * table[name][0]
        assert table[f"{name}, recovered"][1:] == (0.0, 0.0)
    # Local NCE brings log Z down, of which ranking sees nothing.
    assert table["local_nce"][1] < table["ranking_nce"][1] - 0.3


# The log-K curse

LOSSES = {
    "float32, cross_entropy",
    "float32, pnce InfoNCE",
    "float32, pnce FlatNCE",
    "bfloat16, cross_entropy",
    "bfloat16, cross_entropy in float32",
    "bfloat16, pnce InfoNCE",
    "bfloat16, pnce FlatNCE",
}


def table(beginning: str) -> list[list[str]]:
    """Give the rows of the table whose heading begins so."""
    (rows,) = (rows for heading, rows in printed("log_k_curse") if heading.startswith(beginning))
    return rows


def numbers(cell: str) -> list[float]:
    """Read the numbers of a cell: one; a mean ± a deviation; or an error and, in brackets, a share."""
    words = cell.replace("±", " ").replace("(", " ").replace(")", " ").replace("%", " ").split()
    return [float(word) for word in words]


def test_every_loss_has_a_finite_number_at_every_temperature_and_batch_size() -> None:
    rows = table("Retrieval: top-1")
    found = {temperature: [row[1] for row in rows if row[0] == temperature] for temperature in ("0.1", "0.02")}
    assert len(rows) == 16
    assert found["0.1"] == found["0.02"]
    assert len(LOSSES & set(found["0.1"])) == 5
    assert all(math.isfinite(number) for row in rows for cell in row[2:] for number in numbers(cell))


def test_every_loss_has_finite_numbers_in_saturation() -> None:
    rows = table("Gradients")
    assert {row[0] for row in rows} == LOSSES
    assert all(math.isfinite(number) for row in rows for cell in row[1:] for number in numbers(cell))


def test_longer_trainings_have_finite_numbers() -> None:
    rows = table("Retrieval after more epochs")
    assert len(rows) == 4
    assert all(math.isfinite(number) for row in rows for cell in row[2:] for number in numbers(cell))


def test_losses_are_compared_seed_by_seed() -> None:
    rows = {(row[0], row[1]): [numbers(cell)[0] for cell in row[2:]] for row in table("Retrieval: top-1")}
    for temperature in ("0.1", "0.02"):
        flat, info = (rows[temperature, f"float32, pnce {name}"] for name in ("FlatNCE", "InfoNCE"))
        differences = rows[temperature, "float32, FlatNCE − InfoNCE by seed"]
        for one, other, difference in zip(flat, info, differences, strict=True):
            assert difference == pytest.approx(one - other, abs=0.16)  # each is rounded to a tenth


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_usual_gradient_is_less_exact_in_saturation(precision: str) -> None:
    errors = {row[0]: numbers(row[5])[0] for row in table("Gradients")}
    assert errors[f"{precision}, cross_entropy"] > errors[f"{precision}, pnce InfoNCE"]


def test_in_bfloat16_the_usual_gradient_is_off_by_much_and_ours_by_rounding() -> None:
    errors = {row[0]: numbers(row[5])[0] for row in table("Gradients")}
    assert errors["bfloat16, cross_entropy"] > 0.05
    assert max(errors["bfloat16, pnce InfoNCE"], errors["bfloat16, pnce FlatNCE"]) < 0.01


def test_the_usual_loss_lets_positives_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same scores for all, along the training of FlatNCE."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("log_k_curse")
    probes = {name: found[-1] for name, found in experiment.memorise(experiment.GUIDE, experiment.QUICK).common.items()}
    assert set(probes) == LOSSES
    for precision in ("float32", "bfloat16"):
        usual, info, flat = (
            probes[f"{precision}, {name}"] for name in ("cross_entropy", "pnce InfoNCE", "pnce FlatNCE")
        )
        assert statistics.mean(usual.zero) > 0.5
        assert statistics.mean(info.zero) == statistics.mean(flat.zero) == 0.0
        assert statistics.median(usual.row_error) > statistics.median(info.row_error)


# Simulation-based inference


def test_every_loss_of_ratio_estimation_has_finite_numbers() -> None:
    ((_, table),) = printed("ratio_estimation")
    assert len(table) == 5
    assert all(math.isfinite(first_number(cell)) for row in table for cell in row[1:])
    assert 0.0 < first_number(table[0][1]) < 3.0  # nats from the exact posterior


# Sampled losses over a vocabulary


def test_sampled_losses_without_frequencies_are_biased() -> None:
    ((_, rows),) = printed("sampled_softmax")
    bias = {(name, samples): first_number(cell) for name, samples, cell, _, _ in rows}
    assert bias["linear_softmax", "20000"] == 0.0
    assert all((value > 1.0) == ("without" in name) for (name, _), value in bias.items())


def test_the_page_and_the_picture_of_sampled_losses_come_from_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("sampled_softmax")
    record = json.loads((ROOT / "docs" / "sampled-softmax.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "sampled-softmax.md").read_text(encoding="utf-8")
    assert page.partition(experiment.MARK)[2] == experiment.document(record)
    assert (ROOT / "benchmarks" / "sampled_softmax.md").read_text(encoding="utf-8") == experiment.details(record)
    experiment.draw(record, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 0


# Code search trained with several libraries


def test_training_on_code_learns_as_well_as_with_cross_entropy() -> None:
    quality, cost = (rows for _, rows in printed("training"))
    ranks = {name: first_number(mean_rank) for name, mean_rank, _, _ in quality}
    apart = {name: first_number(difference) for name, _, _, difference in quality}
    assert ranks["portable_nce"] > 1.4 * ranks["before training"]
    assert abs(ranks["portable_nce"] - ranks["cross_entropy"]) < 1.0
    assert apart["portable_nce"] < 1.0  # of each seed
    # Losses of libraries that are not installed are left out.
    always = {"cross_entropy", "cross_entropy, in chunks", "portable_nce", "portable_nce, in chunks"}
    assert always <= {name for name, *_ in cost}


def test_the_page_and_the_picture_of_the_training_come_from_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("training")
    record = json.loads((ROOT / "docs" / "training.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "training.md").read_text(encoding="utf-8") == experiment.document(record)
    assert (ROOT / "benchmarks" / "training.md").read_text(encoding="utf-8") == experiment.details(record)
    experiment.draw(record, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 0


# Coverage of the estimate of mutual information


def test_estimates_of_small_problems_are_printed() -> None:
    ((_, (row,)),) = printed("interval_coverage")
    assert row[:3] == ["independent", "1", "0 of 1"]


def test_the_page_and_the_picture_of_the_coverage_come_from_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("interval_coverage")
    record = json.loads((ROOT / "docs" / "coverage.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8") == experiment.document(record)
    experiment.draw(record, tmp_path / "coverage.png")
    assert (tmp_path / "coverage.png").stat().st_size > 0


def test_the_truths_follow_from_limits_and_from_other_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    known: Any = importlib.import_module("known_information")
    assert known.student_nats(2, 0.5, 1e6) == pytest.approx(0.5, abs=1e-5)  # a Gaussian
    assert known.of_normal(lambda x: x, 0.5) == pytest.approx(0.5 * math.log(5.0), abs=1e-4)  # a Gaussian
    assert known.mixture_nats() < math.log(4.0)
    assert known.signs_nats(0.5) == pytest.approx(0.0, abs=1e-12)
    assert known.signs_nats(0.1) == pytest.approx(known.table_nats([[9, 1], [1, 9]]))
    assert known.ring_nats() == pytest.approx(
        math.log(2 * math.pi / 0.4) - 0.5 * math.log(2 * math.pi * math.e), abs=1e-3
    )
    record = json.loads((ROOT / "docs" / "coverage.json").read_text(encoding="utf-8"))
    for problem in known.problems():
        if problem.name in record["cases"]:
            assert record["cases"][problem.name]["truth"] == pytest.approx(problem.truth(), abs=1e-4)


def test_the_truths_given_a_third_variable_follow_from_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    np: Any = pytest.importorskip("numpy")
    relations: Any = importlib.import_module("relations")
    truth = {problem.name: problem.truth for problem in relations.CONDITIONALS}
    u = (np.arange(100_000) + 0.5) / 100_000  # the probability of z given x is uniform
    entropy = -(u * np.log(u) + (1 - u) * np.log(1 - u)).mean()
    assert truth["collider"] == pytest.approx(2.0 * entropy - math.log(2.0), abs=1e-4)
    # The next bit is x or the last one, with a tenth of exceptions: the stationary share of 0, then the table of it.
    q = 0.5
    for _ in range(50):
        q = q * (0.5 * 0.9 + 0.5 * 0.1) + (1.0 - q) * 0.1
    table = np.asarray([[0.45, 0.05], [0.05, 0.45]])
    assert truth["transfer entropy of bits, order="] == pytest.approx(q * (table * np.log(4.0 * table)).sum())
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3, 200_000))
    given = z.sum(axis=0)
    left = [each - given * (each @ given) / (given @ given) for each in z[:2]]
    found = relations.normal_information(np.corrcoef(left)[0, 1])
    assert truth["collider of numbers"] == pytest.approx(found, abs=5e-3)


def test_the_values_of_transfer_entropy_are_means_of_local_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    np: Any = pytest.importorskip("numpy")
    transfer: Any = importlib.import_module("transfer")
    monkeypatch.setattr(transfer, "COUNT", 50_001)
    for place, problem in enumerate(transfer.PROBLEMS):
        local = problem.local(*problem.draw(np.random.default_rng(place)))
        assert len(local) == 50_001 - problem.lag
        assert local.mean() == pytest.approx(problem.truth, abs=5.0 * local.std() / math.sqrt(len(local)) + 1e-12)


def test_transfer_entropy_of_copied_bits() -> None:
    ((_, rows),) = printed("transfer")
    assert [float(row[1]) for row in rows] == [0.37, 0.25]
    assert [row[7] for row in rows] == ["1/1", "1/1"]


# Estimators of mutual information on the tasks of benchmark-mi


def test_both_critics_find_a_gaussian() -> None:
    ((_, (row,)),) = printed("mi_benchmark")
    name, truth, *found = row
    assert (name, truth, len(found)) == ("Gaussian 2 × 2", "0.500", 2)
    assert all(float(cell.strip("*")) == pytest.approx(0.5, abs=0.12) for cell in found)


def test_the_page_and_the_picture_of_the_benchmark_come_from_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("mi_benchmark")
    record = json.loads((ROOT / "docs" / "mi-benchmark.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "mi-benchmark.md").read_text(encoding="utf-8") == experiment.document(record)
    experiment.draw(record, tmp_path / "mi-benchmark.png")
    assert (tmp_path / "mi-benchmark.png").stat().st_size > 0


def test_a_run_adds_what_is_missing_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    experiment: Any = importlib.import_module("mi_benchmark")
    asked: list[tuple[str, str]] = []

    def estimate(path: str, method: str) -> dict[str, Any]:
        asked.append((Path(path).name, method))
        return {"estimate": 1.0, "seconds": 0.0}

    monkeypatch.setattr(experiment, "ours", estimate)
    monkeypatch.setattr(experiment, "OURS", {"a": None, "b": None})
    record: dict[str, Any] = {
        "tasks": {"t": ["T", 0.0], "u": ["U", 0.0]},
        "runs": {"a": {"t": {"0": {"estimate": 2.0}}}},
    }
    saved: list[int] = []
    experiment.run(record, tmp_path, None, seeds=1, save=lambda _: saved.append(1))
    assert asked == [("t-0.npz", "b"), ("u-0.npz", "a"), ("u-0.npz", "b")]
    assert len(saved) == 3
    assert record["runs"]["a"]["t"]["0"] == {"estimate": 2.0}
