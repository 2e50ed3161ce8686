"""Small files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from trainmaster.contract.wire.temporary import temporary


def write(path: Path, text: str) -> None:
    """In its folder, which is made if it isn't there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    being_written = temporary(path)
    being_written.write_text(text)
    being_written.replace(path)
