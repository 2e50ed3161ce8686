"""Which tests the source files define, read without importing them.

It costs a second where a collection by pytest costs the import of torch. It knows functions, not their parameters, and
a class only by its name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TEST_FOLDERS = ("tests", "e2e")
_MARKER = "processes"


@dataclass(frozen=True)
class Source:
    """What a test file defines: its test functions (True: starts processes) and all names at its top."""

    functions: Mapping[str, bool]
    names: frozenset[str]


def read(root: Path) -> dict[str, Source]:
    """Return the test files below `root`, by their path relative to it."""
    files = [file for folder in TEST_FOLDERS for file in sorted((root / folder).rglob("test_*.py"))]
    return {str(file.relative_to(root)): parse(file.read_text()) for file in files}


def parse(text: str) -> Source:
    """Return what the text of a test file defines. Raises SyntaxError."""
    body = ast.parse(text).body
    whole_file = any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        and _has_marker([node.value])
        for node in body
    )
    functions = {
        node.name: whole_file or _has_marker(node.decorator_list)
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }
    return Source(functions, frozenset(_names(body)))


def defines(sources: Mapping[str, Source], test_id: str) -> bool:
    """Tell whether the file of the test exists and defines its function or class."""
    file, _, within = test_id.partition("::")
    name = within.partition("[")[0].partition("::")[0]
    return file in sources and (not name or name in sources[file].names)


def starts_processes(sources: Mapping[str, Source], test_id: str) -> bool:
    """Tell whether the test has the marker `processes`; False for a test that no source file defines."""
    file, _, within = test_id.partition("::")
    source = sources.get(file)
    return source is not None and source.functions.get(within.partition("[")[0], False)


def _has_marker(expressions: Iterable[ast.expr]) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == _MARKER
        for expression in expressions
        for node in ast.walk(expression)
    )


def _names(body: Iterable[ast.stmt]) -> Iterable[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
