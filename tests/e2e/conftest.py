from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e import harness


@pytest.fixture(scope="session", autouse=True)
def warm(warm_runs: None) -> None:
    """All runs of these tests share a zygote and an interpreter."""


@pytest.fixture(scope="session")
def calm(common_folder: Path) -> harness.Calm:
    """Undisturbed runs, each made once for all tests, those of other pytest workers too."""
    folder = common_folder / "calm"
    folder.mkdir(exist_ok=True)
    return partial(harness.run_calm, folder=folder)
