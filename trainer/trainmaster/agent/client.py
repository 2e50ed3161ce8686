"""The agent's side of the control channel: HTTP/1.1 with keep-alive over asyncio streams, JSON bodies."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import urllib.parse
from typing import TypeVar

from trainmaster.contract.wire import Directive, JoinRequest, Report, decode, encode

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 16 * 1024 * 1024

M = TypeVar("M")


class Unreachable(Exception):
    """Nobody answered, or not in our language: try again later."""


class Refused(Exception):
    """The operator answered with a status that says no: 401, 403, 410..."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:200]}")
        self.status = status


class Connection:
    """One request at a time over one TCP connection, opened when needed and kept."""

    def __init__(self, url: str, token_file: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"operator address {url!r}: http://host:port is expected")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._token_file = token_file
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
        """Raises Unreachable or Refused. A kept connection that the other side has closed is opened anew, once."""
        kept = self._streams is not None
        try:
            status, text = await asyncio.wait_for(self._exchange(path, body), timeout_s)
        except (OSError, EOFError, asyncio.TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            if kept and isinstance(error, (ConnectionError, EOFError)):
                return await self._post(path, body, timeout_s)
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        except asyncio.CancelledError:
            self.close()
            raise
        if status == 200:
            try:
                return decode(Directive, text)
            except ValueError as error:
                raise Unreachable(str(error)) from None
        raise Refused(status, text.decode(errors="replace"))

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_HEAD_LIMIT)
        reader, writer = self._streams
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{self._authorization()}\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
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
        return status, text

    def _authorization(self) -> str:
        """Read each time: a projected token is rotated."""
        if not self._token_file:
            return ""
        with open(self._token_file) as file:
            return f"Authorization: Bearer {file.read().strip()}\r\n"


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
