"""Watching a rank that is executed as it is: a program, a script with a shebang, another environment's Python.

Nothing but its environment is ours, so the observer is put into the Python interpreters below it by a `sitecustomize`
(`injected/`), as tracing tools do. The descriptors of the rank's record and channel are inherited down to them. Several
interpreters may inherit them (a shell that runs one program after the other, workers): the first one that is alive is
the rank's program, which it claims by a lock on the record that no child inherits.
"""

from __future__ import annotations

import fcntl
import os
import sys
import types
from collections.abc import Mapping

from trainmaster.agent import observer, own_store, script
from trainmaster.contract.wire import environment


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a rank so that its Python programs are watched, and launchers taken over."""
    return {"PYTHONPATH": os.pathsep.join([script.INJECTED, *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])])}


def watch() -> None:
    """Watch this process and tell its last words, if it is the rank's program and no other process claims to be."""
    if not _claim():
        return
    observer.install(own_loop=False)
    observer.join()
    own_store.install()
    original = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
        if not isinstance(error, KeyboardInterrupt):
            script.tell_last_words(error.with_traceback(frames))
        original(kind, error, frames)

    sys.excepthook = tell


def _claim() -> bool:
    """Lock the rank's record for this process. False: another process has it, or there is no channel."""
    try:
        os.fstat(int(os.environ[environment.CHANNEL_FD]))
        fcntl.lockf(int(os.environ[environment.PROGRESS_FD]), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (KeyError, ValueError, OSError):
        return False
    return True
