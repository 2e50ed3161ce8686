"""Small messages between the agents of a round, at the port where each answers its peers, proven by the round's secret.

Any of them may be lost, doubled or late: whoever sends one that matters sends it again until it is answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, cast

from trainmaster.contract.wire import StoreAddress

LONGEST = 1200  # bytes: it fits into one packet of any network
_PROOF_BYTES = 16
_PURPOSE = b"trainmaster ring\0"

Received = Callable[[dict[str, Any], StoreAddress], None]


class Datagrams(asyncio.DatagramProtocol):
    """`received(message, sender)` gets what somebody who knows the secret sent. Without a secret nothing is sent."""

    def __init__(self, received: Received) -> None:
        self.secret = ""
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, address: StoreAddress | None) -> None:
        """Listen beside the peers' port; where that can't be, there is no ring."""
        if address is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_datagram_endpoint(lambda: self, local_addr=(address.host, address.port))
        except OSError as error:
            print(f"[agent] other agents can't be asked whether they live: {address}: {error}", flush=True)

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
        """Nobody listens there: that shows in the answers that don't come."""

    def _proof(self, body: bytes) -> bytes:
        return hmac.digest(self.secret.encode(), _PURPOSE + body, hashlib.sha256)[:_PROOF_BYTES]
