"""The agent's side of the control channel: HTTP/1.1 with keep-alive over asyncio streams, JSON bodies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.wire import (
    LEADERLESS_HEADER,
    SESSION_HEADER,
    Directive,
    JoinRequest,
    Report,
    decode,
    encode,
)

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 16 * 1024 * 1024
_MOST_RETRY_AFTER_S = 60.0
_CONNECT_S = 4.0
_HANDSHAKE_S = 20.0
_HOPS = 4  # from one operator to another within one request
_UNAUTHORIZED = 401
_MISDIRECTED = 421


class Unreachable(Exception):
    """No operator answered, or the answer was not understood. The agent tries again later."""


class Refused(Exception):
    """The operator refused the request with an HTTP status such as 401, 403 or 410."""

    def __init__(self, status: int, text: str, retry_after_s: float = 0.0, leaderless_s: float = math.inf) -> None:
        super().__init__(f"{status}: {text[:200]}")
        self.status = status
        self.retry_after_s = retry_after_s  # 0: the operator doesn't say when to come again
        self.leaderless_s = leaderless_s  # see LEADERLESS_HEADER; infinity: the operator does not say


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: dict[str, str]
    text: bytes
    session: str  # that was shown

    def retry_after_s(self) -> float:
        seconds = self.headers.get("retry-after", "")
        return min(float(seconds), _MOST_RETRY_AFTER_S) if seconds.isdecimal() else 0.0

    def leaderless_s(self) -> float:
        try:
            seconds = float(self.headers.get(LEADERLESS_HEADER.lower(), ""))
        except ValueError:
            return math.inf
        return seconds if seconds >= 0 else math.inf


class Access:
    """What all connections of an agent share: the operator's address, and how both sides authenticate."""

    def __init__(self, url: str, token_file: str, ca_file: str = "") -> None:
        self._service = _address(url)
        self._leader: tuple[str, int] | None = None  # as a standby told us
        self._secure = url.startswith("https:")
        self._token_file = token_file
        self._ca_file = ca_file
        self._ca = ""
        self._tls: ssl.SSLContext | None = None
        self.session = ""
        self.cut_off_until = 0.0  # monotonic; an injected fault

    @property
    def server_name(self) -> str:
        """Return the name for which every operator's certificate is valid, at any address."""
        return self._service[0]

    @property
    def address(self) -> tuple[str, int]:
        return self._leader or self._service

    def authorization(self) -> tuple[str, str]:
        """Return the header line, and the session in it. The token is read each time, because it is rotated."""
        if self.session:
            return f"Authorization: Session {self.session}\r\n", self.session
        if not self._token_file:
            return "", ""
        with open(self._token_file) as file:
            return f"Authorization: Bearer {file.read().strip()}\r\n", ""

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of a new connection. The certificates are read again, because they are rotated,
        too."""
        if not self._secure:
            return None
        ca = ""
        if self._ca_file:
            with open(self._ca_file) as file:
                ca = file.read()
            if not ca.strip():
                raise ValueError(f"{self._ca_file} is empty")  # it must not mean: trust whom this image trusts
        if self._tls is None or ca != self._ca:
            self._tls = ssl.create_default_context(cadata=ca or None)
            self._ca = ca
        return self._tls

    def follow(self, text: bytes) -> bool:
        """Use the leader's address from a standby's answer. Return False if there is none, or none that we may
        accept."""
        try:
            leader = json.loads(text)["leader"]
            address = _address(leader)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        if leader.startswith("https:") != self._secure:
            return False
        self._leader = address
        return True

    def forget_leader(self) -> bool:
        """Use the service's address again. Return False if it was already in use."""
        known, self._leader = self._leader, None
        return known is not None


class Connection:
    """One request at a time over one TCP connection, which is opened when needed and then kept."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.sent_at = -math.inf  # when the last request was sent, in monotonic seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def join(self, request: JoinRequest, timeout_s: float) -> Directive:
        return await self._post("/v1/join", encode(request), timeout_s)

    async def report(self, report: Report, timeout_s: float) -> Directive:
        return await self._post("/v1/report", encode(report), timeout_s)

    def close(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._streams[1].close()
            self._streams = None

    async def _post(self, path: str, body: bytes, timeout_s: float) -> Directive:
        """Send a request, and follow standbys to the leader. Raises Unreachable or Refused."""
        access = self._access
        for _ in range(_HOPS):
            answer = await self._ask(path, body, timeout_s)
            if answer.status == _UNAUTHORIZED and answer.session:
                if access.session == answer.session:
                    access.session = ""  # the token tells who we are, and a new session comes with the answer
            elif answer.status == _MISDIRECTED and access.follow(answer.text):
                self.close()
            else:
                break
        if answer.status != 200:
            text = answer.text.decode(errors="replace")
            raise Refused(answer.status, text, answer.retry_after_s(), answer.leaderless_s())
        access.session = answer.headers.get(SESSION_HEADER.lower(), access.session)
        try:
            return decode(Directive, answer.text)
        except ValueError as error:
            raise Unreachable(str(error)) from None

    async def _ask(self, path: str, body: bytes, timeout_s: float) -> _Answer:
        """Send one request. Raises Unreachable.

        If the other side has closed a kept connection, open a new one. If the leader is not where a standby said, use
        the service's address. Each is done once.
        """
        while True:
            kept = self._streams is not None
            try:
                if self._streams is None:
                    self._streams = await self._open()
                return await asyncio.wait_for(self._exchange(*self._streams, path, body), timeout_s)
            except (OSError, EOFError, asyncio.TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
                self.close()
                broken = isinstance(error, (ConnectionError, EOFError, ssl.SSLError))
                if (kept and broken) or self._access.forget_leader():
                    continue
                raise Unreachable(f"{type(error).__name__}: {error}") from None
            except asyncio.CancelledError:
                self.close()
                raise

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
    ) -> _Answer:
        authorization, session = self._access.authorization()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._access.server_name}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{authorization}\r\n"
        )
        self.sent_at = time.monotonic()
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].partition(" ")[2][:3])
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        if headers.get("transfer-encoding", "").lower() == "chunked":
            text = await _chunks(reader)
        else:
            length = int(headers.get("content-length", "0"))
            if length > _BODY_LIMIT:
                raise ValueError(f"an answer of {length} bytes")
            text = await reader.readexactly(length)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return _Answer(status, headers, text, session)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        The service may lead to a machine that is gone, so the connection itself has a short limit. The TLS handshake
        has a longer one, because an operator may have thousands of them to do.
        """
        if time.monotonic() < self._access.cut_off_until:
            raise OSError("cut off: a fault was asked for")
        tls = self._access.tls()
        loop = asyncio.get_running_loop()
        host, port = self._access.address
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for last, (family, kind, protocol, _, where) in enumerate(found, 1 - len(found)):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await asyncio.wait_for(loop.sock_connect(sock, where), _CONNECT_S)
                break
            except (OSError, asyncio.TimeoutError):
                sock.close()
                if last == 0:
                    raise
            except asyncio.CancelledError:
                sock.close()
                raise
        secure: dict[str, Any] = {}
        if tls is not None:
            secure = {
                "ssl": tls,
                "server_hostname": self._access.server_name,
                "ssl_handshake_timeout": _HANDSHAKE_S,
            }
        return await asyncio.open_connection(sock=sock, limit=_HEAD_LIMIT, **secure)


def _address(url: str) -> tuple[str, int]:
    """Return (host, port) of a URL. Raises ValueError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"operator address {url!r}: http://host:port is expected")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
