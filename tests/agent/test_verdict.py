from __future__ import annotations

import signal

import pytest

from trainmaster.agent.verdict import End, judge
from trainmaster.contract.wire import Cause, ExitCode

TRACEBACK = "Traceback (most recent call last):"
GLOO = [
    "Traceback (most recent call last):",
    '  File "train.py", line 18, in <module>',
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Connection reset by peer",
]


def ended(code: int) -> int:
    """The wait status of an exit code, of a signal when negative."""
    return -code if code < 0 else code << 8


@pytest.mark.parametrize(
    ("end", "cause", "message"),
    [
        (End(2, 1, status=ended(-signal.SIGSEGV)), Cause.CRASH, "killed by SIGSEGV"),
        (End(2, 1, status=ended(-signal.SIGKILL)), Cause.CRASH, "killed by SIGKILL"),
        (End(2, 1, status=ended(-signal.SIGKILL), oom_killed=True), Cause.OUT_OF_MEMORY, "out of memory"),
        (End(2, 1, status=ended(3)), Cause.CRASH, "exit code 3"),
        (End(2, 1, status=ended(2)), Cause.CRASH, "exit code 2"),
        (End(2, 1, status=ended(2), own_loop=True), Cause.CONFIG_ERROR, "exit code 2"),
        (End(2, 1, status=ended(ExitCode.DIVERGED)), Cause.DIVERGED, "exit code 92"),
        (
            End(2, 1, status=ended(1), lines=["Traceback (most recent call last):", "KeyError: 'x'"]),
            Cause.CRASH,
            "KeyE",
        ),
        (
            End(2, 1, status=ended(1), lines=["Traceback (most recent call last):", "MemoryError"]),
            Cause.OUT_OF_MEMORY,
            "MemoryError",
        ),
        (End(2, 1, words={"cause": "DataError", "message": "no such shard"}), Cause.DATA_ERROR, "no such shard"),
        (End(2, 1, note="its zygote ended"), Cause.CRASH, "zygote"),
    ],
)
def test_the_cause_is_told_from_status_words_and_output(end: End, cause: Cause, message: str) -> None:
    verdict = judge(end)
    assert verdict.cause is cause
    assert message in verdict.message
    assert not verdict.cascade


def test_a_collective_that_lost_its_peer_is_a_cascade_and_a_kill_is_not() -> None:
    assert judge(End(0, 1, status=ended(1), lines=GLOO)).cascade
    assert judge(End(0, 1, status=ended(ExitCode.PEER_LOST))).cascade
    assert judge(End(0, 1, words={"cause": "Crash", "message": "m", "cascade": True})).cascade
    assert not judge(End(0, 1, status=ended(-signal.SIGKILL), lines=GLOO)).cascade


def test_a_script_that_cannot_reach_its_own_server_is_no_cascade() -> None:
    lines = ["Traceback (most recent call last):", "ConnectionRefusedError: [Errno 111] Connection refused"]
    assert not judge(End(0, 1, status=ended(1), lines=lines)).cascade


def test_the_last_twenty_lines_and_the_last_traceback_are_kept() -> None:
    lines = [f"line {n}" for n in range(50)] + ["Traceback (most recent call last):", "ValueError: no"]
    verdict = judge(End(0, 1, status=ended(1), lines=lines))
    assert len(verdict.last_lines) == 20
    assert verdict.traceback == "Traceback (most recent call last):\nValueError: no"
