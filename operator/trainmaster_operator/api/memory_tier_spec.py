"""`spec.checkpoint.ram`: the memory tier of checkpoints."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.quantities import QuantityOrNone, bytes_of


class RamSpec(Strict):
    """Checkpoints in the memory of the job's own pods: fast to write, fast to read, gone with the pod."""

    every: int | None = Field(
        None,
        ge=0,
        le=10**9,
        description="Number of steps between two checkpoints in memory. 0: state is saved to memory only when another "
        "rank has failed. Default: the number of steps with which saving takes at most 1 % of the time.",
    )
    peers: int = Field(
        1,
        ge=0,
        le=1,
        description="Number of copies of each pod's checkpoints that are kept in pods on other nodes. With 1 the loss "
        "of one pod loses no saved state; with 0 the checkpoints in memory are lost with their pod. "
        "Default: 1.",
    )
    limit: QuantityOrNone | None = Field(
        None,
        description="Memory of each pod for checkpoints, as a Kubernetes quantity such as 4Gi. A rank needs twice the "
        "size of the state that it saves. With peers: 1, in a job of several pods, it needs four times this size, "
        "because the pod also keeps the copies of another pod. One 32nd of the limit stays free. The command "
        "trainmaster plan computes the limit. The memory is "
        "a tmpfs at /var/lib/trainmaster/ram, separate from /dev/shm (workers.sharedMemory). Its size is added to the "
        "memory request and limit of the first container. 0 means that no checkpoints are kept in memory; then every "
        "and peers must not be set. Default: 1Gi for each rank of the pod.",
    )

    @property
    def copies(self) -> int:
        """The number of pods that keep copies of a pod's checkpoints, in a job of several pods. With every: 0 there are
        none, because nothing is saved while nothing fails."""
        return 0 if self.every == 0 else self.peers

    def bytes_of_pod(self, ranks: int) -> int:
        """Return the memory for the tier in a pod with this number of ranks, in bytes."""
        return bytes_of(self.limit or f"{ranks}Gi") or 0


def memory_tier(given: RamSpec | None, *, stored: bool, own_loop: bool) -> RamSpec | None:
    """Return the memory tier of a job, or None if the job has none. `stored`: the job saves to storage. Ranks use the
    tier only in addition to that, so a job without storage reserves no memory for it. `own_loop`: the built-in trainer
    runs; a script has the tier only if its job asks for it."""
    if not stored:
        return None
    if given is None:
        return RamSpec() if own_loop else None
    return None if given.limit == "0" else given
