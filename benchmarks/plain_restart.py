"""All ranks of a script on this machine, all started again as soon as one of them has failed.

    python -m benchmarks.plain_restart FRAMEWORK RANKS PROGRAM [ARGUMENT ...]

This is what a plain job with restarts does for frameworks that have no launcher with restarts, at its best: a death is
noticed at once, the other ranks are killed at once, and nothing waits between two starts. Ranks get the variables that
say who the others are from the same functions as under Trainmaster, with new ports in each start.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks import commands
from benchmarks.ports import free_port
from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.framework import Facts, numbers


def rank_variables(framework: str, ranks: int, ports: Sequence[int]) -> list[dict[str, str]]:
    """Return the variables of each rank. ports: one for each rank, and one for torch's store."""
    plugin = frameworks.find(framework)
    addresses = [f"127.0.0.1:{port}" for port in ports[:ranks]]
    found = []
    for rank in range(ranks):
        facts = Facts(rank, ranks, local_rank=rank, local_world_size=ranks, store_port=ports[ranks])
        # "True" would say that an agent has opened the store already; without it rank 0 opens it.
        own = {**plugin.environment(facts), **plugin.peers(facts, addresses), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        found.append({**plugin.defaults(facts), **numbers(facts), **own, **_as_in_slurm(framework, rank, ranks)})
    return found


def _as_in_slurm(framework: str, rank: int, ranks: int) -> dict[str, str]:
    """Return what SLURM would tell: JAX has no variables of its own for the number of processes."""
    if framework != "JAX":
        return {}
    numbered = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": ranks, "SLURM_JOB_ID": 1}
    return {name: str(value) for name, value in numbered.items()} | {
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
    }


class Ranks:
    """The ranks of one start."""

    def __init__(self, program: Sequence[str], variables: Sequence[Mapping[str, str]]) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for added in variables:
            process = subprocess.Popen(program, env={**os.environ, **added})
            self._processes[process.pid] = process

    def wait(self) -> int:
        """Return 0 when all have ended well. Once one has failed, kill the others and return its exit code."""
        while self._processes:
            pid, status = os.wait()
            if pid in self._processes:
                del self._processes[pid]
                if code := os.waitstatus_to_exitcode(status):
                    self.kill()
                    return code
        return 0

    def kill(self) -> None:
        for pid in self._processes:
            os.kill(pid, signal.SIGKILL)
        while self._processes:
            self._processes.pop(os.wait()[0], None)


def main(arguments: Sequence[str] | None = None) -> int:
    given = read(arguments)
    with commands.sigterm_exits():
        while True:
            ports = [free_port() for _ in range(given.ranks + 1)]
            ranks = Ranks([given.program, *given.arguments], rank_variables(given.framework, given.ranks, ports))
            try:
                code = ranks.wait()
            finally:
                ranks.kill()
            if code == 0:
                return 0
            print(f"plain_restart: a rank ended with {code}; all are started again", flush=True)


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.plain_restart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("framework", choices=[framework.name for framework in frameworks.ALL], metavar="FRAMEWORK")
    parser.add_argument("ranks", type=int, metavar="RANKS")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of the program")
    given = parser.parse_args(arguments)
    if given.ranks < 1:
        parser.error(f"RANKS {given.ranks}: at least 1 is needed")
    return given


if __name__ == "__main__":
    sys.exit(main())
