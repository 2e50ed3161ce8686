"""`DistributedTrainingJob`: spec. A field that no code obeys does not exist: it is refused as unknown."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainmaster.contract.config import CheckpointConfig, Name, Strict, TrainingConfig, TrainingSpec
from trainmaster_operator.api import across
from trainmaster_operator.api.meta import API_VERSION, JOB_KIND
from trainmaster_operator.api.problem import dotted
from trainmaster_operator.api.ram import Quantity, RamSpec, bytes_of
from trainmaster_operator.api.recovery import SECONDS, RecoverySpec
from trainmaster_operator.api.status import JobStatus

CHECKPOINTS = "/checkpoints"
"""Where a checkpoint volume is mounted unless the job says otherwise."""

SHAPES = {
    "sharedMemory": "an amount of memory such as 8Gi or 512Mi",
    "claim": "the name of a PersistentVolumeClaim (lower-case letters, digits, '-' and '.')",
    "hostPath": "an absolute path such as /mnt/checkpoints",
    "managedBy": "a controller's name with its domain, such as kueue.x-k8s.io/multikueue,",
    "limit": "an amount of memory such as 8Gi, or 0 for none,",
}
"""Fields that must match a pattern, in words: a pattern is no sentence."""


Controller = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]+$")]
"""The name of a controller of jobs, with its domain in front."""


class Framework(str, Enum):
    """Which environment the ranks get, and what they run."""

    TRAINMASTER = "Trainmaster"  # our own trainer, from spec.training
    PYTORCH = "PyTorch"  # the template's command, with torchrun's environment


class WorkersSpec(Strict):
    replicas: int = Field(
        1,
        ge=1,
        le=100_000,
        description="Pods. With min or max it is a wish, rounded down to a number that the parallelism and the batch "
        "allow.",
    )
    min: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="The job goes on with fewer pods, down to so many, when nothing else is left.",
    )
    max: int | None = Field(None, ge=1, le=100_000, description="The largest number of replicas that may be asked for.")
    spares: int = Field(
        0, ge=0, le=1000, description="Further pods that wait, warm, to take the place of one that is lost."
    )
    ranksPerPod: int = Field(1, ge=1, le=256, description="Processes in each pod; usually one per accelerator.")
    pinning: bool = Field(
        False,
        description="Give each of a pod's ranks whole cores of its own, of one NUMA node where that is possible. For "
        "pods that have their cores to themselves.",
    )
    sharedMemory: Quantity | None = Field(
        None,
        description="Size of each pod's /dev/shm, for example 8Gi. It is memory of the pod's container, so it counts "
        "towards that container's own limit. Default: 1Gi for each rank of the pod.",
    )
    restartCommand: (
        Annotated[list[Annotated[str, Field(max_length=131072)]], Field(min_length=1, max_length=1024)] | None
    ) = Field(
        None,
        description="The command of a script from the job's second round on, for scripts that go on by an option such "
        "as --resume: it runs after every restart, also in a new pod, and after a suspended job is resumed. Default: "
        "the command of the template. Not for framework Trainmaster, which goes on by itself.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict, description="A PodTemplate. Only what is unset and harmless is added to it."
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


class CheckpointVolume(Strict):
    """Storage that every pod of the job sees. On a cluster only: a local run has its output folder."""

    claim: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] | None = Field(
        None, description="A PersistentVolumeClaim of the job's namespace; ReadWriteMany when the job has several pods."
    )
    hostPath: Annotated[str, Field(max_length=4096, pattern="^/.")] | None = Field(
        None, description="A folder of each node, shared by the nodes in some other way (NFS, a parallel file system)."
    )

    @model_validator(mode="after")
    def _is_one(self) -> CheckpointVolume:
        if (self.claim is None) == (self.hostPath is None):
            given = "both" if self.claim is not None else "neither"
            raise ValueError(f"exactly one of claim and hostPath is expected, not {given}")
        return self


class CheckpointSpec(CheckpointConfig):
    resume: Annotated[str, Field(max_length=4096)] = Field(
        "Auto", description="Auto: the newest valid checkpoint. Never: from the start. Or the path of a checkpoint."
    )
    directory: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description="Where checkpoints lie, as the pods see it. With a volume, /checkpoints is the volume's root and "
        "the default; a folder below it keeps jobs apart that share a volume. A local run: OUT/checkpoints.",
    )
    volume: CheckpointVolume | None = Field(None, description="Storage to mount there.")
    timeoutSeconds: int = Field(
        900,
        ge=1,
        le=10**7,
        description="When all steps are done and storage is full or does not answer, the last save is tried again for "
        "this many seconds. Then the job fails with the cause CheckpointFailed.",
    )
    ram: RamSpec | None = Field(
        None,
        description="Checkpoints in the memory of the pods. They need storage (directory or volume) beside them. "
        "Default: framework Trainmaster keeps them, scripts don't.",
    )

    @property
    def folder(self) -> str | None:
        """Where checkpoints lie; None: the job has no place for them."""
        return self.directory or (CHECKPOINTS if self.volume else None)

    @property
    def mount_path(self) -> str:
        """Where the volume's root appears in the pods."""
        folder = self.folder or CHECKPOINTS
        return CHECKPOINTS if f"{folder}/".startswith(f"{CHECKPOINTS}/") else folder

    @model_validator(mode="after")
    def _can_be_mounted(self) -> CheckpointSpec:
        if self.volume and (not self.mount_path.strip("/") or self.mount_path[0] != "/" or ":" in self.mount_path):
            raise ValueError(
                f"directory must be an absolute path without ':' to mount a volume, not {self.directory!r}"
            )
        return self


