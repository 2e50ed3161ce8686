"""Kernel settings that two clusters on one machine share."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import settings

NAME = "fs/inotify/max_user_instances"


@pytest.fixture
def value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A setting in place of the kernel's."""
    monkeypatch.setattr(settings, "_KERNEL", tmp_path / "sys")
    path = tmp_path / "sys" / NAME
    path.parent.mkdir(parents=True)
    path.write_text("128\n")
    return path


def test_what_was_raised_is_put_back(value: Path, tmp_path: Path) -> None:
    settings.raise_to({NAME: 8192}, tmp_path / "own")
    assert value.read_text() == "8192"
    settings.restore(tmp_path / "own", tmp_path / "kind")
    assert value.read_text() == "128\n"
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("names", [("own", "kind"), ("kind", "own")])
def test_a_setting_stays_raised_until_the_last_cluster_has_ended(
    value: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    first, second = (tmp_path / name for name in names)
    for saved in (first, second):
        settings.raise_to({NAME: 8192}, saved)
    settings.restore(first, second)
    assert value.read_text() == "8192"
    settings.restore(second, first)
    assert value.read_text() == "128\n"
