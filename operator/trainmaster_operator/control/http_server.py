"""The control channel over HTTP: a thin layer around the Fleet.

POST /v1/join and /v1/report with `Authorization: Bearer <token>`, or `Session <session>` from an earlier answer. A
request is checked in this order: does this operator lead, who is the sender, does it send too many requests, is the
body short enough and here in time, is it a valid message. In a local run, GET /v1/jobs/<namespace>/<name> and the
probes are on the same socket.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from trainmaster.contract.wire import (
    LEADERLESS_HEADER,
    SESSION_HEADER,
    Directive,
    Identity,
    JoinRequest,
    Report,
    WireError,
    altered,
    decode,
    encode,
)
from trainmaster_operator.control.authentication import Credential
from trainmaster_operator.control.fleet import Fleet, Refused
from trainmaster_operator.control.http_connections import BACKLOG, Connection, ConnectionLimits, Listener
from trainmaster_operator.control.rate_limits import REQUESTS_OF_A_POD, Allowance, Buckets

log = logging.getLogger(__name__)

M = TypeVar("M", JoinRequest, Report)

_LONGEST_PAUSE_S = 1.0  # Seconds before a sender of too many requests gets its answer.
_STRIKE_PAUSE_S = 0.1
_MOST_STRIKES = 5
RESULTS = ("ok", "elsewhere", "unauthorized", "gone", "throttled", "bad", "unavailable", "error")
"""How requests are answered, as labels of a metric. elsewhere: this operator does not lead."""

_RESULT_OF = {401: "unauthorized", 403: "unauthorized", 410: "gone", 421: "elsewhere", 429: "throttled"}
_STRIKES = (400, 401, 403, 404, 405, 408, 413)


@dataclass(frozen=True)
class Limits:
    """Limits of the requests of agents."""

    body_bytes: int = 1024 * 1024  # A report of 256 ranks with a verdict is below 150 KB.
    body_s: float = 20.0
    pod_requests: Allowance = REQUESTS_OF_A_POD
    # An agent has two. Connections that a broken network left behind count until they are noticed.
    pod_connections: int = 8
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True)
class Probes:
    """Answers for the command of a local run on the same socket. On a cluster they are on a port of their own."""

    ready: Callable[[], bool]
    metrics: Callable[[], bytes]

    def answer(self, path: str) -> web.Response | None:
        """Return the answer for a path, or None for other paths. Raise Refused(503) while not ready."""
        if path == "/livez":
            return web.Response(text="ok")
        if path == "/readyz":
            if not self.ready():
                raise Refused(503, "not leading yet, or caches are still filling")
            return web.Response(text="ok")
        if path == "/metrics":
            return web.Response(
                body=self.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            )
        return None


class ControlServer:
    """Serves agents. `leader()`: None while this process leads, else the leader's https://address, or "" while that
    is unknown. `leaderless_s()`: the value of LEADERLESS_HEADER, or infinity for none. `people`: this socket also
    serves people and probes without authentication, in a local run. `counted`: called with one of RESULTS for each
    request of an agent."""

    def __init__(
        self,
        fleet: Fleet,
        people: Probes | None = None,
        *,
        leader: Callable[[], str | None] = lambda: None,
        leaderless_s: Callable[[], float] = lambda: math.inf,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        counted: Callable[[str], None] = lambda result: None,
    ) -> None:
        self._fleet = fleet
        self._counted = counted
        self._people = people
        self._leader = leader
        self._leaderless_s = leaderless_s
        self._limits = limits or Limits()
        self._buckets = Buckets(self._limits.pod_requests)
        self._pods: dict[str, dict[Connection, None]] = {}  # The connections of each pod, oldest first.
        self._listener = Listener(self._answer, tls, self._limits.connections, self._lost)

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket, which may already be listening."""
        await self._listener.start(sock)

    async def stop(self) -> None:
        await self._listener.stop()

    async def _answer(self, connection: Connection, request: web.BaseRequest) -> web.Response:
        try:
            response = await self._route(connection, request)
        except Refused as refused:
            response = _refusal(refused)
        except WireError as error:
            response = _error(400, str(error))
        except Exception as error:
            log.exception("%s %s", request.method, request.path)
            response = _error(500, f"{type(error).__name__} in the operator: its log says more")
        if request.path.startswith("/v1/"):
            self._counted(_result(response.status))
            if response.status != 200 and math.isfinite(leaderless_s := self._leaderless_s()):
                response.headers[LEADERLESS_HEADER] = f"{leaderless_s:.3f}"
        if response.status not in _STRIKES or self._people is not None:
            connection.strikes = 0
            return response
        # One refusal may be an accident. Further ones in succession are answered more and more slowly, and then the
        # connection is closed.
        await asyncio.sleep(_STRIKE_PAUSE_S * connection.strikes)
        connection.strikes += 1
        if connection.strikes >= _MOST_STRIKES:
            response.force_close()
        return response

    async def _route(self, connection: Connection, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path == "/v1/join":
            return await self._message(connection, request, JoinRequest, self._fleet.join)
        if path == "/v1/report":
            return await self._message(connection, request, Report, self._fleet.report)
        if self._people is not None and request.method == "GET":
            page = self._people.answer(path)
            if page is None:
                page = self._job(path)
            if page is not None:
                return page
        raise Refused(404, "there is nothing here")

    async def _message(
        self,
        connection: Connection,
        request: web.BaseRequest,
        kind: type[M],
        handle: Callable[[Identity, M], Awaitable[Directive]],
    ) -> web.Response:
        if request.method != "POST":
            raise Refused(405, "POST is expected")
        leader = self._leader()
        if leader is not None:
            return _elsewhere(leader)
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if not secret:
            raise Refused(401, "an Authorization header with a bearer token is missing")
        message: M | None = None

        async def read() -> M:
            nonlocal message
            if message is None:
                message = decode(kind, await self._body(request))
            return message

        async def claim() -> Identity:
            return (await read()).identity

        admission = await self._fleet.admit(Credential(scheme.lower(), secret), claim)
        self._keep(connection, admission.identity.pod_uid)
        await self._allow(admission.identity.pod_uid)
        heard = await read()
        answer = await handle(admission.identity, heard)
        if heard.protocol != answer.protocol:
            answer = altered(answer, protocol=heard.protocol)  # An older agent refuses a newer protocol than its own.
        response = web.Response(body=encode(answer), content_type="application/json")
        if admission.session:
            response.headers[SESSION_HEADER] = admission.session
        return response

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request. Raise Refused as soon as it is too long, too late or incomplete."""
        limit = self._limits.body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while len(body) <= limit and (request.content_length or 0) <= limit:
                    part = await request.content.readany()
                    if not part:
                        return bytes(body)
                    body += part
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self._limits.body_s:g} s") from None
        except web.RequestPayloadError as error:
            raise Refused(400, f"the body is broken: {error}") from None
        raise Refused(413, f"the body exceeded {limit} bytes")

    async def _allow(self, pod_uid: str) -> None:
        """Raise Refused(429) if a pod sends too many requests, so that it cannot slow down others."""
        wait_s = self._buckets.take(pod_uid, asyncio.get_running_loop().time())
        if wait_s:
            await asyncio.sleep(_LONGEST_PAUSE_S)
            raise Refused(429, "this pod sends more messages than an agent may send", max(wait_s, _LONGEST_PAUSE_S))

    def _keep(self, connection: Connection, pod_uid: str) -> None:
        """Record the pod to which a connection belongs. If the pod has too many, the oldest is closed: an agent that
        lost its network has left it behind."""
        if connection.pod == pod_uid or not connection.connected:
            return
        self._lost(connection)
        connection.pod = pod_uid
        mine = self._pods.setdefault(pod_uid, {})
        mine[connection] = None
        if len(mine) > self._limits.pod_connections:
            oldest = next(iter(mine))
            del mine[oldest]
            oldest.abort()

    def _lost(self, connection: Connection) -> None:
        mine = self._pods.get(connection.pod)
        if mine is not None:
            mine.pop(connection, None)
            if not mine:
                del self._pods[connection.pod]

    def _job(self, path: str) -> web.Response | None:
        parts = path.split("/")
        if len(parts) != 5 or parts[:3] != ["", "v1", "jobs"]:
            return None
        view = self._fleet.view((parts[3], parts[4]))
        if view is None:
            raise Refused(404, f"nothing is known of job {parts[3]}/{parts[4]}")
        return web.Response(body=encode(view), content_type="application/json")


def _result(status: int) -> str:
    if status < 400:
        return "ok"
    return _RESULT_OF.get(status) or ("bad" if status < 500 else "unavailable" if status == 503 else "error")


def _elsewhere(leader: str) -> web.Response:
    """Return the answer of a standby: 421 Misdirected Request, or 503 if the leader is unknown."""
    if not leader:
        return _error(503, "this operator does not lead, and does not know who does")
    return _error(421, "this operator does not lead", leader=leader)


def _refusal(refused: Refused) -> web.Response:
    response = _error(refused.status, str(refused))
    if refused.retry_after_s:
        response.headers["Retry-After"] = str(math.ceil(refused.retry_after_s))
    return response


def _error(status: int, message: str, **more: str) -> web.Response:
    body = json.dumps({"error": message, **more}).encode()
    return web.Response(status=status, body=body, content_type="application/json")


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise OSError with the address if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None


def inherited_socket(fd: int) -> socket.socket:
    """Return a listening socket that the parent process owns and keeps when this process ends."""
    return socket.socket(fileno=fd)
