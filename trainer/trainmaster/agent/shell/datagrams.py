"""Small messages between the agents of a round, at the port of each agent's peer server, authenticated by the round's
secret.

A message may be lost, duplicated or late. The sender of an important message repeats it until it is answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, cast

from trainmaster.agent.shell import pod_log
from trainmaster.contract.wire import StoreAddress

LONGEST = 1200  # bytes: it fits into one packet of any network
_PROOF_BYTES = 16
_PURPOSE = b"trainmaster ring\0"

Received = Callable[[dict[str, Any], StoreAddress], None]


class Datagrams(asyncio.DatagramProtocol):
    """Sends and receives datagrams. `received(message, sender)` is called for senders that know the secret.

    Without a secret nothing is sent.
    """

    def __init__(self, received: Received) -> None:
        self.secret = ""
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, address: StoreAddress | None) -> None:
        """Listen at the number of the peers' port. If that is not possible, there is no ring."""
        if address is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_datagram_endpoint(lambda: self, local_addr=(address.host, address.port))
        except OSError as error:
            pod_log.note(f"other agents can't be asked whether they live: {address}: {error}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def send(self, to: StoreAddress, message: dict[str, Any]) -> None:
        if self._transport is None or not self.secret:
            return
        body = json.dumps(message, separators=(",", ":")).encode()
        assert len(body) + _PROOF_BYTES <= LONGEST, f"a message of {len(body)} bytes"
        self._transport.sendto(self._proof(body) + body, (to.host, to.port))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # asyncio's own isn't one by its class

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        proof, body = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
        if not self.secret or len(data) > LONGEST or not hmac.compare_digest(proof, self._proof(body)):
            return
        self._received(json.loads(body), StoreAddress(addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        """Ignore that no process listens there: the missing answers show it."""

    def _proof(self, body: bytes) -> bytes:
        return hmac.digest(self.secret.encode(), _PURPOSE + body, hashlib.sha256)[:_PROOF_BYTES]
