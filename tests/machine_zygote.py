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
from pathlib import Path

import pytest

from tests import tied
from trainmaster_operator.cluster.local_pod import base_environment


@pytest.fixture(scope="session")
def machine_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a zygote that serves this machine's agents."""
    folder = tmp_path_factory.mktemp("zygote")
    path = folder / "z.sock"
    with open(folder / "log", "wb") as log:
        zygote = tied.popen(
            [sys.executable, "-m", "trainmaster.agent.zygote", "--socket", str(path)],
            env=base_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield path
    zygote.send_signal(signal.SIGTERM)
    zygote.wait(10)
