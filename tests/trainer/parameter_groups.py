"""What FSDP gathers together, which no public call of torch tells."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import FSDPModule


def parameter_groups(module: FSDPModule) -> list[Any]:
    """Return the groups of parameters of a module. Up to torch 2.11 there is one, or none."""
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
