"""What the operator gives to every pod of every job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster_operator.manifests.security import PodSecurity


@dataclass(frozen=True)
class PodDefaults:
    """Settings for every pod. `in_cluster`: pods are containers on a Kubernetes cluster. Otherwise they are
    processes on one machine, whose kubelet provides the agent, the token and the directories, so that nothing of a
    container is needed."""

    operator_url: str
    extra_env: Mapping[str, str] = field(default_factory=dict)
    trainer_image: str = "trainmaster/trainer:latest"  # For containers whose template names none.
    agent_image: str = "trainmaster/operator:latest"  # Provides the agent for images of users.
    in_cluster: bool = False
    security: PodSecurity = field(default_factory=PodSecurity)
