"""Watching a rank that is executed as it is: a program, a script with a shebang, another environment's Python.

Nothing but its environment is ours, so the observer is put into the Python interpreters below it by a `sitecustomize`
(`injected/`), as tracing tools do. The descriptors of the rank's record and channel are inherited down to them, or
found in a process above them. Several interpreters may have them (a shell that runs one program after the other,
workers): the first one that is alive is the rank's program, which it claims by a lock on the record that no child
inherits. One that starts another program before it has imported a framework may be a mere wrapper (`conda run`), so it
gives way to that program for as long as it runs.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from trainmaster.contract.wire import environment
from trainmaster.rank import failure_message, framework_joining, observer, rendezvous, script


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a rank so that its Python programs are watched, and launchers taken over."""
    return {"PYTHONPATH": os.pathsep.join([script.INJECTED, *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])])}


def watch() -> None:
    """Watch this process and tell its last words, if it is the rank's program and no other process claims to be."""
    if not claim():
        return
    observer.install(own_loop=False)
    observer.join()
    _give_way_to_programs()
    rendezvous.install()
    _tell_exits()
    original = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
        if not isinstance(error, KeyboardInterrupt):
            script.tell_last_words(error.with_traceback(frames))
        original(kind, error, frames)

    sys.excepthook = tell


def _tell_exits() -> None:
    """Have `sys.exit` tell the agent of a code that is not 0. argparse and click end a program by it, and no hook of
    the interpreter sees that."""
    pid, original = os.getpid(), sys.exit

    @functools.wraps(original)
    def exit_(status: object = None, /) -> NoReturn:
        main = threading.current_thread() is threading.main_thread() and os.getpid() == pid
        if main and isinstance(status, int) and status:
            failure_message.tell_exit(status)
        original(status)  # type: ignore[arg-type]

    sys.exit = exit_


def _give_way_to_programs() -> None:
    """Leave the record to programs that this one starts before it has imported a framework, until they have ended."""
    start, end = subprocess.Popen._execute_child, subprocess.Popen._handle_exitstatus  # type: ignore[attr-defined]

    @functools.wraps(start)
    def _execute_child(*args: Any, **kwargs: Any) -> None:
        if not framework_joining.trains() and observer.give_way(claim):
            fcntl.lockf(int(os.environ[environment.PROGRESS_FD]), fcntl.LOCK_UN)
        start(*args, **kwargs)

    @functools.wraps(end)
    def _handle_exitstatus(*args: Any, **kwargs: Any) -> None:
        end(*args, **kwargs)
        observer.take_back()

    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    subprocess.Popen._handle_exitstatus = _handle_exitstatus  # type: ignore[attr-defined]


def claim() -> bool:
    """Lock the rank's record for this process. False: another process has it, or it was closed."""
    try:
        if environment.CHANNEL_FD in os.environ:
            os.fstat(int(os.environ[environment.CHANNEL_FD]))
        fcntl.lockf(int(os.environ[environment.PROGRESS_FD]), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (KeyError, ValueError, OSError):
        return False
    return True
