"""A rank's stack, whoever holds the interpreter's lock; and what the agent tells of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tied
from tests.agent.world import ROOT
from trainmaster.contract.wire.progress_record import ProgressRecord
from trainmaster.rank import stacks

PROGRAM = """
import ctypes, itertools, os, sys, threading, time
sys.path.insert(0, {root!r})
from trainmaster.rank import stacks
stacks.listen(int(sys.argv[1]))
hold = threading.Event()
def sleep_for_ever():
    while True:
        time.sleep(1000)
def hold_the_lock():
    max(itertools.repeat(0))
def lock_twice():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def step(how):
    {{"sleep": sleep_for_ever, "c": hold_the_lock, "lock": lock_twice}}[how]()
print("ready", flush=True)
step(sys.argv[2])
"""


SOURCES = {
    "sleep_for_ever": "time.sleep(1000)",
    "hold_the_lock": "max(itertools.repeat(0))",
    "lock_twice": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


class Child:
    """A process that listens, as an agent sees it."""

    def __init__(self, folder: Path, how: str, program: str = PROGRAM) -> None:
        path = folder / "train.py"
        path.write_text(program.format(root=str(ROOT / "trainer")))
        self.record = ProgressRecord.create(1, 0)
        os.set_inheritable(self.record.fd, True)
        argv = [sys.executable, str(path), str(self.record.fd), how]
        self.popen = tied.popen(argv, pass_fds=[self.record.fd], stdout=subprocess.PIPE)
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == b"ready\n"
        self.program = self.popen.pid
        self.look = stacks.Look()
        self.ended = False

    def until(self, words: str) -> str:
        """Its stack, once that has `words` in it: before, it is on its way there."""
        deadline = time.monotonic() + 60
        while words not in self.look.stack:
            assert time.monotonic() < deadline, self.look.stack
            stacks.ask(self)  # type: ignore[arg-type]
            time.sleep(0.02)
            stacks.take(self)  # type: ignore[arg-type]
        return self.look.stack


@pytest.fixture
def child(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Child]:
    made = Child(tmp_path, *request.param) if isinstance(request.param, tuple) else Child(tmp_path, request.param)
    yield made
    made.popen.send_signal(signal.SIGKILL)
    made.popen.wait(10)
    made.record.close()


@pytest.mark.parametrize(
    ("child", "function"),
    [("sleep", "sleep_for_ever"), ("c", "hold_the_lock"), ("lock", "lock_twice")],
    indirect=["child"],
)
def test_the_stack_of_a_stuck_process_is_told_most_recent_call_last(child: Child, function: str) -> None:
    *lines, source = child.until(function).splitlines()
    assert source == f"    {SOURCES[function]}"
    assert [line.rpartition(" ")[2] for line in lines] == ["<module>", "step", function]
    assert lines[-1].startswith('  File "')
    assert ", line " in lines[-1]
    assert child.popen.poll() is None


@pytest.mark.parametrize("child", ["sleep"], indirect=True)
def test_a_stack_that_stays_the_same_is_still_since_it_was_first_seen(child: Child) -> None:
    child.until("sleep_for_ever")
    first = child.look.since
    for _ in range(3):
        stacks.ask(child)  # type: ignore[arg-type]
        time.sleep(0.05)
        stacks.take(child)  # type: ignore[arg-type]
    assert child.look.since == first
    assert child.look.still_s > 0
    child.look.stack = "another one"
    stacks.take(child)  # type: ignore[arg-type]
    assert child.look.still_s == 0


DEAF = "import sys, time; print('ready', flush=True); time.sleep(1000)"


@pytest.mark.parametrize("child", [("sleep", DEAF)], indirect=True)
def test_a_process_that_would_die_of_the_question_is_not_asked(child: Child) -> None:
    """A shell around the ranks, or a program that replaced itself by another."""
    stacks.ask(child)  # type: ignore[arg-type]
    assert not child.look.asked
    os.kill(child.popen.pid, 0)
    assert child.popen.poll() is None


@pytest.mark.parametrize("child", ["sleep"], indirect=True)
def test_a_stopped_process_is_not_asked(child: Child) -> None:
    os.kill(child.popen.pid, signal.SIGSTOP)
    while Path(f"/proc/{child.popen.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        time.sleep(0.01)
    stacks.ask(child)  # type: ignore[arg-type]
    assert not child.look.asked


def test_frames_of_the_agent_are_left_out_and_long_stacks_keep_their_innermost_calls() -> None:
    ours = os.path.dirname(stacks.__file__)
    dump = f"""Stack (most recent call first):
  File "/job/train.py", line 3 in inner
  File "/job/train.py", line 9 in <module>
  File "{ours}/script.py", line 70 in _enter
  File "<frozen runpy>", line 88 in _run_code
"""
    told = stacks.readable(dump)
    assert told == '  File "/job/train.py", line 9, in <module>\n  File "/job/train.py", line 3, in inner\n'
    assert stacks.shown(told, 50) == '  File "/job/train.py", line 3, in inner\n'
    assert stacks.readable("") == ""


def frame(path: object, line: int = 1, name: str = "<module>") -> str:
    return f'  File "{path}", line {line}, in {name}\n'


def test_the_innermost_call_of_own_code_has_its_source_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import time\nwait({'9' * 100})\n    time.sleep(10**6)  # ever\n")
    library = frame("/usr/lib/python3.12/threading.py", 3, "wait")
    told = stacks.with_source(frame(script, 1) + frame(script, 3, "f") + library)
    assert told == frame(script, 1) + frame(script, 3, "f") + "    time.sleep(10**6)  # ever\n" + library
    cut = stacks.with_source(frame(script, 2)).splitlines()[1].strip()
    assert len(cut) == 80
    assert cut.endswith("9…")


@pytest.mark.parametrize("kind", ["missing", "large", "pipe", "short", "library", "no Python"])
def test_a_file_that_is_not_a_small_readable_one_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("data.bin" if kind == "no Python" else "train.py")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "library":
        path = tmp_path / "site-packages" / "train.py"
        path.parent.mkdir()
        path.write_text("secret\n")
    elif kind != "missing":
        path.write_text("secret\n" * ((1 << 20) if kind == "large" else 1))
    stack = frame(path, 2 if kind == "short" else 1)
    assert stacks.with_source(stack) == stack


def test_the_signal_is_none_that_programs_use() -> None:
    assert signal.SIGRTMIN < stacks.STACK_SIGNAL < signal.SIGRTMAX
