"""The init container that brings the agent into a pod whose image does not contain it."""

from __future__ import annotations

from trainmaster_operator.manifests import security, volumes
from trainmaster_operator.manifests.keyed_lists import Object
from trainmaster_operator.manifests.pod_defaults import PodDefaults

INIT_CONTAINER = {"cpu": "100m", "memory": "64Mi"}
"""Requests and limits of the init container that copies the agent. They are equal, so that a pod of class Guaranteed
keeps its class and quotas that require numbers are satisfied. The init container runs before the others, so it adds
nothing to their share."""


def agent_bringer(defaults: PodDefaults) -> Object:
    """Return the init container, which runs in the image of the operator and copies the agent."""
    mounted = volumes.agent()
    return {
        "name": mounted.volume["name"],
        "image": defaults.agent_image,
        "command": ["cp", "-r", f"{volumes.AGENT_PATH}/.", "/target/"],
        "resources": {"requests": dict(INIT_CONTAINER), "limits": dict(INIT_CONTAINER)},
        "securityContext": security.strictest(defaults.security),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": mounted.volume["name"], "mountPath": "/target"}],
    }


def without_bringer(spec: Object) -> list[Object]:
    """Return the init containers of a template without one that has the name of ours."""
    return [given for given in spec.get("initContainers") or [] if given.get("name") != "trainmaster-agent"]
