"""The schema of a pod template in the CustomResourceDefinition: which of its fields are described, and how.

The fields are those that our rules use. All other fields are an open map; the API server checks them when it gets a
pod.
"""

from __future__ import annotations

from typing import Any

OPEN = "x-kubernetes-preserve-unknown-fields"


def _words(description: str) -> dict[str, Any]:
    word = {"type": "string", "maxLength": 131072}
    return {"type": "array", "description": description, "maxItems": 1024, "items": word}


_CONTAINER = {
    "type": "object",
    OPEN: True,
    "properties": {
        "name": {"type": "string", "description": "The name of the container in the pod.", "maxLength": 63},
        "image": {
            "type": "string",
            "description": "The container image. Default in the first container: the trainer's image, whatever the"
            " name of the container is.",
            "maxLength": 1024,
        },
        "command": _words(
            "The command of the container as a list of words. In the first container it is the command of each rank,"
            " which every framework but Trainmaster needs. Framework Trainmaster runs its own trainer, and refuses a"
            " command there. Default in other containers: the entry point of the image."
        ),
        "args": _words("Arguments that follow the command, as a list of words. Default: the arguments of the image."),
    },
}


def _short(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": 63}


TEMPLATE: dict[str, Any] = {
    "type": "object",
    OPEN: True,
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods. Default: only those of the operator.",
            OPEN: True,
        },
        "spec": {
            "type": "object",
            "description": "The specification of the pods, with all fields of a Kubernetes pod. volumes, volumeMounts"
            " and resources are used as in any pod: for example, resources.limits: {nvidia.com/gpu: 1} in the first"
            " container requests one GPU for each pod. A local run does not enforce limits of CPU and memory. The"
            " operator mounts /var/run/trainmaster, /opt/trainmaster, /var/lib/trainmaster/ram and, with"
            " checkpoint.volume, /checkpoints or checkpoint.directory; a volumeMount at one of these paths has no"
            " effect. kubectl explain pod.spec describes the fields that are not listed here.",
            OPEN: True,
            "properties": {
                "restartPolicy": _short("Never, because the operator restarts the ranks. Default: Never."),
                "hostname": _short("The operator sets the host name of each pod. This field is refused."),
                "subdomain": _short("The operator sets the subdomain of each pod. This field is refused."),
                "containers": {
                    "type": "array",
                    "description": "The containers of each pod. The first one runs the ranks, and all others run next "
                    "to it. Default: one container, for framework Trainmaster.",
                    "minItems": 1,
                    "maxItems": 64,
                    "items": _CONTAINER,
                },
            },
        },
    },
}
