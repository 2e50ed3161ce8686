"""Pure builders of pods and services."""

from trainmaster_operator.manifests.labels import max_job_name_length, pod_name
from trainmaster_operator.manifests.pods import build_pod
from trainmaster_operator.manifests.services import build_service

__all__ = ["build_pod", "build_service", "max_job_name_length", "pod_name"]
