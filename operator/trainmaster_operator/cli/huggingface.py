"""`trainmaster export` and `import`: done by the trainer in a process of its own, since it imports torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal


def export(checkpoint: Path, out: Path, file_gb: float) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    if not file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {file_gb}")
    return _run("export", str(checkpoint), str(out), "--file-gb", str(file_gb))


def import_(folder: Path, out: Path) -> int:
    """0 when it is done, 2 when it was refused. Raises Refusal."""
    return _run("import", str(folder), str(out))


def _run(verb: str, *arguments: str) -> int:
    for library in ("torch", "safetensors"):
        if importlib.util.find_spec(library) is None:
            raise Refusal(f"{verb} needs the trainer and {library}: pip install 'trainmaster[train]'")
    return subprocess.run([sys.executable, "-m", "trainmaster.huggingface", verb, *arguments], check=False).returncode
