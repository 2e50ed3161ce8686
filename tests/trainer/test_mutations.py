"""Parity holds the strategies to account: whichever is broken on purpose, its row fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_a_strategy_that_is_broken_on_purpose_fails_its_row() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    command = [sys.executable, str(Path(__file__).with_name("mutation_probe.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert len(found) >= 20
    assert {name: row for name, row in found.items() if row["passed"] or "raised" in row} == {}
