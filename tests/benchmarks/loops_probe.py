"""Benchmarks of our own loop at toy size, called by `test_loops.py` where ranks can be forked.

Ranks that a benchmark would execute are forked here: nothing is imported again.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import goodput_script, memory, overhead, recovery_script, waits, worlds
from benchmarks.ports import free_port
from tests.trainer.forks import forked

TINY = {"layers": 1, "width": 16, "heads": 2, "context": 16}


class Forked:
    """What benchmarks use of `subprocess.Popen`, for `python -m MODULE`."""

    def __init__(self, command: list[str], env: dict[str, str], stdout: int = subprocess.DEVNULL, **_: Any) -> None:
        def run() -> None:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_WRONLY) if stdout == subprocess.DEVNULL else stdout, 1)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = command[2:]
            code = importlib.import_module(command[2]).main()
            raise SystemExit(code or 0)

        assert command[:2] == [sys.executable, "-m"], command
        self.pid = forked(run)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def forked_run(command: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
    """What benchmarks use of `subprocess.run`."""
    with tempfile.TemporaryFile() as output:
        process = Forked(command, env, output.fileno())
        code = process.wait()
        output.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), "")


def train(ranks: int) -> list[dict[str, Any]]:
    """The lines of metrics of a world of this size."""
    config = {"model": {"options": TINY}, "data": {"path": "@stdlib"}, "steps": 3, "batch": {"global": 2}}
    with mock.patch.object(worlds.subprocess, "Popen", Forked):
        return worlds.train({**config, "parallelism": {"dpReplicate": ranks}}, ranks)


def train_job(config: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """The lines of metrics of a benchmark's own job, with a tiny model, for two steps."""
    tiny = {
        **config,
        "model": {**config["model"], "options": {**config["model"].get("options", {}), **TINY}},
        "optimizer": {**config.get("optimizer", {}), "warmupSteps": 1},
        "steps": 2,
    }
    with mock.patch.object(worlds.subprocess, "Popen", Forked):
        return worlds.train(tiny, ranks)


def wait(data: dict[str, Any], evicted: str) -> dict[str, list[float]]:
    """What a rank waited for in six steps, saved behind each second one."""
    with mock.patch.object(waits.subprocess, "run", forked_run):
        return waits.waited(waits.config(TINY, 2, 6, 2, data), evicted)


def write_tokens(folder: str) -> str:
    return str(waits.tokens(Path(folder)))


def overheads(case: str, system: str) -> list[float]:
    """Tokens/s of two blocks of two steps."""
    small = {"model": {"options": {**TINY, "layers": 2}}, "batch": {"global": 4}}

    def config(compared: overhead.Compared, steps: int, block: int) -> dict[str, Any]:
        return {**whole(compared, steps, block), **small}

    whole = overhead.config
    with mock.patch.multiple(overhead, WARM_UP=2, config=config):
        world = overhead.World(system, case, 2, 2)
        speeds = [world.train(), world.train()]
        world.end()
    return speeds


def train_script(folder: str, steps: int) -> list[int]:
    """Run the goodput benchmark's script over two ranks, with a save behind each second step; their exit codes."""
    words = ["--folder", folder, "--steps", str(steps), "--every", "2", "--width", "16", "--step-seconds", "0"]
    return _world(goodput_script.main, words)


def recover(folder: str, attempt: int) -> list[int]:
    """Run the recovery benchmark's script over two ranks, of which one dies in the first attempt; their exit codes."""
    words = ["--folder", folder, "--kills", "1", "--settle", "0", "0", "--after", "2"]
    return _world(recovery_script.main, words, TORCHELASTIC_RESTART_COUNT=str(attempt))


def _world(main: Callable[[], None], words: list[str], **variables: str) -> list[int]:
    port = free_port()

    def run(rank: int) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **variables)
        sys.argv = ["script", *words]
        main()

    pids = [forked(partial(run, rank)) for rank in range(2)]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def memories(names: list[str]) -> str:
    """What the benchmark prints of these rows, at toy size."""
    rows = [row for row in memory.ROWS if row.name in names]
    printed = io.StringIO()
    options = {"layers": 4, "heads": 4, "width": 32, "context": 16}
    with (
        mock.patch.multiple(memory, ROWS=rows, OPTIONS=options, CONTEXT=16),
        mock.patch.object(sys, "argv", ["memory", "--no-write"]),
        contextlib.redirect_stdout(printed),
    ):
        assert memory.main() == 0
    return printed.getvalue()
