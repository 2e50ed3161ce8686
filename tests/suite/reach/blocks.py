"""Where a block of a module begins and ends: the unit in which the record says what a test executed.

A block is a run of statements of one suite that can be left early only after its last statement. Every suite begins
one: a module, a function, a branch, the body of a loop, an exception handler. Another begins after a statement that
holds a `return`, `raise`, `break` or `continue`, because what follows a guard often isn't reached. The body of a class
belongs to the block that holds the class, for both run together. What can't be told apart (a lambda, a comprehension,
an operand) belongs to the block that holds it: this block was reached first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

SCHEME = 1
"""Raise it when blocks are numbered differently: records of another scheme are not read."""

Suite = list[ast.stmt]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Block:
    """Statements `start` to `stop` (exclusive) of `suite`. `number` counts from 0 within the module."""

    number: int
    name: str  # qualified name of the function or class that holds it; "" at the level of the module
    suite: Suite
    start: int
    stop: int

    @property
    def probe_index(self) -> int:
        """Where in the suite a probe may stand: after the docstring and after `from __future__`."""
        index = self.start
        if index == 0 and self.suite and is_docstring(self.suite[0]):
            index = 1
        while index < len(self.suite) and _is_future(self.suite[index]):
            index += 1
        return index


def is_docstring(statement: ast.stmt) -> bool:
    """Return True for an expression statement that is a string alone."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def suites(statement: ast.stmt) -> Iterator[Suite]:
    """Yield the suites that a compound statement holds, in the order of the text; none for a simple statement."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        held = getattr(statement, field, [])
        if field in ("handlers", "cases"):
            yield from (part.body for part in held)
        elif held:
            yield held


def can_escape(statement: ast.stmt, *, looping: bool = False) -> bool:
    """Return True if the statement can leave its suite early other than by an exception of something that it calls.

    `looping`: a `break` or `continue` stays within the statement, because a loop in it holds them.
    """
    if isinstance(statement, ast.Break | ast.Continue):
        return not looping
    if isinstance(statement, ast.Return | ast.Raise):
        return True
    if isinstance(statement, _DEFINITIONS):
        return False
    for suite in suites(statement):
        loop = isinstance(statement, ast.For | ast.AsyncFor | ast.While) and suite is statement.body
        if any(can_escape(inner, looping=looping or loop) for inner in suite):
            return True
    return False


def split(tree: ast.Module) -> list[Block]:
    """Return the blocks of a module, in an order that depends on its text alone; block 0 is where the module begins."""
    found: list[Block] = []
    if not tree.body:
        return [Block(0, "", tree.body, 0, 0)]
    _split_suite(tree.body, "", found)
    return found


def read(text: str) -> list[Block]:
    """Return the blocks of a text; of one that can't be parsed, the module alone."""
    try:
        return split(ast.parse(text))
    except (SyntaxError, ValueError):
        return [Block(0, "", [], 0, 0)]


def _split_suite(suite: Suite, name: str, found: list[Block]) -> None:
    start, pieces = 0, []
    for index, statement in enumerate(suite):
        if can_escape(statement) and index + 1 < len(suite):
            pieces.append((start, index + 1))
            start = index + 1
    for begin, end in [*pieces, (start, len(suite))]:
        found.append(Block(len(found), name, suite, begin, end))
        for statement in suite[begin:end]:
            _split_inside(statement, name, found)


def _split_inside(statement: ast.stmt, name: str, found: list[Block]) -> None:
    if isinstance(statement, ast.ClassDef):
        for member in statement.body:
            _split_inside(member, _within(name, statement.name), found)
        return
    if isinstance(statement, _DEFINITIONS):
        name = _within(name, statement.name)
    for suite in suites(statement):
        _split_suite(suite, name, found)


def _within(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def block_of_line(blocks: list[Block], line: int) -> int:
    """Return the number of the innermost block that holds `line` (from 1); block 0 if none does."""
    inner, smallest = 0, 1 << 30
    for block in blocks:
        if not block.suite:
            continue
        first, last = block.suite[block.start], block.suite[block.stop - 1]
        begin = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        end = last.end_lineno or last.lineno
        if begin <= line <= end and end - begin < smallest:
            inner, smallest = block.number, end - begin
    return inner
