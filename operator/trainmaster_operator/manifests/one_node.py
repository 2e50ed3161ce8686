"""Puts all pods of a job on one node, for a volume that only one node can mount."""

from __future__ import annotations

from trainmaster_operator.manifests import object_names
from trainmaster_operator.manifests.keyed_lists import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def with_all_pods(spec: Object, job: str) -> Object:
    """Return the pod's spec, bound to the node where other pods of the job are. The first pod may use any node: a
    scheduler allows that for a pod that matches its own rule. Pods that are being replaced do not count."""
    beside = {
        "labelSelector": {"matchLabels": {object_names.JOB: job, object_names.CURRENT: "true"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = spec.get("affinity") or {}
    between = affinity.get("podAffinity") or {}
    required = [*(between.get(_REQUIRED) or []), beside]
    return {**spec, "affinity": {**affinity, "podAffinity": {**between, _REQUIRED: required}}}
