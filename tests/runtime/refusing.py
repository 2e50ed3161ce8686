"""An API server that refuses one kind of call, in the words of a real one, until it heals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance
from trainmaster_operator.cluster.kubernetes_errors import refusal, unanswered
from trainmaster_operator.cluster.port import LEASE, ApiError, Cluster

CALL = "POST /api/v1/namespaces/space/things"


def answered(code: int, reason: str, message: str, retry_after: str | None = None) -> Callable[[], ApiError]:
    """What the adapter raises for such an answer."""
    body = json.dumps({"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})
    return lambda: refusal(CALL, code, body.encode(), retry_after)


WEBHOOK = (
    'Internal error occurred: failed calling webhook "policy.example.com": failed to call webhook: Post '
    '"https://policy.tools.svc:443/validate?timeout=10s": no endpoints available for service "policy"'
)
TERMINATING = 'things "x" is forbidden: unable to create new content in namespace space because it is being terminated'

REFUSALS: dict[str, tuple[Callable[[], ApiError], str, str]] = {
    "403": (answered(403, "Forbidden", "things is forbidden: User cannot do this"), "Forbidden", "User cannot do this"),
    "409": (answered(409, "Conflict", "the object has been modified"), "Conflict", "the object has been modified"),
    "422": (answered(422, "Invalid", 'thing "x" is invalid: spec: no'), "Invalid", "is invalid: spec: no"),
    "429": (answered(429, "TooManyRequests", "too many requests", "7"), "TooManyRequests", "too many requests"),
    "500": (answered(500, "InternalError", WEBHOOK), "WebhookFailed", "no endpoints available for service"),
    "503": (answered(503, "ServiceUnavailable", "apiserver is shutting down"), "ServiceUnavailable", "shutting down"),
    "504": (answered(504, "Timeout", "request did not complete in time"), "Timeout", "did not complete in time"),
    "time-out": (lambda: unanswered(CALL, TimeoutError()), "Timeout", f"{CALL}: TimeoutError"),
    "dropped": (lambda: unanswered(CALL, aiohttp.ServerDisconnectedError()), "NoAnswer", "Server disconnected"),
}
"""By name: the error, the reason in a condition, and words of the message."""


class Refusing(FaultyCluster):
    """`refuses(verb, kind)` says which calls get `error()`. `refused`: the name of each such call's object, and when it
    was made, in seconds."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner, chance())
        self.refuses: Callable[[str, str], bool] = lambda verb, kind: False
        self.error: Callable[[], ApiError] = REFUSALS["503"][0]
        self.refused: list[tuple[str, float]] = []

    @property
    def calls(self) -> list[float]:
        """When a call was refused."""
        return [at for _, at in self.refused]

    def refuse(self, error: Callable[[], ApiError], *calls: tuple[str, str]) -> None:
        """From now on, these verbs of these kinds."""
        self.error = error
        self.refuses = lambda verb, kind: (verb, kind) in calls

    def heal(self) -> None:
        self.refuses = lambda verb, kind: False

    async def _write(self, verb: str, kind: str, name: str, call: Any) -> Any:
        if kind != LEASE and self.refuses(verb, kind):
            self.refused.append((name, asyncio.get_running_loop().time()))
            raise self.error()
        return await super()._write(verb, kind, name, call)
