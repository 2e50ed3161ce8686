"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import TRAINMASTER, job

WriteJob = Callable[..., Path]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a little text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500)
    return folder


@pytest.fixture
def write_job(tmp_path: Path, texts: Path) -> WriteJob:
    """write_job(base, **changes): the file of a job that is valid but for the changes; its data is `texts`."""

    def write(base: dict[str, Any] = TRAINMASTER, **changes: Any) -> Path:
        if base is TRAINMASTER:
            changes = {"spec__training__data": {"path": str(texts)}, **changes}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job(base, **changes), sort_keys=False))
        return path

    return write
