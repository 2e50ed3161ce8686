"""Names and labels of a job's objects."""

from __future__ import annotations

from trainmaster_operator.api.job import DistributedTrainingJob
from trainmaster_operator.api.meta import API_VERSION, GROUP, JOB_KIND

JOB = f"{GROUP}/job"
ROLE = f"{GROUP}/role"
SLOT = f"{GROUP}/slot"
INCARNATION = f"{GROUP}/incarnation"
REVISION = f"{GROUP}/revision"  # the name of the ControllerRevision that the pod is built from
RESOURCES = f"{GROUP}/resources"
"""Annotation of a pod: the CPU and memory that its job last asked for it. What the pod has may be another amount, which
an autoscaler or an admission webhook has set."""
CURRENT = f"{GROUP}/current"
"""The job's Service leads to pods that have it; a pod that is to be replaced loses it first."""

NAME_LENGTH = 63  # of a DNS label, which hostnames and label values must be
INCARNATION_DIGITS = 4


def pod_name(job: str, role: str, slot: int | str, incarnation: int | str) -> str:
    return f"{job}-{role}-{slot}-{incarnation}"


def hostname(job: str, role: str, slot: int | str) -> str:
    """The same for every incarnation of a slot."""
    return f"{job}-{role}-{slot}"


def max_job_name_length(replicas: int, role: str = "worker") -> int:
    """The longest name of a job whose pods' names fit into 63 characters for 9999 incarnations of each slot."""
    longest = pod_name("", role, max(0, replicas - 1), 10**INCARNATION_DIGITS - 1)
    return NAME_LENGTH - len(longest)


def owner(job: DistributedTrainingJob) -> dict[str, object]:
    return {
        "apiVersion": API_VERSION,
        "kind": JOB_KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
