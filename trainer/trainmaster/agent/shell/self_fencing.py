"""When a pod must end on its own, because no other process can reach it.

Checkpoints of our own loop are protected by their lineage; files of a script are not. So a script's pod on a node that
the cluster cannot reach may be replaced only when its ranks are dead. Its agent kills them when it has reached neither
a leader nor the API server for a while, and the leader waits for longer than that. While only the operator is away,
training continues.

An operator that does not lead proves nothing by its answer alone, because it may be cut off together with the agent.
Its refusal counts if it knows that nobody led a short time ago, because then nobody replaced pods. It also counts while
that operator does not reach the API server, for a limited time for which each leader waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

LEASE_S = 15.0
LOOK_S = 1.0
CONNECT_S = 2.0
"""After its last answer the operator waits for 20 s (`SCRIPT_FORCE_AFTER_S` of `planning.placement.replaced_pods`):
longer than all three together."""


def api_server(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address at which every pod of a cluster finds the API server, or None outside of a cluster."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    return (host, int(port)) if host and port.isdigit() else None


class Lease:
    """A lease that each answer of a leader renews, and so does an API server that can be reached.

    It counts from when a request was sent, not from when its answer came. The operator counts from when it answered,
    and a network that breaks and heals may deliver an answer many seconds after that.
    """

    def __init__(self, api: tuple[str, int]) -> None:
        self._api = api
        self._renewed_at = time.monotonic()

    def renew(self, sent_at: float) -> None:
        """Note that this pod could not be replaced at `sent_at`, in monotonic seconds: a request was sent then that an
        operator answered with which each leader reckons, or nobody led."""
        self._renewed_at = max(self._renewed_at, sent_at)

    async def over(self) -> str:
        """Wait until the lease has expired, and return why, for people."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._holds():
                continue
            asked_at = time.monotonic()
            if await self._api_answers():
                self.renew(asked_at)
            elif not self._holds():  # A leader may have answered meanwhile.
                return f"neither a leader of the operators nor the API server was reached for {LEASE_S:g} s"

    def _holds(self) -> bool:
        return time.monotonic() - self._renewed_at < LEASE_S

    async def _api_answers(self) -> bool:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection(*self._api), CONNECT_S)
            writer.close()
            return True
        return False
