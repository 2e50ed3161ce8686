"""Runs a command in a container through the API server, as `kubectl exec` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import WSMsgType

from trainmaster_operator.cluster.kubernetes_connection import Connection, Request
from trainmaster_operator.cluster.port import POD, Unavailable

PROTOCOL = "v4.channel.k8s.io"
TIMEOUT_S = 30.0
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
) -> Done:
    """Run a command and return its result. Raise the error that a refusal means, or Unavailable if the connection
    breaks or the command does not end within TIMEOUT_S seconds."""
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
        async with asyncio.timeout(TIMEOUT_S), connection.websocket(request, PROTOCOL) as socket:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data and message.data[0] in heard:
                    heard[message.data[0]] += message.data[1:]
    except TimeoutError:
        raise Unavailable(f"{request}: no end within {TIMEOUT_S:g} s") from None
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