class SchedulingSpec(Strict):
    releaseSeconds: int = Field(
        120,
        ge=0,
        le=SECONDS,
        description="When some pods have a place and others find none for so long, all are given back and tried again "
        "later, so that two jobs that each got half of what they need don't block each other. 0: never.",
    )


class JobSpec(Strict):
    framework: Framework = Framework.TRAINMASTER
    workers: WorkersSpec = Field(default_factory=WorkersSpec)
    training: TrainingSpec | None = None
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    recovery: RecoverySpec = Field(default_factory=RecoverySpec)
    scheduling: SchedulingSpec = Field(default_factory=SchedulingSpec)
    suspend: bool = False
    activeDeadlineSeconds: int | None = Field(None, ge=1, le=SECONDS, description="The job fails when it runs longer.")
    pendingDeadlineSeconds: int | None = Field(
        None,
        ge=1,
        le=SECONDS,
        description="The job fails when its pods don't all run within so long, at its start or a restart.",
    )
    cleanPodPolicy: Literal["All", "Running", "None"] = Field("Running", description="Pods to delete at the end.")
    ttlSecondsAfterFinished: int | None = Field(
        None, ge=0, le=SECONDS, description="The finished job is deleted after this many seconds, with its pods."
    )
    managedBy: Controller | None = Field(None, description="The controller that is responsible for the job.")

    @property
    def world_size(self) -> int:
        return self.workers.replicas * self.workers.ranksPerPod

    @property
    def training_config(self) -> TrainingConfig | None:
        """What the ranks of framework Trainmaster read; None for scripts."""
        if self.training is None:
            return None
        computed = {name: getattr(self.training, name) for name in TrainingSpec.model_fields}
        saved = {name: getattr(self.checkpoint, name) for name in CheckpointConfig.model_fields}
        return TrainingConfig(**computed, checkpoint=CheckpointConfig(**saved))

    @property
    def ram(self) -> RamSpec | None:
        """The memory tier; None: there is none. Ranks use it only beside storage: without that no pod pays for it."""
        given = self.checkpoint.ram
        if self.checkpoint.folder is None:
            return None
        if given is None:
            return RamSpec() if self.framework is Framework.TRAINMASTER else None
        return None if given.limit == "0" else given

    @property
    def ram_bytes(self) -> int:
        """Memory of each pod for the memory tier."""
        if self.ram is None:
            return 0
        return bytes_of(self.ram.limit or f"{self.workers.ranksPerPod}Gi") or 0

    @property
    def elastic(self) -> bool:
        """workers.replicas is a wish, and may be changed while the job runs whatever it runs."""
        return self.workers.min is not None or self.workers.max is not None

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        for rule in (*across.RULES, across.of_size):
            for path, words in rule(self):
                raise ValueError(f"{dotted(path)}: {words}" if path else words)
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
