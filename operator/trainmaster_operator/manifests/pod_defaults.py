"""What the operator gives to every pod, whoever's job it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PodDefaults:
    """`in_cluster`: pods are containers of a Kubernetes cluster. Else they are processes of one machine, whose kubelet
    brings the agent, the token and the folders, so that nothing of a container is asked for."""

    operator_url: str
    extra_env: Mapping[str, str] = field(default_factory=dict)
    trainer_image: str = "trainmaster/trainer:latest"  # of containers whose template names none
    agent_image: str = "trainmaster/operator:latest"  # brings the agent into images of users
    in_cluster: bool = False
