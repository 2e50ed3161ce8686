"""Scenes: everything that a picture of a run or of a job shows, made from what is stored of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.contract.sample_unit import unit_of
from trainmaster_operator.cli.display import rank_rows, standstill
from trainmaster_operator.cli.display.last_lines import LastWords
from trainmaster_operator.cli.display.standstill import Standstill
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster.port import Object
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord


@dataclass
class Scene:
    """Everything that a picture shows. `ranks`: the reports of ranks from the control channel, with their slots. For
    a job on a cluster, `namespace` and `pods` are used instead of these and of the output folder."""

    name: str
    world_size: int
    out: str
    total_steps: int | None = None
    status: JobState = field(default_factory=JobState)
    ranks: Sequence[dict[str, Any]] = ()
    namespace: str = ""
    pods: Sequence[PodRecord] = ()
    memory: str = ""  # At the end: which rank came nearest to its memory limit.
    words: LastWords | None = None  # At the end.
    unit: str = "tokens"  # The unit in which samples are counted.
    compiles: bool = False  # The first step of a round begins with torch.compile.
    unled: str = ""  # Sentences that say that no operator is there, so the status may be out of date.
    goes_on: bool = True  # False once nothing runs any more, whatever the phase of the status is.
    wall: Callable[[], float] = time.time  # Seconds since 1970.

    @property
    def place(self) -> str:
        return f"in namespace {self.namespace}" if self.namespace else f"output in {self.out}"

    @classmethod
    def of_training(cls, training: Mapping[str, Any] | None, **fields: Any) -> Scene:
        """Return a scene with what the job's `training` says, if it has one. The job may be of another release."""
        asked = training or {}
        data = asked.get("data")
        source = str(data.get("source", "")) if isinstance(data, Mapping) else ""
        known = {"total_steps": asked.get("steps"), "unit": unit_of(source), "compiles": bool(asked.get("compile"))}
        return cls(**{**known, **fields})

    @property
    def step(self) -> int:
        """The step that the rows of the ranks show."""
        return rank_rows.step_of(self.status, self.ranks)

    @property
    def has_gone_back(self) -> bool:
        """True if ranks do steps again. Ranks are read less often than the status, so they seem to lag behind it
        although nothing has gone back; only before the first step of a round do they know of it earlier."""
        progress = self.status.progress
        begins = self.status.phase in (JobPhase.STARTING, JobPhase.RECOVERING)
        return (self.step if begins else max(self.step, progress.step)) < progress.highestStep

    @property
    def eta_s(self) -> float | None:
        """Seconds until the end; None if it is unknown or no operator updates it."""
        return None if self.unled else self.status.progress.etaSeconds

    @property
    def standstill(self) -> Standstill | None:
        """How long the job has made no step; None if that isn't long, or not known."""
        if not self.goes_on or self.unled:
            return None
        least_s = standstill.LEAST_ON_A_CLUSTER_S if self.namespace else standstill.LEAST_S
        return standstill.find(self.status, self.wall(), least_s)

    @property
    def total(self) -> int:
        return self.status.progress.totalSteps or self.total_steps or 0


def scene_of_job(job: Object) -> Scene:
    """Return the scene of a job on a cluster. The manifest is used as it is, because this command may be older than
    the cluster's CRD."""
    return _scene(job, namespace=job["metadata"]["namespace"], out="")


def scene_of_run(resource: Mapping[str, Any], out: Path) -> Scene:
    """Return the scene of a run on this machine, from its status.yaml."""
    return _scene(resource, out=str(out))


def _scene(job: Mapping[str, Any], **fields: Any) -> Scene:
    spec = job.get("spec") or {}
    workers = spec.get("workers") or {}
    return Scene.of_training(
        spec.get("training"),
        name=job["metadata"]["name"],
        world_size=_number(workers.get("replicas")) * _number(workers.get("ranksPerPod")),
        status=state_of(job),
        **fields,
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1
