"""`trainmaster tokenize`: the trainer converts texts."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.cli.this_machine import trainer_process


def tokenize(source: Path, out: Path, tokenizer: Path, column: str, glob: str | None, separator: str | None) -> int:
    """Convert texts to a file of token numbers. Return 0 if it is done, 2 if it was refused. Raise Refusal."""
    trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")
    arguments = [str(source), str(out), "--tokenizer", str(tokenizer), "--column", column]
    for name, value in (("--glob", glob), ("--separator", separator)):
        arguments += [name, value] if value is not None else []
    return trainer_process.run("tokenizing", arguments)
