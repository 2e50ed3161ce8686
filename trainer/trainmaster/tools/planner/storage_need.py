"""The size of a checkpoint on storage, and of all that a job keeps."""

from __future__ import annotations

from trainmaster.contract.config import ParallelismConfig, TrainingConfig
from trainmaster.reduce import compressed_size
from trainmaster.tools.planner import memory_estimate
from trainmaster.tools.planner.inventory import Inventory
from trainmaster.tools.planner.layouts import Layout

_UNITS = ((2**30, "Gi"), (2**20, "Mi"))


def size(config: TrainingConfig, inventory: Inventory, replicas: int) -> int:
    """Return the bytes of a checkpoint: parameters and optimizer state in fp32, each once, whatever the layout is, and
    what compressed gradients keep for each of the replicas. Headers, and what loaders and random generators save, are
    small and left out."""
    alone = config.model_copy(update={"parallelism": ParallelismConfig(), "communication": None})
    layout = Layout(alone, 1)
    groups = [*memory_estimate.groups(inventory, layout, [range(inventory.layers)])]
    once = memory_estimate.held(groups, layout, 0, config.optimizer).saved
    compression = config.communication.compression if config.communication is not None else None
    if compression is None or replicas == 1:
        return once
    return once + replicas * compressed_size.saved(compression, memory_estimate.shards(groups, layout, 0))


def words(size: int, keep: int) -> str:
    """Return a sentence for people. `keep`: checkpoint.keep."""
    unit, suffix = next((one for one in _UNITS if size >= one[0]), _UNITS[-1])
    room = f"{_rounded((keep + 1) * size, unit)}{suffix}"
    return (
        f"On storage a checkpoint has {_rounded(size, unit)}{suffix}.\n"
        f"The {keep} that checkpoint.keep keeps, and one more while it is written, need {room} of the volume.\n"
    )


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit)
