"""The code in README.md and on the pages in docs/ runs as shown.

The Python blocks of a page run in order in one namespace. Examples with prompts run by doctest (``nox -s doctest``).
Pages that need other libraries or several processes run elsewhere: docs/from-*.md, docs/keras.md and
docs/recipe-lightning.md in tests/full/peers, docs/ranks.md in tests/ranks.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import portable_nce
from portable_nce._core import registry
from portable_nce._hints.names import OTHER_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

OPTIONAL = {"cupy"}
"""Modules that the environment of the tests need not have: blocks that import them are left out of their page."""

OWN = {"portable_nce", "mylib", "yourlib"}
DISTRIBUTIONS = {"orbax": "orbax-checkpoint", "sklearn": "scikit-learn"}
"""Distributions of modules of another name."""

FROM = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("from-*.md"))]
BY_OTHERS = {*FROM, "docs/coming-from.md", "docs/keras.md", "docs/ranks.md", "docs/recipe-lightning.md"}
"""Pages that tests/full/peers and tests/ranks run."""


@dataclass(frozen=True)
class Block:
    """A fenced block of Python, with its page and first line."""

    page: str
    line: int
    source: str

    @property
    def modules(self) -> set[str]:
        """Modules of other distributions that the block imports, by their first names."""
        nodes = list(ast.walk(ast.parse(self.source)))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OWN

    @property
    def optional(self) -> set[str]:
        """Optional modules that the block imports."""
        return self.modules & OPTIONAL

    def run(self, namespace: dict[str, Any]) -> None:
        """Execute the block; errors have the line number of the page."""
        code = compile("\n" * (self.line - 1) + self.source, self.page, "exec")
        exec(code, namespace)  # noqa: S102  (code of the page)


def blocks_of(page: str) -> Iterator[Block]:
    """Python blocks of a page; every other fence must name its language."""
    fence: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        match = re.match(r" {0,3}(`{3,}|~{3,})\s*(\w*)", line)
        if match is None:
            lines.append(line)
        elif fence is None:
            fence, lines = (match[2].lower(), number + 1), []
        else:
            language, start = fence
            if language in {"python", "py", "python3", "pycon"}:
                yield Block(page, start, dedent("\n".join(lines) + "\n"))  # indented in a list
            fence = None
    assert fence is None, f"{page}: a fenced block is not closed"


PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
BLOCKS = {page: [block for block in blocks_of(page) if ">>> " not in block.source] for page in PAGES}
EXECUTED = {page: blocks for page, blocks in BLOCKS.items() if blocks and page not in BY_OTHERS}


@cache
def works(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        importlib.import_module({"mlx": "mlx.core"}.get(module, module))
    except ImportError:
        return False
    return True


def need(page: str, modules: set[str]) -> None:
    """Skip a test of a page, and name the modules for want of which it cannot run."""
    missing = sorted(module for module in modules if not works(module))
    if missing:
        pytest.skip(f"{page} needs {', '.join(DISTRIBUTIONS.get(module, module) for module in missing)}")


@pytest.fixture
def mylib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install what docs/conformance.md assumes: the library `mylib`, and a copy in the package `yourlib`."""
    (tmp_path / "mylib.py").touch()
    package = Path(portable_nce.__file__).parent
    backends = Path(str(importlib.import_module("portable_nce.backends").__file__)).parent
    vendor = tmp_path / "yourlib" / "_vendor"
    leave = shutil.ignore_patterns("__pycache__", "testing", "_cli", "backends")
    shutil.copytree(package, vendor / "portable_nce", ignore=leave)
    shutil.copytree(backends, vendor / "portable_nce" / "backends", ignore=shutil.ignore_patterns("__pycache__"))
    (vendor / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))  # noqa: SLF001  (restored afterwards)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"mylib", "yourlib"}:
            del sys.modules[name]


TRAININGS = {f"docs/recipe-{name}.md" for name in ("clip", "retrieval", "simclr", "lightning", "memory-bank")}
"""Pages whose code trains for ten seconds and more."""


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore PyTorch's number of threads, which recipes set."""
    before = sys.modules["torch"].get_num_threads() if works("torch") else 0
    yield
    if before:
        sys.modules["torch"].set_num_threads(before)


@pytest.mark.usefixtures("mylib", "threads")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.full if page in TRAININGS else ()) for page in EXECUTED]
)
def test_the_code_of_a_page_runs(page: str) -> None:
    need(page, {name for block in EXECUTED[page] for name in block.modules} - OPTIONAL)
    namespace: dict[str, Any] = {"__name__": "__main__", "portable_nce": portable_nce}
    for block in EXECUTED[page]:
        if all(map(works, block.optional)):
            block.run(namespace)


def test_the_tests_have_the_modules_of_all_pages(noxfile: Any) -> None:
    """No page is skipped in the default run."""
    installed = {re.split(r"[\[<>=~; ]", requirement)[0] for requirement in noxfile.ENVIRONMENTS["all"]}
    modules = {name for blocks in EXECUTED.values() for block in blocks for name in block.modules} - OPTIONAL
    assert {DISTRIBUTIONS.get(name, name) for name in modules} <= installed


