"""Pure builders of pods, services and the objects that they need."""

from trainmaster_operator.manifests.ca_config_map import build_ca_bundle
from trainmaster_operator.manifests.job_pod import fill_pod, render_pod
from trainmaster_operator.manifests.object_names import max_job_name_length, pod_name
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.manifests.security import PodSecurity
from trainmaster_operator.manifests.services import build_service

__all__ = [
    "PodDefaults",
    "PodSecurity",
    "build_ca_bundle",
    "build_service",
    "fill_pod",
    "max_job_name_length",
    "pod_name",
    "render_pod",
]
