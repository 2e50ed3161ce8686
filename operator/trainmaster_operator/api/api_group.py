"""Names of the API group: its kind, its version, and the name of this operator."""

from __future__ import annotations

GROUP = "trainmaster.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
JOB_KIND = "DistributedTrainingJob"
JOB_PLURAL = "distributedtrainingjobs"
CONTROLLER = f"{GROUP}/operator"
"""The name of this operator in spec.managedBy. A job without that field is managed by this operator too."""
