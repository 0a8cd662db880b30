"""The command line, run in a separate process."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import portable_nce
from portable_nce._cli import agreement, main
from portable_nce._cli.agreement import LIMITS, errors
from portable_nce._cli.libraries import OpenLibrary, Refused, Unavailable, open_library, require
from portable_nce._cli.picture import check_writable
from portable_nce._cli.tables import Columns, read_array
from portable_nce.testing import make_cases

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import readme

if TYPE_CHECKING:
    from portable_nce._core.protocol import Adapter


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line; modules in the folder ``path`` shadow installed ones."""
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "portable_nce", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_the_listing_names_what_is_found_and_what_is_not() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"portable_nce {portable_nce.__version__}"
    numpy = __import__("numpy")
    assert re.search(rf"(?m)^numpy +{re.escape(numpy.__version__)} +float64, float32, float16 +cpu$", result.stdout)
    known = {"numpy", "torch", "jax", "cupy", "mlx", "array_api_strict", "mparray"}
    absent = known - set(portable_nce.backends_available())
    listed = re.search(r"(?m)^not installed: (.*)$", result.stdout)
    assert set(listed[1].split(", ") if listed else []) == absent


def test_a_backend_that_does_not_import_is_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1 cannot be opened')\n", encoding="utf-8")
    result = run(path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "cupy: installed, but does not work: ImportError: libcuda.so.1 cannot be opened" in result.stdout
    assert re.search(r"(?m)^numpy ", result.stdout)


def test_the_version() -> None:
    assert run("--version").stdout == f"portable_nce {portable_nce.__version__}\n"


def test_the_command_has_a_name() -> None:
    scripts = tomllib.loads((readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    ((name, place),) = scripts.items()
    module, _, function = place.partition(":")
    assert name == "portable-nce"
    with pytest.raises(SystemExit, match="0"):
        getattr(importlib.import_module(module), function)(["--version"])


def worst_agreement() -> float:
    """Return the largest recorded error of a value or gradient in float32, in ulp, at the default precision."""
    variants = json.loads((readme.ROOT / "docs" / "agreement.json").read_text(encoding="utf-8")).values()
    cells = (errors for of in variants for cell, errors in of["cells"].items() if cell.endswith("|float32"))
    return max(float(error) for errors in cells for error in errors)


def test_check_of_one_backend() -> None:
    result = run("check", "--backend", "numpy", "--verbose")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("Every error is within the limits")  # the answer first
    line = r"(?m)^Worst in float32: (\d+\.\d) ulp, the gradient of '.* saturated' on numpy\.$"
    worst = re.search(line, result.stdout)
    assert worst is not None, result.stdout
    recorded = worst_agreement()
    assert recorded / 2 <= float(worst[1]) <= recorded * 2  # rounding differs between processors
    for loss in ("info_nce", "flat_nce", "clip", "from_scores.dcl", "bounds.dual"):
        assert re.search(rf"(?m)^{re.escape(loss)} +value +\d+\.\d +\d+\.\d$", result.stdout), result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["unknown"], "invalid choice"),
        (["demo", "--loss", "triplet"], "invalid choice"),
        (["demo", "--iterations", "0"], "expected at least 1, got 0"),
        (["demo", "--seed", "-1"], "expected 0 or more, got -1"),
        (["demo", "--output", "picture.jpg"], "expected a name that ends in .png"),
        (["demo", "--output", "no/such/folder/demo.png"], "expected a file in an existing folder"),
    ],
)
def test_bad_arguments(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "demo", "mi"])
def test_help_names_no_default_that_says_nothing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    output = " ".join(capsys.readouterr().out.split())
    assert "default: None" not in output
    assert "default: False" not in output
    assert command == "check" or "default: 0)" in output  # the seed


