"""Commands that a benchmark measures end with the benchmark, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import commands, goodput, link, load, script_recovery, titan_speed
from benchmarks.public_scripts import __main__ as public_scripts
from tests import tied
from tests.benchmarks import commands_probe
from tests.trainer.ranks import Ranks

LIMIT_S = 20.0
PROGRAM = """
import signal, sys
from pathlib import Path
from benchmarks import commands
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background is started without
commands.run(sys.argv[2:], {}, Path(sys.argv[1]), 600.0)
"""
FORKS = """
import os, signal, sys
from pathlib import Path
from benchmarks import overhead
from benchmarks.turns import Meter

def wait(rank: int, folder: str, meter: Meter) -> None:
    Path(sys.argv[1], f"rank-{rank}").write_text(str(os.getpid()))
    meter.step(meter.first)

overhead.SYSTEMS["minimal"] = wait
overhead.World("minimal", "shard", 1, 4)
os.kill(os.getpid(), signal.SIGKILL)
"""
TRAINS = """
import sys
from benchmarks import worlds
worlds.train({}, 1, inside=lambda rank, *_: ["sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 600"])
"""
LEADS = """
import asyncio, os, signal, sys
from pathlib import Path
from benchmarks import fleet

async def start() -> None:
    server = fleet.ApiServer()
    await server.start()
    replica = fleet.Replica("one", Path(sys.argv[1]).parent)
    starting = asyncio.create_task(replica.start(server))
    while replica._process is None:
        await asyncio.sleep(0)
    Path(sys.argv[1]).write_text(str(replica._process.pid))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(start())
"""
STUBBORN = 'trap "" TERM; setsid sleep 600 & echo $! $$; while :; do wait; done'
"""A command that does not end when it is told to, with a process in a session of its own."""


def pids_in(output: Path, still_there: Callable[[], bool] = lambda: True) -> list[int]:
    """Wait until a command has said its pids, and return them."""
    while not (output.exists() and output.read_text().endswith("\n")):
        assert still_there(), "it has ended by itself"
        time.sleep(0.01)
    return [*map(int, output.read_text().split())]


def killed(pids: list[int]) -> list[int]:
    """Kill those of these processes that do not end by themselves within LIMIT_S, and return them."""
    left = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            if not select.select([process], [], [], LIMIT_S)[0]:
                left.append(pid)
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
    return left


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_the_benchmark_that_is_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = ["sh", "-c", "echo $$; exec sleep 600"]
    benchmark = tied.popen([sys.executable, "-c", PROGRAM, str(output), *command])
    pids = pids_in(output, lambda: benchmark.poll() is None)
    benchmark.send_signal(number)
    assert benchmark.wait(60) != 0
    assert killed(pids) == []


@pytest.mark.processes
def test_after_its_limit_nothing_is_left_of_a_command_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ENDS_S", 0.01)
    output = tmp_path / "output"
    process = commands.popen(["sh", "-c", STUBBORN], {}, output)
    pids = pids_in(output, lambda: process.poll() is None)
    assert commands.wait(process, 0.01) is None
    assert killed(pids) == []


@pytest.mark.processes
def test_the_imports_of_a_command_are_compiled_once_wherever_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    said = tmp_path / "output"
    program = "import sys; print(sys.dont_write_bytecode)"
    assert commands.run([sys.executable, "-c", program], {}, said, 60.0) == 0
    assert said.read_text() == "False\n"


@pytest.mark.processes
def test_forked_ranks_that_wait_for_their_turn_die_with_the_benchmark(tmp_path: Path) -> None:
    benchmark = tied.popen([sys.executable, "-c", FORKS, str(tmp_path)])
    assert benchmark.wait(60) == -signal.SIGKILL
    pids = [int(file.read_text()) for file in tmp_path.glob("rank-*")]
    assert len(pids) == 2
    assert killed(pids) == []


@pytest.mark.processes
def test_a_side_on_a_device_that_waits_for_its_turn_dies_with_the_command(ranks: Ranks, tmp_path: Path) -> None:
    assert killed([ranks.call(commands_probe.side_of_a_killed_command, str(tmp_path))]) == []


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_ranks_of_a_world_die_with_the_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "pid"
    benchmark = tied.popen([sys.executable, "-c", TRAINS, str(output)])
    pids = pids_in(output, lambda: benchmark.poll() is None)
    benchmark.send_signal(number)
    assert benchmark.wait(60) == -number
    assert killed(pids) == []


@pytest.mark.processes
def test_an_operator_that_is_measured_dies_with_the_benchmark(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    assert tied.popen([sys.executable, "-c", LEADS, str(told)]).wait(60) == -signal.SIGKILL
    assert killed([int(told.read_text())]) == []


@pytest.mark.processes
def test_a_link_that_can_not_be_made_leaves_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    holders: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[:2] == ["unshare", "--net"], "which needs root"
        holders.append(popen(command[2:], **options))
        return holders[-1]

    def fail(*_: Any) -> str:
        raise SystemExit("link: tc failed")

    monkeypatch.setattr(link.subprocess, "Popen", start)
    monkeypatch.setattr(link.Link, "run", fail)
    with pytest.raises(SystemExit, match="link: tc failed"), link.link("banana"):
        pass
    assert len(holders) == 2
    assert killed([holder.pid for holder in holders if holder.poll() is None]) == []


@pytest.fixture
def deaf_to_sigterm() -> Iterator[None]:
    """This process does not end by SIGTERM, unless what is tested says otherwise."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("benchmark", "measures", "options"),
    [
        (goodput, "measure", ["--results", "{folder}/rows"]),
        (public_scripts, "run", ["--sources", "{folder}", "--results", "{folder}/rows"]),
        (script_recovery, "measure", ["--sources", "{folder}", "--results", "{folder}/rows"]),
        (titan_speed, "take_turns", ["--sources", "{folder}", "--no-write"]),
    ],
    ids=["goodput", "public_scripts", "script_recovery", "titan_speed"],
)
def test_sigterm_lets_a_benchmark_end_what_it_has_started(
    benchmark: ModuleType,
    measures: str,
    options: list[str],
    deaf_to_sigterm: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("SIGTERM was not heard")

    monkeypatch.setattr(benchmark, measures, measure)
    monkeypatch.setattr(load, "look", lambda: load.Load(0.0, 0.0))
    with pytest.raises(SystemExit) as ended:
        benchmark.main([word.format(folder=tmp_path) for word in options])
    assert ended.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "rows").exists(), "a run that was cut off is no result"
