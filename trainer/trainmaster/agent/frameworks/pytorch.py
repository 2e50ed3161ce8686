"""PyTorch: torchrun's variables. DDP, FSDP and all that is built on torch.distributed meet at the agent's store."""

from __future__ import annotations

from typing import Any

from trainmaster.agent.frameworks.framework import Facts, Framework, Meeting

FAMILY = "torch.distributed"


def _meets_by_environment(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return True if `init_process_group(backend, init_method, …, store=…)` uses the environment."""
    method = args[1] if len(args) > 1 else given.get("init_method")
    return method in (None, "env://") and given.get("store") is None


MEETING = {"torch.distributed.distributed_c10d": Meeting("init_process_group", _meets_by_environment)}


def environment(facts: Facts) -> dict[str, str]:
    """Return the variables that torchrun sets in addition to the numbers of a rank."""
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(facts.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(2**31 - 1),
        "TORCHELASTIC_RUN_ID": facts.job_uid,
    }


# A script that runs under torchrun may do without torch, so no package is asked for.
PYTORCH = Framework("PyTorch", (), environment, family=FAMILY, meeting=MEETING)
