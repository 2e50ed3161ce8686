"""Kills by the kernel for lack of memory are told from others by the container's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.host import rank_memory


@pytest.mark.parametrize(
    "text",
    ["low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"],
    ids=["v2", "v1"],
)
def test_the_count_is_read_from_either_version_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "there").write_text(text)
    monkeypatch.setattr(rank_memory, "_OOM_COUNTS", (str(tmp_path / "not there"), str(tmp_path / "there")))
    assert rank_memory.oom_kills() == 3
    monkeypatch.setattr(rank_memory, "_OOM_COUNTS", (str(tmp_path / "not there"),))
    assert rank_memory.oom_kills() == 0
