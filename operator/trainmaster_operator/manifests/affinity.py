"""Nodes that a pod must avoid in addition to its template, on a cluster where the operator may not taint nodes.

Karpenter ignores a pod that names nodes in its affinity, so such a pod is replaced as soon as it finds no place
(`planning.placement.nodes.relax_avoidance`).
"""

from __future__ import annotations

from collections.abc import Sequence

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
