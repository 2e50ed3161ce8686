"""Checks of the part of a pod template that this code reads. For the models the template is an open map."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.api.quantities import bytes_of, millis_of
from trainmaster_operator.api.validation.field_errors import nearest
from trainmaster_operator.api.validation.problem import Path, Problem, instead, shown

OUR_NAMES = "trainmaster-"
"""The prefix of the names of all volumes and containers that the operator adds to pods."""

OUR_PATHS = {
    "/var/run/trainmaster": "the pod's identity",
    "/opt/trainmaster": "the agent",
    "/var/lib/trainmaster/ram": "checkpoints in memory",
}


def problems(template: Any, mounts: Mapping[str, str] | None = None) -> Iterator[Problem]:
    """Yield the problems in the part of a pod template that this code reads. `mounts`: further paths that the operator
    mounts, with what is mounted there."""
    where: Path = ("spec", "workers", "template")
    if not isinstance(template, dict):
        return  # The template is absent, or the model reports that it is no map.
    spec = template.get("spec", {})
    where = (*where, "spec")
    if not isinstance(spec, dict):
        yield Problem(where, f"a map is expected, not {shown(spec)}")
        return
    for ours in ("hostname", "subdomain"):
        if ours in spec:
            yield Problem((*where, ours), "is set by the operator: leave it out")
    if spec.get("restartPolicy", "Never") != "Never":
        yield Problem((*where, "restartPolicy"), f"is Never or left out{instead(spec['restartPolicy'])}")
    for key in ("volumes", "initContainers"):
        yield from _taken_names(spec.get(key), (*where, key))
    yield from _pull_secrets(spec.get("imagePullSecrets"), (*where, "imagePullSecrets"))
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(_maps(spec.get(kind))):
            yield from _low_limits(container.get("resources"), (*where, kind, i, "resources", "limits"))
    containers = spec.get("containers", [])
    where = (*where, "containers")
    if not isinstance(containers, list) or ("containers" in spec and not containers):
        yield Problem(where, f"a list of containers is expected, not {shown(containers)}")
        return
    for i, container in enumerate(containers):
        yield from _container(container, (*where, i))
    yield from _missing_volumes(spec)
    if isinstance(containers[0] if containers else None, dict):
        yield from _taken_paths(containers[0].get("volumeMounts"), {**OUR_PATHS, **(mounts or {})}, (*where, 0))


def _taken_names(entries: Any, where: Path) -> Iterator[Problem]:
    if entries is not None and not isinstance(entries, list):
        yield Problem(where, f"a list is expected, not {shown(entries)}")
        return
    for i, entry in enumerate(entries or []):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            yield Problem((*where, i), f"a map with a name is expected, not {shown(entry)}")
        elif name.startswith(OUR_NAMES):
            words = f"{name!r}: names that begin with {OUR_NAMES} are reserved for the operator"
            yield Problem((*where, i, "name"), words)


def _pull_secrets(entries: Any, where: Path) -> Iterator[Problem]:
    """Yield entries that name no Secret as an API server expects it. A bare name is the common mistake."""
    if entries is not None and not isinstance(entries, list):
        yield Problem(where, f"a list such as [{{name: my-registry}}] is expected, not {shown(entries)}")
        return
    for i, entry in enumerate(entries or []):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            words = f"a map with a name, such as {{name: my-registry}}, is expected, not {shown(entry)}"
            yield Problem((*where, i), words)


def _low_limits(resources: Any, where: Path) -> Iterator[Problem]:
    """Yield limits of memory and CPU that are below their requests. An API server refuses such pods. `where`: the place
    of the limits."""
    given = resources if isinstance(resources, dict) else {}
    limits, requests = given.get("limits"), given.get("requests")
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return
    for name, number_of in (("memory", bytes_of), ("cpu", millis_of)):
        limit, request = (number_of(str(part.get(name, ""))) for part in (limits, requests))
        if limit is not None and request is not None and limit < request:
            words = f"{limits[name]} is less than the request, {requests[name]}; raise the limit, or lower the request"
            yield Problem((*where, name), words)


def _missing_volumes(spec: dict[str, Any]) -> Iterator[Problem]:
    """Yield the mounts of volumes that neither the template nor the operator has. An API server refuses such pods."""
    volumes = spec.get("volumes") or []
    if not isinstance(volumes, list):
        return  # This is reported elsewhere.
    names = [str(volume.get("name")) for volume in volumes if isinstance(volume, dict)]
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(_maps(spec.get(kind))):
            for field in ("volumeMounts", "volumeDevices"):
                for j, mount in enumerate(_maps(container.get(field))):
                    name = mount.get("name")
                    if isinstance(name, str) and name not in names and not name.startswith(OUR_NAMES):
                        near = nearest(name, names)
                        words = f"; did you mean {near}?" if near else "; add it to volumes, or remove the mount"
                        where: Path = ("spec", "workers", "template", "spec", kind, i, field, j, "name")
                        yield Problem(where, f"the template has no volume {name!r}{words}")


def _maps(entries: Any) -> list[dict[str, Any]]:
    """Return a list of maps as it is. Whatever else it may be is reported elsewhere, and is [] here."""
    if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
        return entries
    return []


def _taken_paths(mounts: Any, taken: Mapping[str, str], where: Path) -> Iterator[Problem]:
    where = (*where, "volumeMounts")
    if mounts is not None and not isinstance(mounts, list):
        yield Problem(where, f"a list is expected, not {shown(mounts)}")
        return
    for i, mount in enumerate(mounts or []):
        path = mount.get("mountPath") if isinstance(mount, dict) else None
        if not isinstance(path, str):
            yield Problem((*where, i), f"a map with a name and a mountPath is expected, not {shown(mount)}")
        elif path.rstrip("/") in taken:
            yield Problem((*where, i, "mountPath"), f"{path} is where the operator mounts {taken[path.rstrip('/')]}")


def _container(container: Any, where: Path) -> Iterator[Problem]:
    if not isinstance(container, dict):
        yield Problem(where, f"a map is expected, not {shown(container)}")
        return
    for key in ("command", "args"):
        value = container.get(key)
        if value is None:
            continue
        if not isinstance(value, list):
            example = json.dumps(str(value).split()) if isinstance(value, str) else '["python", "train.py"]'
            yield Problem((*where, key), f"a list is expected, for example {example}; not {shown(value)}")
            continue
        for i, word in enumerate(value):
            if not isinstance(word, str):
                yield Problem((*where, key, i), f"text is expected, not {shown(word)}: put it in quotes")
    env = container.get("env")
    if env is not None and not isinstance(env, list):
        yield Problem((*where, "env"), f"a list of name and value is expected, not {shown(env)}")
        return
    for i, variable in enumerate(env or []):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
            yield Problem((*where, "env", i), f"a map with a name and a value is expected, not {shown(variable)}")
        elif not isinstance(variable.get("value", ""), str):
            yield Problem(
                (*where, "env", i, "value"), f"text is expected, not {shown(variable['value'])}: put it in quotes"
            )
