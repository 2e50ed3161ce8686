"""The security context of containers, and that they get no token for the Kubernetes API. Our own images get the
strictest profile that Kubernetes has ("restricted"). Images of users get what `docker run` would give them and nothing
that could break one, unless the installation requires the restricted profile for them too.

What a template says, for the pod or for the container, is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster_operator.manifests.keyed_lists import Object

NO_API_TOKEN: Object = {"automountServiceAccountToken": False}
"""A part of every pod's spec, unless the template says otherwise: ranks ask the Kubernetes API for nothing."""

USER = 65532
"""The user of our images. Other "nonroot" images have the same."""


@dataclass(frozen=True)
class PodSecurity:
    """The users as which containers run. `user`, `group`, `fs_group`: for containers with our images; None: the
    cluster, as OpenShift does, or the image chooses. `restrict`: containers with images of users get what the Pod
    Security Standard "restricted" requires."""

    user: int | None = USER
    group: int | None = USER
    fs_group: int | None = USER
    restrict: bool = False


def strictest(wanted: PodSecurity) -> Object:
    """Return the security context of a container with our image whose template sets nothing."""
    ids = {"runAsUser": wanted.user, "runAsGroup": wanted.group}
    return {
        "runAsNonRoot": True,
        **{name: number for name, number in ids.items() if number is not None},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": _seccomp(),
    }


def for_our_image(pod: Object, container: Object, wanted: PodSecurity) -> Object:
    """Return the security context of a container with our image. `pod`: the template's pod spec, which holds for all
    containers."""
    given = container.get("securityContext") or {}
    made = strictest(wanted)
    both = {**(pod.get("securityContext") or {}), **given}
    if "runAsUser" in both or both.get("runAsNonRoot") is False:
        # The template wants another user, perhaps root, so it must set the group too.
        for name in ("runAsUser", "runAsGroup"):
            made.pop(name, None)
        if not both.get("runAsUser"):
            made.pop("runAsNonRoot")
    return _added_to(given, both, made)


def for_their_image(pod: Object, container: Object, wanted: PodSecurity) -> Object:
    """Return the security context of a container with a user's image. It may need root, set-uid programs, a writable
    root or capabilities, so none of these is removed, unless the installation requires the restricted profile for
    such images."""
    given: Object = container.get("securityContext") or {}
    both = {**(pod.get("securityContext") or {}), **given}
    if wanted.restrict:
        return _restricted(given, both)
    return given if "seccompProfile" in both or given.get("privileged") else {"seccompProfile": _seccomp(), **given}


def filled_up(pod: Object, containers: list[Object], wanted: PodSecurity) -> list[Object]:
    """Return further containers of a template, with what the installation requires for all images of users."""
    if not wanted.restrict:
        return containers
    return [{**one, "securityContext": for_their_image(pod, one, wanted)} for one in containers]


def of_volumes(pod: Object, wanted: PodSecurity) -> Object:
    """Return the pod's security context, with a group so that the user of our image can write to volumes. If the
    cluster chooses the user, it chooses that group too."""
    given: Object = pod.get("securityContext") or {}
    if wanted.fs_group is None:
        return given
    return {"fsGroup": wanted.fs_group, "fsGroupChangePolicy": "OnRootMismatch", **given}


def _restricted(given: Object, both: Object) -> Object:
    """Return what the Pod Security Standard "restricted" requires of every container, where the template does not
    set it."""
    made: Object = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": _seccomp(),
    }
    if both.get("runAsUser") == 0:
        # A kubelet refuses this combination, and a namespace that enforces the profile then names the field.
        made.pop("runAsNonRoot")
    filled = _added_to(given, both, made)
    if "capabilities" in given:
        filled["capabilities"] = {"drop": ["ALL"], **(given["capabilities"] or {})}
    return filled


def _added_to(given: Object, both: Object, made: Object) -> Object:
    """Return `given` with the fields of `made` that neither the template's container (`given`) nor its pod (`both`:
    pod and container) sets."""
    if given.get("privileged") or "SYS_ADMIN" in _added(given):
        made.pop("allowPrivilegeEscalation")  # The API server refuses this combination.
        made.pop("seccompProfile")
    return {**{k: v for k, v in made.items() if k not in both}, **given}


def _seccomp() -> Object:
    return {"type": "RuntimeDefault"}


def _added(context: Object) -> list[Any]:
    added: list[Any] = (context.get("capabilities") or {}).get("add") or []
    return [str(name).removeprefix("CAP_") for name in added]
