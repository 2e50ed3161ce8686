"""How little a container may do. Our own images take the strictest profile that Kubernetes has ("restricted"); images
of users get what `docker run` would give them too, and nothing that could break one, unless the installation asks for
the restricted profile in them as well.

What a template says, for the pod or for the container, stays as it is.
"""

from __future__ import annotations

from typing import Any

from trainmaster_operator.manifests.keyed_lists import Object
from trainmaster_operator.manifests.pod_defaults import PodSecurity


def strictest(wanted: PodSecurity) -> Object:
    """The security context of a container with our image that asks for nothing."""
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
    """The security context of a container with our image. `pod`: the template's, for all containers."""
    given = container.get("securityContext") or {}
    made = strictest(wanted)
    both = {**(pod.get("securityContext") or {}), **given}
    if "runAsUser" in both or both.get("runAsNonRoot") is False:
        # Another user is wished for, perhaps root: whoever says so knows its group too.
        for name in ("runAsUser", "runAsGroup"):
            made.pop(name, None)
        if not both.get("runAsUser"):
            made.pop("runAsNonRoot")
    return _added_to(given, both, made)


def for_their_image(pod: Object, container: Object, wanted: PodSecurity) -> Object:
    """The security context of a container with a user's image, which may need root, set-uid programs, a writable root
    or capabilities: none of that is taken away, unless the installation fills such images up to the restricted profile.
    """
    given: Object = container.get("securityContext") or {}
    both = {**(pod.get("securityContext") or {}), **given}
    if wanted.restrict:
        return _restricted(given, both)
    return given if "seccompProfile" in both or given.get("privileged") else {"seccompProfile": _seccomp(), **given}


def filled_up(pod: Object, containers: list[Object], wanted: PodSecurity) -> list[Object]:
    """Further containers of a template, with what the installation asks for in all images of users."""
    if not wanted.restrict:
        return containers
    return [{**one, "securityContext": for_their_image(pod, one, wanted)} for one in containers]


def of_volumes(pod: Object, wanted: PodSecurity) -> Object:
    """The pod's security context, with volumes that the user of our image can write to. Where the cluster chooses the
    user, it chooses that group too."""
    given: Object = pod.get("securityContext") or {}
    if wanted.fs_group is None:
        return given
    return {"fsGroup": wanted.fs_group, "fsGroupChangePolicy": "OnRootMismatch", **given}


def _restricted(given: Object, both: Object) -> Object:
    """What the Pod Security Standard "restricted" asks of every container, where the template doesn't say it."""
    made: Object = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": _seccomp(),
    }
    if both.get("runAsUser") == 0:
        made.pop("runAsNonRoot")  # a kubelet refuses the pair; a namespace that enforces the profile names the field
    filled = _added_to(given, both, made)
    if "capabilities" in given:
        filled["capabilities"] = {"drop": ["ALL"], **(given["capabilities"] or {})}
    return filled


def _added_to(given: Object, both: Object, made: Object) -> Object:
    """`made` where neither the template's container (`given`) nor its pod (with it, `both`) says anything."""
    if given.get("privileged") or "SYS_ADMIN" in _added(given):
        made.pop("allowPrivilegeEscalation")  # the API server refuses the pair
        made.pop("seccompProfile")
    return {**{k: v for k, v in made.items() if k not in both}, **given}


def _seccomp() -> Object:
    return {"type": "RuntimeDefault"}


def _added(context: Object) -> list[Any]:
    added: list[Any] = (context.get("capabilities") or {}).get("add") or []
    return [str(name).removeprefix("CAP_") for name in added]
