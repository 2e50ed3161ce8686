from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.warm import WarmInterpreter


@pytest.fixture(scope="session", autouse=True)
def warm(machine_zygote: Path) -> Iterator[None]:
    """All runs of these tests fork their ranks from one zygote, and themselves from one interpreter."""
    harness.zygote, harness.interpreter = machine_zygote, WarmInterpreter()
    yield
    harness.interpreter.close()
    harness.zygote = harness.interpreter = None


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> harness.Calm:
    """Undisturbed runs, each made once for all tests, those of other pytest workers too."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    folder /= "calm"
    folder.mkdir(exist_ok=True)
    return partial(harness.run_calm, folder=folder)
