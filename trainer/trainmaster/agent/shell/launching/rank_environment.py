"""The environment variables that a rank gets: its numbers, those of its framework, and ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

from trainmaster.agent.frameworks.accelerators import has_accelerator
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.contract.wire import Assignment, environment


def neighbours(settings: Settings, assignment: Assignment, pod_rank: int) -> tuple[int, int]:
    """Return how many ranks share the cores of this rank's machine or pod, and which of them it is.

    pod_rank: which of its pod's ranks it is.
    """
    if settings.one_machine:
        return assignment.world_size, assignment.first_rank + pod_rank
    return assignment.ranks, pod_rank


def node_variables(settings: Settings, assignment: Assignment, pod_rank: int) -> dict[str, str]:
    """Return torchrun's variables that number a rank on its node, and the nodes.

    A pod is a node. The pods of a run on one machine are one node together, as with `torchrun --nproc-per-node`: a
    script that takes device LOCAL_RANK must not take the one of another pod's rank, and what a script does on local
    rank 0 of a node must happen once on the machine.
    """
    a = assignment
    whole = settings.one_machine and not settings.pods_as_nodes
    return {
        "LOCAL_RANK": str(a.first_rank + pod_rank if whole else pod_rank),
        "LOCAL_WORLD_SIZE": str(a.world_size if whole else a.ranks),
        "GROUP_RANK": str(0 if whole else a.group_rank),
        "GROUP_WORLD_SIZE": str(1 if whole else a.group_world_size),
    }


def facts_of(settings: Settings, assignment: Assignment, pod_rank: int) -> Facts:
    """Return the place of one rank in a round. pod_rank: which of its pod's ranks it is."""
    a, local = assignment, node_variables(settings, assignment, pod_rank)
    return Facts(
        rank=a.first_rank + pod_rank,
        world_size=a.world_size,
        local_rank=int(local["LOCAL_RANK"]),
        local_world_size=int(local["LOCAL_WORLD_SIZE"]),
        node=int(local["GROUP_RANK"]),
        nodes=int(local["GROUP_WORLD_SIZE"]),
        role=settings.identity.role,
        store_host=a.store.host,
        store_port=a.store.port,
        restart_count=a.restart_count,
        job_uid=settings.identity.job_uid,
        has_accelerator=has_accelerator(settings.environ),
    )


def loopback_variables() -> dict[str, str]:
    """Return the variables with which the process groups of one machine listen on its loopback interface alone.

    Without them gloo listens on the address that the machine's name resolves to, and NCCL on the first interface that
    is not loopback: on most machines anybody in the network reaches these.
    """
    present = {name for _, name in socket.if_nameindex()}
    name = next((name for name in ("lo", "lo0") if name in present), None)
    # NCCL takes a name without "=" for a prefix.
    if name is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": name, "HOROVOD_GLOO_IFACE": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def rank_environment(
    settings: Settings, assignment: Assignment, pod_rank: int, cpus: Sequence[int] = ()
) -> dict[str, str]:
    """Return the variables of one rank: its numbers, those of its framework, and ours.

    pod_rank: which of its pod's ranks it is. cpus: that it is pinned to.
    """
    a = assignment
    facts, framework = facts_of(settings, a, pod_rank), settings.of_framework
    env = {**framework.defaults(facts), **settings.environ}
    threads = max(1, settings.cpus // neighbours(settings, a, pod_rank)[0])
    env.setdefault("OMP_NUM_THREADS", str(min(threads, len(cpus)) if cpus else threads))
    if cpus:
        env[environment.CPUS] = ",".join(map(str, cpus))
    env.setdefault("PYTHONUNBUFFERED", "1")
    if settings.one_machine:
        env = {**loopback_variables(), **env}
    env.update(
        {
            **numbers(facts),
            **framework.environment(facts),
            environment.RANKS_PER_POD: str(a.ranks),
            environment.POD_RANK: str(pod_rank),
            environment.ROUND: str(a.round),
            environment.NUMBERS: json.dumps(numbers(facts)),
            environment.STORE: f"{a.store.host}:{a.store.port}",
            environment.RESUME: a.resume,
            environment.MESH: json.dumps(a.mesh),
            environment.MICRO_DIVISOR: str(a.micro_divisor),
            environment.SKIPPED: json.dumps(a.skipped),
        }
    )
    return env
