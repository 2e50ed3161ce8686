"""The pod of one slot and incarnation: the user's template, with what is unset and harmless added.

Ours, whatever the template says: name, owner, our labels and variables, restartPolicy, hostname, subdomain, and the
command of the first container, which is the agent's; the user's own command goes to the agent.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job import DistributedTrainingJob, Framework
from trainmaster_operator.manifests import labels
from trainmaster_operator.manifests.cluster_pod import in_a_cluster
from trainmaster_operator.manifests.labels import max_job_name_length, pod_name
from trainmaster_operator.manifests.settings import PodDefaults

AGENT = ["python", "-m", "trainmaster.agent"]
DEFAULT_CONTAINER = "trainer"
RAM_RESERVE = 32  # one part in so many of the memory tier: files take whole pages
GRACE_RESERVE_S = 5  # of the pod's grace period: for the agent's own end, after its ranks'


def build_pod(
    job: DistributedTrainingJob, role: str, slot: int, incarnation: int, defaults: PodDefaults
) -> dict[str, Any]:
    template = copy.deepcopy(job.spec.workers.template)
    given = template.get("metadata") or {}
    spec = template.get("spec") or {}
    name = job.metadata.name
    metadata = {
        "name": pod_name(name, role, slot, incarnation),
        "namespace": job.metadata.namespace,
        "labels": {
            **(given.get("labels") or {}),
            labels.JOB: name,
            labels.ROLE: role,
            labels.SLOT: str(slot),
            labels.INCARNATION: str(incarnation),
            labels.CURRENT: "true",
        },
        "ownerReferences": [labels.owner(job)],
    }
    if given.get("annotations"):
        metadata["annotations"] = given["annotations"]
    containers = spec.get("containers") or [{}]
    main = _container(containers[0], _variables(job, role, slot, incarnation, defaults), defaults)
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **spec,
        "restartPolicy": "Never",
        "hostname": labels.hostname(name, role, slot),
        "subdomain": name,
        "containers": [main, *containers[1:]],
    }
    if defaults.in_cluster:
        spec = in_a_cluster(spec, job, defaults)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(given: dict[str, Any], variables: list[dict[str, Any]], defaults: PodDefaults) -> dict[str, Any]:
    """The container that runs the ranks. A variable of the user's with one of our names is replaced."""
    ours = {variable["name"] for variable in variables}
    kept = [variable for variable in given.get("env") or [] if variable.get("name") not in ours]
    container = {
        "name": DEFAULT_CONTAINER,
        "image": defaults.trainer_image,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **given,
        "command": list(AGENT),
        "env": [*kept, *variables],
    }
    container.pop("args", None)
    return container


def _variables(
    job: DistributedTrainingJob, role: str, slot: int, incarnation: int, defaults: PodDefaults
) -> list[dict[str, Any]]:
    spec = job.spec
    values = {
        environment.JOB_UID: job.metadata.uid,
        environment.NAMESPACE: job.metadata.namespace,
        environment.JOB: job.metadata.name,
        environment.ROLE: role,
        environment.SLOT: str(slot),
        environment.INCARNATION: str(incarnation),
        environment.OPERATOR_URL: defaults.operator_url,
        environment.FRAMEWORK: spec.framework.value,
        environment.RANKS_PER_POD: str(spec.workers.ranksPerPod),
        environment.ZYGOTE_ENABLED: "1" if spec.recovery.zygote else "0",
    }
    if spec.workers.pinning:
        values[environment.PINNING] = "1"
    grace_s = (spec.workers.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    if grace_s is not None:
        values[environment.GRACE_S] = str(max(1, int(grace_s) - GRACE_RESERVE_S))
    if spec.framework is Framework.TRAINMASTER and (config := spec.training_config) is not None:
        values[environment.CONFIG] = json.dumps(config.model_dump(mode="json"), separators=(",", ":"))
    else:
        values[environment.COMMAND] = json.dumps(spec.command())
        if spec.workers.restartCommand is not None:
            values[environment.RESTART_COMMAND] = json.dumps(spec.workers.restartCommand)
    folder = spec.checkpoint.folder if defaults.in_cluster else spec.checkpoint.directory
    if folder:
        values[environment.CHECKPOINT_DIR] = folder
        values[environment.CHECKPOINT_TIMEOUT] = f"{spec.checkpoint.timeoutSeconds:g}"
    if spec.ram is not None:
        values[environment.RAM_BUDGET] = str(spec.ram_bytes - spec.ram_bytes // RAM_RESERVE)
        if spec.ram.every is not None:
            values[environment.RAM_EVERY] = str(spec.ram.every)
    fields = {environment.POD_UID: "metadata.uid", environment.POD_IP: "status.podIP"}
    return [
        *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()),
        *({"name": n, "value": value} for n, value in {**values, **defaults.extra_env}.items()),
    ]


__all__ = ["build_pod", "max_job_name_length", "pod_name"]
