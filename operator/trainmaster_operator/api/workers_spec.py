"""`spec.workers`: how many pods run ranks, how many ranks each of them runs, and their template."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from trainmaster.contract.config import Strict
from trainmaster_operator.api.quantities import Quantity


class WorkersSpec(Strict):
    """`spec.workers`: how many pods run ranks, how many ranks each of them runs, and their template."""

    replicas: int = Field(
        1,
        ge=1,
        le=100_000,
        description="Number of pods that are to train: the target. If neither workers.min nor workers.max is set, "
        "this is the only number of pods with which the job runs, and the parallelism and the batch must allow it. If "
        "one of them is set, the job uses the largest number up to replicas that the parallelism and the batch allow. "
        "For example, batch.global 64 allows 4 and 8 data-parallel ranks, but not 5 to 7. Default: 1.",
    )
    min: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="The fewest pods with which the job starts or continues. If pods are missing, the job waits for "
        "recovery.elastic.waitSeconds and then starts or continues with the largest number of pods that are there "
        "and that the parallelism and the batch allow, but never with fewer than min. It must not be greater than "
        "workers.replicas. Default: the job does not start or continue with fewer pods than workers.replicas by "
        "itself.",
    )
    max: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="The largest value to which workers.replicas can be changed while the job exists. It is only a "
        "bound for such changes: a job that trains with fewer pods grows by itself to workers.replicas, and not "
        "beyond. It must not be less than workers.replicas. Default: no limit.",
    )
    spares: int = Field(
        0,
        ge=0,
        le=1000,
        description="Number of additional pods that do not train. A spare pod is started in advance and takes the "
        "place of a pod that is lost. workers.replicas and workers.spares together are at most 100000. "
        "Default: 0.",
    )
    ranksPerPod: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of ranks in each pod. A rank is one process of the training, so there is usually one rank "
        "for each accelerator of the pod. This field requests no accelerators: the resources of the container do. Each "
        "rank sees all accelerators of its pod and uses the one whose number is its LOCAL_RANK. The field can be "
        "changed only while the job is suspended. Default: 1.",
    )
    pinning: bool = Field(
        False,
        description="If true, each rank is bound to CPU cores that no other rank of its pod uses, within one NUMA "
        "node if possible. Use it only if no other pod uses these cores. Default: false.",
    )
    sharedMemory: Quantity | None = Field(
        None,
        description="Size of /dev/shm in each pod, as a Kubernetes quantity such as 8Gi. NCCL and data loaders use it; "
        "checkpoints in memory (checkpoint.ram.limit) do not. This memory counts towards the memory limit of the "
        "container. Default: 1Gi for each rank of the pod.",
    )
    restartCommand: (
        Annotated[list[Annotated[str, Field(max_length=131072)]], Field(min_length=1, max_length=1024)] | None
    ) = Field(
        None,
        description="The command that a script runs after a restart, as a list of words. It replaces both command "
        "and args of the first container in workers.template. It is for scripts that continue only with an additional "
        "option, such as --resume. It is used after every restart, also in a new pod and after a suspended job is "
        "resumed. It is refused with framework Trainmaster, which continues without it. Default: command and args in "
        "workers.template.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        description="The pod template (metadata and spec) from which all pods of the job are created. The first "
        "container runs the ranks. The operator adds only fields that are not set: with framework Trainmaster, the "
        "first container needs only a name, because it gets the trainer's image and command. Every other framework "
        "needs a container with a command. restartPolicy must be Never, and hostname and subdomain must not be set. "
        "Default, for framework Trainmaster: one container.",
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> WorkersSpec:
        low, high = self.min or 1, self.max or self.replicas
        if not low <= self.replicas <= high:
            bounds = f"from min {low} to max {high}" if self.max else f"at least min {low}"
            raise ValueError(f"replicas must be {bounds}, not {self.replicas}")
        if self.replicas + self.spares > 100_000:
            raise ValueError(f"replicas {self.replicas} and spares {self.spares} are more than 100000 pods")
        return self
