"""On which nodes a pod may run, in addition to its template: away from some nodes, or all pods of a job on one node.

A pod is kept away from nodes by its affinity on a cluster where the operator may not taint nodes. Karpenter ignores a
pod that names nodes in its affinity, so such a pod is replaced as soon as it finds no place
(`planning.placement.avoided_nodes.relax_avoidance`).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster_operator.manifests import object_names
from trainmaster_operator.manifests.keyed_lists import Object

HOSTNAME = "kubernetes.io/hostname"
"""Tools that create nodes understand this label; they do not understand rules about node names."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def excludes_nodes(spec: Object) -> bool:
    """Return whether a pod's spec excludes nodes by name, as `away_from` does."""
    of_nodes = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    wanted = (one for term in terms for one in term.get("matchExpressions") or [])
    return any(one.get("key") == HOSTNAME and one.get("operator") == "NotIn" for one in wanted)


def away_from(spec: Object, nodes: Sequence[str]) -> Object:
    """Return the pod's spec with these nodes excluded. The terms of a template are alternatives, so each of them
    gets the rule."""
    if not nodes:
        return spec
    elsewhere = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(nodes)}
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    wanted = [{**term, "matchExpressions": [*(term.get("matchExpressions") or []), elsewhere]} for term in terms]
    required = {_REQUIRED: {"nodeSelectorTerms": wanted}}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, **required}}}


def with_all_pods(spec: Object, job: str) -> Object:
    """Return the pod's spec, bound to the node where other pods of the job are, for a volume that only one node can
    mount. The first pod may use any node: a scheduler allows that for a pod that matches its own rule. Pods that are
    being replaced do not count."""
    beside = {
        "labelSelector": {"matchLabels": {object_names.JOB: job, object_names.CURRENT: "true"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = spec.get("affinity") or {}
    between = affinity.get("podAffinity") or {}
    required = [*(between.get(_REQUIRED) or []), beside]
    return {**spec, "affinity": {**affinity, "podAffinity": {**between, _REQUIRED: required}}}
