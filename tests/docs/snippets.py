"""Blocks of Python on the pages: run each in a fork that has torch already, and hold each call of `tm` against it."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.trainer.forks import forked
from tests.trainer.ranks import shared


def run(source: str) -> str:
    """Run a block in a process and a folder of its own. Return the traceback that ended it; empty if it succeeded."""
    return str(shared().call(_run, source))


def wrong_calls(source: str) -> list[str]:
    """Return what is wrong with a block's calls of `tm`: a name that isn't there, or arguments that it doesn't take."""
    found: list[str] = shared().call(_wrong_calls, source)
    return found


def _run(source: str) -> str:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")

        def main() -> None:
            fd = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            os.chdir(folder)
            exec(compile(source, "the block", "exec"), {"__name__": "__main__"})

        _, status = os.waitpid(forked(main), 0)
        return log.read_text() or f"ended with status {status}" if status else ""


def _wrong_calls(source: str) -> list[str]:
    return [*_wrong(ast.parse(source))]


def _wrong(tree: ast.AST) -> Iterator[str]:
    import trainmaster as tm

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "tm":
            continue
        name = node.func.attr
        if name not in tm.__all__:
            yield f"tm.{name} isn't there"
            continue
        positional: list[Any] = [None for argument in node.args if not isinstance(argument, ast.Starred)]
        keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
        try:
            inspect.signature(getattr(tm, name)).bind(*positional, **keywords)
        except TypeError as error:
            yield f"tm.{name}: {error}"
