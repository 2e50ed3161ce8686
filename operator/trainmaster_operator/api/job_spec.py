"""The spec of `DistributedTrainingJob`. Every field is used by some code; an unknown field is refused."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainmaster.contract.config import CheckpointConfig, Name, Strict, TrainingConfig, TrainingSpec
from trainmaster_operator.api.api_group import API_VERSION, GROUP, JOB_KIND
from trainmaster_operator.api.memory_tier_spec import RamSpec, memory_tier
from trainmaster_operator.api.quantities import Quantity
from trainmaster_operator.api.recovery_spec import SECONDS, RecoverySpec
from trainmaster_operator.api.validation import cross_field_rules
from trainmaster_operator.api.validation.problem import dotted

CHECKPOINTS = "/checkpoints"
"""The default path in the pods at which a checkpoint volume is mounted."""

SHAPES = {
    "sharedMemory": "an amount of memory such as 8Gi or 512Mi",
    "claim": "the name of a PersistentVolumeClaim (lower-case letters, digits, '-' and '.')",
    "hostPath": "an absolute path such as /mnt/checkpoints",
    "managedBy": "a controller's name with its domain, such as kueue.x-k8s.io/multikueue,",
    "limit": "an amount of memory such as 8Gi, or 0 for none,",
}
"""What a field with a pattern must contain, in words, because a regular expression is not readable in an error
message."""


Controller = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]+$")]
"""The name of a controller of jobs, with its domain as prefix, such as kueue.x-k8s.io/multikueue."""

CONTROLLER = f"{GROUP}/operator"
"""The name of this operator in spec.managedBy. A job without that field is managed by this operator too."""


class Framework(str, Enum):
    """What the ranks run, and which environment variables they get."""

    TRAINMASTER = "Trainmaster"  # The built-in trainer, configured by spec.training.
    # All following frameworks run the command of the pod template, with the environment variables of that framework.
    PYTORCH = "PyTorch"
    TENSORFLOW = "TensorFlow"
    JAX = "JAX"
    DEEPSPEED = "DeepSpeed"
    HUGGINGFACE = "HuggingFace"
    XGBOOST = "XGBoost"


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
        "workers.replicas. Default: the job does not start or continue with fewer pods by itself.",
    )
    max: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Only an upper bound: the largest value to which workers.replicas can be changed while the job "
        "exists. The job does not grow to it by itself. It must not be less than workers.replicas. Default: no limit.",
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
        "for each accelerator of the pod. It can be changed only while the job is suspended. Default: 1.",
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
        "container runs the ranks. The operator adds only fields that are not set. restartPolicy must be Never, and "
        "hostname and subdomain must not be set. Default: one container with the trainer's image, for framework "
        "Trainmaster; every other framework needs a container with a command.",
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
    """The storage for checkpoints that every pod of the job mounts. It is used on a cluster only; a local run saves to
    its output folder."""

    claim: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] | None = Field(
        None,
        description="The name of a PersistentVolumeClaim in the namespace of the job. Pods on several nodes need a "
        "claim with the access mode ReadWriteMany. With ReadWriteOnce all pods of the job are scheduled to one node. "
        "It excludes hostPath; one of the two fields is required.",
    )
    hostPath: Annotated[str, Field(max_length=4096, pattern="^/.")] | None = Field(
        None,
        description="The absolute path of a directory on each node. All nodes must see the same files there, for "
        "example through NFS or a parallel file system. It excludes claim; one of the two fields is "
        "required.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> CheckpointVolume:
        if (self.claim is None) == (self.hostPath is None):
            given = "both" if self.claim is not None else "neither"
            raise ValueError(f"exactly one of claim and hostPath is expected, not {given}")
        return self


class CheckpointSpec(CheckpointConfig):
    """`spec.checkpoint`: when and where checkpoints are saved, and from which one the job starts."""

    resume: Annotated[str, Field(max_length=4096)] = Field(
        "Auto",
        description="The checkpoint from which the job starts. Auto: the newest valid checkpoint in the checkpoint "
        "directory, or the first step if there is none. Never: the first step. Any other value is the path of a "
        "checkpoint. When the job has completed a step, it always continues from its own newest checkpoint. "
        "Default: Auto.",
    )
    directory: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description="The directory for checkpoints, as a path in the pods. The built-in trainer creates it if it is "
        "missing. A script finds the path in the environment variable TRAINMASTER_CHECKPOINT_DIR, and must create the "
        "directory and save there itself. With checkpoint.volume it must be an absolute path; a directory below "
        "/checkpoints is a directory of the volume, so that several jobs can share one volume. Default: /checkpoints "
        "if checkpoint.volume is set, the output folder in a local run, and otherwise no checkpoints are saved.",
    )
    volume: CheckpointVolume | None = Field(
        None,
        description="The storage that the operator mounts for checkpoints, for the built-in trainer and for scripts: "
        "at /checkpoints if checkpoint.directory is left out or is below it, and otherwise at checkpoint.directory. "
        "All pods of the job must be able to use it at the same time. A local run ignores it and saves to its output "
        "folder. Default: nothing is mounted.",
    )
    timeoutSeconds: int = Field(
        900,
        ge=1,
        le=10**7,
        description="Number of seconds for which the last checkpoint of the job is retried if the storage is full or "
        "does not answer. After this time the job fails with the cause CheckpointFailed. A cluster refuses it if "
        "neither checkpoint.directory nor checkpoint.volume is set. The value is a whole number. Default: 900.",
    )
    ram: RamSpec | None = Field(
        None,
        description="Checkpoints in the memory of the pods. They are faster than checkpoints on storage and are used "
        "first after a failure. They are used only if the job also saves to storage: a cluster refuses them if "
        "neither checkpoint.directory nor checkpoint.volume is set. One of the two is enough. Default: framework "
        "Trainmaster keeps them, and scripts do not.",
    )

    @property
    def folder(self) -> str | None:
        """The directory of the checkpoints as the pods see it. None if the job has no place for checkpoints."""
        return self.directory or (CHECKPOINTS if self.volume else None)

    @property
    def mount_path(self) -> str:
        """The path in the pods at which the root of the volume is mounted."""
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
    """`spec.scheduling`: how the job waits for places for its pods."""

    releaseSeconds: int = Field(
        900,
        ge=0,
        le=SECONDS,
        description="Number of seconds for which some pods of the job may hold places while other pods find none. "
        "After once to twice this time all pods of the job are deleted and created again later, so that two jobs do "
        "not block each other. The pods are kept for longer while places appear: if in the last 10 minutes (or in "
        "this time, if it is shorter) a pod of the job found a place, a node joined the cluster, or a node autoscaler "
        "announced a node for a pod of the job. Time in which a scheduling gate holds back pods does not count. The "
        "value is a whole number, and 0 means that the places are never released. Default: 900.",
    )


# This class has no docstring, because that would become the description of spec in the CRD.
class JobSpec(Strict):
    framework: Framework = Field(
        Framework.TRAINMASTER,
        description="The framework that the ranks run. Trainmaster: the built-in trainer, which trains what "
        "spec.training describes. Every other framework runs the command of workers.template, in an image that has "
        "the framework. PyTorch, DeepSpeed, HuggingFace: the ranks get the environment variables that torchrun "
        "sets. TensorFlow: the ranks get TF_CONFIG, which MultiWorkerMirroredStrategy reads. JAX: "
        "jax.distributed.initialize() needs no arguments. XGBoost: xgboost.collective.CommunicatorContext() needs "
        "no arguments. This field cannot be changed after the job was created. Default: Trainmaster.",
    )
    workers: WorkersSpec = Field(
        default_factory=WorkersSpec,
        description="The pods that run the ranks: how many there are, how many ranks each of them runs, and what the "
        "pods look like.",
    )
    training: TrainingSpec | None = Field(
        None,
        description="What the built-in trainer trains: model, data, batch, optimizer and parallelism. Framework "
        "Trainmaster needs this field; with every other framework it is refused.",
    )
    checkpoint: CheckpointSpec = Field(
        default_factory=CheckpointSpec,
        description="When the job saves its state, where it saves it, how many checkpoints it keeps, and from which "
        "checkpoint it starts.",
    )
    recovery: RecoverySpec = Field(
        default_factory=RecoverySpec,
        description="What happens after a failure, how often it may happen, and how ranks that hang are found.",
    )
    scheduling: SchedulingSpec = Field(
        default_factory=SchedulingSpec, description="How the job waits for places for its pods."
    )
    suspend: bool = Field(
        False,
        description="If true, the job saves a checkpoint and deletes its pods. If the field is set to false again, "
        "the job continues from its newest checkpoint. A local run refuses true. Default: false.",
    )
    restart: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="A higher number than before restarts a running job: all ranks save and stop, and the job "
        "continues in new pods, with all changes of its spec. The command trainmaster restart raises the number by 1. "
        "A lower number has no effect. Default: 0.",
    )
    activeDeadlineSeconds: int | None = Field(
        None,
        ge=1,
        le=SECONDS,
        description="Number of seconds, counted from the start of the job, after which the job fails if it is not "
        "finished. The time in which the job waits for its pods counts, except while a scheduling gate holds back "
        "pods. When a suspended job is resumed, the count begins again at 0. The value is a whole number. Default: no "
        "deadline.",
    )
    pendingDeadlineSeconds: int | None = Field(
        None,
        ge=1,
        le=SECONDS,
        description="Number of seconds within which all pods of the job must run, at the start of the job and after "
        "each restart. If they do not, the job fails. The value is a whole number. Default: no deadline.",
    )
    cleanPodPolicy: Literal["All", "Running", "None"] = Field(
        "Running",
        description="Which pods are deleted when the job is finished. Running: the pods that still run. All: all "
        "pods, and with them their logs. None: no pod. Default: Running.",
    )
    ttlSecondsAfterFinished: int | None = Field(
        None,
        ge=0,
        le=SECONDS,
        description="Number of seconds after the end of the job, successful or not, after which the operator deletes "
        "the job and its pods. 0 deletes the job as soon as it is finished. Checkpoints are kept. The "
        "value is a whole number. A local run refuses this field. Default: the job is not deleted.",
    )
    managedBy: Controller | None = Field(
        None,
        description="The name of the controller that is responsible for the job, such as kueue.x-k8s.io/multikueue. "
        "The operator ignores a job that names another controller than trainmaster.dev/operator. This "
        "field cannot be changed after the job was created, and a local run refuses another controller. "
        "Default: this operator is responsible.",
    )

    @property
    def world_size(self) -> int:
        """The number of ranks at the wanted size: workers.replicas times workers.ranksPerPod."""
        return self.workers.replicas * self.workers.ranksPerPod

    @property
    def training_config(self) -> TrainingConfig | None:
        """The configuration that ranks of framework Trainmaster read. None for scripts."""
        if self.training is None:
            return None
        computed = {name: getattr(self.training, name) for name in TrainingSpec.model_fields}
        saved = {name: getattr(self.checkpoint, name) for name in CheckpointConfig.model_fields}
        return TrainingConfig(**computed, checkpoint=CheckpointConfig(**saved))

    @property
    def ram(self) -> RamSpec | None:
        """The memory tier of checkpoints, or None if the job has none."""
        stored = self.checkpoint.folder is not None
        return memory_tier(self.checkpoint.ram, stored=stored, own_loop=self.framework is Framework.TRAINMASTER)

    @property
    def ram_bytes(self) -> int:
        """The memory of each pod for the memory tier, in bytes. 0 if the job has no memory tier."""
        if self.ram is None:
            return 0
        return self.ram.bytes_of_pod(self.workers.ranksPerPod)

    @property
    def elastic(self) -> bool:
        """True if workers.min or workers.max is set. Then workers.replicas is a target, and it can be changed while the
        job runs, also for scripts."""
        return self.workers.min is not None or self.workers.max is not None

    @model_validator(mode="after")
    def _fits_together(self) -> JobSpec:
        for rule in (*cross_field_rules.RULES, cross_field_rules.of_size):
            for path, words in rule(self):
                raise ValueError(f"{dotted(path)}: {words}" if path else words)
        return self

    def container(self) -> dict[str, Any]:
        """Return the first container of the template, which runs the ranks. Return {} if the template has no
        container."""
        containers = (self.workers.template.get("spec") or {}).get("containers") or [{}]
        first: dict[str, Any] = containers[0]
        return first

    def command(self) -> list[str]:
        """Return command and args of the first container as one list of words."""
        container = self.container()
        return [*(container.get("command") or []), *(container.get("args") or [])]


class ObjectMeta(Strict):
    """The part of the metadata that this code reads. Fields that only the API server uses are ignored."""

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
    """A job as the API server stores it, or as a person writes it in a manifest."""

    apiVersion: Literal["trainmaster.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["DistributedTrainingJob"] = JOB_KIND  # type: ignore[assignment]
    metadata: ObjectMeta
    spec: JobSpec
    status: dict[str, Any] = Field(default_factory=dict)
    """The status as it is stored. `planning.status_mapping` reads and writes it."""
