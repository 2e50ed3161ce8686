"""Hands the groups of tests to the workers of pytest-xdist in the order in which the workers sorted them.

pytest-xdist's own `--dist loadgroup` appends the group to each test's id, and with pytest 9.2 it silently ignores the
groups (pytest-xdist issue 1386). Here the workers, which collect, write the groups into a file, and the ids stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker the next group when it has begun the last test but one of what it has."""

    def __init__(self, config: pytest.Config, log: Any, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Begin, or go on after a worker was replaced. The workers have written the groups before they report."""
        if not self._groups:
            first = next(iter(self.registered_collections))
            self._groups = json.loads((self._folder / f"{first.gateway.id}.json").read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]
