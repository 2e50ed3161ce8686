"""The pod of a job: the user's template with additions that cannot break it.

The operator always sets the name, the owner, its own labels and variables, restartPolicy, hostname, subdomain, and the
command of the first container, which starts the agent; the agent starts the user's own command.

A pod is created in two steps. `render_pod` makes what all pods of a run have in common, with placeholders where they
differ; the result is kept while the run lasts. `fill_pod` makes the pod of one slot and incarnation from it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from trainmaster.contract.wire import environment, memory_tier_size
from trainmaster_operator.api.job_spec import DistributedTrainingJob, Framework, JobSpec
from trainmaster_operator.manifests import node_affinity, object_names, resources, security
from trainmaster_operator.manifests.object_names import pod_name
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.manifests.pod_on_a_cluster import in_a_cluster

AGENT = ["python", "-m", "trainmaster.agent"]
DEFAULT_CONTAINER = "trainer"
PROGRAM_DIGITS = 16  # Number of hexadecimal digits of a SHA-256.
# Seconds of the pod's grace period that are reserved for the end of the agent, after that of its ranks.
GRACE_RESERVE_S = 5


SLOT, INCARNATION, OPERATOR_URL = "{slot}", "{incarnation}", "{operatorUrl}"
"""Placeholders of a rendered pod. The operator's address is one of them, because it may change while a run lasts."""

_FILLED = (environment.SLOT, environment.INCARNATION, environment.OPERATOR_URL)
"""Variables of the first container that contain a placeholder."""


def render_pod(job: DistributedTrainingJob, role: str, defaults: PodDefaults) -> dict[str, Any]:
    """Return what all pods of a role have in common. Nodes to avoid are left out, because they change during a run."""
    template = copy.deepcopy(job.spec.workers.template)
    given = template.get("metadata") or {}
    spec = template.get("spec") or {}
    name = job.metadata.name
    metadata = {
        "name": pod_name(name, role, SLOT, INCARNATION),
        "namespace": job.metadata.namespace,
        "labels": {
            **(given.get("labels") or {}),
            object_names.JOB: name,
            object_names.ROLE: role,
            object_names.SLOT: SLOT,
            object_names.INCARNATION: INCARNATION,
            object_names.CURRENT: "true",
        },
        "ownerReferences": [object_names.owner(job)],
    }
    if given.get("annotations"):
        metadata["annotations"] = given["annotations"]
    containers = spec.get("containers") or [{}]
    main = _container(containers[0], _variables(job, role, defaults), defaults)
    spec = {
        **security.NO_API_TOKEN,
        "enableServiceLinks": False,
        **spec,
        "restartPolicy": "Never",
        "hostname": object_names.hostname(name, role, SLOT),
        "subdomain": name,
        "containers": [main, *containers[1:]],
    }
    if defaults.in_cluster:
        spec = in_a_cluster(spec, job, defaults)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def fill_pod(
    rendered: dict[str, Any],
    slot: int,
    incarnation: int,
    defaults: PodDefaults,
    *,
    revision: str = "",
    avoid: Sequence[str] = (),
    together: bool = False,
) -> dict[str, Any]:
    """Return the pod of one slot and incarnation. What is the same in all pods is shared with `rendered`.

    `revision`: the name of the run's revision, as a label and for its ranks to compare; "" if there is none. `avoid`:
    names of nodes to avoid. `together`: all pods of the job must be on one node, whichever that is.
    """
    values = {SLOT: str(slot), INCARNATION: str(incarnation), OPERATOR_URL: defaults.operator_url}

    def filled(text: str) -> str:
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    metadata, spec = rendered["metadata"], rendered["spec"]
    marked = {object_names.REVISION: revision} if revision else {}
    known = {object_names.SLOT: str(slot), object_names.INCARNATION: str(incarnation)}
    metadata = {**metadata, "name": filled(metadata["name"]), "labels": {**metadata["labels"], **known, **marked}}
    if asked := resources.amounts(spec["containers"]):
        kept = {object_names.RESOURCES: resources.written(asked)}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **kept}
    main, *others = spec["containers"]
    variables = [
        {**variable, "value": filled(variable["value"])} if variable["name"] in _FILLED else variable
        for variable in main["env"]
    ]
    if revision:
        variables.append({"name": environment.REVISION, "value": revision})
    spec = {**spec, "hostname": filled(spec["hostname"]), "containers": [{**main, "env": variables}, *others]}
    if together:  # Nodes to avoid are ignored, because one of them may be the node of the other pods.
        spec = node_affinity.with_all_pods(spec, metadata["labels"][object_names.JOB])
    elif defaults.in_cluster:
        spec = node_affinity.away_from(spec, avoid)
    return {**rendered, "metadata": metadata, "spec": spec}


def _container(given: dict[str, Any], variables: list[dict[str, Any]], defaults: PodDefaults) -> dict[str, Any]:
    """Return the container that runs the ranks. A variable of the user with one of our names is replaced."""
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


def _variables(job: DistributedTrainingJob, role: str, defaults: PodDefaults) -> list[dict[str, Any]]:
    spec = job.spec
    values = {
        environment.JOB_UID: job.metadata.uid,
        environment.NAMESPACE: job.metadata.namespace,
        environment.JOB: job.metadata.name,
        environment.ROLE: role,
        environment.SLOT: SLOT,
        environment.INCARNATION: INCARNATION,
        environment.OPERATOR_URL: OPERATOR_URL,
        environment.FRAMEWORK: spec.framework.value,
        environment.RANKS_PER_POD: str(spec.workers.ranksPerPod),
        environment.ZYGOTE_ENABLED: "1" if spec.recovery.zygote else "0",
    }
    if spec.workers.pinning:
        values[environment.PINNING] = "1"
    grace_s = (spec.workers.template.get("spec") or {}).get("terminationGracePeriodSeconds")
    if grace_s is not None:
        values[environment.GRACE_S] = str(max(1, int(grace_s) - GRACE_RESERVE_S))
    program = _program(spec)
    values.update(program)
    values[environment.PROGRAM] = hashlib.sha256("\n".join(program.values()).encode()).hexdigest()[:PROGRAM_DIGITS]
    folder = spec.checkpoint.folder if defaults.in_cluster else spec.checkpoint.directory
    if folder:
        values[environment.CHECKPOINT_DIR] = folder
        values[environment.CHECKPOINT_TIMEOUT] = f"{spec.checkpoint.timeoutSeconds:g}"
    if spec.ram is not None:
        values[environment.RAM_BUDGET] = str(memory_tier_size.budget(spec.ram_bytes))
        if spec.ram.every is not None:
            values[environment.RAM_EVERY] = str(spec.ram.every)
    fields = {environment.POD_UID: "metadata.uid", environment.POD_IP: "status.podIP"}
    return [
        *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()),
        *({"name": n, "value": value} for n, value in {**values, **defaults.extra_env}.items()),
    ]


def _program(spec: JobSpec) -> dict[str, str]:
    """Return the variables that say what ranks run. They are the same for the same program."""
    if spec.framework is Framework.TRAINMASTER and (config := spec.training_config) is not None:
        return {environment.CONFIG: json.dumps(config.model_dump(mode="json"), separators=(",", ":"))}
    command = {environment.COMMAND: json.dumps(spec.command())}
    if spec.workers.restartCommand is not None:
        command[environment.RESTART_COMMAND] = json.dumps(spec.workers.restartCommand)
    return command


__all__ = ["fill_pod", "pod_name", "render_pod"]
