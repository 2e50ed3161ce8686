"""Processes that one command starts and another ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import daemons
from e2e.cluster.daemons import Daemon
from e2e.cluster.shell import ClusterError, until


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setattr(daemons, "STATE", tmp_path)
    monkeypatch.setattr(daemons, "LOGS", tmp_path / "log")
    return Daemon("sleeper")


def test_another_command_finds_and_ends_what_was_started(daemon: Daemon) -> None:
    daemon.start(["sleep", "600"])
    again = Daemon("sleeper")
    assert again.pid == daemon.pid
    again.stop()
    assert daemon.pid is None


def test_starting_twice_starts_one(daemon: Daemon) -> None:
    daemon.start(["sleep", "600"])
    first = daemon.pid
    daemon.start(["sleep", "600"])
    assert daemon.pid == first
    daemon.stop()


def test_a_pid_that_another_process_was_given_is_left_alone(daemon: Daemon, tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        record = tmp_path / "run" / "sleeper.json"
        record.parent.mkdir()
        record.write_text(json.dumps({"pid": stranger.pid, "started": "1"}))
        assert daemon.pid is None
        daemon.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_child_is_meant_where_the_program_forks(daemon: Daemon) -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '600']).wait()"
    daemon.start([sys.executable, "-c", program], child=True)
    pid = daemon.pid
    assert pid is not None
    # Not by the child's own name: it has the program's until it executes `sleep`.
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    assert program.encode() in Path(f"/proc/{parent}/cmdline").read_bytes()
    daemon.stop()


def test_a_child_that_ends_as_soon_as_it_was_seen_is_told_with_its_last_words(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent may live a moment longer, and has no child by then."""

    parents: list[subprocess.Popen[bytes]] = []

    def seen_and_gone(condition: Callable[[], object], timeout_s: float, otherwise: str) -> None:
        until(condition, timeout_s, otherwise)
        parent = parents[0].pid
        os.kill(int(Path(f"/proc/{parent}/task/{parent}/children").read_text()), signal.SIGKILL)
        until(lambda: "no more room" in daemon.log.read_text(), 30, "the child doesn't end")

    program = (
        "import subprocess, time; subprocess.run(['sleep', '600']); print('no more room', flush=True); time.sleep(600)"
    )
    monkeypatch.setattr(daemons, "until", seen_and_gone)

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            parents.append(self)

    monkeypatch.setattr(daemons.subprocess, "Popen", Remembered)
    try:
        daemon.start([sys.executable, "-c", program], child=True)
    finally:
        for parent in parents:
            parent.kill()
            parent.wait()
    with pytest.raises(ClusterError, match="sleeper ended: no more room"):
        daemon.require()


def test_what_ended_before_it_was_written_down_does_not_run(daemon: Daemon, tmp_path: Path) -> None:
    record = tmp_path / "run" / "sleeper.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"pid": 2**22, "started": None}))
    assert daemon.pid is None


def test_a_program_that_forks_nothing_is_ended(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other command would find it: only its child is written down."""
    started: list[int] = []

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)

    monkeypatch.setattr(daemons.subprocess, "Popen", Remembered)
    monkeypatch.setattr(daemons, "until", lambda condition, _, otherwise: until(condition, 0, otherwise))
    with pytest.raises(ClusterError, match="sleeper didn't start"):
        daemon.start(["sleep", "600"], child=True)
    assert [daemons.start_time(pid) for pid in started] == [None]


def test_a_program_that_is_missing_is_named(daemon: Daemon) -> None:
    """As by any other command: shell.run says the same."""
    with pytest.raises(ClusterError, match=r"^the program /there/is/none is not installed$"):
        daemon.start(["/there/is/none"])
    assert daemon.pid is None


def test_what_ended_is_told_with_its_last_words(daemon: Daemon) -> None:
    daemon.start([sys.executable, "-c", "raise SystemExit('no more room')"])
    until(lambda: daemon.pid is None, 30, "it doesn't end")
    with pytest.raises(ClusterError, match="no more room"):
        daemon.require()
