"""The client of another agent: it fetches a rank's state from the peer's memory tier or asks the peer to keep one, and
asks what the peer's ranks import.

Standard library only. `peer_connection` describes the requests.
"""

from __future__ import annotations

import hashlib
import os
import socket
from typing import BinaryIO

from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.checkpoint.files.peer_connection import (
    HEAD_LIMIT,
    IMPORTS,
    IMPORTS_LIMIT,
    PROOF,
    RECEIPT,
    RECEIPT_LIMIT,
    Link,
    Refused,
    path_of,
    proof,
    same_proof,
)
from trainmaster.checkpoint.files.received_copies import keep_whole
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.checkpoint_format import directory_name
from trainmaster.contract.wire.message_codec import WireError
from trainmaster.contract.wire.messages import StoreAddress

CONNECT_S = 3.0


class Peer:
    """A connection to a peer's agent. Its methods raise OSError, and Refused if the peer refuses the request."""

    def __init__(self, address: StoreAddress, secret: str) -> None:
        sock = socket.create_connection((address.host, address.port), CONNECT_S)
        self._link = Link(sock)
        self._secret, self._host, self._count = secret, address.host, 0
        try:
            self._nonce = ""
            _, body = self._ask("GET", "/v1/challenge")
            self._nonce = body.decode("latin-1")
        except BaseException:
            self._link.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def keep(self, folder: RamFolder, step: int, round: int, rank: int) -> None:
        """Let the peer keep a copy of a state in `folder`. Raises FileNotFoundError if `folder` no longer has it."""
        with folder.reading(step, round, rank) as file:
            receipt = folder.receipt_path(step, round, rank).read_bytes()
            self._ask("PUT", path_of(step, round, rank), receipt, file)

    def fetch(self, folder: RamFolder, step: int, round: int, rank: int) -> None:
        """Copy a state of the peer into `folder`. Raises FileNotFoundError if the peer does not have it."""
        path = path_of(step, round, rank)
        try:
            headers, count = self._request("GET", path, b"", None)
            length, known = int(headers["content-length"]), int(headers[RECEIPT.lower()])
            if not 0 < known <= min(length, RECEIPT_LIMIT):
                raise ConnectionError(f"a receipt of {known} bytes")
            receipt = self._link.read(known)
            said = proof(self._secret, self._nonce, count, "answer", path, length, hashlib.sha256(receipt).hexdigest())
            if not same_proof(said, headers.get(PROOF.lower(), "")):
                raise Refused(403, "the peer's answer doesn't prove that it knows the secret of this round")
            keep_whole(self._link, folder, step, round, rank, receipt, length - known)
        except Refused as refusal:
            if refusal.status == 404:
                raise FileNotFoundError(f"the peer has no {directory_name(step, round)} of rank {rank}") from None
            raise
        except (KeyError, ValueError, WireError) as error:
            raise ConnectionError(f"the peer's answer can't be read: {error}") from None

    def imports(self) -> bytes:
        """Return what the peer's ranks import. Raises Refused with status 404 if the peer does not know it."""
        headers, count = self._request("GET", IMPORTS, b"", None)
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > IMPORTS_LIMIT:
            raise ConnectionError(f"an answer of {length!r} bytes")
        body = self._link.read(int(length))
        said = proof(self._secret, self._nonce, count, "answer", IMPORTS, len(body), hashlib.sha256(body).hexdigest())
        if not same_proof(said, headers.get(PROOF.lower(), "")):
            raise Refused(403, "the peer's answer doesn't prove that it knows the secret of this round")
        return body

    def _ask(
        self, method: str, path: str, receipt: bytes = b"", file: BinaryIO | None = None
    ) -> tuple[dict[str, str], bytes]:
        headers, _ = self._request(method, path, receipt, file)
        length = _number(headers.get("content-length", "0"))
        if length > HEAD_LIMIT:
            raise ConnectionError(f"an answer of {length} bytes")
        return headers, self._link.read(length)

    def _request(self, method: str, path: str, receipt: bytes, file: BinaryIO | None) -> tuple[dict[str, str], int]:
        """Send a request. Return the headers of the answer and the number of the request. Raises Refused."""
        length = len(receipt) + (os.fstat(file.fileno()).st_size if file is not None else 0)
        headers: dict[str, str | int] = {"Host": self._host, "Content-Length": length}
        self._count += 1
        if self._nonce:
            digest = hashlib.sha256(receipt).hexdigest()
            headers[PROOF] = proof(self._secret, self._nonce, self._count, method, path, length, digest)
            headers[RECEIPT] = len(receipt)
        if file is not None:
            headers["Expect"] = "100-continue"
        self._link.send(f"{method} {path} HTTP/1.1", headers, receipt)
        status, known = self._answer()
        if status == 100 and file is not None:
            self._link.socket.sendfile(file)
            status, known = self._answer()
        if status not in (200, 204):
            words = self._link.read(min(_number(known.get("content-length", "0")), HEAD_LIMIT))
            raise Refused(status, f"the peer says {status}: {words.decode(errors='replace')[:200]}")
        return known, self._count

    def _answer(self) -> tuple[int, dict[str, str]]:
        answer = self._link.head()
        if answer is None:
            raise ConnectionError("the peer closed the connection")
        return _number(answer[0].partition(" ")[2][:3]), answer[1]


def _number(text: str) -> int:
    """Return a number of an answer. Raises ConnectionError: another program may have got the peer's address."""
    if not text.isdecimal() or len(text) > 15:
        raise ConnectionError(f"the answer is not that of a peer: {text[:20]!r} is no number")
    return int(text)


def own_address() -> StoreAddress | None:
    """Return the address at which this rank's agent answers peers, or None if it does not."""
    host, _, port = os.environ.get(environment.PEER_ADDRESS, "").rpartition(":")
    return StoreAddress(host, int(port)) if host and port.isdecimal() else None


def fetch(folder: RamFolder, address: StoreAddress, step: int, round: int, rank: int) -> None:
    """Copy a state that a peer's agent holds into `folder`. Raises OSError."""
    with Peer(address, os.environ.get(environment.PEER_SECRET, "")) as peer:
        peer.fetch(folder, step, round, rank)
