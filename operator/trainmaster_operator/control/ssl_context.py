"""A server's SSLContext whose certificate can be renewed while it serves. Open connections are not affected."""

from __future__ import annotations

import os
import ssl


class ServerTls:
    """A TLS context that can be renewed. `context` stays the same object; each handshake uses the newest
    certificate."""

    def __init__(self) -> None:
        self.context = _context()
        self._current = self.context
        # Replacing a certificate within a context would keep the old one if its key had another type.
        self.context.sni_callback = self._choose

    def renew(self, chain: bytes, key: bytes) -> None:
        """Use a new certificate. Raise ssl.SSLError if certificate and key are invalid or do not belong together;
        then the former ones stay in use."""
        newest = _context()
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)  # load_cert_chain only reads files.
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
    context.num_tickets = 0  # Agents keep their connections and resume no session.
    return context
