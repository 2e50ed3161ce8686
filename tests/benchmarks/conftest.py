from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import harness, warm
from tests.trainer.conftest import compiling_ranks, ranks

__all__ = ["compiling_ranks", "ranks"]


@pytest.fixture(scope="session")
def warm_runs(machine_zygote: Path) -> Iterator[None]:
    """Whole runs of these tests fork their ranks from one zygote, and themselves from one interpreter."""
    before = harness.zygote, harness.interpreter
    harness.zygote, harness.interpreter = machine_zygote, warm.shared()
    yield
    harness.zygote, harness.interpreter = before
