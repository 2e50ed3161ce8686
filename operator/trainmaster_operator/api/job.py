"""`DistributedTrainingJob`: spec. A field that no code obeys does not exist: it is refused as unknown."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainmaster.contract.config import Name, Strict, TrainingConfig
from trainmaster_operator.api.meta import API_VERSION, JOB_KIND
from trainmaster_operator.api.status import JobStatus


class Framework(str, Enum):
    """Which environment the ranks get, and what they run."""

    TRAINMASTER = "Trainmaster"  # our own trainer, from spec.training
    PYTORCH = "PyTorch"  # the template's command, with torchrun's environment


class WorkersSpec(Strict):
    replicas: int = Field(1, ge=1, le=100_000, description="Pods.")
    ranksPerPod: int = Field(1, ge=1, le=256, description="Processes in each pod; usually one per accelerator.")
    template: dict[str, Any] = Field(
        default_factory=dict, description="A PodTemplate. Only what is unset and harmless is added to it."
    )


class CheckpointSpec(Strict):
    resume: Annotated[str, Field(max_length=4096)] = Field(
        "Auto", description="Auto: the newest valid checkpoint. Never: from the start. Or the path of a checkpoint."
    )
    directory: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Where checkpoints lie, as the pods see it. A local run: OUT/checkpoints."
    )


class HangSpec(Strict):
    limitSeconds: float | None = Field(
        600, gt=0, description="A rank that says nothing for so long while training is stuck. null: no limit."
    )


class BudgetSpec(Strict):
    """How many failures are worth a restart. Evictions and suspends are free."""

    inPlace: int = Field(10, ge=0, le=10_000, description="Restarts of processes, within the window.")
    pod: int = Field(5, ge=0, le=10_000, description="Replacements of pods, within the window.")
    full: int = Field(2, ge=0, le=10_000, description="Restarts of all pods, within the window.")
    windowSeconds: float = Field(3600, gt=0, description="Restarts older than this no longer count.")
    perCause: int = Field(
        3, ge=1, le=10_000, description="Restarts for the same cause without a step of progress, before a higher rung."
    )


class RecoverySpec(Strict):
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    hang: HangSpec = Field(default_factory=HangSpec)
    zygote: bool = Field(True, description="Fork ranks from a process that has imported what they need.")
    agentLostSeconds: float = Field(20, gt=0, description="Silence after which a pod's agent counts as dead.")


class JobSpec(Strict):
    framework: Framework = Framework.TRAINMASTER
    workers: WorkersSpec = Field(default_factory=WorkersSpec)
    training: TrainingConfig | None = None
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    recovery: RecoverySpec = Field(default_factory=RecoverySpec)
    suspend: bool = False
    activeDeadlineSeconds: float | None = Field(None, gt=0, description="The job fails when it runs longer.")
    cleanPodPolicy: Literal["All", "Running", "None"] = Field("Running", description="Pods to delete at the end.")

    @property
    def world_size(self) -> int:
        return self.workers.replicas * self.workers.ranksPerPod

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        if self.framework is Framework.TRAINMASTER:
            if self.training is None:
                raise ValueError("framework Trainmaster needs spec.training")
            mesh = self.training.parallelism.resolve(self.world_size)
            self.training.accumulation(mesh["dp_replicate"] * mesh["dp_shard"])
        else:
            if self.training is not None:
                raise ValueError(f"spec.training belongs to framework Trainmaster, not to {self.framework.value}")
            if not self.command():
                raise ValueError(
                    f"framework {self.framework.value} needs workers.template.spec.containers[0].command, "
                    f"for example [python, train.py]"
                )
        return self

    def container(self) -> dict[str, Any]:
        """The first container of the template, which runs the ranks; {} when there is none."""
        containers = (self.workers.template.get("spec") or {}).get("containers") or [{}]
        first: dict[str, Any] = containers[0]
        return first

    def command(self) -> list[str]:
        """What the user wants to run: command and args of the first container."""
        container = self.container()
        return [*(container.get("command") or []), *(container.get("args") or [])]


class ObjectMeta(Strict):
    """The part of the metadata that a person writes; the server's own fields are ignored."""

    model_config = ConfigDict(**{**Strict.model_config, "extra": "ignore"})

    name: Name
    namespace: Name = "default"
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None


class DistributedTrainingJob(Strict):
    apiVersion: Literal["trainmaster.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["DistributedTrainingJob"] = JOB_KIND  # type: ignore[assignment]
    metadata: ObjectMeta
    spec: JobSpec
    status: JobStatus = Field(default_factory=JobStatus)
