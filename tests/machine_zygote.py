"""One zygote for all tests of a run: torch is imported once, and what scripts import is learned once.

`TRAINMASTER_ZYGOTE` names its socket to `trainmaster run` and to agents. A test that looks at a run's own zygote, or at
everything below a run, leaves the variable out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests import tied
from tests.suite import keeper
from trainmaster.agent.zygote.variables_that_must_match import load_environment
from trainmaster_operator.local.inherited_variables import base_environment

_AT_START = load_environment(os.environ)


def environment() -> dict[str, str]:
    """The variables of this process, but those that are read at load as they were when the tests began: a library that
    a test imports may set some (scikit-learn does), and agents with others than the zygote's execute their ranks."""
    changed = load_environment(os.environ)
    return {name: value for name, value in os.environ.items() if name not in changed} | _AT_START


def start(path: Path, log_file: Path) -> subprocess.Popen[bytes]:
    """Start a zygote that serves this machine's agents at the socket `path`."""
    with open(log_file, "wb") as log:
        return tied.popen(
            [sys.executable, "-m", "trainmaster.agent.zygote.root", "--socket", str(path)],
            env=base_environment(environment()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def _serving(path: Path, log: Path) -> Iterator[None]:
    zygote = start(path, log)
    try:
        yield
        if zygote.poll() is not None:
            _raise_too_early(log)
    finally:
        zygote.send_signal(signal.SIGTERM)
        zygote.wait(10)


def _raise_too_early(log: Path) -> NoReturn:
    raise RuntimeError(f"the zygote ended too early: {log.read_text()[-300:]}")


@pytest.fixture(scope="session")
def machine_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a zygote that serves this machine's agents, one for all workers of a run. Raises RuntimeError if it
    was not there until the end: agents would have started zygotes of their own, each of which imports torch."""
    if keeper.kept is None:
        folder = tmp_path_factory.mktemp("zygote")
        with _serving(folder / "z.sock", folder / "log"):
            yield folder / "z.sock"
        return
    zygote = keeper.ask(keeper.kept, "zygote")
    yield Path(zygote["path"])
    if keeper.ask(keeper.kept, "zygote")["ended"]:
        _raise_too_early(Path(zygote["log"]))
