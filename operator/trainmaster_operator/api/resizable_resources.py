"""The resources of pods that can be changed while a job runs: requests and limits of CPU and memory."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]  # A part of a spec as JSON values.

RESOURCES = ("cpu", "memory")
"""Requests and limits of these resources apply at once, for the containers of workers.template and for the pod as a
whole, because Kubernetes can resize a running pod."""


def _without_resources(given: Raw) -> Raw:
    """Return a container, or the spec of a pod, without its requests and limits of CPU and memory."""
    resources = {
        kind: {name: amount for name, amount in (amounts or {}).items() if name not in RESOURCES}
        if kind in ("requests", "limits")
        else amounts
        for kind, amounts in (given.get("resources") or {}).items()
    }
    kept = {kind: amounts for kind, amounts in resources.items() if amounts}
    rest = {name: value for name, value in given.items() if name != "resources"}
    return {**rest, "resources": kept} if kept else rest


def _with_resources(given: Raw, live: Raw) -> Raw:
    """Return `given`, a container or the spec of a pod, with the requests and limits of CPU and memory of `live`."""
    bare = _without_resources(given)
    resources = dict(bare.get("resources") or {})
    for kind in ("requests", "limits"):
        amounts = (live.get("resources") or {}).get(kind) or {}
        wanted = {name: amounts[name] for name in RESOURCES if name in amounts}
        if wanted:
            resources[kind] = {**(resources.get(kind) or {}), **wanted}
    return {**bare, "resources": resources} if resources else bare


def pod_with_resources(spec: Raw, live: Raw) -> Raw:
    """Return the spec of a pod with the CPU and memory that `live` has for the pod and for containers of the same name.
    The first container may have no name."""
    known = {container.get("name", ""): container for container in live.get("containers") or []}
    containers = [
        _with_resources(container, known[name]) if (name := container.get("name", "")) in known else container
        for container in spec.get("containers") or []
    ]
    whole = _with_resources(spec, live)
    return {**whole, "containers": containers} if "containers" in spec else whole


def pod_without_resources(spec: Raw) -> Raw:
    """Return the spec of a pod without the CPU and memory of the pod and of its containers."""
    bare = _without_resources(spec)
    if "containers" in bare:
        bare["containers"] = [_without_resources(container) for container in bare["containers"] or []]
    return bare
