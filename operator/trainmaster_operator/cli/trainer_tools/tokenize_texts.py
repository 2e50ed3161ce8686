"""`trainmaster tokenize`: done by the trainer."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.cli.this_machine import trainer_process


def tokenize(source: Path, out: Path, tokenizer: Path, column: str, glob: str | None, separator: str | None) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")
    arguments = [str(source), str(out), "--tokenizer", str(tokenizer), "--column", column]
    for name, value in (("--glob", glob), ("--separator", separator)):
        arguments += [name, value] if value is not None else []
    return trainer_process.run("tokenizing", arguments)
