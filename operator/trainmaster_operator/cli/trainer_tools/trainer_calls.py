"""`trainmaster parity`, `tokenize`, `import` and `export`: checked here, and carried out by the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process


def parity(only: Sequence[str], json: Path | None, page: Path | None, list_rows: bool) -> int:
    """0 when all rows are within the tolerance, 1 when some aren't. Raises Refusal."""
    trainer_process.check_installed("parity")
    arguments = [word for pattern in only for word in ("--only", pattern)]
    arguments += ["--list"] if list_rows else []
    for name, file in (("--json", json), ("--page", page)):
        trainer_process.check_file(name, file)
        arguments += [name, str(file)] if file is not None else []
    return trainer_process.run("parity", arguments, threads=1)  # many processes on few cores


def tokenize(source: Path, out: Path, tokenizer: Path, column: str, glob: str | None, separator: str | None) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")
    arguments = [str(source), str(out), "--tokenizer", str(tokenizer), "--column", column]
    for name, value in (("--glob", glob), ("--separator", separator)):
        arguments += [name, value] if value is not None else []
    return trainer_process.run("tokenizing", arguments)


def export(checkpoint: Path, out: Path, file_gb: float) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    if not file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {file_gb}")
    return _convert("export", str(checkpoint), str(out), "--file-gb", str(file_gb))


def import_(folder: Path, out: Path) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    return _convert("import", str(folder), str(out))


def _convert(verb: str, *arguments: str) -> int:
    trainer_process.check_installed(verb, "safetensors")
    return trainer_process.run("huggingface", [verb, *arguments])
