"""`trainmaster export` and `import`: the trainer converts models."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process


def export(checkpoint: Path, out: Path, file_gb: float) -> int:
    """Convert a checkpoint to Hugging Face's format. `file_gb`: maximum size of a file in GB. Return 0 if it is
    done, 2 if it was refused. Raise Refusal."""
    if not file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {file_gb}")
    return _run("export", str(checkpoint), str(out), "--file-gb", str(file_gb))


def import_(folder: Path, out: Path) -> int:
    """Convert a model in Hugging Face's format to a checkpoint. Return 0 if it is done, 2 if it was refused. Raise
    Refusal."""
    return _run("import", str(folder), str(out))


def _run(verb: str, *arguments: str) -> int:
    trainer_process.check_installed(verb, "safetensors")
    return trainer_process.run("huggingface", [verb, *arguments])
