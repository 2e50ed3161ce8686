"""Watches of an API server: how long one lasts, when a silent one is given up, and what its lines mean."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from trainmaster_operator.cluster.kubernetes_connection import NETWORK_ERRORS, Connection, Request
from trainmaster_operator.cluster.kubernetes_errors import refusal_in_stream, unanswered
from trainmaster_operator.cluster.line_splitter import LineSplitter
from trainmaster_operator.cluster.port import Object, Unavailable, WatchEvent

# Minimum number of seconds after which the server ends a watch. Up to a quarter is added, so that not all watches end
# at once.
WATCH_S = 300.0
WATCH_GRACE_S = 30.0  # Additional seconds for which the client waits for that end.
SILENCE_S = 90.0  # Bookmarks come about once a minute, so a watch that is silent for longer is dead.


async def watch(
    connection: Connection, request: Request, resource_version: str, chance: float
) -> AsyncIterator[WatchEvent]:
    """Yield the events after `resource_version`. `request`: with the selector. `chance`: a random number from 0 to 1.
    Raise ApiError."""
    timeout_s = WATCH_S * (1 + chance / 4)
    query: dict[str, str | list[str]] = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(int(timeout_s)),
        "resourceVersion": resource_version,
        **(request.query or {}),
    }
    request = request._replace(query=query)
    lines = LineSplitter()
    try:
        async with connection.stream(request, timeout_s + WATCH_GRACE_S, SILENCE_S) as body:
            async for chunk in body.iter_any():
                for line in lines.feed(chunk):
                    yield _event(request, line)
    except NETWORK_ERRORS as error:
        raise unanswered(request, error) from error
    if lines.unfinished:
        raise Unavailable(f"{request}: the watch broke in the middle of an event")


def _event(request: Request, line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        if event["type"] != "ERROR":
            return WatchEvent(event["type"], without_managed_fields(event["object"]))
        told = event["object"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"{request}: not an event: {line[:200]!r}") from error
    raise refusal_in_stream(str(request), told)


def without_managed_fields(obj: Object) -> Object:
    """Remove `metadata.managedFields` from an object, since nobody here reads it. Return the object."""
    obj["metadata"].pop("managedFields", None)
    return obj
