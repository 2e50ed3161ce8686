"""`trainmaster export` and `import`: done by the trainer."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process


def export(checkpoint: Path, out: Path, file_gb: float) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    if not file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {file_gb}")
    return _run("export", str(checkpoint), str(out), "--file-gb", str(file_gb))


def import_(folder: Path, out: Path) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    return _run("import", str(folder), str(out))


def _run(verb: str, *arguments: str) -> int:
    trainer_process.check_installed(verb, "safetensors")
    return trainer_process.run("huggingface", [verb, *arguments])
