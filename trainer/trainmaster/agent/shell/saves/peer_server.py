"""Answers peers: keeps copies of their ranks' states in this pod's memory, sends states that it holds, and says what
the ranks of this pod import.

There is a thread for each connection, because states are large, and the event loop that starts ranks must never wait
for one. Whoever reaches the pod may connect. So a connection that has not proven the secret of the round has little
time, and it ends when all places are taken and another one comes; one that has proven it keeps its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import secrets
import socket
import threading
import time

from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.checkpoint.files.peer_connection import (
    IMPORTS,
    NONCE_BYTES,
    PROOF,
    RECEIPT,
    RECEIPT_LIMIT,
    TIMEOUT_S,
    Link,
    Refused,
    parse_path,
    path_of,
    proof,
    same_proof,
)
from trainmaster.checkpoint.files.received_copies import keep_whole
from trainmaster.contract.wire.messages import StoreAddress

_CONNECTIONS = 16  # at a time
_PROOF_S = 10.0  # from the beginning of a connection to the first proof of the secret
_IDLE_S = 300.0  # without a request, after that
_AGAIN_S = 1.0  # after no connection could be accepted
_NICENESS = 5  # of the threads that receive copies: ranks come first
_WORDS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    413: "Content Too Large",
    422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
    507: "Insufficient Storage",
}


class PeerServer:
    """Listens until `close`. With `folder` None it keeps and sends no states.

    `imports` is what it says of the imports of this pod's ranks; b"" if that is not known.
    """

    def __init__(self, host: str, folder: RamFolder | None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family, backlog=64)
        self.address = StoreAddress(host, self._listening.getsockname()[1])
        self.imports = b""
        self._folder = folder
        self._round, self._secret, self._own = 0, "", range(0)
        self._open: dict[socket.socket, bool] = {}  # the connections, and whether they have proven the secret
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def begin(self, round: int, secret: str, own: range) -> None:
        """Answer only agents of this round, or none without a secret. `own` are the ranks of this pod."""
        self._round, self._secret, self._own = round, secret, own

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            sockets = [self._listening, *self._open]
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._listening.accept()
            except OSError:  # too many files are open, or that connection has broken: later ones may be accepted
                self._closed.wait(_AGAIN_S)
                continue
            if not self._has_place(sock) or not self._start_thread(sock):
                sock.close()

    def _has_place(self, sock: socket.socket) -> bool:
        """Return True if a new connection has a place now, perhaps that of another one.

        Any of those without a proof is ended, by chance. If it was always the oldest one, and many agents asked at the
        same time, none of them would keep its place until it has an answer.
        """
        with self._lock:
            if len(self._open) >= _CONNECTIONS:
                unproven = [one for one, proven in self._open.items() if not proven]
                if not unproven:
                    return False
                ended = random.choice(unproven)
                del self._open[ended]
                with contextlib.suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
            self._open[sock] = False
            return True

    def _has_proven(self, sock: socket.socket) -> None:
        with self._lock:
            if sock in self._open:
                self._open[sock] = True

    def _start_thread(self, sock: socket.socket) -> bool:
        """Start a thread for a connection. Return False if the pod has as many threads as it may have."""
        try:
            threading.Thread(target=self._serve, args=(sock,), name="peer", daemon=True).start()
        except RuntimeError:
            self._forget(sock)
            return False
        return True

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, contextlib.suppress(OSError):
                link = Link(sock, time.monotonic() + _PROOF_S)
                _Conversation(self, link).hold()
        finally:
            self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.pop(sock, None)


class _Conversation:
    """One connection: a nonce, and then requests, which are counted."""

    def __init__(self, server: PeerServer, link: Link) -> None:
        self._server, self._link = server, link
        self._nonce = secrets.token_hex(NONCE_BYTES)
        self._count = 0

    def hold(self) -> None:
        while True:
            self._link.socket.settimeout(_IDLE_S)
            head = self._link.head()
            if head is None:
                return
            self._link.socket.settimeout(TIMEOUT_S)
            try:
                self._answer(*head)
            except Refused as refusal:
                self._say(refusal.status, str(refusal).encode())
                return  # a body may still be on its way

    def _answer(self, line: str, headers: dict[str, str]) -> None:
        method, _, rest = line.partition(" ")
        path, _, _ = rest.partition(" ")
        self._count += 1
        length, known = _number(headers.get("content-length", "0")), _number(headers.get(RECEIPT.lower(), "0"))
        state = parse_path(path)
        if (method, path) == ("GET", "/v1/ping"):
            self._say(204)
        elif (method, path) == ("GET", "/v1/challenge"):
            self._say(200, self._nonce.encode())
        elif method not in ("GET", "PUT") or (state is None and (method, path) != ("GET", IMPORTS)):
            raise Refused(404, "there is no such thing here")
        elif known > min(length, RECEIPT_LIMIT):
            raise Refused(400, f"a receipt of {known} bytes is expected to be shorter")
        else:
            receipt = self._link.read(known)
            digest = hashlib.sha256(receipt).hexdigest()
            secret = self._server._secret
            said = proof(secret, self._nonce, self._count, method, path, length, digest)
            if not secret or not same_proof(said, headers.get(PROOF.lower(), "")):
                raise Refused(403, "the request doesn't prove that its sender knows this round's secret")
            if self._link.deadline < math.inf:
                self._link.deadline = math.inf
                self._link.socket.settimeout(TIMEOUT_S)
                self._server._has_proven(self._link.socket)
            if state is None:
                self._tell_imports()
            elif method == "GET":
                self._hand_out(*state)
            else:
                self._keep(*state, receipt, length - known)

    def _tell_imports(self) -> None:
        body, secret = self._server.imports, self._server._secret
        if not body:
            raise Refused(404, "what its ranks import is not known")
        digest = hashlib.sha256(body).hexdigest()
        said = proof(secret, self._nonce, self._count, "answer", IMPORTS, len(body), digest)
        self._link.send("HTTP/1.1 200 OK", {"Content-Length": len(body), PROOF: said}, body)

    def _hand_out(self, step: int, round: int, rank: int) -> None:
        folder, secret = self._folder(), self._server._secret
        try:
            with folder.reading(step, round, rank) as file:
                receipt = folder.receipt_path(step, round, rank).read_bytes()
                length = len(receipt) + os.fstat(file.fileno()).st_size
                digest = hashlib.sha256(receipt).hexdigest()
                path = path_of(step, round, rank)
                headers: dict[str, str | int] = {
                    "Content-Length": length,
                    RECEIPT: len(receipt),
                    PROOF: proof(secret, self._nonce, self._count, "answer", path, length, digest),
                }
                self._link.send("HTTP/1.1 200 OK", headers, receipt, file)
        except FileNotFoundError:
            raise Refused(404, "it isn't in this memory") from None

    def _keep(self, step: int, round: int, rank: int, receipt: bytes, size: int) -> None:
        folder = self._folder()
        if round != self._server._round:
            raise Refused(409, f"round {self._server._round} runs here, not {round}")
        if size > folder.budget // 2:
            raise Refused(413, f"{size >> 20} MiB are more than half of the memory tier, {folder.budget >> 20} MiB")
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # of this thread alone
        keep_whole(self._link, folder, step, round, rank, receipt, size, self._server._own)
        self._say(204)

    def _folder(self) -> RamFolder:
        if self._server._folder is None:
            raise Refused(507, "it has no memory tier")
        return self._server._folder

    def _say(self, status: int, body: bytes = b"") -> None:
        self._link.send(f"HTTP/1.1 {status} {_WORDS[status]}", {"Content-Length": len(body)}, body)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise Refused(400, f"{text[:20]!r} is no length")
    return int(text)
