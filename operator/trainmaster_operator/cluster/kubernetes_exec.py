"""Runs a command in a container through the API server, as `kubectl exec` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import WSMsgType

from trainmaster_operator.cluster.kubernetes_connection import Connection, Request
from trainmaster_operator.cluster.port import POD, Unavailable

PROTOCOL = "v4.channel.k8s.io"
TIMEOUT_S = 30.0
_MOST = 1 << 20  # bytes that are kept of each channel
_OUT, _ERR, _STATUS = 1, 2, 3  # The first byte of each message names its channel.


@dataclass
class Done:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str


async def execute(
    connection: Connection,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    receive: Callable[[bytes], None] | None = None,
) -> Done:
    """Run a command and return its result. Raise the error that a refusal means, or Unavailable if the connection
    breaks or the command does not end within `timeout_s` seconds.

    `receive` gets the output piece by piece; then the result has none. What it raises ends the connection.
    """
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec"
    query: dict[str, str | list[str]] = {
        "container": container,
        "command": list(command),
        "stdout": "true",
        "stderr": "true",
    }
    request = Request("exec", POD, "GET", path, query)
    heard = {_OUT: b"", _ERR: b"", _STATUS: b""}
    try:
        async with asyncio.timeout(timeout_s), connection.websocket(request, PROTOCOL) as socket:
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not message.data or message.data[0] not in heard:
                    continue
                if receive is not None and message.data[0] == _OUT:
                    receive(message.data[1:])
                    continue
                heard[message.data[0]] += message.data[1:]
                if len(heard[message.data[0]]) > _MOST:
                    raise Unavailable(f"{request}: wrote more than {_MOST >> 20} MiB")
    except TimeoutError:
        raise Unavailable(f"{request}: no end within {timeout_s:g} s") from None
    return Done(
        _code(request, heard[_STATUS]), heard[_OUT].decode(errors="replace"), heard[_ERR].decode(errors="replace")
    )


def _code(request: Request, status: bytes) -> int:
    """Return the exit code in a Status. Raise Unavailable if there is none."""
    try:
        told = json.loads(status)
        if told["status"] == "Success":
            return 0
        causes = {
            cause.get("reason"): cause.get("message") for cause in (told.get("details") or {}).get("causes") or []
        }
        if "ExitCode" in causes:
            return int(causes["ExitCode"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unavailable(f"{request}: broke off") from None
    raise Unavailable(f"{request}: {told.get('message') or 'it could not be started'}")
