"""A program that is executed as it is finds the addresses of its round in the Python interpreters below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.frameworks.test_roster import Served
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import ProgressRecord
from trainmaster.rank import executed_rank_observation

pytestmark = pytest.mark.processes

TELLS = "import os; print(os.environ['TF_CONFIG'])"


def rank(command: Sequence[str], facts: Facts) -> tuple[subprocess.Popen[str], Channel]:
    """Start a rank of TensorFlow as an agent executes it, with the channel that it speaks to."""
    record, (ours, theirs) = ProgressRecord.create(1, facts.rank), Channel.pair()
    env = {"PATH": os.environ["PATH"], **numbers(facts), environment.FRAMEWORK: "TensorFlow"}
    env |= {environment.ROUND: "1", environment.STORE: f"{facts.store_host}:{facts.store_port}"}
    env |= {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
    fds = [record.fd, theirs.fileno()]
    env |= executed_rank_observation.variables(env)
    return subprocess.Popen(command, env=env, pass_fds=fds, stdout=subprocess.PIPE, text=True), ours


def test_a_shell_script_that_starts_one_python_after_the_other_gets_the_same_addresses_in_each(tmp_path: Path) -> None:
    served = Served()
    twice = ["sh", "-c", f'{sys.executable} -c "{TELLS}"; {sys.executable} -c "{TELLS}"']
    once = ["env", "X=1", sys.executable, "-c", TELLS]
    try:
        ranks = [rank(command, served.facts(number)) for number, command in enumerate((twice, once))]
        told = [process.communicate(timeout=120)[0].splitlines() for process, _ in ranks]
    finally:
        served.close()
    first, again, other = (json.loads(line) for line in (*told[0], *told[1]))
    assert first == again
    assert first["cluster"] == other["cluster"]
    assert [first["task"]["index"], other["task"]["index"]] == [0, 1]
    assert len(set(first["cluster"]["worker"])) == 2
