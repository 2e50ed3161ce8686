"""What a script imports with `import trainmaster as tm` and `tm.init()`, before it has trained anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TRAINER = Path(__file__).parents[2] / "trainer"
LATE = ("torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint")
"""What most scripts never need, and what takes a quarter of the time of all imports."""


def _file(module: str) -> Path | None:
    path = TRAINER.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that the import of a module itself makes: neither those of functions nor those of type checkers."""
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif isinstance(statement, ast.Try):
            yield from _statements(statement.body)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) != "TYPE_CHECKING":
            yield from _statements([*statement.body, *statement.orelse])


def _imported_by(file: Path) -> Iterator[str]:
    for statement in _statements(ast.parse(file.read_text()).body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif statement.module:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def test_a_loop_of_ones_own_imports_neither_dtensor_nor_dcp_before_it_needs_them() -> None:
    importers = {"trainmaster.train.user_loop": ""}
    waiting = list(importers)
    while waiting:
        module = waiting.pop()
        assert not module.startswith(LATE), f"{importers[module]} imports {module}"
        file = _file(module)
        if file is None:
            continue
        packages = [module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)]
        for name in [*packages, *_imported_by(file)]:
            if name not in importers:
                importers[name] = module
                waiting.append(name)
    assert "trainmaster.checkpoint.state.load_tensors" in importers
