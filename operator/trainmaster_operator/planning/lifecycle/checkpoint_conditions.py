"""Conditions that say whether checkpoints reach storage."""

from __future__ import annotations

from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from trainmaster.contract.wire import STALLED_AFTER_S
from trainmaster_operator.planning.facts.change import Change, changed, condition, known_condition, warning
from trainmaster_operator.planning.facts.job_state import CheckpointStatus, FailedSave, JobState
from trainmaster_operator.planning.facts.observation import JobSpec
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.lifecycle.elastic_resize import HEARD_AFTER_S

FAILED = "CheckpointFailed"
STALLED = "CheckpointStalled"
UNPROTECTED = "Unprotected"

NO_STORAGE = (
    "nothing of this job is saved, so a restart begins at step 0. Set spec.checkpoint.volume to a "
    "PersistentVolumeClaim (claim) or a shared folder of the nodes (hostPath) that all pods of the job can write to"
)
IN_PODS = (
    "spec.checkpoint.directory {folder} lies in each pod's own file system, so a pod that is replaced takes its part "
    "of each checkpoint with it. Set spec.checkpoint.volume, or let spec.workers.template mount storage there that all "
    "pods of the job share"
)


def report_save_problem(view: View) -> Change | None:
    """Record a failed save, or warn that storage does not answer, at once. `update` writes the conditions."""
    failed = view.observed.failed_save
    if failed is not None and failed.round == view.status.round and _is_news(view.status, failed.step, failed.message):
        save = FailedSave(step=failed.step, round=failed.round, message=failed.message[:900], time=rfc3339(view.now))
        return changed(view.status, failedSave=save)
    stall = _stall(view)
    if stall and not _holds(view.status, STALLED):
        return changed(view.status, warning(STALLED, stall))
    return None


def update(view: View, status: JobState) -> JobState:
    """Return `status` with the conditions about saving as they are now; the same object if nothing is new."""
    failed, saved = status.failedSave, status.checkpoint
    if failed is not None:
        if _is_newer(failed, saved):
            status = _with(view, status, FAILED, True, "NotSaved", _unsaved(view, failed, saved))
        else:
            assert saved is not None
            status = _with(view, status, FAILED, False, "Saved", f"step {saved.step} is saved")
    stall = _stall(view)
    if stall or (_holds(status, STALLED) and not _may_be_unheard(view)):
        status = _with(view, status, STALLED, bool(stall), "NoAnswer" if stall else "Answers", stall)
    reason, words = _unprotected(view)
    if reason or _holds(status, UNPROTECTED):
        status = _with(view, status, UNPROTECTED, bool(reason), reason or "HasStorage", words)
    return status


def _unprotected(view: View) -> tuple[str, str]:
    """Return (reason, what to do) for a job whose checkpoints are lost with its pods; ("", "") for any other job."""
    if view.spec.checkpoint.folder is None:
        return ("", "") if view.scripted else ("NoStorage", NO_STORAGE)
    if saves_into_pods(view):
        return "InPods", IN_PODS.format(folder=view.spec.checkpoint.directory)
    return "", ""


def saves_into_pods(view: View) -> bool:
    """Return whether checkpoint.directory is in the file system of each container, or on a volume that is deleted
    with its pod."""
    return view.observed.in_cluster and is_in_pods(view.spec)


def is_in_pods(spec: JobSpec) -> bool:
    """Return the same for a job that runs on a cluster or is to run there."""
    checkpoint, container = spec.checkpoint, spec.container()
    if checkpoint.directory is None or checkpoint.volume is not None:
        return False
    folders = _list_upwards(container.get("workingDir") or "/", checkpoint.directory.removeprefix("file://"))
    mounts = {PurePosixPath(m.get("mountPath", "")): m.get("name") for m in container.get("volumeMounts") or []}
    nearest = next((mounts[folder] for folder in folders if folder in mounts), None)
    volumes = (spec.workers.template.get("spec") or {}).get("volumes") or []
    found: dict[str, Any] = next((volume for volume in volumes if volume.get("name") == nearest), {})
    return nearest is None or bool({"emptyDir", "ephemeral"} & found.keys())


@lru_cache(maxsize=1024)
def _list_upwards(working_folder: str, folder: str) -> tuple[PurePosixPath, ...]:
    """Return a folder and all those that it lies in, the nearest first. Remembered, since every pass asks."""
    place = PurePosixPath(working_folder, folder)
    return (place, *place.parents)


def _is_news(status: JobState, step: int, message: str) -> bool:
    known, saved = status.failedSave, status.checkpoint
    if saved is not None and (saved.round, saved.step) >= (status.round, step):
        return False
    return known is None or (known.round, known.step, known.message) != (status.round, step, message[:900])


def _is_newer(failed: FailedSave, saved: CheckpointStatus | None) -> bool:
    return saved is None or (failed.round, failed.step) > (saved.round, saved.step)


def _unsaved(view: View, failed: FailedSave, saved: CheckpointStatus | None) -> str:
    newest = "nothing is saved yet" if saved is None else f"the newest step on storage is {saved.step}"
    again = (
        "The newest save is retried. After the last step it is retried for at most "
        f"{view.spec.checkpoint.timeoutSeconds:g} s"
    )
    return f"step {failed.step} is not saved ({newest}): {failed.message[:700]}. {again}"


def _stall(view: View) -> str:
    """Return which pods wait for a storage that does not answer; "" if there are none. The text contains no elapsed
    time, because it would then change in each pass."""
    slow = []
    for pod, agent in zip(view.pods, view.agents, strict=True):
        upload = agent.upload if agent is not None else None
        if upload is not None and not upload.error and upload.still_s >= STALLED_AFTER_S:
            slow.append((pod.name if pod is not None else f"slot {agent.slot if agent else 0}", upload))
    if not slow:
        return ""
    name, upload = slow[0]
    pods = name if len(slow) == 1 else f"{name} and {len(slow) - 1} more"
    return (
        f"{upload.storage} has not answered for more than {STALLED_AFTER_S:.0f} s: {pods} can't save step "
        f"{upload.step}. When the job has done its steps, it waits for checkpoint.timeoutSeconds "
        f"({view.spec.checkpoint.timeoutSeconds:g}), then it fails"
    )


def _may_be_unheard(view: View) -> bool:
    """Return whether this leader has led for so short a time that an agent may not have reported its saves yet."""
    return view.observed.leading_s < HEARD_AFTER_S and any(agent is None for agent in view.agents)


def _holds(status: JobState, kind: str) -> bool:
    known = known_condition(status, kind)
    return known is not None and known.status == "True"


def _with(view: View, status: JobState, kind: str, holds: bool, reason: str, message: str) -> JobState:
    wanted = condition(status, kind, holds, reason, message, view.now)
    if wanted == known_condition(status, kind):
        return status
    others = [c for c in status.conditions if c.type != kind]
    return status.model_copy(update={"conditions": [*others, wanted]})
