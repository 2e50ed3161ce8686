"""`spec.checkpoint`: when and where checkpoints are saved, and from which one the job starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainmaster.contract.config import CheckpointConfig, Strict
from trainmaster_operator.api.memory_tier_spec import RamSpec

CHECKPOINTS = "/checkpoints"
"""The default path in the pods at which a checkpoint volume is mounted."""


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
        "at checkpoint.directory, or at /checkpoints if that directory is left out or is a directory below "
        "/checkpoints. All pods of the job must be able to use it at the same time. A local run ignores it and saves "
        "to its output folder. Default: nothing is mounted.",
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
