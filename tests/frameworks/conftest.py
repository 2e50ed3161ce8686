"""Tests with the marker `framework` install frameworks: they are skipped unless TRAINMASTER_FRAMEWORKS is set, which
`make frameworks` does."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRAINMASTER_FRAMEWORKS"):
        return
    skip = pytest.mark.skip(reason="installs a framework: make frameworks runs it")
    for item in items:
        if item.get_closest_marker("framework") is not None:
            item.add_marker(skip)
