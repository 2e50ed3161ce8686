"""Small files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

from trainmaster.contract.wire.atomic_replace import replace


def write(path: Path, text: str) -> None:
    """Write `text` to a file, and create its folder if it does not exist. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text.encode())
