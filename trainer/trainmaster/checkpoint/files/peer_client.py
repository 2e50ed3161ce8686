"""The client of another agent: it fetches a rank's state from the peer's memory tier or asks the peer to keep one, and
asks what the peer's ranks import.

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
import fcntl
import hashlib
import hmac
import mmap
import os
import socket
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO

from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum, crc32, into
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.checkpoint_format import Receipt, directory_name, parse_directory
from trainmaster.contract.wire.message_codec import WireError, decode
from trainmaster.contract.wire.messages import StoreAddress

PROOF = "Trainmaster-Proof"
RECEIPT = "Trainmaster-Receipt"  # its length: the first part of a body
NONCE_BYTES = 16
HEAD_LIMIT = 16 * 1024
RECEIPT_LIMIT = 1 << 20
TIMEOUT_S = 10.0  # without any byte
CONNECT_S = 3.0
IMPORTS = "/v1/imports"
IMPORTS_LIMIT = 1 << 20
_BLOCK = 1 << 20
_COPY = ".copy-"  # how files are called while they come


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
    """One end of a TCP connection that carries HTTP: lines, headers and bodies."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(TIMEOUT_S)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._rest = b""

    def head(self) -> tuple[str, dict[str, str]] | None:
        """Return the first line and the headers of the next message, or None at the end of the connection.

        Raises OSError.
        """
        while b"\r\n\r\n" not in self._rest:
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
        length = int(headers.get("content-length", "0"))
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
            words = self._link.read(min(int(known.get("content-length", "0")), HEAD_LIMIT))
            raise Refused(status, f"the peer says {status}: {words.decode(errors='replace')[:200]}")
        return known, self._count

    def _answer(self) -> tuple[int, dict[str, str]]:
        answer = self._link.head()
        if answer is None:
            raise ConnectionError("the peer closed the connection")
        return int(answer[0].split(" ", 2)[1]), answer[1]


def keep_whole(
    link: Link,
    folder: RamFolder,
    step: int,
    round: int,
    rank: int,
    receipt: bytes,
    size: int,
    own: Container[int] | None = None,
) -> None:
    """Receive a file from `link` into `folder`, and keep it if it matches its receipt.

    Without `own`, this process has asked for the file. With `own`, a peer offers it and waits to hear that it may send;
    `own` are the ranks of this pod, and the files of all other ranks may take half of the budget. Raises Refused with
    status 400 for the receipt, 422 for the content, and 507 if there is no room.
    """
    try:
        said = decode(Receipt, receipt)
    except WireError as error:
        raise Refused(400, str(error)) from None
    if (said.step, said.round, said.rank, said.file.size) != (step, round, rank, size) or size < 1:
        raise Refused(400, "the receipt is of another file")
    path, descriptor = _free_file(folder, step, round, rank, size, own)
    try:
        if own is not None:
            link.send("HTTP/1.1 100 Continue", {})
        with mmap.mmap(descriptor, size) as memory, memoryview(memory) as view:
            crc = 0
            for start in range(0, size, _BLOCK):
                with view[start : start + _BLOCK] as block:
                    link.read_into(block)
                    crc = crc32(block, crc)
        if said.file.checksum != checksum(b"", crc):
            raise Refused(422, "its content doesn't match its checksum")
        folder.adopt(step, round, rank, path, receipt)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _free_file(
    folder: RamFolder, step: int, round: int, rank: int, size: int, own: Container[int] | None
) -> tuple[Path, int]:
    """Return a file of `size` bytes with a hidden name, open and locked, for a state of this rank. Raises Refused.

    Two states of each rank are kept: the newest complete one and the one that arrives. Rounds are compared before
    steps, because a later round may have gone back to an earlier step. The pages of an older state are used again,
    because new pages cost as much time as the copy.
    """
    older = sorted(((r, s) for s, r, of in folder.names() if of == rank and (s, r) != (step, round)), reverse=True)
    parent = folder.path(step, round, rank).parent
    _sweep(folder, rank)
    try:
        path, descriptor = _hidden(parent, rank)
        for r, s in older[1:]:
            descriptor = _taken(folder, (s, r, rank), path, descriptor)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                if not _made_room(folder, round, rank, size, own):
                    raise Refused(507, f"the memory tier has no room for {size >> 20} MiB")
                os.posix_fallocate(descriptor, 0, size)  # a full tmpfs is an error here, and a SIGBUS later
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
    except Refused:
        raise
    except OSError as error:
        raise Refused(507, str(error)) from None
    return path, descriptor


def _hidden(parent: Path, rank: int) -> tuple[Path, int]:
    descriptor, name = into(parent, lambda: tempfile.mkstemp(prefix=f"{_COPY}{rank}-", dir=parent))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Path(name), descriptor


def _taken(folder: RamFolder, state: tuple[int, int, int], path: Path, descriptor: int) -> int:
    """Remove a state and move its file to `path`, unless another process reads it. Return the open one of the two
    files."""
    folder.receipt_path(*state).unlink(missing_ok=True)
    try:
        found = os.open(folder.path(*state), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return descriptor
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(folder.path(*state), path)
        descriptor, found = found, descriptor
    except BlockingIOError:
        pass
    finally:
        os.close(found)
        folder.remove(*state)
    return descriptor


def _sweep(folder: RamFolder, rank: int) -> None:
    """Remove files of `rank` that a process left incomplete when it was killed."""
    for path in folder.root.glob(f"step-*/{_COPY}{rank}-*"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _made_room(folder: RamFolder, round: int, rank: int, size: int, own: Container[int] | None) -> bool:
    """Remove other ranks' files of earlier rounds, oldest first, until `size` bytes fit. Return True if they fit.

    A rank that resumes now has already loaded what it needs of these files.
    """
    for s, r, of in sorted(folder.names(), key=lambda name: (name[1], name[0], name[2])):
        if _fits(folder, size, own):
            return True
        if r < round and of != rank and (own is None or of not in own):
            folder.remove(s, r, of)
    return _fits(folder, size, own)


def _fits(folder: RamFolder, size: int, own: Container[int] | None) -> bool:
    if own is not None:
        paths = (folder.path(*name) for name in folder.names() if name[2] not in own)
        if sum(path.stat().st_size for path in paths if path.exists()) + size > folder.budget // 2:
            return False
    return folder.room(size)


def own_address() -> StoreAddress | None:
    """Return the address at which this rank's agent answers peers, or None if it does not."""
    host, _, port = os.environ.get(environment.PEER_ADDRESS, "").rpartition(":")
    return StoreAddress(host, int(port)) if host and port.isdecimal() else None


def fetch(folder: RamFolder, address: StoreAddress, step: int, round: int, rank: int) -> None:
    """Copy a state that a peer's agent holds into `folder`. Raises OSError."""
    with Peer(address, os.environ.get(environment.PEER_SECRET, "")) as peer:
        peer.fetch(folder, step, round, rank)
