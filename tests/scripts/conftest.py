from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def warm(warm_runs: None) -> None:
    """All runs of these tests share a zygote and an interpreter, with those of tests/e2e."""
