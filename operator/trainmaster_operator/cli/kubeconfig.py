"""The cluster that a user means: a kubeconfig, one of its contexts, and a namespace."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainmaster_operator.cli.refusal import Refusal

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT = "~/.kube/config"


@dataclass(frozen=True)
class Where:
    """The options of the command line that name a cluster; None if an option is not given."""

    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None

    @property
    def given(self) -> bool:
        """True if any of these options is given."""
        return self != Where()


@dataclass(frozen=True)
class Found:
    """The cluster. `kubeconfig` is None if this process runs in a pod and uses the credentials of that pod."""

    kubeconfig: str | None
    context: str | None
    namespace: str


def find(where: Where) -> Found:
    """Return the cluster. Raise Refusal if there is no kubeconfig, or none with that context."""
    files = _files(where)
    if not files:
        if where.kubeconfig is None and where.context is None and POD_NAMESPACE.is_file():
            return Found(None, None, where.namespace or POD_NAMESPACE.read_text().strip())
        raise Refusal(f"no kubeconfig: {DEFAULT} does not exist; use --kubeconfig, or set the variable KUBECONFIG")
    contexts, current = _contexts(files)
    name = where.context or current
    path = os.pathsep.join(files)
    if name is None:
        raise Refusal(f"{path}: has no current context; choose one with --context: {_listed(contexts)}")
    if name not in contexts:
        near = difflib.get_close_matches(name, contexts, 1)
        hint = f"did you mean {near[0]}?" if near else f"its contexts are: {_listed(contexts)}"
        raise Refusal(f"{path}: has no context {name}; {hint}")
    return Found(path, name, where.namespace or contexts[name].get("namespace") or "default")


def is_there() -> bool:
    """Return whether `find` has anything to read without options. Raise Refusal if KUBECONFIG names a file that does
    not exist."""
    return bool(_files(Where())) or POD_NAMESPACE.is_file()


def _files(where: Where) -> list[str]:
    """Return the existing files: KUBECONFIG may name several, of which some may be missing."""
    given = where.kubeconfig or os.environ.get("KUBECONFIG")
    files = [os.path.expanduser(part) for part in (given or DEFAULT).split(os.pathsep) if part]
    existing = [file for file in files if os.path.exists(file)]
    if given and not existing:
        source = "--kubeconfig" if where.kubeconfig else "KUBECONFIG"
        raise Refusal(f"{source} {given}: does not exist")
    return existing


def _contexts(files: list[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return the contexts by name, and the name of the current one. If several files have a value, the first one
    counts."""
    contexts: dict[str, dict[str, Any]] = {}
    current: str | None = None
    for file in files:
        try:
            content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            raise Refusal(f"{file}: cannot be read as a kubeconfig: {reason}") from None
        if not isinstance(content, dict) or not isinstance(content.get("contexts") or [], list):
            raise Refusal(f"{file}: is not a kubeconfig")
        for entry in content.get("contexts") or []:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                contexts.setdefault(entry["name"], _context(file, entry))
        named = content.get("current-context") or None
        if not isinstance(named, (str, type(None))):
            raise Refusal(f"{file}: is not a kubeconfig: its current-context is no text")
        current = current or named
    return contexts, current


def _context(file: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the context of an entry. Raise Refusal if it is no map, or if its namespace is no text."""
    found = entry.get("context") or {}
    if not isinstance(found, dict):
        raise Refusal(f"{file}: is not a kubeconfig: its context {entry['name']} is no map")
    if not isinstance(found.get("namespace") or "", str):
        raise Refusal(f"{file}: is not a kubeconfig: the namespace of its context {entry['name']} is no text")
    return found


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
