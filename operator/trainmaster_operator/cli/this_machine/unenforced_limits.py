"""The memory limit of a job's pods, which only a cluster enforces: a pod of a local run is a process of the user."""

from __future__ import annotations

from trainmaster_operator.api.job_spec import JobSpec


def describe(spec: JobSpec) -> str:
    """Return a sentence for people that says that the limit is not enforced; "" if the job has none."""
    resources = spec.container().get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    limit = limits.get("memory") if isinstance(limits, dict) else None
    if limit is None:
        return ""
    return f"the memory limit of a pod, {limit}, is not enforced in a run on this machine, only on a cluster"
