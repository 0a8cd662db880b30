"""The mutants of the code: each is the source of a module with one small change, made by an operator of mutmut.

Left out is what is no behaviour: docstrings, annotations, names of types, ``__all__``, decorators, what is raised
and the sentences in it, and `strict` of zip, a check of our own. Where mutmut knows several ways to the same end, one
is taken: a string gets other letters, an argument by position becomes None, and one by keyword is left out.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_string

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[2]

FILES: Final = tuple(
    path.relative_to(ROOT).as_posix()
    for folder in ("portable_nce", "backends")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name not in {"__init__.py", "__main__.py", "protocol.py", "cupy.py", "mlx.py", "mlx_namespace.py"}
    and not {"_cli", "testing"} & set(path.relative_to(ROOT).parts)
)
"""What is mutated: the core and the modules, without the command line and the conformance suite; and the adapters but
those of CuPy and MLX."""

MESSAGE: Final = m.Assign(targets=[m.AssignTarget(m.Name("message"))])
TYPING: Final = m.Call(m.Name("cast") | m.Name("TypeVar") | m.Name("ParamSpec") | m.Name("NewType"))
SKIPPED: Final = (
    m.Annotation()
    | m.AnnAssign(annotation=m.Annotation(m.Name("TypeAlias")))
    | m.Arg(keyword=m.Name("strict"))
    | m.Decorator()
    | m.FormattedString()
    | m.Raise()
    | m.Import()
    | m.ImportFrom()
    | MESSAGE
    | TYPING
    | m.Assign(targets=[m.AssignTarget(m.Name("__all__"))])
    | m.Assign(value=TYPING)
    | m.If(test=m.Name("TYPE_CHECKING"))
)
A_TYPE: Final = m.Name() | m.Attribute() | m.Subscript() | m.BinaryOperation(operator=m.BitOr())


class Mutant(NamedTuple):
    """A module with one change.

    `scope` is the function around it, `at_import` says that it runs when the module is imported: not in a function, or
    in a default.
    """

    name: str
    file: str
    scope: str
    lines: tuple[int, int]
    statement: tuple[int, int]
    at_import: bool
    place: tuple[int, cst.CSTNode, cst.CSTNode]

    def sources(self) -> tuple[str, str]:
        """Give the module's source without and with the change."""
        module, text, _ = parsed(self.file)
        index, node, other = self.place
        statement = module.body[index]
        before, after = (module.code_for_node(part) for part in (statement, statement.deep_replace(node, other)))
        return text, text.replace(before, after, 1)

    def difference(self) -> list[str]:
        """Give the lines that differ."""
        before, after = (text.splitlines() for text in self.sources())
        return [
            line.rstrip()
            for line in difflib.unified_diff(before, after, lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]


def module_of(file: str) -> str:
    """Give the name under which a file is imported."""
    name = file.removesuffix(".py").replace("/", ".")
    return name if name.startswith("portable_nce") else f"portable_nce.{name}"


@cache
def parsed(file: str) -> tuple[cst.Module, str, MetadataWrapper]:
    """Read and parse a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(text))
    return wrapper.module, text, wrapper


class Finder(cst.CSTVisitor):
    """Collects the mutants of a file."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module) -> None:
        super().__init__()
        self.file = file
        self.module = module
        self.scopes: list[str] = []
        self.functions = 0
        self.statements: list[cst.CSTNode] = []
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.index = 0
        self.found: list[Mutant] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Make the mutants of a node, unless it is of a kind to be left out."""
        if m.matches(node, SKIPPED) or self.is_alias(node) or is_sentence(node):
            return False
        if isinstance(node, cst.BaseStatement | cst.BaseSmallStatement):
            self.statements.append(node)
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self.scopes.append(node.name.value)
        self.functions += isinstance(node, cst.FunctionDef | cst.Lambda)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changes = list(operator(node))
                if operator is operator_string:
                    changes = changes[:1]
                elif operator is operator_arg_removal:
                    changes = [other for other in changes if is_wanted(node, other)]
                for other in changes:
                    self.add(node, other)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Close what was opened."""
        if self.statements and self.statements[-1] is original_node:
            self.statements.pop()
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef) and not is_sentence(original_node):
            self.scopes.pop()
        self.functions -= isinstance(original_node, cst.FunctionDef | cst.Lambda)

    def is_alias(self, node: cst.CSTNode) -> bool:
        """Tell whether a statement gives a type a name."""
        if not isinstance(node, cst.Assign) or self.scopes:
            return False
        name = node.targets[0].target
        if not isinstance(name, cst.Name) or name.value.isupper():
            return False
        return name.value.lstrip("_")[:1].isupper() and m.matches(node.value, A_TYPE)

    def add(self, node: cst.CSTNode, other: cst.CSTNode) -> None:
        """Add a mutant; its name does not depend on where in the file it stands."""
        scope = ".".join(self.scopes)
        key = (scope, self.module.code_for_node(node), self.module.code_for_node(other))
        self.seen[key] += 1
        digest = hashlib.sha256(repr((self.file, key, self.seen[key])).encode()).hexdigest()[:10]
        lines, statement = self.span(node), self.span(self.statements[-1])
        place = (self.index, node, other)
        at_import = not self.functions or isinstance(self.statements[-1], cst.FunctionDef)
        self.found.append(Mutant(digest, self.file, scope, lines, statement, at_import, place))

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Give the first and the last line of a node."""
        found: Any = self.get_metadata(PositionProvider, node)
        return found.start.line, found.end.line


def is_wanted(call: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Tell whether a call with an argument less has it None, by position, or left out, by keyword."""
    assert isinstance(call, cst.Call)
    assert isinstance(other, cst.Call)
    if len(call.args) == len(other.args):
        gone = next(arg for arg, new in zip(call.args, other.args, strict=True) if arg is not new)
        return gone.keyword is None or len(call.args) == 1
    gone = next((arg for arg, new in zip(call.args, other.args, strict=False) if arg is not new), call.args[-1])
    return gone.keyword is not None and gone.keyword.value != "strict"


def is_sentence(node: cst.CSTNode) -> bool:
    """Tell whether a node is a string with words in it: part of a message, or documentation."""
    return isinstance(node, cst.SimpleString) and " " in node.value


def mutants_of(file: str) -> list[Mutant]:
    """List the mutants of a file."""
    module, _, wrapper = parsed(file)
    finder = Finder(file, module)
    finder.metadata = {PositionProvider: wrapper.resolve(PositionProvider)}
    for finder.index, part in enumerate(module.body):
        part.visit(finder)
    return finder.found


def sample(mutants: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """Draw from each file its share, at least five.

    A mutant's turn depends on its own text: a larger sample contains a smaller one, and a later sample most of it.
    """
    strata: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        strata.setdefault(mutant.file, []).append(mutant)
    total = sum(map(len, strata.values()))
    drawn: list[Mutant] = []
    for stratum in strata.values():
        shuffled = sorted(stratum, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
        drawn += shuffled[: max(5, round(size * len(stratum) / total))]
    return drawn
