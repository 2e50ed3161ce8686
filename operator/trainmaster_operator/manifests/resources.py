"""Requests and limits of CPU and memory of a pod: with the memory tier added, and as numbers to compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.quantities import bytes_of, millis_of, quantity_of
from trainmaster_operator.manifests.keyed_lists import Object


class Amount(NamedTuple):
    """A request or limit of one container."""

    container: str
    kind: str  # requests or limits.
    resource: str  # cpu or memory.
    amount: int  # Thousandths of a CPU, or bytes.


_READ = {"cpu": millis_of, "memory": bytes_of}


def with_ram_counted(given: Object, job: DistributedTrainingJob) -> Object:
    """Return `given`, a container or a pod's spec, with the memory tier added to its memory request and limit.

    What is written to a memory volume is memory of the container that writes it. A limit that was measured for training
    alone would be exceeded at the worst moment, when survivors save; a request without the volume would let the
    scheduler promise the same memory twice. A request or limit that the template leaves out stays absent: a request
    that is left out follows the limit, so a Guaranteed pod stays Guaranteed.
    """
    resources = given.get("resources") or {}
    raised = {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        size = bytes_of(str(amounts.get("memory", "")))
        if size is not None and job.spec.ram_bytes:
            raised[kind] = {**amounts, "memory": quantity_of(size + job.spec.ram_bytes)}
    return {**given, "resources": {**resources, **raised}} if raised else given


def amounts(containers: Sequence[Object]) -> tuple[Amount, ...]:
    """Return the requests and limits of containers. If a request is left out and there is a limit, the request
    equals the limit, as on the API server."""
    found = []
    for container in containers:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        for kind, given in (("limits", limits), ("requests", {**limits, **(resources.get("requests") or {})})):
            for resource, read in _READ.items():
                amount = read(str(given[resource])) if resource in given else None
                if amount is not None:
                    found.append(Amount(str(container.get("name", "")), kind, resource, amount))
    return tuple(sorted(found))


def changes(wanted: Sequence[Amount], asked: Sequence[Amount]) -> dict[str, Object]:
    """Return the resources to set, by name of the container: what is wanted now and was not `asked` before. Other
    amounts stay as they are, because they may be defaults of the namespace."""
    made: dict[str, Object] = {}
    known = set(asked)
    for one in wanted:
        if one not in known:
            text = f"{one.amount}m" if one.resource == "cpu" else str(one.amount)
            made.setdefault(one.container, {}).setdefault(one.kind, {})[one.resource] = text
    return made


def written(wanted: Sequence[Amount]) -> str:
    """Return the text of the annotation `object_names.RESOURCES`."""
    return json.dumps(changes(wanted, ()), separators=(",", ":"))


def read(text: str) -> tuple[Amount, ...]:
    """Return the amounts that `written` wrote; () if the text is something else. Every user who may create pods may
    write any text there, and an error here would end the cache of all pods."""
    try:
        known = json.loads(text)
        return amounts([{"name": name, "resources": resources} for name, resources in known.items()])
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ()