@pytest.mark.parametrize(
    "block",
    [block for blocks in EXECUTED.values() for block in blocks if block.optional],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_a_block_with_an_optional_library_runs(block: Block) -> None:
    need(f"{block.page}, line {block.line},", block.optional)
    block.run({"__name__": "__main__"})


def gradients_in(namespace: dict[str, Any]) -> list[Any]:
    """Gradients computed by a block."""
    shown = [namespace[name] for name in ("gradient", "gradients") if name in namespace]
    return [one for gradient in shown for one in (gradient if isinstance(gradient, tuple) else (gradient,))]


def numbers_in(output: str) -> tuple[list[str], list[float]]:
    """Words and numbers of an output."""
    number = r"-?\d+(?:\.\d+)?"
    return re.sub(number, "#", output).split(), [float(found) for found in re.findall(number, output)]


@pytest.mark.parametrize("page", ["README.md", "docs/two-arrays.md"])
def test_the_first_output_of_a_page_is_what_its_block_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, shown, *_ = re.split(r"```text\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    [block for block in BLOCKS[page] if block.line <= before.count("\n")][-1].run({"__name__": "__main__"})
    words, numbers = numbers_in(capsys.readouterr().out)
    assert words == numbers_in(shown)[0]
    assert numbers == pytest.approx(numbers_in(shown)[1], abs=0.011)  # the last digit may differ between processors


def test_the_loop_of_the_readme_computes_the_same_before_and_after() -> None:
    need("README.md", {"torch"})
    torch: Any = importlib.import_module("torch")
    (loop,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    encoder = torch.nn.Linear(8, 4)
    found = []
    for removed in "+-":
        lines = [line[1:] for line in loop.splitlines() if line[0] != removed]
        namespace = {
            "torch": torch,
            "pnce": portable_nce,
            "encode": encoder,
            "optimizer": None,
            "step": lambda _: None,
            **{name: getattr(torch.nn.functional, name) for name in ("normalize", "cross_entropy")},
            "loader": [torch.linspace(-1.0, 2.0, 96).sin().reshape(2, 6, 8)],
        }
        encoder.zero_grad()
        exec("\n".join(lines), namespace)  # noqa: S102  (code of the page)
        found.append(torch.cat([namespace["loss"].reshape(1), encoder.weight.grad.reshape(-1)]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "block",
    BLOCKS["docs/index.md"],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_a_block_of_the_start_page_gives_gradients(block: Block) -> None:
    need(f"{block.page}, line {block.line},", block.modules)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    block.run(namespace)  # each block can be copied on its own
    gradients = gradients_in(namespace)
    assert gradients
    for gradient, argument in zip(gradients, ("query", "key", "temperature"), strict=False):
        assert gradient is not None, argument
        assert gradient.shape == namespace[argument].shape
        assert 0.0 < float(abs(gradient).sum()) < float("inf")


def test_the_start_page_has_a_block_for_each_library() -> None:
    first = [re.match(r"import (\w+)", block.source) for block in BLOCKS["docs/index.md"]]
    assert [match and match[1] for match in first] == ["torch", "jax", "numpy", "mlx", "cupy"]


def test_the_lines_of_other_libraries_can_be_read() -> None:
    (imports,) = BLOCKS["docs/coming-from.md"]
    assert imports.source.splitlines()[-1] == "import portable_nce as pnce"
    for block in (block for page in sorted(BY_OTHERS) for block in BLOCKS[page]):
        ast.parse(block.source)


def test_every_loss_of_another_library_is_in_the_index() -> None:
    index = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| \[`?([\w.]+)`?\]\((from-[\w-]+\.md)#", index, re.MULTILINE))
    headings = {
        (match[1], Path(page).name)
        for page in FROM
        for match in re.finditer(r"^## ((?:losses\.)?\w+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert listed == headings


def test_errors_name_the_functions_of_the_index() -> None:
    """The table of names in the package is the one on the page, without names that are equal here."""
    index = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for other, ours in re.findall(r"^\| \[`?([\w.]+)`?\]\(from-[^)]*\) \| ([^|]*) \|", index, re.MULTILINE):
        name = other.rpartition(".")[2]
        found.setdefault(name, []).extend(one for one in re.findall(r"`([\w.]+)`", ours) if one != name)
    assert {name: list(dict.fromkeys(ours)) for name, ours in found.items() if ours} == {
        name: ours.split() for name, ours in OTHER_NAMES.items()
    }
    for ours in OTHER_NAMES.values():
        assert all(callable(attrgetter(one)(portable_nce)) for one in ours.split())


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", ["info_nce", "nt_xent", "flat_nce", "dcl", "n_tuple"])
def test_jax_lowers_losses_for_devices_that_are_not_here(name: str, platform: str) -> None:
    """With products of the highest precision, unless the user chose another."""
    jax: Any = importlib.import_module("jax")
    x = jax.numpy.ones((64, 8), dtype="float32")

    def products() -> list[str]:
        gradient = jax.jit(jax.value_and_grad(getattr(portable_nce, name), argnums=(0, 1)))
        text = gradient.trace(x, x).lower(lowering_platforms=(platform,)).as_text()
        return [line for line in text.splitlines() if "dot_general" in line]

    assert products()
    assert all("HIGHEST" in line for line in products())
    with jax.default_matmul_precision("bfloat16"):
        assert not any("HIGHEST" in line for line in products())
