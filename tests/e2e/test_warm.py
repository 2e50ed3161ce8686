"""What whole runs of tests fork instead of executing it."""

from __future__ import annotations

import os
import sys

from tests.e2e.warm import can_fork
from trainmaster_operator.local.inherited_variables import base_environment

AGENT = [sys.executable, "-m", "trainmaster.agent"]


def test_the_agent_of_a_local_pod_is_forked_but_for_one_whose_interpreter_reads_something_else() -> None:
    of_pod = {**base_environment(os.environ), "TRAINMASTER_SLOT": "0"}
    assert can_fork(AGENT, of_pod)
    assert not can_fork(AGENT, {**of_pod, "PYTHONHASHSEED": "1"})
    assert not can_fork([*AGENT, "fault"], of_pod)
