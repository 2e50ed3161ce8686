"""The connection of an agent with a peer, as both of its ends see it: requests, proofs and time limits.

Standard library only. Requests:

    GET  /v1/challenge                  a nonce for this connection
    PUT  /v1/ram/step-<N>.r<round>/<r>  keep this state: the receipt, then the file
    GET  /v1/ram/step-<N>.r<round>/<r>  the receipt, then the file
    GET  /v1/imports                    what its ranks import, see `agent.shell.known_imports`; 404: it is not known
    GET  /v1/ping                       204, to check that this agent is alive

Both sides prove that they know the secret of the round, which only its agents have: each request, and each answer with
a state or with imports in it, carries an HMAC over the connection's nonce, a counter and the description of its
content. The content itself is not encrypted, as in collectives; the receipt's checksum shows that it has arrived
completely.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import socket
import time
from typing import BinaryIO

from trainmaster.contract.wire.checkpoint_format import directory_name, parse_directory

PROOF = "Trainmaster-Proof"
RECEIPT = "Trainmaster-Receipt"  # its length: the first part of a body
NONCE_BYTES = 16
HEAD_LIMIT = 16 * 1024
RECEIPT_LIMIT = 1 << 20
TIMEOUT_S = 10.0  # without any byte
IMPORTS = "/v1/imports"
IMPORTS_LIMIT = 1 << 20
_BLOCK = 1 << 20


class Refused(OSError):
    """The peer refuses a request. `status` is the HTTP status of its answer."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def path_of(step: int, round: int, rank: int) -> str:
    """Return the URL path of a state."""
    return f"/v1/ram/{directory_name(step, round)}/{rank}"


def parse_path(path: str) -> tuple[int, int, int] | None:
    """Return (step, round, rank) of a state's URL path, or None for any other path."""
    parts = path.split("/")
    if len(parts) != 5 or parts[:3] != ["", "v1", "ram"] or not parts[4].isdecimal() or len(parts[4]) > 9:
        return None
    found = parse_directory(parts[3])
    return (*found, int(parts[4])) if found is not None else None


def proof(secret: str, nonce: str, count: int, *words: str | int) -> str:
    """Return the HMAC-SHA256 of a request or an answer, in hexadecimal digits.

    `count` is the number of the request on its connection, so that no message can be replayed.
    """
    said = "\n".join(["trainmaster peer", nonce, str(count), *map(str, words)])
    return hmac.new(secret.encode(), said.encode(), hashlib.sha256).hexdigest()


def same_proof(one: str, other: str) -> bool:
    """Return True if both proofs are equal. The comparison takes the same time in any case."""
    return hmac.compare_digest(one.encode(), other.encode())


class Link:
    """One end of a TCP connection that carries HTTP: lines, headers and bodies.

    `deadline`: from this monotonic time on nothing is received, however often the other end sends a byte.
    """

    def __init__(self, sock: socket.socket, deadline: float = math.inf) -> None:
        sock.settimeout(TIMEOUT_S)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.deadline = deadline
        self._rest = b""

    def head(self) -> tuple[str, dict[str, str]] | None:
        """Return the first line and the headers of the next message, or None at the end of the connection.

        Raises OSError.
        """
        while b"\r\n\r\n" not in self._rest:
            self._keep_deadline()
            data = self.socket.recv(HEAD_LIMIT)
            if not data and not self._rest:
                return None
            self._rest += data
            if not data or len(self._rest) > HEAD_LIMIT + _BLOCK:
                raise ConnectionError("a broken head")
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return first, {name.strip().lower(): value.strip() for name, _, value in pairs}

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes. Raises OSError."""
        known = self._rest[: len(target)]
        target[: len(known)] = known
        self._rest = self._rest[len(known) :]
        done = len(known)
        while done < len(target):
            self._keep_deadline()
            count = self.socket.recv_into(target[done:], min(len(target) - done, _BLOCK))
            if not count:
                raise ConnectionError(f"the connection ended after {done} of {len(target)} bytes")
            done += count

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises OSError."""
        data = bytearray(size)
        self.read_into(memoryview(data))
        return bytes(data)

    def send(self, head: str, headers: dict[str, str | int], body: bytes = b"", file: BinaryIO | None = None) -> None:
        """Send a message: the first line, the headers, a body, and the content of a file. Raises OSError."""
        lines = [head, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode("latin-1") + body)
        if file is not None:
            self.socket.sendfile(file)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _keep_deadline(self) -> None:
        """Let the next reception end at the deadline. Raises TimeoutError if that is over."""
        if self.deadline == math.inf:
            return
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time limit of the connection is over")
        self.socket.settimeout(min(left_s, TIMEOUT_S))
