"""The fixture of tests that start whole runs: what all runs of a pytest process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def warm_runs(machine_zygote: Path) -> Iterator[None]:
    """Runs fork their ranks from one zygote, and themselves from one interpreter."""
    from tests.e2e import harness, warm  # half a second, which tests without a run need not pay

    harness.zygote, harness.interpreter = machine_zygote, warm.shared()
    yield
    harness.zygote = harness.interpreter = None