@pytest.mark.parametrize("command", ["check", "demo"])
@pytest.mark.parametrize("name", ["no_such_library", "scipy"], ids=["not installed", "without a backend"])
def test_an_unknown_backend(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--backend", name]) == 1
    expected = rf"^python -m portable_nce: --backend: expected one of numpy, torch, .*, got '{name}'; .*\n$"
    assert re.search(expected, capsys.readouterr().err)


@pytest.mark.parametrize("command", ["check", "demo"])
def test_an_unknown_option_shows_the_usage_of_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--bakend", "numpy"])
    output = capsys.readouterr().err
    assert output.startswith(f"usage: python -m portable_nce {command} [-h] [--backend NAME]")
    assert output.endswith("unrecognized arguments: --bakend numpy\n")


def test_check_with_an_exact_oracle_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "mparray.py").write_text("raise AttributeError('no unstack')\n", encoding="utf-8")
    result = run("check", "--backend", "numpy", path=tmp_path)
    assert result.returncode == 0, result.stderr
    expected = "left out: the backend 'mparray' is installed but does not work: AttributeError: no unstack\n"
    assert result.stdout.startswith(expected)
    assert "in float64; exact with an mparray that works" in result.stdout


def test_check_without_numpy(tmp_path: Path) -> None:
    """With PyTorch alone, which does not require NumPy."""
    pytest.importorskip("torch")
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from portable_nce._cli import agreement, main\n"
        "cases = agreement.make_cases\n"
        "agreement.make_cases = lambda rows: cases(rows)[::40]\n"
        "sys.exit(main(['check']))"
    )
    command = [sys.executable, "-W", "ignore:Failed to initialize NumPy", "-c", program]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Every error is within the limits" in result.stdout
    assert re.search(r"Worst in float32: .* on torch\.", result.stdout)
    assert re.search(r"Reference: torch \S+ in float64; exact with an mparray that works\.", result.stdout)


