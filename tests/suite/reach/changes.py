"""Which blocks of an old text a new text changes: what was executed there may now go another way.

Both texts are compared as syntax trees, so comments and formatting change nothing. Docstrings change nothing unless
code can read them: all docstrings of a module that names `__doc__`, and those of classes that inherit (a model's
becomes part of its schema). Statements are aligned suite by suite; where two have the same head, such as `if x:`, what
they hold is compared. Everything else counts for the block in which it stood, or would have stood, in the old text: a
changed decorator or constant, and a new class, stand in the block of their module, which all importers execute.

Three changes of a module's level are finer, because they don't touch what the others execute. A changed signature
counts for the first block of its function, which every caller executed. A new function without decorators, and an
imported name more or less from a module that is imported anyway or is of the standard library, touch only those who
mention the name.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from difflib import SequenceMatcher

from tests.suite.reach.blocks import Block, Suite, is_docstring, split, suites

_FIELDS_OF_SUITES = {"body", "handlers", "orelse", "finalbody", "cases"}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN_DECORATORS = {
    "staticmethod",
    "classmethod",
    "property",
    "contextmanager",
    "asynccontextmanager",
    "cached_property",
}
"""They don't look at a signature."""


@dataclass(frozen=True)
class TextChange:
    """Blocks of the old text that the new one changes, and the names of the functions that hold them.

    `module_level`: one of the blocks is executed by all who import the module. `bound`: names that the module has more
    or less, for which no block counts. `loads`: apart from the blocks, the module may fail when it is imported.
    """

    blocks: frozenset[int]
    names: tuple[str, ...]
    module_level: bool
    bound: frozenset[str] = frozenset()
    loads: bool = False

    @property
    def empty(self) -> bool:
        return not (self.blocks or self.loads)


NOTHING = TextChange(frozenset(), (), False)
ALL = TextChange(frozenset({0}), ("",), True)


def compare(old: str | None, new: str | None) -> TextChange:
    """Return what `new` changes of `old`; None: the file does not exist. A text that can't be parsed changes all."""
    if old == new:
        return NOTHING
    try:
        before, after = ast.parse(old or ""), ast.parse(new or "")
    except (SyntaxError, ValueError):
        return ALL
    if old is None or new is None:
        return ALL
    for tree, text in ((before, old), (after, new)):
        _drop_docstrings(tree.body, kept="__doc__" in text)
    return _Comparison(before, _words(old), _words(new)).run(after)


