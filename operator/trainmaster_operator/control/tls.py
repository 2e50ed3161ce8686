"""A server's SSLContext whose certificate can be renewed while it serves: connections that are open go on."""

from __future__ import annotations

import os
import ssl


class ServerTls:
    """`context` stays the same object; each handshake takes the newest certificate."""

    def __init__(self) -> None:
        self.context = _context()
        self._current = self.context
        # Replacing a certificate within a context would leave one of another key type beside it.
        self.context.sni_callback = self._choose

    def renew(self, chain: bytes, key: bytes) -> None:
        """Raises ssl.SSLError when they can't be read or don't belong together: the former ones stay in use."""
        newest = _context()
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)  # load_cert_chain takes nothing but files
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(chain + b"\n" + key)
            newest.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self._current = newest

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # agents keep their connections and resume none
    return context
