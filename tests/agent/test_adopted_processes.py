"""The agent reaps what others leave to it, and waits for no process that cannot be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainmaster.agent.shell import adopted_processes
from trainmaster.host import processes

pytestmark = pytest.mark.processes


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """The only child that the functions under test see."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(processes, "children", lambda _: [process.pid] if processes.state(process.pid) else [])
        yield process
        process.kill()


def ended(child: subprocess.Popen[bytes]) -> None:
    """Let a child end, without reaping it."""
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_process_that_was_left_to_the_agent_is_reaped(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopted_processes, "LOOK_S", 0.0)

    async def main() -> None:
        reaping = asyncio.create_task(adopted_processes.reap())
        async with asyncio.timeout(30):
            while processes.state(child.pid):
                await asyncio.sleep(0)
        reaping.cancel()

    ended(child)
    asyncio.run(main())


def test_a_process_that_has_just_ended_is_left_to_its_owner(child: subprocess.Popen[bytes]) -> None:
    assert adopted_processes.reap_ended(frozenset()) == set()  # it lives
    ended(child)
    assert adopted_processes.reap_ended(frozenset()) == {child.pid}
    assert child.wait() == -signal.SIGKILL


def test_the_agent_goes_on_while_a_child_cannot_be_killed(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    done: list[str] = []

    async def then() -> None:
        done.append(processes.state(child.pid))

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(processes.os, "kill", lambda pid, signum: None)  # it waits for storage
            patched.setattr(adopted_processes, "TELL_AFTER_S", 0.0)
            ending = asyncio.create_task(adopted_processes.end(lambda reason, words: told.append(reason), then))
            for _ in range(5):
                await asyncio.sleep(0.001)
        assert (told, done) == (["ProcessUnkillable"], [])
        await ending

    asyncio.run(main())
    assert done == [""]
