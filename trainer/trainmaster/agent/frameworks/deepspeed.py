"""DeepSpeed: torchrun's variables, those of its own launcher, and its accelerator where a pod has no device.

With all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, DeepSpeed reads neither a hostfile nor MPI's
variables.
"""

from __future__ import annotations

from trainmaster.agent.frameworks import pytorch
from trainmaster.agent.frameworks.framework import Facts, Framework


def environment(facts: Facts) -> dict[str, str]:
    """Return what the launcher of DeepSpeed sets in each rank."""
    return {
        **pytorch.environment(facts),
        "LOCAL_SIZE": str(facts.local_world_size),
        "CROSS_RANK": str(facts.node),
        "CROSS_SIZE": str(facts.nodes),
    }


def defaults(facts: Facts) -> dict[str, str]:
    """Return the accelerator of pods without a device: DeepSpeed would look for one, and warn."""
    return {} if facts.has_accelerator else {"DS_ACCELERATOR": "cpu"}


DEEPSPEED = Framework(
    "DeepSpeed",
    ("deepspeed",),
    environment,
    defaults,
    family=pytorch.FAMILY,
    hooks=pytorch.HOOKS,
    profiler=pytorch.PROFILER,
)
