"""What one Python file says that it uses: names that it imports, modules that strings name, and files that it names.

Nothing is executed. Each definition at the top of a file is read by itself, because who uses one function of a module
need not use the others. Imports under `if TYPE_CHECKING:` never happen; they only tell what a package's `__getattr__`
gives.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SCHEME = 8
"""Raise it when the meaning of facts changes: kept facts of another scheme are not read."""

PACKAGES = (
    "trainmaster_operator",
    "trainmaster",
    "tests",
    "e2e",
    "benchmarks",
    "charts",
    "claims",
    "docker",
    "docs",
    "examples",
    "simulation",
)
"""Top-level packages of this repository."""

SOURCE = ".py"

SUITE = "tests/suite/"
"""Files here that aren't Python say in which order tests run, and what may take how long: no other test reads them."""

_OURS = "(?:" + "|".join(PACKAGES) + ")"
_DOTTED = re.compile(rf"(?<![\w./]){_OURS}(?:\.\w+)+")
_IMPORTED = re.compile(rf"(?:^|[;\n])[ \t]*(?:from|import)[ \t]+({_OURS}\b[\w.]*)(?:[ \t]+import[ \t]+([\w, \t]+))?")
_OWN_PREFIX = re.compile(r"f['\"]+\{__(?:name|package)__\}((?:\.\w+)*)\.\{")
_PREFIX = re.compile(rf"(?<![\w./])({_OURS}(?:\.\w+)*)(?:\.|[ \t]+import[ \t]+)$")
_FILE = re.compile(r"[\w\-.*/]*[\w\-*]\.\w+|[\w\-.]+(?:/[\w\-.*]+)+/?|\.?/[\w\-./*]+|[A-Z][A-Za-z]*file|LICENSE")
_PART = re.compile(r"[\w\-.*]+")
_JOINS = {"Path", "PurePath", "joinpath", "join", "with_name", "glob", "rglob", "open"}
_PLAIN_DECORATORS = {"dataclass", "cache", "lru_cache", "contextmanager", "asynccontextmanager", "total_ordering"}
_PATHS = {"Path", "abspath", "dirname", "realpath"}
_IMPORTERS = {"import_module", "__import__", "importorskip"}

OWN = "."
"""The beginning of a prefix that is relative to the package of the file."""


@dataclass(frozen=True)
class Import:
    """`import module` has no names; `from module import names`. `level` counts the dots of a relative import.

    `bound` are the names that it gives in the file; ("*",) for a call that imports, whose result may go anywhere.
    """

    module: str
    names: tuple[str, ...] = ()
    level: int = 0
    bound: tuple[str, ...] = ()


@dataclass
class Facts:
    """Facts about a file, or about one definition at its top."""

    at_import: list[Import] = field(default_factory=list)
    in_functions: list[Import] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # modules that strings name, perhaps with an attribute behind
    for_types: list[Import] = field(default_factory=list)  # imports that only type checkers see
    prefixes: list[str] = field(default_factory=list)  # packages of which an f-string names some module; see OWN
    files: list[tuple[int, str]] = field(default_factory=list)  # line, path or end of a path, perhaps with `*`
    requests: list[str] = field(default_factory=list)  # parameters of functions, and strings that may name a fixture
    loaded: list[str] = field(default_factory=list)  # names whose value is used, `name.attribute` if only that is
    at_level: list[str] = field(default_factory=list)  # those of them that an import of the module uses
    definitions: dict[str, Facts] = field(default_factory=dict)  # functions, classes, constants; "" is all the rest
    others: list[str] = field(default_factory=list)  # names that the rest binds
    always: bool = False  # of a definition: it may be called though nobody names it

    @property
    def imports(self) -> list[Import]:
        """All imports, wherever they are."""
        return [*self.at_import, *self.in_functions]

    @property
    def reads_sources(self) -> bool:
        """Tell whether the file looks for *.py files: what it finds can be any source."""
        return any(path.endswith(f"*{SOURCE}") for _, path in self.files)


def read_facts(text: str) -> Facts:
    """Return what a Python text says that it uses. Raises SyntaxError."""
    body = ast.parse(text).body
    facts = _read(body)
    parts: dict[str, list[ast.stmt]] = {"": []}
    for statement in body:
        for name in _defines(statement):
            parts.setdefault(name, []).append(statement)
        if not _defines(statement) and not isinstance(statement, ast.Import | ast.ImportFrom):
            parts[""].append(statement)
    facts.definitions = {name: _read(statements) for name, statements in parts.items()}
    for name, statements in parts.items():
        facts.definitions[name].always = bool(name) and any(map(_is_registered, statements))
    facts.others = sorted(set(_bound_in(parts[""])))
    # Who runs a module as a program uses all of it; an import stops before that.
    facts.at_level = sorted(set(_read([s for s in body if not _is_for_programs(s)]).at_level))
    return facts


def _defines(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file gives a meaning, if that is all it does."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not all(isinstance(t, ast.Name) for t in targets):
        return []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_registered(statement: ast.stmt) -> bool:
    """Tell whether a decorator, or pytest, may know a definition: then nobody needs to name it."""
    decorators = {ast.unparse(d).partition("(")[0].rpartition(".")[2] for d in getattr(statement, "decorator_list", [])}
    if decorators == {"fixture"}:
        return "autouse=True" in ast.unparse(statement)
    return bool(decorators - _PLAIN_DECORATORS) or any(name.startswith("pytest_") for name in _defines(statement))


def _is_for_programs(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def _bound_in(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _read(body: Iterable[ast.stmt]) -> Facts:
    reader = _Reader()
    for statement in body:
        reader.visit(statement)
    found = reader.facts
    for name in ("named", "prefixes", "files", "requests", "loaded", "at_level"):
        setattr(found, name, sorted(set(getattr(found, name))))
    return found


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.facts = Facts()
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
            self.facts.for_types += _read(node.body).imports
            for statement in node.orelse:
                self.visit(statement)
            return
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        if not self.depth:  # the types of fields are what models are made of
            self._visit_later(node.annotation)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for expression in [*node.bases, *(keyword.value for keyword in node.keywords)]:
            self._visit_later(expression)
        for part in [*node.decorator_list, *node.body]:
            self.visit(part)

    def _visit_later(self, node: ast.AST) -> None:
        """Visit what counts only if the definition is used."""
        self.depth += 1
        self.visit(node)
        self.depth -= 1

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
        self._visit_later(node.body)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._load(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self._load(f"{node.value.id}.{node.attr}")
        else:
            self.generic_visit(node)

    def _load(self, name: str) -> None:
        self.facts.loaded.append(name)
        if not self.depth:
            self.facts.at_level.append(name)

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
        if found := _OWN_PREFIX.match(ast.unparse(node)):
            self.facts.prefixes.append(f"{OWN}{found[1]}")
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
        self.visit(node.func)
        for argument in [*node.args, *node.keywords]:
            name = getattr(argument, "id", "")
            # Of a path, only what lies around it is meant, and the name of a logger leads to nothing.
            if (called not in _PATHS or name != "__file__") and (called != "getLogger" or name != "__name__"):
                self.visit(argument)

    def _read_string(self, text: str, line: int) -> None:
        self.facts.named += _DOTTED.findall(text)
        for module, names in _IMPORTED.findall(text):
            self.facts.named += [module, *(f"{module}.{name.split()[0]}" for name in names.split(",") if name.split())]
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
