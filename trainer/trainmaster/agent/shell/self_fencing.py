"""When a pod must end by itself since nobody could tell it to.

Checkpoints of our own loop are fenced off by their lineage, files of a script are not. So a script's pod on a node
that the cluster doesn't hear may only be replaced once its ranks are dead: its agent kills them when it has reached
neither an operator nor the API server for a while, and the operator waits for longer than that. While only the
operator is away, training goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

LEASE_S = 15.0
LOOK_S = 1.0
CONNECT_S = 2.0
"""Since its last answer the operator waits for 20 s (`SCRIPT_FORCE_AFTER_S` of `planning.placement.pod_slots`): longer
than all three together."""


def api_server(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Where every pod of a cluster finds the API server; None outside of one."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    return (host, int(port)) if host and port.isdigit() else None


class Lease:
    """Renewed by each answer of an operator, and by the API server's being there."""

    def __init__(self, api: tuple[str, int]) -> None:
        self._api = api
        self._renewed_at = time.monotonic()

    def renew(self) -> None:
        self._renewed_at = time.monotonic()

    async def over(self) -> str:
        """Returns, with words for people, when it has run out."""
        while True:
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - self._renewed_at < LEASE_S:
                continue
            if not await self._api_answers():
                return f"neither an operator nor the API server was reached for {LEASE_S:g} s"
            self.renew()

    async def _api_answers(self) -> bool:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection(*self._api), CONNECT_S)
            writer.close()
            return True
        return False
