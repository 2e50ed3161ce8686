"""What all workers of a run share is started once, whoever asks for it, and ends with the run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suite import keeper
from trainmaster.contract.wire.channel import Channel

pytestmark = pytest.mark.processes

PROGRAM = """
import os, subprocess, sys, threading
from pathlib import Path
from tests import machine_zygote
from tests.suite import keeper
from tests.trainer import ranks
from trainmaster.contract.wire.channel import Channel

started = Path(sys.argv[1], "started")

def note(words):
    with started.open("a") as file:
        file.write(words + "\\n")

def start_zygote(path, log):
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    note(f"zygote {process.pid}")
    return process

def serve(channel):
    forks = 0
    while (received := channel.receive()) is not None:
        forks += 1
        Channel.open(received[1][0]).send("fork", {"number": forks})
        channel.send("twin", {"pid": 1000 + forks})

def start_ranks():
    ours, theirs = Channel.pair()
    threading.Thread(target=serve, args=(theirs,), daemon=True).start()
    note("ranks")
    return subprocess.Popen(["true"]), ours

machine_zygote.start, ranks.start = start_zygote, start_ranks
keeper.main()
"""
"""A keeper of things that import nothing."""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    with keeper.keeping(tmp_path, [sys.executable, "-c", PROGRAM]) as path:
        yield path


def test_all_workers_have_one_zygote_and_are_told_when_it_has_ended(kept: Path, tmp_path: Path) -> None:
    first, second = keeper.ask(kept, "zygote"), keeper.ask(kept, "zygote")
    assert first == second == {**first, "path": str(tmp_path / "z.sock"), "ended": False}
    (line,) = (tmp_path / "started").read_text().splitlines()
    pid = int(line.split()[1])
    os.kill(pid, signal.SIGKILL)
    while not keeper.ask(kept, "zygote")["ended"]:
        os.sched_yield()


def test_each_worker_has_a_fork_of_the_process_that_the_first_one_asked_for(kept: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        ours, theirs = Channel.pair()
        assert keeper.ask(kept, "ranks", [theirs.fileno()])["pid"] == 1000 + number
        theirs.close()
        assert ours.receive() == ({"kind": "fork", "number": number}, [])
        ours.close()
    assert (tmp_path / "started").read_text() == "ranks\n"


def test_what_is_kept_ends_with_the_run(tmp_path: Path) -> None:
    with keeper.keeping(tmp_path, [sys.executable, "-c", PROGRAM]) as path:
        keeper.ask(path, "zygote")
        pid = int((tmp_path / "started").read_text().split()[1])
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
