"""How little a container may do. Our own images take the strictest profile that Kubernetes has ("restricted"); images
of users get what `docker run` would give them too, and nothing that could break one.

What a template says, for the pod or for the container, stays as it is.
"""

from __future__ import annotations

from typing import Any

from trainmaster_operator.manifests.keyed_lists import Object

USER = 65532
"""Of our images, as of other "nonroot" ones."""


def strictest() -> Object:
    """The security context of a container that asks for nothing."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": _seccomp(),
    }


def for_our_image(pod: Object, container: Object) -> Object:
    """The security context of a container with our image. `pod`: the template's, for all containers."""
    given = container.get("securityContext") or {}
    wanted = strictest()
    both = {**(pod.get("securityContext") or {}), **given}
    if "runAsUser" in both or both.get("runAsNonRoot") is False:
        # Another user is wished for, perhaps root: whoever says so knows its group too.
        for name in ("runAsUser", "runAsGroup"):
            wanted.pop(name)
        if not both.get("runAsUser"):
            wanted.pop("runAsNonRoot")
    if given.get("privileged") or "SYS_ADMIN" in _added(given):
        wanted.pop("allowPrivilegeEscalation")  # the API server refuses the pair
        wanted.pop("seccompProfile")
    return {**{k: v for k, v in wanted.items() if k not in both}, **given}


def for_their_image(pod: Object, container: Object) -> Object:
    """The security context of a container with a user's image, which may need root, set-uid programs, a writable root
    or capabilities: none of that is taken away."""
    given: Object = container.get("securityContext") or {}
    both = {**(pod.get("securityContext") or {}), **given}
    return given if "seccompProfile" in both or given.get("privileged") else {"seccompProfile": _seccomp(), **given}


def of_volumes(pod: Object) -> Object:
    """The pod's security context, with volumes that the user of our image can write to."""
    return {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch", **(pod.get("securityContext") or {})}


def _seccomp() -> Object:
    return {"type": "RuntimeDefault"}


def _added(context: Object) -> list[Any]:
    added: list[Any] = (context.get("capabilities") or {}).get("add") or []
    return [str(name).removeprefix("CAP_") for name in added]
