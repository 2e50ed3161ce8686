from __future__ import annotations

from functools import partial

import pytest

from tests.e2e import harness


@pytest.fixture(scope="session", autouse=True)
def warm(warm_runs: None) -> None:
    """All runs of these tests share a zygote and an interpreter."""


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> harness.Calm:
    """Undisturbed runs, each made once for all tests, those of other pytest workers too."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    folder /= "calm"
    folder.mkdir(exist_ok=True)
    return partial(harness.run_calm, folder=folder)
