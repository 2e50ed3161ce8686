"""Names of the API group: its kind, and its version."""

from __future__ import annotations

GROUP = "trainmaster.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
JOB_KIND = "DistributedTrainingJob"
JOB_PLURAL = "distributedtrainingjobs"
