"""What the local kubelet writes into the status of a Pod, as fields to merge into it."""

from __future__ import annotations

import time

from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import Object
from trainmaster_operator.local.pod_process import LocalPod


def now() -> str:
    """Return the present time as metav1.Time."""
    return objects.timestamp(time.time())


def running(obj: Object, started: str) -> Object:
    """Return the status of a Pod whose process runs."""
    return _with_container(obj, "Running", True, {"running": {"startedAt": started}})


def terminated(obj: Object, pod: LocalPod, started: str) -> Object:
    """Return the status of a Pod whose process has ended and was reaped."""
    assert pod.process is not None
    code = pod.process.returncode
    state: Object = {
        "exitCode": code if code >= 0 else 128 - code,
        "reason": "Completed" if code == 0 else "Error",
        "message": pod.last_words() if code else "",
        "startedAt": started,
        "finishedAt": now(),
    }
    if code < 0:
        state["signal"] = -code
    return _with_container(obj, "Failed" if code else "Succeeded", False, {"terminated": state})


def failed(obj: Object, reason: str, message: str) -> Object:
    """Return the status of a Pod that never ran, or whose end is unknown."""
    state = {"exitCode": 128, "reason": reason, "message": message, "finishedAt": now()}
    return {**_with_container(obj, "Failed", False, {"terminated": state}), "reason": reason, "message": message}


def _with_container(obj: Object, phase: str, ready: bool, state: Object) -> Object:
    container = obj["spec"]["containers"][0]
    return {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": now()}],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            }
        ],
    }
