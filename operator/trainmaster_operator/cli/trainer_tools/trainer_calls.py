"""`trainmaster parity`, `tokenize`, `import` and `export`: the arguments are checked here, and the trainer does the
work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process


def parity(only: Sequence[str], json: Path | None, page: Path | None, list_rows: bool) -> int:
    """Run the trainer's check of its parallel strategies. Return 0 if all rows are within the tolerance, 1 if some
    are not. Raise Refusal."""
    trainer_process.check_installed("parity")
    arguments = [word for pattern in only for word in ("--only", pattern)]
    arguments += ["--list"] if list_rows else []
    for name, file in (("--json", json), ("--page", page)):
        trainer_process.check_file(name, file)
        arguments += [name, str(file)] if file is not None else []
    return trainer_process.run("parity", arguments, threads=1)  # There are many processes on few cores.


def tokenize(source: Path, out: Path, tokenizer: Path, column: str, glob: str | None, separator: str | None) -> int:
    """Convert texts to a file of token numbers. Return 0 if it is done, 2 if it was refused. Raise Refusal."""
    trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")
    arguments = [str(source), str(out), "--tokenizer", str(tokenizer), "--column", column]
    for name, value in (("--glob", glob), ("--separator", separator)):
        arguments += [name, value] if value is not None else []
    return trainer_process.run("tokenizing", arguments)


def export(checkpoint: Path, out: Path, file_gb: float) -> int:
    """Convert a checkpoint to Hugging Face's format. `file_gb`: maximum size of a file in GB. Return 0 if it is
    done, 2 if it was refused. Raise Refusal."""
    if not file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {file_gb}")
    return _convert("export", str(checkpoint), str(out), "--file-gb", str(file_gb))


def import_(folder: Path, out: Path) -> int:
    """Convert a model in Hugging Face's format to a checkpoint. Return 0 if it is done, 2 if it was refused. Raise
    Refusal."""
    return _convert("import", str(folder), str(out))


def _convert(verb: str, *arguments: str) -> int:
    trainer_process.check_installed(verb, "safetensors")
    return trainer_process.run("huggingface", [verb, *arguments])