def test_check_needs_a_library_with_float64(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Single:
        name, devices, dtypes = "mlx", ("cpu",), ("float32",)

    monkeypatch.setattr("portable_nce._cli.agreement.backends_available", lambda: ("mlx",))
    library = OpenLibrary("mlx", Single(), None)  # type: ignore[arg-type]
    monkeypatch.setattr("portable_nce._cli.agreement.open_library", lambda _: library)
    assert main(["check"]) == 1
    assert 'a reference in float64 is needed; pip install "portable_nce[numpy]"' in capsys.readouterr().err


def test_a_framework_that_is_not_installed_comes_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_nce._cli.libraries.find_spec", lambda _: None)
    with pytest.raises(Unavailable, match=r'pip install "portable_nce\[torch\]"'):
        open_library("torch")


def test_a_backend_that_does_not_work_is_left_out_or_refused(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('no CUDA')\n", encoding="utf-8")
    result = run("demo", "--backend", "cupy", path=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "python -m portable_nce: the backend 'cupy' is installed but does not work: ImportError: no CUDA"
    ]


def test_packages_that_the_demo_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("portable_nce._cli.libraries.find_spec", lambda name: None if name == "sklearn" else name)
    assert main(["demo"]) == 1
    expected = 'scikit-learn not installed; pip install "portable_nce[demo]"'
    assert capsys.readouterr().err == f"python -m portable_nce: {expected}\n"
    require({"sys": "Python"}, "demo")


def test_the_exact_oracle_is_no_backend_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", "mparray"]) == 1
    assert "exact arithmetic" in capsys.readouterr().err


def test_check_without_the_exact_oracle(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("portable_nce._cli.agreement.backends_available", lambda: ("numpy",))
    monkeypatch.setattr("portable_nce._cli.agreement.make_cases", lambda rows: make_cases(rows)[::8])
    assert main(["check", "--all"]) == 0
    assert "in float64; exact with an mparray that works" in capsys.readouterr().out


def test_check_fails_beyond_the_limits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("portable_nce._cli.agreement.backends_available", lambda: ("numpy",))
    monkeypatch.setitem(LIMITS, "gradient", 0.0)
    assert main(["check", "--backend", "numpy"]) == 1
    output = capsys.readouterr().out
    assert "Beyond the limits (value 64, gradient 0):\n  numpy float32: info_nce, gradient: " in output


def test_check_shows_its_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    cases = make_cases(2)[:2]
    assert list(agreement._shown(cases)) == [*cases]  # noqa: SLF001
    assert "] 1 of 2 cases" in capsys.readouterr().err


def test_check_leaves_out_what_does_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("portable_nce._cli.agreement.backends_available", lambda: ("cupy",))
    monkeypatch.setattr("portable_nce._cli.libraries.find_spec", lambda _: None)
    assert main(["check"]) == 1
    output = capsys.readouterr()
    remedy = 'pip install "portable_nce[cupy]", or -e ".[cupy]" in a clone'
    expected = f"left out: the backend 'cupy' is not installed; {remedy}\n"
    assert output.out == expected
    assert "no backend to check is installed" in output.err


def test_an_error_is_measured_in_units_of_the_largest_entry() -> None:
    exact = [[4.0], [0.5, -8.0], [0.0]]
    found = [[4.0 + 2.0**-50], [0.5 + 2.0**-48, -8.0], [2.0**-52]]
    assert list(errors(found, exact, 2.0**-52)) == [("value", 1.0), ("gradient", 2.0), ("gradient", 1.0)]
    broken = [[math.nan], *found[1:]]
    assert not next(errors(broken, exact, 2.0**-52))[1] <= LIMITS["value"]


def test_a_gpu_backend_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deviceless:
        devices = ()

    def load(name: str) -> Adapter | Deviceless:
        assert name == "cupy"
        return Deviceless()

    monkeypatch.setattr("portable_nce._cli.libraries.find_spec", lambda _: True)
    monkeypatch.setattr("portable_nce._cli.libraries.load_adapter", load)
    monkeypatch.setattr("portable_nce._cli.libraries.import_module", lambda _: None)
    with pytest.raises(Unavailable, match="CuPy finds no CUDA device"):
        open_library("cupy")


def test_the_mutual_information_of_files(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    x = numpy.random.default_rng(0).normal(size=(100, 2))
    y = x[:, 0] + 0.5 * numpy.random.default_rng(1).normal(size=100)
    numpy.save(tmp_path / "x.npy", x)
    numpy.savetxt(tmp_path / "y.csv", y, delimiter=",", header="y", comments="")
    numpy.savez(tmp_path / "both.npz", x=x, y=y)
    picture = tmp_path / "found.png"
    options = "--folds", "2", "--splits", "1", "--output", str(picture)
    apart = run("mi", str(tmp_path / "x.npy"), str(tmp_path / "y.csv"), *options)
    assert apart.returncode == 0, apart.stderr
    assert "mutual information of 100 pairs, in nats" in apart.stdout
    assert "nats (" in apart.stdout
    assert "van den Oord" not in apart.stdout
    assert "y.csv: using the first line as a header" in apart.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    together = run("mi", str(tmp_path / "both.npz"), *options)
    numpy.savez(tmp_path / "named.npz", **{"rate, Hz": x, " depth ": y})
    assert run("mi", str(tmp_path / "named.npz"), *options).stdout == together.stdout
    assert together.stdout == apart.stdout.replace(".png", ".png, in place of the file of that name")
    (tmp_path / "names.csv").write_text("\n".join("ab"[i % 2] for i in range(100)), encoding="utf-8")
    groups = "--groups", str(tmp_path / "names.csv"), "--steps", "5", "--json"
    for separator in ";\t":
        numpy.savetxt(tmp_path / "x.txt", x, delimiter=separator)
        result = run("mi", str(tmp_path / "x.txt"), str(tmp_path / "names.csv"), *options, *groups[2:])
        found = json.loads(result.stdout)
        assert (found["settings"]["pairs"], found["settings"]["steps"]) == (100, 5)
        assert not {"influences", "local"} & found.keys()
    grouped = run("mi", str(tmp_path / "x.npy"), str(tmp_path / "y.csv"), *groups)
    assert "at least 4 independent groups of rows, got 2" in grouped.stderr


def test_the_mutual_information_of_columns_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    x, y, noise, z = numpy.random.default_rng(0).normal(size=(4, 60))
    kind, number = numpy.arange(60) % 2, numpy.arange(60)
    lines = [
        "x1, x2,sum,kind,when,z",
        *(
            ",".join(map(repr, row))
            for row in zip(
                x.tolist(),
                y.tolist(),
                (x + y + noise).tolist(),
                kind.tolist(),
                number.tolist(),
                z.tolist(),
                strict=True,
            )
        ),
    ]
    (tmp_path / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    numpy.savez(tmp_path / "table.npz", a=numpy.stack([x, y], axis=1), x1=x, sum=x + y + noise)
    both = numpy.stack([x, y], axis=1)

    def found(name: str, *options: str) -> tuple[str, str]:
        more = "--splits", "1", "--steps", "5", "--output", str(tmp_path / "found.png")
        status = main(["mi", str(tmp_path / name), *options, *more])
        said = capsys.readouterr()
        assert status in {0, 2}
        return said.out, said.err

    of_call: Any = portable_nce.estimation.mutual_information(both, x + y + noise, rng=0, splits=1, steps=5)
    for name, columns in (("table.csv", "x1,x2"), ("table.npz", "a")):
        assert json.loads(found(name, columns, "sum", "--json")[0])["bound"] == of_call.bound
    given: Any = portable_nce.estimation.mutual_information(x, x + y + noise, given=kind, rng=3, splits=1, steps=5)
    shown = found("table.csv", "x1", "sum", "--given", "kind", "--seed", "3", "--json")[0]
    assert json.loads(shown)["bound"] == given.bound
    series = json.loads(found("table.csv", "x1", "sum", "--order", "when", "--json")[0])
    assert series["settings"]["groups"] < 60
    shown = found("table.csv", "x1", "sum", "--units", "bits", "--report", "--test")[0]
    assert shown.startswith("in bits\nname")
    assert "Independence: p = " in shown
    assert " bits (standard error" in shown
    assert "van den Oord" in shown
    assert (
        "expected categories as a third variable"
        in found("table.csv", "x1", "sum", "--given", "z", "--units", "bits")[1]
    )
    assert json.loads(found("table.csv", "x1", "sum", "--test", "--json")[0])["test"]["pairs"] == 60


def test_the_mutual_information_of_files_given_a_third(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    x, noise, z = numpy.random.default_rng(0).normal(size=(3, 60))
    label = numpy.arange(60) % 2
    for name, array in {"x": x, "y": x + noise, "label": label, "z": z}.items():
        numpy.save(tmp_path / f"{name}.npy", array)
    for name, cells in {
        "integers": label,
        "names": numpy.asarray(["a", "b"])[label],
        "decimal": [f"{k}.0" for k in label],
        "rare": [*label[:59], 7],
        "short": label[:59],
        "headed": ["class", *label],
    }.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(map(str, cells)), encoding="utf-8")

    def given(name: str, *options: str) -> tuple[int, str, str]:
        files = [str(tmp_path / each) for each in ("x.npy", "y.npy")]
        more = "--splits", "1", "--steps", "5", "--output", str(tmp_path / "found.png")
        status = main(["mi", *files, "--given", str(tmp_path / name), *more, *options])
        said = capsys.readouterr()
        return status, said.out, said.err

    of_call: Any = portable_nce.estimation.mutual_information(x, x + noise, given=label, rng=0, splits=1, steps=5)
    for name in ("label.npy", "integers.csv", "names.csv", "headed.csv"):
        status, shown, _ = given(name, "--json")
        found = json.loads(shown)
        assert (status, found["settings"]["categories"], found["bound"]) == (0, 2, of_call.bound)
    assert given("integers.csv")[1].startswith("mutual information given 2 categories of 60 pairs, in nats")
    for name in ("z.npy", "decimal.csv"):
        status, shown, said = given(name, "--json")
        found = json.loads(shown)
        assert (status, found["low"], found["with_y"]["settings"]["pairs"]) == (0, 0.0, 60)
        assert "lower" not in found
        assert found["sentence"].startswith("Given the third variable, independence has p = ")
        assert "For x with y and z: The mutual information of 60 pairs" in found["report"]
        assert "no picture: there is none given numbers" in said
    found = json.loads(given("z.npy", "--json")[1])
    for options, text in (((), found["sentence"]), (("--report",), found["report"])):
        shown = given("z.npy", *options)[1]
        assert shown.startswith("mutual information given a third variable, 60 pairs, in nats")
        assert f"\n{text}\n" in shown
        assert shown.count(found["sentence"]) == 1
    for name, words in (
        ("rare.csv", "given: expected at least 12 rows of each category, got 1 of 7; merge rare categories"),
        ("short.csv", "given: expected 60 rows, as in x, got 59"),
        ("none.csv", "none.csv: No such file or directory"),
    ):
        status, _, said = given(name)
        assert status == 2
        assert words in said


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("point", [".", ","])
def test_a_file_with_semicolons_or_tabs_may_have_decimal_commas(tmp_path: Path, separator: str, point: str) -> None:
    numpy = pytest.importorskip("numpy")
    rows = [[1.5, -0.25, 2000.0], [0.125, 3.0, 1e-3]]
    path = tmp_path / "x.csv"
    lines = [separator.join(f"{x}".replace(".", point) for x in row) for row in rows]
    path.write_text("\n".join([separator.join("abc"), *lines]), encoding="utf-8")
    numpy.testing.assert_array_equal(read_array(path), rows)
    path.write_text("\n".join(separator.join(["1,2,3", "a,b"]) for _ in rows), encoding="utf-8")
    assert read_array(path).tolist() == [["1,2,3", "a,b"]] * 2


def test_files_that_are_no_two_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, and the status of a wrong use."""
    numpy = pytest.importorskip("numpy")
    x = numpy.random.default_rng(0).normal(size=(60, 2))
    few, objects = numpy.zeros((4, 2)), numpy.asarray([1, "a"], dtype=object)
    saved = {"x": x, "few": few, "objects": objects, "empty": few[:0], "number": numpy.float64(1.0)}
    for name, array in saved.items():
        numpy.save(tmp_path / f"{name}.npy", array)
    for name, arrays in {
        "both": {"x": x, "y": x},
        "three": {"a": few, "b": few, "c": few},
        "one": {"x": x},
        "numbers": {"a": few[0, 0], "x": x},
    }.items():
        numpy.savez(tmp_path / f"{name}.npz", **arrays)
    whole = (tmp_path / "both.npz").read_bytes()
    damaged, middle = bytearray(whole), len(whole) // 2
    damaged[200] ^= 255
    header = (
        numpy.lib.format.magic(1, 0)
        + b"\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 14), }"
    )
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("readme", "of x and y")
    for name, content in {
        "cut.npz": whole[:middle],
        "damaged.npz": bytes(damaged),
        "array.npz": (tmp_path / "x.npy").read_bytes(),
        "huge.npy": numpy.lib.format.magic(1, 0) + b"\x76\x00" + header + bytes(64),
        "text.npy": b"1,2\n3,4\n",
        "header.csv": b"a,b\n",
        "ragged.csv": b"a,b\nc\n",
        "gaps.csv": b"1,2\n3,\n",
        "missing.csv": b"1,2\n3,NA\n4,?\n",
        "binary.csv": bytes(range(256)),
        "nothing.csv": b"",
        "table.csv": b"a,b\n1,2\n",
        "twice.csv": b"a,a\n1,2\n",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    for files, expected in (
        (["x.npy"], "expected two files, one file with names of columns, or one npz file with the arrays x and y"),
        (["table.csv", "=a", "=c"], "table.csv: expected some of the columns a, b, got c"),
        (["table.csv", "=a", "=b", "--groups", "=c"], "c: No such file or directory"),
        (["numbers.npz", "=a", "=x"], "numbers.npz: expected rows of values in a, got a single one"),
        (["numbers.npz", "=x", "=a"], "numbers.npz: expected rows of values in a, got a single one"),
        (["numbers.npz", "=x", "=x", "--groups", "=a"], "numbers.npz: expected rows of values in a, got a single one"),
        (["numbers.npz", "=x", "=x", "--order", "=a"], "numbers.npz: expected rows of values in a, got a single one"),
        (["numbers.npz", "=x", "=x", "--given", "=a"], "numbers.npz: expected rows of values in a, got a single one"),
        (["numbers.npz"], "numbers.npz: expected rows of values in a, got a single one"),
        (["x.npy", "number.npy"], "number.npy: expected rows of values in number, got a single one"),
        (["x.npy", "x.npy", "--groups", "x.npy"], "x.npy: expected one column, got shape (60, 2)"),
        (["gaps.csv", "=1", "=2"], "gaps.csv: expected names of columns in the first line, and rows, got 1, 2"),
        (["twice.csv", "=a", "=a"], "twice.csv: expected different names of columns, got 'a' twice"),
        (["x.npy", "=x", "=y"], "x.npy: expected some of the columns x, got y"),
        (["three.npz"], "three.npz: expected arrays x and y, got a, b, c"),
        (["one.npz"], "one.npz: expected arrays x and y, got x"),
        (["array.npz"], "array.npz: expected arrays x and y, got array"),
        (["cut.npz"], "cut.npz: expected a whole file, got a damaged or incomplete one: File is not a zip file"),
        (["damaged.npz"], "damaged.npz: expected a whole file, got a damaged or incomplete one: Bad CRC-32"),
        (["texts.npz"], "texts.npz: expected arrays, got the file readme"),
        (["x.npy", "none.npy"], "none.npy: No such file or directory"),
        (["x.npy", "folder"], "folder: expected a file, got a folder"),
        (["x.npy", "huge.npy"], "huge.npy: expected "),
        (["x.npy", "text.npy"], "text.npy: expected a file that NumPy wrote, got another or a damaged one"),
        (["x.npy", "header.csv"], "header.csv: expected rows of values, got the line 'a,b' alone"),
        (["x.npy", "nothing.csv"], "nothing.csv: the file has no rows"),
        (["x.npy", "binary.csv"], "binary.csv: expected text in UTF-8, got byte 0x80 at position 128"),
        (["x.npy", "ragged.csv"], "ragged.csv: expected 2 values in each line, got [1, 2]"),
        (["x.npy", "gaps.csv"], "gaps.csv: row 2: expected a value, got ''"),
        (["x.npy", "missing.csv"], "missing.csv: row 2: expected a value, got 'NA'; leave such rows out"),
        (["x.npy", "objects.npy"], "objects.npy: expected numbers or names, got Python objects"),
        (["x.npy", "three.npz"], "three.npz: expected one array, got a, b, c"),
        (["few.npy", "few.npy"], "x: expected at least 48 rows, got 4"),
        (["empty.npy", "x.npy"], "x: expected shape (N, D) or (N,), got (0, 2)"),
        (["x.npy", "x.npy", "--groups", "folder"], "folder: expected a file, got a folder"),
        (
            ["x.npy", "x.npy", "--groups", "number.npy"],
            "number.npy: expected rows of values in number, got a single one",
        ),
    ):
        paths = [name.removeprefix("=") if name.startswith(("--", "=")) else str(tmp_path / name) for name in files]
        assert main(["mi", *paths]) == 2
        said = capsys.readouterr().err
        assert expected in said
        assert said.startswith("python -m portable_nce: ")
        assert said.count("\n") == 1


def test_what_the_columns_of_a_file_are_taken_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(6) / 4 - 0.5
    path = tmp_path / "x.csv"

    def read(lines: list[str], **options: Any) -> tuple[Any, str]:
        path.write_text("\n".join(lines), encoding="utf-8")
        return read_array(path, **options), capsys.readouterr().err

    found, said = read([",value", *(f"{k},{v}" for k, v in enumerate(values))])
    assert "the first column has no name and counts the rows: left out, as an index" in said
    numpy.testing.assert_array_equal(found, values)
    found, said = read(["k,value", *(f"{k},{v}" for k, v in enumerate(values))])
    assert found.shape == (6, 2)
    assert "index" not in said
    found, said = read(["day,value", *(f"2024-01-{k + 1:02d},{v}" for k, v in enumerate(values))])
    assert "the dates of column day are taken for names; for times, write numbers" in said
    numpy.testing.assert_array_equal(found[:, -1], values)  # numbers beside names stay numbers
    numpy.testing.assert_array_equal(found[:, :-1], numpy.eye(6))
    found, said = read(["kind", "a", "b"], rows=2)
    assert found.tolist() == ["a", "b"]
    assert "using the first line as a header" in said
    assert read(["kind", "a", "b"], rows=3)[0].tolist() == ["kind", "a", "b"]
    found, said = read(["code", "1", "2a", "3"])
    assert found.tolist() == ["1", "2a", "3"]
    assert "column code holds '2a' beside numbers, so all its cells are taken for names" in said


def test_names_and_whole_numbers_are_categories_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    x, noise = numpy.random.default_rng(0).normal(size=(2, 120))
    subject, hour = numpy.arange(120) % 2, numpy.arange(120) // 2 % 3
    names = numpy.asarray(["a", "b"])[subject]
    columns = {"x": x, "y": x + noise, "subject": names, "hour": hour, "weight": [f"{k}.5" for k in hour]}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    numpy.savez(tmp_path / "table.npz", x=x, y=x + noise, subject=names, hour=hour, weight=hour + 0.5)
    both = 3 * subject + hour
    of_call: Any = portable_nce.estimation.mutual_information(x, x + noise, given=both, rng=0, splits=1, steps=5)

    def given(name: str, wanted: str) -> tuple[Any, str]:
        more = "--splits", "1", "--steps", "5", "--json", "--output", str(tmp_path / "found.png")
        assert main(["mi", str(tmp_path / name), "x", "y", "--given", wanted, *more]) == 0
        said = capsys.readouterr()
        return json.loads(said.out), said.err

    for name in ("table.csv", "table.npz"):
        found, said = given(name, "subject,hour")
        assert (found["settings"]["categories"], found["bound"]) == (6, of_call.bound)
        assert "holds names" not in said
        found, said = given(name, "subject,weight")
        assert found["with_y"]["settings"]["inputs"] == [1, 3]  # x, with y and both columns
        assert "column subject holds names, the others numbers" in said


def test_labels_of_groups_keep_all_their_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = pytest.importorskip("numpy")
    x, noise = numpy.random.default_rng(0).normal(size=(2, 60))
    label = 2**60 + numpy.arange(60) // 5
    lines = [f"{a},{b},{k}" for a, b, k in zip(x, x + noise, label, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,label", *lines]), encoding="utf-8")
    more = "--splits", "1", "--steps", "5", "--json", "--output", str(tmp_path / "found.png")
    assert main(["mi", str(tmp_path / "table.csv"), "x", "y", "--groups", "label", *more]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["groups"] == 12


@pytest.mark.parametrize("cell", ["1_11", "1_0.5", "\u0661\u0662", "\uff11"])
def test_a_cell_that_only_python_reads_as_a_number_is_a_name(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{cell}\n{cell}\n", encoding="utf-8")
    for whole in (False, True):
        assert read_array(path, whole=whole).tolist() == [cell] * 2


@pytest.mark.parametrize("cell", ["-1.5e3", " +7 ", ".5", "inf"])
def test_a_cell_is_a_number(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{cell}\n", encoding="utf-8")
    assert read_array(path).tolist() == [float(cell)]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x1c"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_file_end_at_newlines_alone(tmp_path: Path, separator: str, end: str) -> None:
    path = tmp_path / "x.csv"
    names = [f"a{separator}b", "c"]
    path.write_bytes(end.join([*names, '"d', 'e"']).encode())
    assert read_array(path).tolist() == [*names, "d\ne"]


@pytest.mark.parametrize("cell", ["", "NA", "nan", "NaN", "-nan", "None", "?"])
@pytest.mark.parametrize("others", [("a", "b"), ("a", "1.0"), ("1.0", "2.0")], ids=" ".join)
def test_a_missing_value_is_refused_in_every_column(tmp_path: Path, cell: str, others: tuple[str, str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\n".join(f"{value},1.0" for value in (*others, cell)), encoding="utf-8")
    words = f"row 3: expected a value, got {cell!r}; leave such rows out, of both files if there are two, or rename"
    with pytest.raises(Refused, match=re.escape(words)):
        read_array(path)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes have no names here")
@pytest.mark.parametrize("kind", ["csv", "npy"])
def test_a_pipe_is_read_whole(tmp_path: Path, kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(2000.0)
    numpy.save(tmp_path / "x.npy", values)
    numpy.savetxt(tmp_path / "x.csv", values, header="value", comments="", fmt="%.1f")
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write((tmp_path / f"x.{kind}").read_bytes())
        numpy.testing.assert_array_equal(read_array(Path(f"/dev/fd/{reader}")), values)
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes have no names here")
def test_columns_of_a_pipe() -> None:
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(b"a,b\n1,2\n3,4\n")
        assert Columns.of(Path(f"/dev/fd/{reader}")).read("b").tolist() == [2.0, 4.0]
    finally:
        os.close(reader)


def test_names_with_dollar_signs_are_no_formulas(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    x, noise = numpy.random.default_rng(0).normal(size=(2, 60))
    lines = [f"{a},{b}" for a, b in zip(x, x + noise, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["cost_$,price_$", *lines]), encoding="utf-8")
    picture = tmp_path / "found.png"
    more = "--splits", "1", "--steps", "5", "--output", str(picture)
    assert main(["mi", str(tmp_path / "table.csv"), "cost_$", "price_$", *more]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["mi", "demo"])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("portable_nce._cli.information.mutual_information", None)
    monkeypatch.setattr("portable_nce._cli.demo.train", None)
    numpy.savez(tmp_path / "both.npz", x=numpy.arange(60.0), y=numpy.arange(60.0))
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to(tmp_path / "none" / "found.png")
    files = [str(tmp_path / "both.npz")] if command == "mi" else []
    for name, reason in (("folder.png", "Is a directory"), ("link.png", "No such file or directory")):
        output = str(tmp_path / name)
        assert main([command, *files, "--output", output]) == 2
        expected = f"--output: expected a file that can be written, got {output!r}: {reason}"
        assert capsys.readouterr().err == f"python -m portable_nce: {expected}\n"


def test_the_check_of_a_picture_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to(tmp_path / "new.png")
    for name in ("old.png", "link.png", "new.png"):
        check_writable(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.png", "old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("option", [[], ["--help"]], ids=["listing", "help"])
def test_a_closed_pipe_ends_a_command_quietly(unbuffered: str, option: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "portable_nce", *option]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(writer, "wb") as file:
        result = subprocess.run(command, env=env, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    assert result.stderr == ""
    assert result.returncode in ({0, 1} if option else {1})  # some releases of argparse ignore a closed pipe


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_told_in_one_line(unbuffered: str) -> None:
    command = [sys.executable, "-m", "portable_nce"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as file:
        result = subprocess.run(command, env=env, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "python -m portable_nce: [Errno 28] No space left on device\n"


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("portable_nce._cli.information.information", interrupt)
    assert main(["mi", "x.npy", "y.npy"]) == 130
    assert capsys.readouterr().err == "python -m portable_nce: interrupted\n"


@pytest.mark.parametrize("option", ["--folds", "--seed", "--steps"])
def test_a_word_for_a_number(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["mi", "x.npy", "y.npy", option, "two"])
    assert f"argument {option}: expected a whole number, got 'two'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("Torch", "did you mean 'torch'?"), ("tensorflow", "run Keras on PyTorch or JAX")]
)
def test_a_backend_by_another_name(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", name]) == 1
    assert said in capsys.readouterr().err
