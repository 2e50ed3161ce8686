"""Two processes of a real framework meet at an address that their script names, or several times in a row."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.frameworks import environments
from tests.frameworks.test_roster import Served
from trainmaster.agent.frameworks import rank_addresses
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import ProgressRecord
from trainmaster.rank import executed_rank_observation

pytestmark = [pytest.mark.framework, pytest.mark.processes]

LIMIT_S = 240  # no test asserts on a time: this only ends processes that hang

NAMES_ITS_COORDINATOR = """
import os
import jax
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('PORT') or os.environ['MASTER_PORT']}"
jax.distributed.initialize(coordinator_address=address, num_processes=world, process_id=rank)
print(jax.process_index(), "of", jax.process_count(), flush=True)
jax.distributed.shutdown()
"""

ENTERS_SEVERAL_CONTEXTS = """
import os, time
import numpy
from xgboost import collective
rank, told = int(os.environ["RANK"]), []
for context in range(4):
    with collective.CommunicatorContext():
        assert collective.get_rank() == rank
        total = collective.allreduce(numpy.array([10 ** rank]), collective.Op.SUM)
        told.append(int(total[0]))
        if context % 2 == rank:
            time.sleep(0.3)  # so each rank is the first to leave a context
print(told, flush=True)
"""


class Ranks:
    """Two processes of a framework, as an agent would execute them, beside the exchange of their addresses."""

    def __init__(self, framework: str, script: Path, **variables: str) -> None:
        self._command = [str(environments.python_of(framework.lower())), str(script)]
        self._variables = {environment.FRAMEWORK: framework, **variables}
        self._channels: list[Channel] = []

    def last_lines(self) -> list[str]:
        """Run both of them to their end, and return the last line that each of them prints."""
        served = Served()
        processes: list[subprocess.Popen[str]] = []
        try:
            processes += [self._start(served.facts(rank)) for rank in range(2)]
            return [process.communicate(timeout=LIMIT_S)[0].strip().rpartition("\n")[2] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
            served.close()

    def _start(self, facts: Facts) -> subprocess.Popen[str]:
        record, (ours, theirs) = ProgressRecord.create(1, facts.rank), Channel.pair()
        self._channels.append(ours)
        env = {"PATH": os.environ["PATH"], **numbers(facts), **self._variables}
        env |= {environment.ROUND: "1", environment.STORE: f"{facts.store_host}:{facts.store_port}"}
        env |= {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
        env |= executed_rank_observation.variables(env)
        fds = [record.fd, theirs.fileno()]
        return subprocess.Popen(self._command, env=env, pass_fds=fds, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


@pytest.mark.parametrize("port_of_the_store", [True, False])
def test_ranks_of_jax_meet_at_a_coordinator_that_their_script_names(script: Path, port_of_the_store: bool) -> None:
    script.write_text(NAMES_ITS_COORDINATOR)
    port = "" if port_of_the_store else str(rank_addresses.free_port("127.0.0.1"))
    assert Ranks("JAX", script, PORT=port).last_lines() == ["0 of 2", "1 of 2"]


def test_ranks_of_xgboost_meet_in_one_context_after_the_other(script: Path) -> None:
    script.write_text(ENTERS_SEVERAL_CONTEXTS)
    assert Ranks("XGBoost", script).last_lines() == ["[11, 11, 11, 11]"] * 2
