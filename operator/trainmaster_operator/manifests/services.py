"""The headless Service of a job, which gives every pod's hostname a DNS name."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests import object_names


def build_service(job: DistributedTrainingJob) -> dict[str, Any]:
    """Return the Service. It has no ports, and it also publishes pods that are not ready, because ranks meet before
    any pod is."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.metadata.name,
            "namespace": job.metadata.namespace,
            "labels": {object_names.JOB: job.metadata.name},
            "ownerReferences": [object_names.owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {object_names.JOB: job.metadata.name, object_names.CURRENT: "true"},
        },
    }
