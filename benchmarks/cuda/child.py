"""Work in a process of its own: a broken device context or a step that hangs ends that work alone.

The process is a fork of this one, which has imported the trainer, has run no operation of torch and has not touched
CUDA: so it needs no imports, and it begins as a rank of an agent does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from trainmaster.host import processes
from trainmaster.rank import script_runner

INHERITED = ("TRAINMASTER_", "MASTER_", "TORCHELASTIC_")
"""Beginnings of variables that a rank's environment has, and that no work here inherits."""
_QUOTED = 300  # characters of a log
_ADDED = (
    "CUDA kernel errors might be asynchronously reported",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Device-side assertion tracking was not enabled",
    "Search for `cuda",
)
"""Beginnings of lines that torch adds to an error of CUDA. The line above them says what went wrong."""


class WorkFailed(Exception):
    """Why a piece of work has no result, in words."""


def run(work: Callable[[], Any], log: Path, limit_s: float) -> Any:
    """Return what `work` returns in a fork of this process. Its output, and that of its children, is appended to `log`.

    After `limit_s` seconds the fork and all of its process group are killed. Raises WorkFailed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    began, parent = log.stat().st_size, os.getpid()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        _be(work, log, theirs, parent)
    theirs.close()
    ended = os.pidfd_open(pid)
    try:
        # Not by the pipe's end alone: children of the fork may hold the other end of it.
        if not wait([ours, ended], limit_s):
            raise WorkFailed(f"it was stopped after {limit_s:.0f} s; {last_words(log, began)}")
        if ours.poll():
            return ours.recv()
        raise EOFError
    except EOFError:
        status = os.waitid(os.P_PIDFD, ended, os.WEXITED | os.WNOWAIT)
        assert status is not None
        how = "exit code" if status.si_code == os.CLD_EXITED else "signal"
        raise WorkFailed(f"{how} {status.si_status}; {last_words(log, began)}") from None
    finally:
        processes.kill_group(pid)
        os.waitpid(pid, 0)
        os.close(ended)
        ours.close()


class Once:
    """Results of work that several rows need. Work that has failed isn't tried again: it would take as long again."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def run(self, key: Any, work: Callable[[], Any], log: Path, limit_s: float) -> Any:
        """Return what `work` of this key returns or has returned. Raises WorkFailed, also if it has failed before."""
        if key not in self._known:
            try:
                self._known[key] = run(work, log, limit_s)
            except WorkFailed as reason:
                self._known[key] = reason
        if isinstance(self._known[key], WorkFailed):
            raise self._known[key]
        return self._known[key]


def _be(work: Callable[[], Any], log: Path, pipe: Connection, parent: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        processes.die_with_parent(parent)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for name in [name for name in os.environ if name.startswith(INHERITED)]:
            del os.environ[name]
        pipe.send(work())
        code = 0
    except SystemExit as stop:
        code = script_runner.exit_code(stop)
    except BaseException:  # noqa: BLE001 a fork must not run on into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def last_words(log: Path, began: int = 0) -> str:
    """The last line with words of its own that was written after the first `began` bytes, for people."""
    with log.open("rb") as file:
        file.seek(began)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(_ADDED)]
    return f"{log} ends with: {lines[-1][:_QUOTED]}" if lines else f"{log} has nothing of it"
