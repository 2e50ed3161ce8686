"""`trainmaster parity`: the trainer's own check of its parallel strategies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainmaster_operator.cli.this_machine import trainer_process


def parity(only: Sequence[str], json: Path | None, page: Path | None, list_rows: bool) -> int:
    """Run the check. Return 0 if all rows are within the tolerance, 1 if some are not. Raise Refusal."""
    trainer_process.check_installed("parity")
    arguments = [word for pattern in only for word in ("--only", pattern)]
    arguments += ["--list"] if list_rows else []
    for name, file in (("--json", json), ("--page", page)):
        trainer_process.check_file(name, file)
        arguments += [name, str(file)] if file is not None else []
    return trainer_process.run("parity", arguments, threads=1)  # There are many processes on few cores.
