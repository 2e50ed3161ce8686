"""Launchers below a rank that would start a world of their own in each rank, seen by their command lines.

Those of torch and accelerate become the script that they would start (`injected`), as long as they get the PYTHONPATH
of the rank. A shell script may replace it; and mpirun, srun and their kin are no Python.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping

from trainmaster.agent.shell.ranks.round import Round
from trainmaster.contract.launch import LaunchRefused
from trainmaster.contract.launch.launchers import Launcher, find_interpreted_launcher, find_launcher
from trainmaster.contract.launch.python_options import is_python, read_python
from trainmaster.contract.wire import Cause
from trainmaster.host import processes
from trainmaster.rank.script_runner import INJECTED

LOOKS_AFTER_S = (1.0, 2.0, 5.0, 12.0, 40.0)
"""Pauses between looks after the start of a round, and the one that comes again and again after these: a shell script
may prepare something for hours before it launches."""


def watch(round: Round, is_current: Callable[[Round], bool], looks_after_s: tuple[float, ...] = LOOKS_AFTER_S) -> None:
    """Fail a script's round in whose ranks a launcher starts a world of its own. Look now and after each pause, while
    the round is the current one, until its ranks have joined it."""
    if not is_current(round) or round.verdict is not None:
        return
    for rank in round.ranks:
        words = find(rank.process.pid) if rank.process and not rank.joined else ""
        if words:
            round.spoke(rank, {"cause": Cause.CONFIG_ERROR.value, "message": words})
            return
    if not all(rank.joined for rank in round.ranks):
        loop = asyncio.get_running_loop()
        loop.call_later(looks_after_s[0], watch, round, is_current, looks_after_s[1:] or looks_after_s)


def find(rank: int) -> str:
    """Return why the program of a rank can't go on, in a sentence that names the launcher in it; "" if there is none.

    rank: the pid of the rank.
    """
    for pid in _tree(rank):
        words = refusal(_arguments(pid), processes.environment_of(pid))
        if words:
            return words
    return ""


def refusal(argv: list[str], env: Mapping[str, str]) -> str:
    """Return the sentence that refuses a process by its command line and variables; "" for all others."""
    try:
        launcher = _launcher(argv)
    except LaunchRefused as refused:
        return str(refused)
    if launcher is None or INJECTED in env.get("PYTHONPATH", "").split(os.pathsep):
        return ""
    return (
        f"{launcher.kind}, which this job's program starts, would start a world of its own in each rank: let the "
        f"program keep what PYTHONPATH holds and only add to it, or write that line as the job's command"
    )


def _launcher(argv: list[str]) -> Launcher | None:
    if not argv or not is_python(argv[0]):
        return find_launcher(argv)
    try:
        entry = read_python(argv).entry
    except LaunchRefused:
        return None  # a program from its standard input, which a shell may give it
    return find_interpreted_launcher(argv[0], entry)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in processes.children(pid):
        yield from _tree(child)


def _arguments(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []
