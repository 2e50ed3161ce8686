"""Puts a probe at the start of every block of a module, and keeps the compiled result for all processes.

A probe is `__reached__[n] = 1`: one byte stored into a file that all processes of a run have mapped. It costs a few ten
nanoseconds, works in forks, and outlives a process that is killed. Positions in the text stay as they are, so
tracebacks, `inspect` and warnings show the same lines as without probes.
"""

from __future__ import annotations

import ast
import marshal
import os
import struct
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import CodeType

from tests.suite.reach.blocks import split
from tests.suite.reach.facts import SOURCE, SUITE
from tests.suite.reach.graph import CONFTEST, is_test_file
from tests.suite.reach.startup import HEADER, NAME, kept_name

FOLDERS = (
    ".ci/",
    "benchmarks/",
    "charts/",
    "claims/",
    "docker/",
    "docs/",
    "e2e/",
    "operator/",
    "simulation/",
    "tests/",
    "trainer/",
)
"""Where the modules lie that get probes: everywhere but in examples/, whose scripts nobody imports."""


def is_probed(path: str) -> bool:
    """Return True for a Python file whose blocks the record knows. Tests and conftest.py are compiled by pytest."""
    if path.startswith(SUITE) or not (path.startswith(FOLDERS) and path.endswith(SOURCE)):
        return False
    return not (path.startswith("tests/") and (is_test_file(path) or PurePosixPath(path).name == CONFTEST))


def block_names(text: str) -> list[str]:
    """Return the name of the function that holds each block of a module, "" at its level. Raises SyntaxError."""
    return [block.name for block in split(ast.parse(text))]


def instrument(text: str, path: str, first: int) -> CodeType:
    """Compile a module with probes. Its block n stores into byte `first + n`. Raises SyntaxError."""
    tree = ast.parse(text, path)
    for block in reversed(split(tree)):  # from the end, so that positions before it stay
        index = block.probe_index
        near = block.suite[min(index, len(block.suite) - 1)] if block.suite else None
        block.suite.insert(index, _probe(first + block.number, near))
    ast.fix_missing_locations(tree)
    return compile(tree, path, "exec", dont_inherit=True)


def _probe(number: int, near: ast.stmt | None) -> ast.stmt:
    target = ast.Subscript(ast.Name(NAME, ast.Load()), ast.Constant(number), ast.Store())
    probe = ast.Assign([target], ast.Constant(1))
    line, column = (near.lineno, near.col_offset) if near is not None else (1, 0)
    for node in ast.walk(probe):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = column
    return probe


def keep(root: Path, folder: Path, firsts: Mapping[str, int]) -> None:
    """Write the compiled code of all modules into `folder`, where every process finds it. Raises SyntaxError.

    `firsts` gives each path, relative to `root`, the byte of its first block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path, first in firsts.items():
        file = root / path
        found = os.stat(file)
        code = instrument(file.read_text(), str(file), first)
        header = struct.pack(HEADER, found.st_mtime_ns, found.st_size)
        (folder / kept_name(path)).write_bytes(header + marshal.dumps(code))
