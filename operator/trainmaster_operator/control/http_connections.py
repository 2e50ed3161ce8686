"""Connections of the control channel: TLS, time limits and bounds. http_server.py handles the content.

Everything that a stranger can make this process keep is bounded: the number of connections, the seconds until a
handshake and a request are complete, and the bytes that are read of a request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from trainmaster_operator.control.crowd_event_loop import TurnLoop
from trainmaster_operator.control.open_files import allow_more_files

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 0.2
BACKLOG = 4096
_OUT_OF_FILES_S = 0.5  # Seconds until the next try if this process has no free file descriptor.
_READ_BYTES = 16 * 1024
_SHORT_BYTES = 64 * 1024  # The unwanted body of a request is read up to this size, and the connection stays open.
_SHORT_S = 1.0

Answer = Callable[["Connection", web.BaseRequest], Awaitable[web.Response]]


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the connections. Times are in seconds."""

    connections: int = 16384
    # Number of connections accepted in succession; then existing connections are served, however many more wait.
    accepts: int = 16
    handshakes: int = 256  # Maximum number of simultaneous handshakes; further connections wait to be accepted.
    stuck_s: float = 1.0  # If all handshakes are taken and none ends within this time, they are ended.
    handshake_s: float = 10.0
    head_s: float = 10.0  # From the handshake, or from the first byte of a request, to the end of its headers.
    send_s: float = 10.0
    keep_alive_s: float = 75.0
    linger_s: float = 0.5  # Seconds to hold a refused connection open so that the client can read the error.


class Connection(web.RequestHandler):
    """One connection, with the deadline for the next request's headers, the pod to which it belongs, and the number
    of refusals."""

    __slots__ = ("_busy", "_late", "_limits", "_lost", "made", "pod", "strikes")

    def __init__(self, server: web.Server, limits: ConnectionLimits, lost: Callable[[Connection], None]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.keep_alive_s,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=0.0,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,  # Agents do not compress, and a small compressed body can expand to a huge one.
        )
        self.made = False
        self.pod = ""  # The uid of the pod that has proven to be the client.
        self.strikes = 0  # Number of refusals since the last accepted request.
        self._lost = lost
        self._limits = limits
        self._busy = False
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.made = True
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        if data and not self._busy:
            self._expect_request()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._lost(self)

    def begin(self) -> None:
        """Record that the headers of a request have arrived."""
        self._busy = True
        self._stop_waiting()

    def end(self) -> None:
        """Record that the request is answered."""
        self._busy = False

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to what is not HTTP. No traceback is logged, because anybody can send this."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        log.debug("not HTTP, from %s: %s", request.remote, message)
        body = b'{"error": "this is not HTTP as it is understood here"}'
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response

    def _expect_request(self) -> None:
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._limits.head_s, self.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Listener:
    """Accepts connections on one socket and lets `answer` respond to each request; `answer` must not raise.
    `lost(connection)` is called when a connection has ended."""

    def __init__(
        self, answer: Answer, tls: ssl.SSLContext | None, limits: ConnectionLimits, lost: Callable[[Connection], None]
    ) -> None:
        self._answer = answer
        self._tls = tls
        self._limits = limits
        self._lost = lost
        self._server: web.Server | None = None
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshaking: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()  # One of them has ended.
        self._open = 0
        self._room = asyncio.Event()
        self._room.set()

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket, which may already be listening."""
        if self._tls is not None:
            # By default asyncio fills a buffer of 256 KiB with zeros for each connection: 2 GiB for the agents of 4,000
            # pods.
            sslproto.SSLProtocol.max_size = _READ_BYTES
        allow_more_files(self._limits.connections + 512)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._socket = sock
        # A poll whose connection breaks must be cancelled: this shows the death of an agent at once.
        self._server = web.Server(self._respond, handler_cancellation=True)
        self._accepting = asyncio.create_task(self._accept(sock))

    async def stop(self) -> None:
        """Stop accepting, and close all connections."""
        if self._accepting is None or self._server is None or self._socket is None:
            return
        tasks = [self._accepting, *self._handshaking]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._socket.close()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSE_WAIT_S)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        in_a_row = 0
        while True:
            await self._room.wait()
            await self._make_way()
            try:
                client, _ = await loop.sock_accept(sock)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.warning("no connection can be accepted now: %s", error)
                    await asyncio.sleep(_OUT_OF_FILES_S)
                else:
                    log.debug("a connection was not accepted: %s", error)
                    await asyncio.sleep(0)
                continue
            self._count(1)
            task = loop.create_task(self._welcome(client))
            self._handshaking.add(task)
            task.add_done_callback(self._shaken)
            in_a_row += 1
            if in_a_row >= self._limits.accepts:
                in_a_row = 0
                await asyncio.sleep(0)  # Accepting waiting connections does not let other tasks run by itself.

    def _shaken(self, task: asyncio.Task[None]) -> None:
        self._handshaking.discard(task)
        self._over.set()

    async def _make_way(self) -> None:
        """Wait until one more connection may begin its handshake. End all handshakes if none of them ends in time."""
        while len(self._handshaking) >= self._limits.handshakes:
            self._over.clear()
            try:
                async with asyncio.timeout(self._limits.stuck_s):
                    await self._over.wait()
            except TimeoutError:
                for task in self._handshaking:
                    task.cancel()
                await asyncio.wait(self._handshaking)

    async def _welcome(self, client: socket.socket) -> None:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        if isinstance(loop, TurnLoop):
            client = loop.in_crowd(client)
        connection = Connection(self._server, self._limits, self._ended)
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {
                "ssl": self._tls,
                "ssl_handshake_timeout": self._limits.handshake_s,
                "ssl_shutdown_timeout": CLOSE_WAIT_S,
            }
        try:
            await loop.connect_accepted_socket(lambda: connection, client, **tls)
        except (OSError, EOFError) as error:
            log.debug("a connection was not made: %s", error)
        finally:
            if not connection.made:
                self._count(-1)

    def _ended(self, connection: Connection) -> None:
        self._count(-1)
        self._lost(connection)

    def _count(self, change: int) -> None:
        self._open += change
        if self._open < self._limits.connections:
            self._room.set()
        else:
            self._room.clear()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin()
        try:
            response = await self._answer(connection, request)
            response.headers["Server"] = "trainmaster"  # The default header would name versions of software.
            whole = await _finish_body(request)
            if not whole:
                response.force_close()
            try:
                async with asyncio.timeout(self._limits.send_s):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                connection.abort()  # The client does not read the answer.
            except ConnectionError:
                pass  # The client has closed the connection.
            else:
                if not whole:
                    await asyncio.sleep(self._limits.linger_s)
            return response
        finally:
            connection.end()


async def _finish_body(request: web.BaseRequest) -> bool:
    """Read the rest of a body if it is short. Return False if not all of the body was read."""
    content = request.content
    if content.is_eof():
        return True
    if (request.content_length or _SHORT_BYTES + 1) > _SHORT_BYTES:
        return False
    try:
        async with asyncio.timeout(_SHORT_S):
            while not content.at_eof():
                await content.readany()
    except (TimeoutError, web.RequestPayloadError):
        return False
    return True
