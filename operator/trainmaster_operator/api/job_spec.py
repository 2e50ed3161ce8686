"""The spec of `DistributedTrainingJob`. Every field is used by some code; an unknown field is refused."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from trainmaster.contract.config import CheckpointConfig, Name, Strict, TrainingConfig, TrainingSpec
from trainmaster_operator.api.api_group import API_VERSION, GROUP, JOB_KIND
from trainmaster_operator.api.checkpoint_spec import CheckpointSpec
from trainmaster_operator.api.memory_tier_spec import RamSpec, memory_tier
from trainmaster_operator.api.quantities import SECONDS
from trainmaster_operator.api.recovery_spec import RecoverySpec
from trainmaster_operator.api.validation import cross_field_rules
from trainmaster_operator.api.validation.problem import dotted
from trainmaster_operator.api.workers_spec import WorkersSpec

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
    HOROVOD = "Horovod"
    XGBOOST = "XGBoost"


class SchedulingSpec(Strict):
    """`spec.scheduling`: how the job waits for places for its pods."""

    releaseSeconds: int = Field(
        900,
        ge=0,
        le=SECONDS,
        description="Number of seconds for which some pods of the job may hold places while other pods find none. "
        "After once to twice this time all pods of the job are deleted and created again later, so that two jobs do "
        "not block each other. They are kept for longer while places appear: a pod of the job found a place, a node "
        "joined the cluster, or a node autoscaler announced a node for a pod of the job, in the last 10 minutes or, if "
        "releaseSeconds is less than that, in the last releaseSeconds. Time in which a scheduling gate holds back pods "
        "does not count. The value is a whole number, and 0 means that the places are never released. Default: 900.",
    )


# This class has no docstring, because that would become the description of spec in the CRD.
class JobSpec(Strict):
    framework: Framework = Field(
        Framework.TRAINMASTER,
        description="The framework that the ranks run. Trainmaster: the built-in trainer, which trains what "
        "spec.training describes. Every other framework runs the command of workers.template once for each rank, in an "
        "image that has the framework; no launcher such as torchrun is needed. PyTorch, DeepSpeed, HuggingFace: the "
        "ranks get the environment variables that torchrun sets. TensorFlow: the ranks get TF_CONFIG, which "
        "MultiWorkerMirroredStrategy reads. JAX: jax.distributed.initialize() needs no arguments. Horovod: hvd.init() "
        "finds the other ranks, over gloo. XGBoost: xgboost.collective.CommunicatorContext() needs no arguments. This "
        "field cannot be changed after the job was created. Default: Trainmaster.",
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
        "pods. Restarts change nothing; when a suspended job is resumed, the count begins again at 0. The value is a "
        "whole number. Default: no deadline.",
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
