"""Functions of Linux that end process trees reliably."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_GET_NAME = 16
_NAME_BYTES = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Let the kernel send `signum` when the parent ends. End at once if it is already gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signum)


def become_subreaper() -> None:
    """Become the parent of orphans below this process, so that none of them escapes."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_name(name: str) -> None:
    """Let this process have a name in `ps -e`, `top` and `pgrep`, cut to 15 bytes. Forks of it get the name back that
    it has now, because they are not what the new name says."""
    buffer = ctypes.create_string_buffer(_NAME_BYTES + 1)
    _libc.prctl(_PR_GET_NAME, buffer, 0, 0, 0)
    former = buffer.value
    _libc.prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)
    os.register_at_fork(after_in_child=lambda: _libc.prctl(_PR_SET_NAME, former, 0, 0, 0))


def hurry() -> None:
    """Run with a higher priority than the ranks, where allowed: a supervisor has little to do, and ranks wait for
    it."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


def relax(niceness: int = 0) -> None:
    """Undo `hurry`, in a child: give it the niceness that its parent had before."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def kill_group(pid: int, signum: int = signal.SIGKILL) -> None:
    """Signal the process group that `pid` leads. Only for a pid that this process has not reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)
    # Between fork and setsid the group does not exist yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def children(pid: int) -> list[int]:
    """Return the direct children of all threads of `pid`, [] if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        return found
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that `pid` was executed with, {} if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def state(pid: int) -> str:
    """Return the kernel's letter for the state of `pid` (T: stopped), "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def maps_any(names: tuple[str, ...]) -> bool:
    """Return True if this process has loaded a library whose file name begins with one of `names`."""
    with open("/proc/self/maps") as maps:
        return any(line.rstrip("\n").rpartition("/")[2].startswith(names) for line in maps)


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def available_cpus(millis: int | None = None) -> int:
    """Return the number of CPUs that this process may run on, at most `millis` thousandths, rounded up.

    More threads would wait for each other: a parallel region ends with its last thread, which may not be running.
    """
    here = len(os.sched_getaffinity(0))
    return here if millis is None else max(1, min(here, -(-millis // 1000)))


def kill_children() -> list[int]:
    """Kill all children of this process, which a lost zygote has left to it as the subreaper. Reap those that have
    ended, and return the others. It does not wait."""
    me = os.getpid()
    for pid in children(me):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return children(me)
