"""The operator comes back whenever it dies; one that never gets to work ends the run with a sentence."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.cli.run import local_processes, operator_restarts
from trainmaster_operator.local import process_tree

pytestmark = pytest.mark.processes

WAITS = "import os, time\nwith open(os.environ['PIPE'], 'a') as f:\n    f.write('x')\ntime.sleep(600)\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A process that says "x" into a pipe when it has started, and waits."""
    (tmp_path / "stand_in.py").write_text(WAITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PIPE", str(tmp_path / "pipe"))
    os.mkfifo(tmp_path / "pipe")
    return "stand_in"


def test_an_operator_that_is_killed_comes_back_until_it_is_ended(tmp_path: Path, module: str) -> None:
    codes: list[int] = []

    async def main() -> int:
        pipe = os.open(tmp_path / "pipe", os.O_RDWR)
        loop = asyncio.get_running_loop()
        operator = operator_restarts.Operator([], tmp_path / "log", os.environ, module=module, died=codes.append)
        kept = asyncio.create_task(operator.keep())
        for _ in range(3):
            assert await loop.run_in_executor(None, os.read, pipe, 1) == b"x"
            await operator.kill()
        assert await loop.run_in_executor(None, os.read, pipe, 1) == b"x"
        await operator.end(5)
        await kept
        os.close(pipe)
        return operator.deaths

    assert asyncio.run(main()) == 3
    assert codes == [-signal.SIGKILL] * 3


def test_an_operator_that_is_still_being_started_is_killed_too(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[asyncio.subprocess.Process] = []

    async def main() -> None:
        created, told = asyncio.Event(), asyncio.Event()

        async def start(*arguments: Any) -> asyncio.subprocess.Process:
            started.append(await local_processes.start(*arguments))
            created.set()
            await told.wait()
            return started[-1]

        monkeypatch.setattr(operator_restarts, "start", start)
        operator = operator_restarts.Operator([], tmp_path / "log", os.environ, module=module)
        kept = asyncio.create_task(operator.keep())
        await created.wait()
        kill = asyncio.create_task(operator.kill())
        await asyncio.sleep(0)
        told.set()
        await kill
        code = started[0].returncode
        await operator.end(5)
        await kept
        assert code == -signal.SIGKILL

    asyncio.run(main())


def test_a_child_of_a_run_that_runs_before_the_ranks_starts_at_the_niceness_of_the_command(tmp_path: Path) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    (tmp_path / "says.py").write_text("import os; print(os.getpriority(os.PRIO_PROCESS, 0))")

    async def main() -> None:
        process_tree.hurry()
        try:
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            child = await local_processes.start("says", [], tmp_path / "log", signal.SIGKILL, environment)
        finally:
            process_tree.relax()
        await child.wait()

    asyncio.run(main())
    assert int((tmp_path / "log").read_text()) == mine


def test_an_operator_that_never_gets_to_work_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_restarts, "BACK_OFF_S", 0.0)
    operator = operator_restarts.Operator([], tmp_path / "operator.log", os.environ, module="no_such_module")
    with pytest.raises(local_processes.ChildFailed) as failed:
        asyncio.run(operator.keep())
    assert "the operator ended with 1 8 times in a row" in str(failed.value)
    assert "No module named no_such_module" in str(failed.value)
    assert str(tmp_path / "operator.log") in str(failed.value)
