"""The logs of containers, line by line with the time of each line, which kubelets deliver through the API server."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, NamedTuple
from urllib.parse import quote

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cluster.kubernetes_connection import NETWORK_ERRORS, Connection, Request
from trainmaster_operator.cluster.kubernetes_errors import unanswered
from trainmaster_operator.cluster.line_splitter import LineSplitter
from trainmaster_operator.cluster.port import POD, Object

WHOLE_S = 600.0  # Seconds for the whole log of one container.
QUIET_S = 60.0
FOLLOW_S = 3600.0  # After this time, or after a silence, the stream is opened again at the same place.
FOLLOW_QUIET_S = 300.0

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")


@dataclass(frozen=True)
class Source:
    """The main container of a pod."""

    namespace: str
    pod: str
    uid: str
    container: str
    role: str
    slot: int
    started: bool  # True if there is a log.
    ended: bool

    @property
    def place(self) -> str:
        return f"{self.role}-{self.slot}"


class Line(NamedTuple):
    at: str  # UTC with nanoseconds, so that texts sort like the times.
    text: bytes


Read = Callable[[Source, bool, str], AsyncIterator[bytes]]
"""(source, follow, since) -> raw lines with timestamps, from that time on ("" for the start). Raises ApiError."""


def source(pod: Object) -> Source:
    """Return the main container of a pod object."""
    meta, status = pod["metadata"], pod.get("status") or {}
    labels = meta.get("labels") or {}
    slot = labels.get(f"{GROUP}/slot", "")
    container = pod["spec"]["containers"][0]["name"]
    states = [c.get("state") or {} for c in status.get("containerStatuses") or [] if c.get("name") == container]
    return Source(
        namespace=meta["namespace"],
        pod=meta["name"],
        uid=meta["uid"],
        container=container,
        role=labels.get(f"{GROUP}/role", "pod"),
        slot=int(slot) if slot.isdigit() else -1,
        started=any("running" in state or "terminated" in state for state in states),
        ended=any("terminated" in state for state in states) or status.get("phase") in ("Succeeded", "Failed"),
    )


def reader(connection: Connection) -> Read:
    """Return a function that reads logs over this connection."""

    async def read(source: Source, follow: bool, since: str) -> AsyncIterator[bytes]:
        query = {"container": source.container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if since:
            query["sinceTime"] = since
        path = f"/api/v1/namespaces/{quote(source.namespace, safe='')}/pods/{quote(source.pod, safe='')}/log"
        request = Request("logs", POD, "GET", path, query)
        lines = LineSplitter()
        limits = (FOLLOW_S, FOLLOW_QUIET_S) if follow else (WHOLE_S, QUIET_S)
        try:
            async with connection.stream(request, *limits) as body:
                async for chunk in body.iter_any():
                    for line in lines.feed(chunk):
                        yield line
        except TimeoutError as error:
            if not follow:
                raise unanswered(request, error) from error
        except NETWORK_ERRORS as error:
            raise unanswered(request, error) from error
        if lines.unfinished:
            for line in lines.feed(b"\n"):
                yield line

    return read


def parsed(raw: bytes, before: str) -> Line:
    """Return a line with its time. `before`: the time of the previous line, for a line without a time."""
    match = _STAMP.match(raw)
    if match is None:
        return Line(before, raw)
    moment, fraction, zone = match[1].decode(), (match[2] or b"").decode().ljust(9, "0"), match[3].decode()
    if zone != "Z":
        moment = datetime.fromisoformat(moment + zone).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return Line(f"{moment}.{fraction}Z", raw[match.end() :])


def in_order(files: Iterable[IO[bytes]]) -> Iterator[tuple[int, Line]]:
    """Yield the lines of several logs ordered by time, each with the number of its file. The files are read as the
    lines are needed."""

    def lines(number: int, file: IO[bytes]) -> Iterator[tuple[int, Line]]:
        before = ""
        for raw in file:
            line = parsed(raw.rstrip(b"\n"), before)
            before = line.at
            yield number, line

    return heapq.merge(*(lines(n, file) for n, file in enumerate(files)), key=lambda entry: entry[1].at)
