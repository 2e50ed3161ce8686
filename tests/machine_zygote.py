"""One zygote for all tests of a pytest process: torch is imported once, and what scripts import is learned once.

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

import pytest

from tests import tied
from trainmaster.agent.zygote.variables_that_must_match import load_environment
from trainmaster_operator.local.inherited_variables import base_environment

_AT_START = load_environment(os.environ)


def environment() -> dict[str, str]:
    """The variables of this process, but those that are read at load as they were when the tests began: a library that
    a test imports may set some (scikit-learn does), and agents with others than the zygote's execute their ranks."""
    changed = load_environment(os.environ)
    return {name: value for name, value in os.environ.items() if name not in changed} | _AT_START


@contextmanager
def serving(path: Path, log_file: Path) -> Iterator[None]:
    """A zygote that serves this machine's agents at the socket `path`. Raises RuntimeError if it was not there until
    the end: agents would have started zygotes of their own, each of which imports torch."""
    with open(log_file, "wb") as log:
        zygote = tied.popen(
            [sys.executable, "-m", "trainmaster.agent.zygote.root", "--socket", str(path)],
            env=base_environment(environment()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
        if zygote.poll() is not None:
            raise RuntimeError(f"the zygote ended too early: {log_file.read_text()[-300:]}")
    finally:
        zygote.send_signal(signal.SIGTERM)
        zygote.wait(10)


@pytest.fixture(scope="session")
def machine_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a zygote that serves this machine's agents."""
    folder = tmp_path_factory.mktemp("zygote")
    with serving(folder / "z.sock", folder / "log"):
        yield folder / "z.sock"
