"""A job on a cluster by the name that a user typed, or the names that the user may have meant."""

from __future__ import annotations

import difflib

from trainmaster_operator.cli.cluster_connection import Target, not_installed
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.port import JOB, NotFound, Object

SHOWN = 5  # Maximum number of names in a hint.


async def find(target: Target, name: str) -> Object:
    """Return the job. Raise Refusal with the nearest name if there is none."""
    try:
        return await target.cluster.get(JOB, target.namespace, name)
    except NotFound:
        pass
    names = [job["metadata"]["name"] for job in await jobs(target)]
    raise Refusal(f"{target.namespace}/{name}: there is no such job{_hint(name, names, target.namespace)}")


async def jobs(target: Target) -> list[Object]:
    """Return the jobs of the namespace. Raise Refusal if Trainmaster is not installed."""
    try:
        return (await target.cluster.list(JOB, target.namespace)).items
    except NotFound:
        raise not_installed(target) from None


def _hint(name: str, names: list[str], namespace: str) -> str:
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]}?"
    if not names:
        return f"; namespace {namespace} holds none"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"; the namespace has {', '.join(names[:SHOWN])}{more}"
