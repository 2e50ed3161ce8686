"""Names and labels of a job's objects."""

from __future__ import annotations

from trainmaster_operator.api.api_group import API_VERSION, GROUP, JOB_KIND
from trainmaster_operator.api.job_spec import DistributedTrainingJob

JOB = f"{GROUP}/job"
ROLE = f"{GROUP}/role"
SLOT = f"{GROUP}/slot"
INCARNATION = f"{GROUP}/incarnation"
REVISION = f"{GROUP}/revision"  # The name of the ControllerRevision from which the pod is created.
RESOURCES = f"{GROUP}/resources"
"""Annotation of a pod: the CPU and memory that its job last asked for it. The pod may have other amounts, which an
autoscaler or an admission webhook has set."""
CURRENT = f"{GROUP}/current"
"""Label by which the job's Service selects pods. A pod that is to be replaced loses it first."""

NAME_LENGTH = 63  # Maximum length of a DNS label, which hostnames and label values must not exceed.
INCARNATION_DIGITS = 4


def pod_name(job: str, role: str, slot: int | str, incarnation: int | str) -> str:
    """Return the name of the pod of one slot and incarnation."""
    return f"{job}-{role}-{slot}-{incarnation}"


def hostname(job: str, role: str, slot: int | str) -> str:
    """Return the host name of a slot. It is the same for every incarnation."""
    return f"{job}-{role}-{slot}"


def max_job_name_length(replicas: int, role: str = "worker") -> int:
    """Return the greatest length of a job's name with which its pods' names fit into 63 characters, for 9999
    incarnations of each slot."""
    longest = pod_name("", role, max(0, replicas - 1), 10**INCARNATION_DIGITS - 1)
    return NAME_LENGTH - len(longest)


def owner(job: DistributedTrainingJob) -> dict[str, object]:
    """Return the owner reference to a job."""
    return {
        "apiVersion": API_VERSION,
        "kind": JOB_KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