class _Comparison:
    def __init__(self, tree: ast.Module, old_words: set[str], new_words: set[str]) -> None:
        self.tree = tree
        self.old_words, self.new_words = old_words, new_words
        self.blocks = split(tree)
        self.of_suite: dict[int, list[Block]] = {}
        for block in self.blocks:
            self.of_suite.setdefault(id(block.suite), []).append(block)
        self.imported = {_module_of(s) for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)}
        self.changed: set[int] = set()
        self.bound: set[str] = set()
        self.loads = False

    def run(self, new: ast.Module) -> TextChange:
        self._compare(self.tree.body, new.body, 0)
        at_level = bool(self.changed & _executed_by_import(self.tree, self.of_suite))
        names = sorted({self.blocks[number].name for number in self.changed})
        return TextChange(frozenset(self.changed), tuple(names), at_level, frozenset(self.bound), self.loads)

    def _compare(self, old: Suite, new: Suite, around: int) -> None:
        """Compare two suites; `around`: the block that holds the statement they belong to."""
        matcher = SequenceMatcher(None, [ast.dump(s) for s in old], [ast.dump(s) for s in new], autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind != "equal":
                self._compare_run(old, (i, j), new[k:m], around)

    def _compare_run(self, old: Suite, span: tuple[int, int], new: Suite, around: int) -> None:
        """Align what differs by the heads of its statements, and look inside of those whose head is the same."""
        begin, end = span
        matcher = SequenceMatcher(None, [_head(s) for s in old[begin:end]], [_head(s) for s in new], autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind != "equal":
                if all(isinstance(s, ast.Pass) for s in [*old[begin + i : begin + j], *new[k:m]]):
                    continue
                if old is self.tree.body and i == j and all(self._adds_a_name(s) for s in new[k:m]):
                    continue
                # What is inserted behind the last statement stands in that one's block, if in any.
                for index in range(begin + i, max(begin + j, begin + i + 1)):
                    self.changed.add(self._block_at(old, index, around))
                continue
            for index in range(j - i):
                self._compare_inside(old, begin + i + index, new[k + index], around)

    def _compare_inside(self, suite: Suite, index: int, new: ast.stmt, around: int) -> None:
        old, block = suite[index], self._block_at(suite, index, around)
        if isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
            future = old.module == "__future__"
            if future or suite is not self.tree.body or not self._rebinds(_bound_by(old) ^ _bound_by(new)):
                self.changed.add(block)
            return
        if isinstance(old, _FUNCTIONS) and _signature(old) != _signature(new):
            plain = all(ast.unparse(decorator) in _PLAIN_DECORATORS for decorator in old.decorator_list)
            self.changed.add(self.of_suite[id(old.body)][0].number if plain else block)
            self.loads = True
        for inner_old, inner_new in zip(suites(old), suites(new), strict=True):  # equal heads, equal suites
            self._compare(inner_old, inner_new, block)

    def _adds_a_name(self, new: ast.stmt) -> bool:
        """Tell whether a new statement of the module's level does nothing but give the module a name more."""
        if isinstance(new, ast.Pass):
            return True
        if isinstance(new, _FUNCTIONS):
            return not new.decorator_list and not new.name.startswith("__") and self._rebinds({(new.name, "")})
        if isinstance(new, ast.Import | ast.ImportFrom):
            module = _module_of(new)
            known = module in self.imported or module.partition(".")[0] in sys.stdlib_module_names
            return known and module != "__future__" and self._rebinds(_bound_by(new))
        return False

    def _rebinds(self, bindings: set[tuple[str, str]]) -> bool:
        """Note names that are bound now, or no longer. Return False if text that stays may mean one of them."""
        names = {name for name, _ in bindings}
        if names & self.old_words & self.new_words or "*" in names:
            return False
        self.bound |= names
        self.loads = True
        return True

    def _block_at(self, suite: Suite, index: int, around: int) -> int:
        """Return the block that position `index` of the old suite lies in; the body of a class has none of its own."""
        held = self.of_suite.get(id(suite))
        if not held:
            return around
        for block in held:
            if block.start <= index < block.stop:
                return block.number
        return held[-1].number


def _executed_by_import(tree: ast.Module, of_suite: dict[int, list[Block]]) -> set[int]:
    """Return the blocks outside of all functions."""
    found: set[int] = set()

    def visit(suite: Suite) -> None:
        found.update(block.number for block in of_suite.get(id(suite), []))
        for statement in suite:
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for inner in suites(statement):
                    visit(inner)

    visit(tree.body)
    return found


def _drop_docstrings(suite: Suite, *, kept: bool, of_class: bool = False) -> None:
    """Put `pass` for every string that is a statement, which leaves the numbers of blocks as they are.

    `kept`: the module reads its docstrings. `of_class`: the suite is that of a class that inherits.
    """
    for index, statement in enumerate(suite):
        if is_docstring(statement) and not (kept or of_class):
            suite[index] = ast.Pass()
        inherits = isinstance(statement, ast.ClassDef) and bool(statement.bases or statement.keywords)
        for inner in suites(statement):
            _drop_docstrings(inner, kept=kept, of_class=inherits)


def _head(statement: ast.stmt) -> str:
    """Return a key of all of a statement but what it holds: its suites, the signature of a function, imported names."""
    if isinstance(statement, _FUNCTIONS):
        return f"{type(statement).__name__} {statement.name} {_dump(statement.decorator_list)}"
    if isinstance(statement, ast.ImportFrom):
        return f"from {_module_of(statement)}"
    fields = [f"{name}={_dump(value)}" for name, value in ast.iter_fields(statement) if name not in _FIELDS_OF_SUITES]
    for handler in getattr(statement, "handlers", []):
        fields.append(f"except {_dump(handler.type)} {handler.name}")
    for case in getattr(statement, "cases", []):
        fields.append(f"case {_dump(case.pattern)} {_dump(case.guard)}")
    present = [name for name in ("body", "orelse", "finalbody") if getattr(statement, name, [])]
    return f"{type(statement).__name__}({', '.join(fields)}){present}"


def _signature(function: ast.stmt) -> str:
    held = ("decorator_list", "body", "name")
    return "".join(f"{name}={_dump(value)}" for name, value in ast.iter_fields(function) if name not in held)


def _module_of(statement: ast.Import | ast.ImportFrom) -> str:
    if isinstance(statement, ast.ImportFrom):
        return "." * statement.level + (statement.module or "")
    return ",".join(alias.name for alias in statement.names)


def _bound_by(statement: ast.Import | ast.ImportFrom) -> set[tuple[str, str]]:
    """Return each name that an import gives, with what it stands for."""
    return {(alias.asname or alias.name.partition(".")[0], alias.name) for alias in statement.names}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _dump(value: object) -> str:
    if isinstance(value, ast.AST):
        return ast.dump(value)
    if isinstance(value, list):
        return "[" + ", ".join(_dump(item) for item in value) + "]"
    return repr(value)
