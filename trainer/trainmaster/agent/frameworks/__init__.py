"""The frameworks that ranks can train with: one file each, and this table. `docs/frameworks/add.md` adds the next."""

from __future__ import annotations

from trainmaster.agent.frameworks.deepspeed import DEEPSPEED
from trainmaster.agent.frameworks.framework import Facts, Framework
from trainmaster.agent.frameworks.horovod import HOROVOD
from trainmaster.agent.frameworks.huggingface import HUGGINGFACE
from trainmaster.agent.frameworks.jax import JAX
from trainmaster.agent.frameworks.pytorch import PYTORCH
from trainmaster.agent.frameworks.tensorflow import TENSORFLOW
from trainmaster.agent.frameworks.trainmaster import TRAINMASTER
from trainmaster.agent.frameworks.xgboost import XGBOOST

ALL = (TRAINMASTER, PYTORCH, TENSORFLOW, JAX, DEEPSPEED, HUGGINGFACE, HOROVOD, XGBOOST)
_BY_NAME = {framework.name: framework for framework in ALL}

__all__ = ["ALL", "Facts", "Framework", "find"]


def find(name: str) -> Framework:
    """Return the framework of this name. Raises ValueError for one that this agent does not know."""
    if name not in _BY_NAME:
        raise ValueError(
            f"framework {name}: this agent knows {', '.join(_BY_NAME)}; use an agent image of the operator's version"
        )
    return _BY_NAME[name]
