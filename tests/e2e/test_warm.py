"""What whole runs of tests fork instead of executing it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.warm import WarmRun, can_fork
from trainmaster_operator.local.inherited_variables import base_environment

AGENT = [sys.executable, "-m", "trainmaster.agent"]


def test_the_agent_of_a_local_pod_is_forked_but_for_one_whose_interpreter_reads_something_else() -> None:
    of_pod = {**base_environment(os.environ), "TRAINMASTER_SLOT": "0"}
    assert can_fork(AGENT, of_pod)
    assert not can_fork(AGENT, {**of_pod, "PYTHONHASHSEED": "1"})
    assert not can_fork([*AGENT, "fault"], of_pod)


def test_a_character_that_a_run_has_written_half_when_it_is_read_is_read_whole() -> None:
    (output, written), (status, ended) = os.pipe(), os.pipe()
    run = WarmRun(0, status, output)
    first, second = "5 × 2\n".encode()[:3], "5 × 2\n".encode()[3:]
    os.write(written, first)
    with pytest.raises(subprocess.TimeoutExpired):
        run.communicate(timeout=0)
    os.write(written, second)
    os.write(ended, b"0")
    for fd in (written, ended):
        os.close(fd)
    with run:
        assert run.communicate() == ("5 × 2\n", None)
