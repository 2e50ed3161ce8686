"""What the operator gives to every pod, whoever's job it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

USER = 65532
"""Of our images, as of other "nonroot" ones."""


@dataclass(frozen=True)
class PodSecurity:
    """Who containers run as. `user`, `group`, `fs_group`: of containers with our images; None: the cluster chooses, as
    OpenShift does, or the image. `restrict`: containers with images of users get what the Pod Security Standard
    "restricted" asks for."""

    user: int | None = USER
    group: int | None = USER
    fs_group: int | None = USER
    restrict: bool = False


@dataclass(frozen=True)
class PodDefaults:
    """`in_cluster`: pods are containers of a Kubernetes cluster. Else they are processes of one machine, whose kubelet
    brings the agent, the token and the folders, so that nothing of a container is asked for."""

    operator_url: str
    extra_env: Mapping[str, str] = field(default_factory=dict)
    trainer_image: str = "trainmaster/trainer:latest"  # of containers whose template names none
    agent_image: str = "trainmaster/operator:latest"  # brings the agent into images of users
    in_cluster: bool = False
    security: PodSecurity = field(default_factory=PodSecurity)
