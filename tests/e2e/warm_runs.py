"""The fixture of tests that start whole runs: what all runs of a pytest process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def warm_runs(machine_zygote: Path) -> Iterator[None]:
    """Runs fork their ranks from one zygote, and themselves from one interpreter."""
    from tests.e2e import harness  # half a second, which tests without a run need not pay
    from tests.e2e.warm import WarmInterpreter

    interpreter = WarmInterpreter()
    harness.zygote, harness.interpreter = machine_zygote, interpreter
    yield
    harness.zygote = harness.interpreter = None
    interpreter.close()
