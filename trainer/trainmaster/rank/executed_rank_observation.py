"""Observation of a rank that is executed: a program, a script with a shebang, or another environment's Python.

Only the environment of such a rank is ours, so a `sitecustomize` (`injected/`) puts the observer into the Python
interpreters below it, as tracing tools do. They inherit the descriptors of the rank's record and channel, or find them
in a process above them. Several interpreters may have them (a shell that runs several programs, workers). The first one
that is alive is the rank's program; it claims the record by a lock that no child inherits. A program that starts
another one before it has imported a framework may be just a wrapper (`conda run`), so it gives the record to that
program for as long as it runs.
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
from trainmaster.rank import failure_message, framework_joining, rendezvous, script_observer, script_runner


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the additional variables with which a rank's Python programs are observed and launchers taken over."""
    given = env["PYTHONPATH"].split(os.pathsep) if env.get("PYTHONPATH") else []
    given = [path for path in given if path != script_runner.INJECTED]
    return {"PYTHONPATH": os.pathsep.join([script_runner.INJECTED, *given])}


def watch() -> None:
    """Observe this process and report its last words, if it is the rank's program and no other process claims to be."""
    if not claim():
        return
    script_observer.install(own_loop=False)
    script_observer.join()
    _give_way_to_programs()
    rendezvous.install()
    _tell_exits()
    original = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
        if not isinstance(error, KeyboardInterrupt):
            script_runner.tell_last_words(error.with_traceback(frames), may_go_on=_may_go_on())
        original(kind, error, frames)

    sys.excepthook = tell


def _may_go_on() -> bool:
    """Return True if the rank may go on after this process: a shell asks whether a module is there, and then trains.

    Once a process has joined its round, the other ranks wait for it, and nothing that follows can take its place.
    """
    return os.getpid() != os.getsid(0) and not script_observer.has_joined()


def _tell_exits() -> None:
    """Let `sys.exit` report a code that is not 0 to the agent.

    argparse and click end a program in this way, and no hook of the interpreter sees it.
    """
    pid, original = os.getpid(), sys.exit

    @functools.wraps(original)
    def exit_(status: object = None, /) -> NoReturn:
        main = threading.current_thread() is threading.main_thread() and os.getpid() == pid
        if main and isinstance(status, int) and status:
            failure_message.tell_exit(status)
        original(status)  # type: ignore[arg-type]

    sys.exit = exit_


def _give_way_to_programs() -> None:
    """Leave the record to programs that this one starts before it has imported a framework, until they end."""
    start, end = subprocess.Popen._execute_child, subprocess.Popen._handle_exitstatus  # type: ignore[attr-defined]

    @functools.wraps(start)
    def _execute_child(*args: Any, **kwargs: Any) -> None:
        if not framework_joining.trains() and script_observer.give_way(claim):
            fcntl.lockf(int(os.environ[environment.PROGRESS_FD]), fcntl.LOCK_UN)
        start(*args, **kwargs)

    @functools.wraps(end)
    def _handle_exitstatus(*args: Any, **kwargs: Any) -> None:
        end(*args, **kwargs)
        script_observer.take_back()

    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    subprocess.Popen._handle_exitstatus = _handle_exitstatus  # type: ignore[attr-defined]


def claim() -> bool:
    """Lock the rank's record for this process. Return False if another process has it, or if it was closed."""
    try:
        if environment.CHANNEL_FD in os.environ:
            os.fstat(int(os.environ[environment.CHANNEL_FD]))
        fcntl.lockf(int(os.environ[environment.PROGRESS_FD]), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (KeyError, ValueError, OSError):
        return False
    return True
