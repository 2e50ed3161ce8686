"""Kills by the kernel for lack of memory are told from others by the count of the own control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.test_memory import process
from trainmaster.host import rank_memory

V2 = "low 0\nhigh 0\nmax 7\noom 2\noom_kill {}\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def v1_or_v2(tmp_path: Path, version: int, group: str) -> tuple[Path, Path]:
    """Return a made-up folder of /proc of a process in `group`, and the file with the count of the root's group."""
    root = tmp_path / "cgroup"
    if version == 1:
        mount = f"/ {root} rw - cgroup cgroup rw,memory"
        return process(tmp_path / "proc", f"4:memory:{group}\n0::/\n", mount), root / "memory.oom_control"
    return process(tmp_path / "proc", f"0::{group}\n", f"/ {root} rw - cgroup2 cgroup rw"), root / "memory.events"


@pytest.mark.parametrize(("version", "text"), [(1, V1), (2, V2)])
def test_the_count_is_read_from_either_version_of_cgroups(tmp_path: Path, version: int, text: str) -> None:
    found, count = v1_or_v2(tmp_path, version, "/")
    count.parent.mkdir()
    count.write_text(text.format(3))
    assert rank_memory.oom_kills(found) == 3
    count.write_text(text.format(4))
    assert rank_memory.oom_kills(found) == 4


@pytest.mark.parametrize(("version", "text"), [(1, V1), (2, V2)])
def test_outside_of_a_container_the_count_is_that_of_the_own_group(tmp_path: Path, version: int, text: str) -> None:
    found, count = v1_or_v2(tmp_path, version, "/user.slice/run.scope")
    own = count.parent / "user.slice" / "run.scope" / count.name
    own.parent.mkdir(parents=True)
    own.write_text(text.format(2))
    if version == 1:  # the root's group has a count of its own there
        count.write_text(text.format(9))
    assert rank_memory.oom_kills(found) == 2


def test_without_a_count_nothing_was_killed(tmp_path: Path) -> None:
    found, _ = v1_or_v2(tmp_path, 2, "/")
    assert rank_memory.oom_kills(found) == 0
