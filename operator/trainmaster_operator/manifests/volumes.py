"""What a pod on a cluster mounts in addition to the template's own volumes."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.quantities import quantity_of
from trainmaster_operator.manifests.keyed_lists import Object, joined

AGENT_PATH = "/opt/trainmaster"
HOME_PATH = "/home/trainmaster"
TMP_PATH = "/tmp"
SHARED_MEMORY_PATH = "/dev/shm"
RAM_PATH = "/var/lib/trainmaster/ram"


@dataclass(frozen=True)
class Mounted:
    """A volume and the path where it is mounted. `yields`: a mount of the template at that path is kept instead."""

    volume: Object
    path: str
    read_only: bool = False
    yields: bool = False


def agent() -> Mounted:
    """Return the volume into which an init container copies the agent for images that do not contain it."""
    return Mounted({"name": "trainmaster-agent", "emptyDir": {}}, AGENT_PATH, read_only=True)


def scratch() -> list[Mounted]:
    """Return the directories that are writable although the root is read-only."""
    return [
        Mounted({"name": "trainmaster-tmp", "emptyDir": {}}, TMP_PATH, yields=True),
        Mounted({"name": "trainmaster-home", "emptyDir": {}}, HOME_PATH, yields=True),
    ]


def shared_memory(job: DistributedTrainingJob) -> Mounted:
    """Return a larger /dev/shm: that of a container has 64 MB, and data loaders die of it with a bus error.

    What is written there is memory of the container and counts towards its limit already, so the template's requests
    and limits are not changed.
    """
    workers = job.spec.workers
    size = workers.sharedMemory or f"{workers.ranksPerPod}Gi"
    volume = {"name": "trainmaster-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return Mounted(volume, SHARED_MEMORY_PATH, yields=True)


def checkpoints(job: DistributedTrainingJob) -> Mounted | None:
    """Return the volume for checkpoints, or None if the job has none."""
    spec = job.spec.checkpoint
    if spec.volume is None:
        return None
    if spec.volume.claim is not None:
        source: Object = {"persistentVolumeClaim": {"claimName": spec.volume.claim}}
    else:
        source = {"hostPath": {"path": spec.volume.hostPath, "type": "DirectoryOrCreate"}}
    return Mounted({"name": "trainmaster-checkpoints", **source}, spec.mount_path)


def ram(job: DistributedTrainingJob) -> Mounted | None:
    """Return the memory volume for checkpoints, or None if there is none. It is separate from /dev/shm, so that a data
    loader that fills /dev/shm does not cost a checkpoint.

    It outlives the container's processes and ends with the pod.
    """
    if not job.spec.ram_bytes:
        return None
    size = quantity_of(job.spec.ram_bytes)
    return Mounted({"name": "trainmaster-ram", "emptyDir": {"medium": "Memory", "sizeLimit": size}}, RAM_PATH)


def ram_environment(job: DistributedTrainingJob) -> dict[str, str]:
    """Return the variable that tells the agent where the memory volume is."""
    return {environment.RAM_DIR: RAM_PATH} if job.spec.ram_bytes else {}


def with_volumes(pod: Object, container: Object, wanted: list[Mounted]) -> tuple[Object, Object]:
    """Return the pod's spec and its container with the wanted volumes mounted."""
    mounts = container.get("volumeMounts") or []
    theirs = {str(mount.get("mountPath", "")).rstrip("/") for mount in mounts}
    added = [mounted for mounted in wanted if not (mounted.yields and mounted.path in theirs)]
    ours = {mounted.path.rstrip("/") for mounted in added}
    kept = [mount for mount in mounts if str(mount.get("mountPath", "")).rstrip("/") not in ours]
    new = [
        {"name": m.volume["name"], "mountPath": m.path, **({"readOnly": True} if m.read_only else {})} for m in added
    ]
    return (
        {**pod, "volumes": joined(pod.get("volumes"), (mounted.volume for mounted in added))},
        {**container, "volumeMounts": [*kept, *new]},
    )
