"""Environment variables of a container as a kubelet makes them: values that refer to other variables or to fields of
the pod.

`$(NAME)` is replaced by the value of a variable that comes earlier in the list. `$$` is one `$`, so `$$(NAME)` becomes
`$(NAME)`. An unknown name stays as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster.contract.wire import environment

FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "status.podIP")
"""Fields of the pod that a variable can use on this machine."""

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_OURS = "TRAINMASTER_"
_COMMANDS = (environment.COMMAND, environment.RESTART_COMMAND)  # JSON lists of the words of the user's command.
_CLUSTER_ONLY = {
    "secretKeyRef": "a Secret",
    "configMapKeyRef": "a ConfigMap",
    "resourceFieldRef": "the container's resources",
    "fileKeyRef": "a file of a volume",
}


def expand(text: str, known: Mapping[str, str]) -> str:
    """Return `text` with the values of the variables that it names."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else known.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def expand_all(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Return the words with the values of the variables that they name."""
    return [expand(word, known) for word in words]


def of_container(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container. `fields`: the values of FIELDS, as far as they are known; a variable that
    uses another field is left out. Values of our own variables are not expanded, except the words of the user's
    command.

    Raise ValueError with one sentence for a variable that has no value on this machine.
    """
    known: dict[str, str] = {}
    for item in container.get("env") or []:
        name = item["name"]
        source = item.get("valueFrom")
        if source is not None:
            if (problem := unavailable(source)) is not None:
                raise ValueError(f"env {name}: {problem}")
            path = _field(source)
            if path in fields:
                known[name] = fields[path]
        elif name in _COMMANDS:
            known[name] = json.dumps(expand_all(json.loads(item.get("value", "[]")), known))
        else:
            value = item.get("value", "")
            known[name] = value if name.startswith(_OURS) else expand(value, known)
    return known


def unavailable(source: Any) -> str | None:
    """Return why a `valueFrom` has no value on this machine, and what would be right; None if it has one or may be
    left out."""
    if not isinstance(source, Mapping):
        return "a map is expected, for example {fieldRef: {fieldPath: metadata.name}}"
    for kind, what in _CLUSTER_ONLY.items():
        reference = source.get(kind)
        if reference is not None:
            if isinstance(reference, Mapping) and reference.get("optional"):
                return None
            return f"{kind} takes its value from {what}, which only a cluster has; a value is expected for a local run"
    path = _field(source)
    if path and path not in FIELDS:
        return f"fieldRef {path!r} is not known on this machine; {', '.join(FIELDS)} are"
    return None


def _field(source: Mapping[str, Any]) -> str:
    """Return the field of the pod that the source names; "" if it names none."""
    reference = source.get("fieldRef")
    return str(reference.get("fieldPath") or "") if isinstance(reference, Mapping) else ""


def problems(container: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (place in the container, what is wrong) for each variable that has no value on this machine."""
    for number, item in enumerate(container.get("env") or []):
        source = item.get("valueFrom")
        if source is not None and (problem := unavailable(source)) is not None:
            yield ("env", number, "valueFrom"), problem
    if container.get("envFrom"):
        yield (
            ("envFrom",),
            "takes variables from a ConfigMap or a Secret, which only a cluster has; env with values is expected for a "
            "local run",
        )
