"""The address at which the operator of a run on this machine is reached: the loopback address and a port."""

from __future__ import annotations

import os
import socket

from trainmaster_operator.cli.refusal import Refusal

LOOPBACK = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a listening socket. Raise Refusal if the port is in use or invalid."""
    if not 0 <= port <= 65535:
        raise Refusal(f"--port {port}: must be 0, for any free port, to 65535")
    # This imports aiohttp, so it is imported only when it is needed.
    from trainmaster_operator.control.http_server import listening_socket

    try:
        return listening_socket(LOOPBACK, port)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise Refusal(
            f"--port {port}: {LOOPBACK}:{port} can't be used: {why}; leave --port out to use a free port"
        ) from None


def url(control: socket.socket) -> str:
    """Return the URL of the operator that serves this listening socket."""
    return f"http://{LOOPBACK}:{control.getsockname()[1]}"
