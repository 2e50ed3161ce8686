"""The kinds of faults that cannot be injected into a job on a cluster, and what a person can do instead."""

from __future__ import annotations

NOT_ON_A_CLUSTER = {
    "lose-node": "a command cannot take a machine away: stop its kubelet and its containers, or the machine itself",
    "kill-operator": "the operator does not belong to this job: delete its leading pod with kubectl delete pod",
    "crash-operator": "only `trainmaster run` can count the operator's writes: delete its leading pod instead",
    "api-outage": "the API server does not belong to this job: stop it, or block the operator with a NetworkPolicy",
}
"""Kinds that `trainmaster fault` refuses, each with what to do instead."""
