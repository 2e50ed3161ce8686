"""Jobs for tests, as a person writes them."""

from __future__ import annotations

import copy
from typing import Any

TRAINMASTER: dict[str, Any] = {
    "apiVersion": "trainmaster.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "workers": {"replicas": 4},
        "training": {
            "data": {"path": "/data/texts"},
            "steps": 100,
            "batch": {"global": 8},
            "parallelism": {"dpReplicate": 2, "dpShard": 2},
        },
    },
}

PYTORCH: dict[str, Any] = {
    "apiVersion": "trainmaster.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "script"},
    "spec": {
        "framework": "PyTorch",
        "workers": {
            "replicas": 2,
            "template": {"spec": {"containers": [{"name": "worker", "command": ["python", "train.py"]}]}},
        },
    },
}


def job(base: dict[str, Any] = TRAINMASTER, **changes: Any) -> dict[str, Any]:
    """`base` with fields replaced: job(spec__workers__replicas=2). A value of ... removes the field."""
    document = copy.deepcopy(base)
    for path, value in changes.items():
        *above, last = path.split("__")
        place = document
        for part in above:
            place = place.setdefault(part, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return document
