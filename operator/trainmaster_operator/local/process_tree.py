"""Linux process trees: find descendants, kill all of them, and end together with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

from trainmaster.host import processes as host_processes

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)  # Of the person's command, which `relax` gives back to a child.


class Process(NamedTuple):
    pid: int
    state: str  # As in proc(5): R, S, D, T, Z.
    parent: int
    group: int
    session: int
    started: int  # Clock ticks since boot. They distinguish processes that had the same pid.


Table = dict[int, Process]


def die_with_parent(number: int) -> None:
    """Let the kernel send signal `number` when the thread that started this process ends. This survives an exec.
    Raise OSError."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Raise OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def hurry() -> None:
    """Run with a higher priority than the ranks, as their agents do: ranks wait for what this process decides."""
    host_processes.hurry()


def relax() -> None:
    """Undo `hurry`, in a child that is about to be executed."""
    host_processes.relax(_NICENESS)


def table() -> Table:
    """Return all processes that /proc shows now, by pid."""
    processes: Table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # The name is in parentheses and may contain anything, spaces and parentheses too.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # It has ended in the meantime.
            pid = int(entry)
            parent, group, session = int(fields[1]), int(fields[2]), int(fields[3])
            processes[pid] = Process(pid, fields[0].decode(), parent, group, session, int(fields[19]))
    return processes


def below(roots: Iterable[int], processes: Table) -> list[Process]:
    """Return all descendants of `roots`, without the roots themselves."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    open_ends = list(roots)
    while open_ends:
        for process in children.get(open_ends.pop(), []):
            if process.pid not in found:
                found[process.pid] = process
                open_ends.append(process.pid)
    return list(found.values())


def started_with(pid: int, variable: str) -> bool:
    """Return whether the process was executed with `variable` (NAME=value) in its environment. Return False if that
    cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable.encode() in file.read().split(b"\0")
    except OSError:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, which may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_group(group: int, number: int) -> None:
    """Send a signal to a process group, which may have ended already."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def kill_all(select: Callable[[Table], Iterable[Process]]) -> int:
    """Send SIGKILL to all processes that `select` returns, and repeat until it returns no new one, because a process
    may fork in between.

    Return the number of processes. They may not be dead yet, but they run no more of their own code.
    """
    killed: set[tuple[int, int]] = set()
    while True:
        fresh = [p for p in select(table()) if p.state != "Z" and (p.pid, p.started) not in killed]
        if not fresh:
            return len(killed)
        for process in fresh:
            kill(process.pid)
            killed.add((process.pid, process.started))
