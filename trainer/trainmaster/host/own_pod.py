"""The pod of this rank: its name, and which ranks of the job are in it, and so share its memory and its agent.

A pod need not be what torchrun calls a node: pods on one machine are one node (`rank_environment.node_variables`).
"""

from __future__ import annotations

import os

from trainmaster.contract.wire import environment


def name() -> str:
    """Return the name of the pod that this process runs in; "" outside of one."""
    parts = (environment.JOB, environment.ROLE, environment.SLOT, environment.INCARNATION)
    values = [os.environ.get(part, "") for part in parts]
    return "-".join(values) if all(values) else ""


def local_rank() -> int:
    """Return which of its pod's ranks this is, from 0. Without an agent the node counts as the pod."""
    return int(os.environ.get(environment.POD_RANK) or os.environ.get("LOCAL_RANK") or 0)


def size() -> int:
    """Return how many ranks this pod has. Without an agent the node counts as the pod."""
    in_pod = os.environ.get(environment.RANKS_PER_POD) if environment.POD_RANK in os.environ else None
    return int(in_pod or os.environ.get("LOCAL_WORLD_SIZE") or 1)
