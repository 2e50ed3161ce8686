"""Keeps a rank observed that replaces its program by another one.

Scripts do that to set what only a new interpreter reads: they change PYTHONHASHSEED or LD_PRELOAD, and execute
themselves again. The new program gets the descriptors of the rank's record and channel, and the `sitecustomize` that
observes executed ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from trainmaster.contract.wire import environment
from trainmaster.rank import executed_rank_observation


def install() -> None:
    """Let this process take its observation along when it calls one of the `os.exec…` functions."""
    if environment.PROGRESS_FD not in os.environ:
        return
    pid = os.getpid()
    original: Callable[..., NoReturn] = os.execve

    @functools.wraps(original)
    def execve(path: Any, argv: Any, env: Any) -> NoReturn:  # the names are those of os.execve
        if os.getpid() != pid:  # a fork that becomes a helper
            original(path, argv, env)
        with _inheritable():
            original(path, argv, {**env, **executed_rank_observation.variables(env)})

    @functools.wraps(os.execv)
    def execv(path: Any, argv: Any, /) -> NoReturn:
        execve(path, argv, os.environ)

    # All the others call one of these two.
    setattr(os, "execve", execve)  # noqa: B010  an assignment would have to have the very signature
    setattr(os, "execv", execv)  # noqa: B010


@contextlib.contextmanager
def _inheritable() -> Iterator[None]:
    """Let a program that is executed inherit the rank's record and channel, if it can be executed."""
    fds = [int(os.environ[name]) for name in (environment.PROGRESS_FD, environment.CHANNEL_FD) if name in os.environ]
    try:
        for fd in fds:
            with contextlib.suppress(OSError):  # the script has closed it
                os.set_inheritable(fd, True)
        yield
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)
