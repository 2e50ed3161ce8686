"""Small files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from trainmaster.contract.wire.temporary import replace


def write(path: Path, text: str) -> None:
    """In its folder, which is made if it isn't there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text.encode())
