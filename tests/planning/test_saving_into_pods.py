"""A directory for checkpoints that is no storage: each pod's own files, which end with the pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import TRAINING, World, job_spec, script_spec
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase

FOLDER = "/data/run-7"


def saving(directory: str = FOLDER, *, mount: str = "", source: dict[str, Any] | None = None, **main: Any) -> JobSpec:
    """A job that saves to `directory`. mount: where its template mounts a volume from `source`."""
    container = {"name": "main", **main}
    pod: dict[str, Any] = {"containers": [container]}
    if source is not None:
        container["volumeMounts"] = [{"name": "other", "mountPath": "/elsewhere"}, {"name": "mine", "mountPath": mount}]
        pod["volumes"] = [{"name": "other", "emptyDir": {}}, {"name": "mine", **source}]
    workers = {"replicas": 4, "template": {"spec": pod}}
    return JobSpec.model_validate({"workers": workers, "training": TRAINING, "checkpoint": {"directory": directory}})


def unprotected(spec: JobSpec, *, in_cluster: bool = True) -> Condition | None:
    world = World(spec, in_cluster=in_cluster)
    world.settle()
    return next((c for c in world.status.conditions if c.type == "Unprotected"), None)


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}
SHARED = [
    saving(mount=FOLDER, source=CLAIM),
    saving(mount="/data/", source=CLAIM),
    saving(mount="/", source=CLAIM),
    saving(mount="/data", source={"hostPath": {"path": "/lustre"}}),
    saving(mount="/data", source={"nfs": {"server": "s", "path": "/"}}),
    saving("run-7", mount="/data", source=CLAIM, workingDir="/data"),
    saving(f"file://{FOLDER}", mount="/data", source=CLAIM),
]
IN_PODS = [
    saving(),
    saving(mount="/data/run", source=CLAIM),
    saving(mount="/data", source={"emptyDir": {}}),
    saving(mount="/data", source={"emptyDir": {"medium": "Memory"}}),
    saving(mount="/data", source={"ephemeral": {"volumeClaimTemplate": {}}}),
    saving("run-7", mount="/data", source=CLAIM),
    script_spec(checkpoint={"directory": FOLDER}),
]


@pytest.mark.parametrize("spec", IN_PODS, ids=range(len(IN_PODS)))
def test_a_directory_that_ends_with_its_pod_leaves_a_job_unprotected(spec: JobSpec) -> None:
    told = unprotected(spec)
    assert told is not None
    assert (told.status, told.reason) == ("True", "InPods")
    assert told.message.startswith(f"spec.checkpoint.directory {spec.checkpoint.directory} lies in each pod's own file")
    assert "Set spec.checkpoint.volume, or let spec.workers.template mount storage there" in told.message


@pytest.mark.parametrize("spec", SHARED, ids=range(len(SHARED)))
def test_a_directory_on_a_volume_that_stays_protects(spec: JobSpec) -> None:
    assert unprotected(spec) is None


def test_processes_of_one_machine_share_its_files() -> None:
    assert unprotected(saving(), in_cluster=False) is None


def test_the_words_of_a_stop_say_that_pods_take_with_them_what_is_saved() -> None:
    world = World(saving(), in_cluster=True)
    world.settle()
    for slot in world.slots:
        world.pod(slot)
        world.agent(slot)
    world.settle()
    for slot in world.members:
        world.obey(slot, step=10, resumed=0)
    world.settle()
    world.spec = world.spec.model_copy(update={"suspend": True})
    words = [event.message for event in world.write().events]
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in world.slots:
        world.agent(slot, saved=True)
    words += [event.message for event in world.write().events]
    assert world.status.phase is JobPhase.SUSPENDED
    assert words[0].startswith("all ranks save and stop after step")
    assert words[-1].startswith("every rank saved step")
    assert [
        text.endswith("; the saved state is lost together with the pods: see the condition Unprotected")
        for text in words
    ] == [
        True,
        True,
    ]


def test_a_job_that_saves_nothing_is_told_so_as_before() -> None:
    told = unprotected(job_spec())
    assert told is not None
    assert told.reason == "NoStorage"
