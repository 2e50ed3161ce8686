"""What a rank prints, as its agent forwards and keeps it: progress bars write over themselves."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell import pod_log
from trainmaster.agent.shell.ranks import output_pipe
from trainmaster.agent.shell.ranks.output_pipe import Output
from trainmaster.agent.shell.supervisor import Supervisor

BAR = b"\r%3d %%"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def kept(*written: bytes, pause_s: float = 0.0) -> list[str]:
    """The lines that are kept of what a rank writes, piece by piece, with a pause before each."""

    async def write() -> list[str]:
        clock = Clock()
        output = Output("[rank 0] ", clock)
        for data in written:
            clock.now_s += pause_s
            os.write(output.write_fd, data)
            output.drain()
        output.close()
        return list(output.lines)

    return asyncio.run(write())


def test_only_what_a_terminal_would_show_of_a_progress_bar_is_kept(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    bar = [BAR % n for n in range(101)]
    assert kept(b"begun\n", *bar, b"\ndone\n") == ["begun", "100 %", "done"]
    assert capsysbinary.readouterr().out == b"[rank 0] begun\n[rank 0] 100 %\n[rank 0] done\n"


def test_a_line_that_ends_as_in_windows_stays_whole_wherever_it_is_cut() -> None:
    assert kept(b"one\r\ntwo\r", b"\nthree") == ["one", "two", "three"]


def test_a_progress_bar_is_seen_while_it_moves(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    kept(*(BAR % n for n in range(10)), pause_s=4.0)
    shown = [line.removeprefix(b"[rank 0] ").strip() for line in capsysbinary.readouterr().out.splitlines()]
    assert shown == [b"2 %", b"5 %", b"8 %", b"9 %"]


def test_words_without_an_end_of_line_are_forwarded_once(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    kept(b"what is your ", b"name? ", b"\n", pause_s=60.0)
    assert capsysbinary.readouterr().out == b"[rank 0] what is your name? \n"


def test_the_exception_behind_a_progress_bar_is_the_last_word() -> None:
    lines = kept(BAR % 1, BAR % 2, b"Traceback (most recent call last):\n  File ...\nValueError: too large\n")
    assert lines[0] == "  2 %Traceback (most recent call last):"


def never_empty(output: Output, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """A `read` of a pipe that its writer fills again before the next read, for a hundred times."""
    filled = iter(range(100))

    def read_and_fill(fd: int, size: int) -> bytes:
        data = read(fd, size)
        if next(filled, None) is not None:
            os.write(output.write_fd, data)
        return data

    return read_and_fill


def test_a_process_that_prints_without_end_keeps_its_agent_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flood() -> int:
        output = Output("[rank 0] ")
        os.write(output.write_fd, b"more\n")
        monkeypatch.setattr(output_pipe.os, "read", never_empty(output, os.read))
        output.drain()  # as at the end of a process whose children still print
        drained = len(output.lines)
        await asyncio.sleep(0)  # all that is due runs, and then this task goes on
        read_meanwhile = len(output.lines) - drained
        monkeypatch.undo()
        output.close()
        return drained if read_meanwhile < 10 else -1

    assert asyncio.run(flood()) == 2


def test_output_without_an_end_of_line_is_forwarded_in_parts_and_does_not_gather_in_memory(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = kept(*[b"\x00" * 50_000] * 4, b"end\n")
    forwarded = [line.removeprefix(b"[rank 0] ") for line in capsysbinary.readouterr().out.splitlines()]
    assert [len(line) for line in forwarded] == [100_000, 100_000, 3]
    assert lines[-1] == "end"


def test_an_agent_whose_log_is_full_goes_on_and_ends_with_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  closing it is part of the test
    monkeypatch.setattr(sys, "stdout", full)
    agent: Any = object.__new__(Supervisor)
    agent.events, agent.reporter = [], SimpleNamespace(at_once=lambda: None)
    agent._advise("ZygoteLost", "the zygote ended, and this pod's ranks with it")
    assert agent.events == [{"reason": "ZygoteLost", "message": "the zygote ended, and this pod's ranks with it"}]
    pod_log.finish()
    full.close()  # as the interpreter does at its end, where an error would change the exit code


def test_a_sentence_about_a_file_that_is_not_utf_8_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    pod_log.note("no such file: shard-\udcff")
    assert capsys.readouterr().out == "[agent] no such file: shard-?\n"
