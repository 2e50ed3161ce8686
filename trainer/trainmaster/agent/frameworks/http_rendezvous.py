"""The rendezvous of Horovod's ranks: values under a scope and a key, over HTTP, at the socket of the round's store.

The protocol is that of Horovod's own rendezvous server. `PUT /SCOPE/KEY` stores a value. `GET /SCOPE/KEY` returns it,
or 404 as long as there is none, and then a rank asks again. `DELETE /SCOPE/RANK` says that a rank has connected to all
others of a scope. When all have said so the scope is emptied, because ranks that call `hvd.init()` again after
`hvd.shutdown()` meet in the same one. A rank stores its addresses under its number, and says that it has connected
after all ranks have stored theirs.
"""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_REQUEST_S = 10.0  # that a request may take to arrive
_MOST_BYTES = 1 << 20  # of a value: a rank has some hundred bytes for each other rank
_MOST_VALUES = 1 << 16


class Values:
    """The values of all scopes. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._connected: dict[str, set[str]] = {}

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value. Return False if there are too many."""
        with self._lock:
            if sum(map(len, self._scopes.values())) >= _MOST_VALUES:
                return False
            self._scopes.setdefault(scope, {})[key] = value
            return True

    def get(self, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._scopes.get(scope, {}).get(key)

    def connected(self, scope: str, rank: str) -> None:
        """Note that a rank has connected to all others of a scope, which is emptied after the last one."""
        with self._lock:
            if scope not in self._scopes:
                return
            connected = self._connected.setdefault(scope, set())
            connected.add(rank)
            if connected >= {key for key in self._scopes[scope] if key.isdecimal()}:
                del self._scopes[scope], self._connected[scope]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.values = Values()


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        place = self._place()
        if place is not None:
            value = self.server.values.get(*place)
            self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        place, size = self._place(), self._size()
        if place is None or size is None:
            return
        value = self.rfile.read(size)
        if len(value) == size:  # or the rank is gone
            stored = self.server.values.put(*place, value)
            self._answer(HTTPStatus.OK if stored else HTTPStatus.INSUFFICIENT_STORAGE)

    def do_DELETE(self) -> None:
        place = self._place()
        if place is not None:
            self.server.values.connected(*place)
            self._answer(HTTPStatus.OK)

    def log_message(self, *_: Any) -> None:
        """Print nothing: ranks ask many times."""

    def _place(self) -> tuple[str, str] | None:
        """Return the scope and the key of the path; None for another path, which is answered."""
        parts = self.path.split("/")
        if len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
            self._answer(HTTPStatus.BAD_REQUEST)
            return None
        return parts[1], parts[2]

    def _size(self) -> int | None:
        """Return the length of the body; None if it is unknown or too large, which is answered."""
        given = self.headers.get("Content-Length", "")
        if not given.isdecimal() or int(given) > _MOST_BYTES:
            self._answer(HTTPStatus.BAD_REQUEST)
            self.close_connection = True
            return None
        return int(given)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(listener: socket.socket) -> None:
    """Serve the ranks of a round at a listening socket until the process is killed."""
    _Server(listener).serve_forever()
