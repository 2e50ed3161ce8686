"""What one Python file says that it uses: modules that it imports or names in strings, and files that it names.

Nothing is executed. An import inside a function is told from one that happens when the module is imported. Imports
under `if TYPE_CHECKING:` are left out, because they never happen. Of a conftest.py each definition is read by itself,
because a test uses only some of its fixtures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SCHEME = 2
"""Raise it when the meaning of facts changes: kept facts of another scheme are not read."""

PACKAGES = ("trainmaster_operator", "trainmaster", "tests", "e2e", "benchmarks", "charts", "docker", "examples")
"""Top-level packages of this repository."""

SOURCE = ".py"

_OURS = "(?:" + "|".join(PACKAGES) + ")"
_DOTTED = re.compile(rf"(?<![\w./]){_OURS}(?:\.\w+)+")
_IMPORTED = re.compile(rf"(?:^|[;\n])[ \t]*(?:from|import)[ \t]+({_OURS}\b[\w.]*)")
_PREFIX = re.compile(rf"(?<![\w./])({_OURS}(?:\.\w+)*)\.$")
_FILE = re.compile(r"[\w\-.*/]*[\w\-*]\.\w+|[\w\-.]+(?:/[\w\-.*]+)+/?|\.?/[\w\-./*]+|[A-Z][A-Za-z]*file|LICENSE")
_PART = re.compile(r"[\w\-.*]+")
_JOINS = {"Path", "PurePath", "joinpath", "join", "with_name", "glob", "rglob", "open"}
_IMPORTERS = {"import_module", "__import__", "importorskip"}


@dataclass(frozen=True)
class Import:
    """`import module` has no names; `from module import names`. `level` counts the dots of a relative import.

    `bound` are the names that it gives in the file. `called` tells whether the module level uses one of them.
    """

    module: str
    names: tuple[str, ...] = ()
    level: int = 0
    bound: tuple[str, ...] = ()
    called: bool = False


@dataclass
class Facts:
    """Facts about a file, or about one definition in it."""

    at_import: list[Import] = field(default_factory=list)
    in_functions: list[Import] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # modules that strings name, perhaps with an attribute behind
    prefixes: list[str] = field(default_factory=list)  # packages of which an f-string names some module
    files: list[tuple[int, str]] = field(default_factory=list)  # line, path or end of a path, perhaps with `*`
    requests: list[str] = field(default_factory=list)  # parameters of functions, and strings that may name a fixture
    loaded: list[str] = field(default_factory=list)  # names whose value is used, `name.attribute` if only that is
    definitions: dict[str, Facts] = field(default_factory=dict)  # of a conftest.py: by name; "" is all the rest
    always: bool = False  # of a definition: pytest calls it without being asked

    def uses(self, name: str) -> bool:
        """Tell whether more is used of the imported `name` than what every module has, such as `__file__`."""
        return any(
            held == name or (held.startswith(f"{name}.") and not held.startswith(f"{name}.__")) for held in self.loaded
        )

    @property
    def imports(self) -> list[Import]:
        """All imports, wherever they are."""
        return [*self.at_import, *self.in_functions]

    @property
    def reads_sources(self) -> bool:
        """Tell whether the file looks for *.py files: what it finds can be any source."""
        return any(path.endswith(f"*{SOURCE}") for _, path in self.files)


def read_facts(text: str, *, by_definition: bool = False) -> Facts:
    """Return what a Python text says that it uses. Raises SyntaxError."""
    body = ast.parse(text).body
    facts = _read(body)
    if by_definition:
        rest = [statement for statement in body if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)]
        facts.definitions = {"": _read(rest)}
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                definition = _read([statement])
                decorators = " ".join(map(ast.unparse, statement.decorator_list))
                definition.always = statement.name.startswith("pytest_") or "autouse=True" in decorators
                facts.definitions[statement.name] = definition
    return facts


def _read(body: Iterable[ast.stmt]) -> Facts:
    reader = _Reader()
    for statement in body:
        reader.visit(statement)
    found = reader.facts
    return Facts(
        [_marked(imported, reader.at_level) for imported in found.at_import],
        found.in_functions,
        sorted(set(found.named)),
        sorted(set(found.prefixes)),
        sorted(set(found.files)),
        sorted(set(found.requests)),
        sorted(set(found.loaded)),
    )


def _marked(imported: Import, loaded: set[str]) -> Import:
    called = "*" in imported.bound or bool(loaded.intersection(imported.bound))
    return Import(imported.module, imported.names, imported.level, imported.bound, called)


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.facts = Facts()
        self.at_level: set[str] = set()  # names that the module level uses
        self.depth = 0

    def _add(self, imported: Import) -> None:
        (self.facts.in_functions if self.depth else self.facts.at_import).append(imported)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(Import(alias.name, bound=(alias.asname or alias.name.partition(".")[0],)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = tuple(alias.name for alias in node.names)
        self._add(Import(node.module or "", names, node.level, tuple(a.asname or a.name for a in node.names)))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.orelse:
                self.visit(statement)
            return
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:  # annotations are not evaluated
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.facts.requests += [argument.arg for argument in every]
        for expression in [*node.decorator_list, *arguments.defaults, *arguments.kw_defaults]:
            if expression is not None:
                self.visit(expression)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.facts.loaded.append(node.id)
            if not self.depth:
                self.at_level.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.value, ast.Name):
            self.generic_visit(node)
            return
        self.facts.loaded.append(f"{node.value.id}.{node.attr}")
        if not self.depth:
            self.at_level.add(node.value.id)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(getattr(node.value, "value", None), str):  # a docstring names much and uses nothing
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._read_string(node.value, node.lineno)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if isinstance(part, ast.Constant) and (found := _PREFIX.search(str(part.value))):
                self.facts.prefixes.append(found[1])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.op, ast.Div):
            self.generic_visit(node)
            return
        operands = [*_operands(node)]
        self._read_path(operands, node.lineno)
        for operand in operands:
            if not isinstance(operand, ast.Constant):
                self.visit(operand)

    def visit_Call(self, node: ast.Call) -> None:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in _JOINS:
            self._read_path([*node.args], node.lineno)
        if called in _IMPORTERS and node.args and isinstance(node.args[0], ast.Constant):
            self._add(Import(str(node.args[0].value), bound=("*",)))
        self.generic_visit(node)

    def _read_string(self, text: str, line: int) -> None:
        self.facts.named += _DOTTED.findall(text)
        self.facts.named += _IMPORTED.findall(text)
        if text.isidentifier():
            self.facts.requests.append(text)
        if len(text) < 200 and _FILE.fullmatch(text):
            self.facts.files.append((line, text.strip("/")))

    def _read_path(self, parts: list[ast.expr], line: int) -> None:
        """Join the constant parts of a path that stand side by side."""
        run: list[str] = []
        for part in [*parts, None]:
            value = getattr(part, "value", None)
            if (
                isinstance(part, ast.Constant)
                and isinstance(value, str)
                and all(map(_PART.fullmatch, value.split("/")))
            ):
                run.append(value)
            elif run:
                self.facts.files.append((line, "/".join(run)))
                run = []


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from _operands(node.left)
        yield node.right
    else:
        yield node
