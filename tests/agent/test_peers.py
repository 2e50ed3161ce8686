"""What an agent keeps for a peer, and what it hands out: real sockets, files in a temporary folder."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell import known_imports
from trainmaster.agent.shell.known_imports import KnownImports
from trainmaster.agent.shell.saves import peer_server
from trainmaster.agent.shell.saves.peer_server import PeerServer
from trainmaster.agent.shell.saves.replica_sender import Replicas, State
from trainmaster.agent.zygote.import_plan import Imported
from trainmaster.checkpoint.files import peer_connection
from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum
from trainmaster.checkpoint.files.peer_client import Peer
from trainmaster.checkpoint.files.peer_connection import Refused
from trainmaster.checkpoint.files.received_copies import keep_whole
from trainmaster.contract.wire import memory_tier_size
from trainmaster.contract.wire.checkpoint_format import Receipt, ShardFile, shard_name
from trainmaster.contract.wire.messages import StoreAddress

SECRET = "of round 3"
SIZE = 3 << 20
BUDGET = 8 * SIZE + (1 << 20)


@pytest.fixture
def ours(tmp_path: Path) -> RamFolder:
    (tmp_path / "ours").mkdir()
    return RamFolder(tmp_path / "ours", BUDGET)


@pytest.fixture
def theirs(tmp_path: Path) -> RamFolder:
    (tmp_path / "theirs").mkdir()
    return RamFolder(tmp_path / "theirs", BUDGET)


@pytest.fixture
def server(theirs: RamFolder) -> Iterator[PeerServer]:
    server = PeerServer("127.0.0.1", theirs)
    server.begin(3, SECRET, range(0, 1))
    yield server
    server.close()


def content(step: int, rank: int, size: int = SIZE) -> bytes:
    seed = f"{step} {rank} ".encode()
    return (seed * (size // len(seed) + 1))[:size]


def saved(folder: RamFolder, step: int, rank: int = 1, round: int = 3, data: bytes | None = None) -> None:
    data = content(step, rank) if data is None else data
    folder.root.joinpath("new").write_bytes(data)
    file = ShardFile(shard_name(rank), len(data), checksum=checksum(data))
    folder.adopt(step, round, rank, folder.root / "new", Receipt(step, round, rank, 4, file, {}, shard="s"))


def held(folder: RamFolder) -> dict[tuple[int, int, int], bytes]:
    return {name: folder.path(*name).read_bytes() for name in folder.names()}


def leftovers(folder: RamFolder) -> list[Path]:
    known = {folder.path(*name) for name in folder.names()} | {folder.receipt_path(*name) for name in folder.names()}
    return [path for path in folder.root.rglob("*") if path.is_file() and path not in known]


def test_a_peer_keeps_what_it_is_given_and_gives_it_back(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    saved(ours, 7)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 7, 3, 1)
        assert held(theirs) == {(7, 3, 1): content(7, 1)}
        ours.remove(7, 3, 1)
        peer.fetch(ours, 7, 3, 1)
    assert held(ours) == {(7, 3, 1): content(7, 1)}
    assert ours.receipt(7, 3, 1) == theirs.receipt(7, 3, 1)
    assert leftovers(ours) == leftovers(theirs) == []


@pytest.mark.parametrize("secret", ["of round 2", ""])
def test_nothing_is_taken_from_or_given_to_whoever_does_not_know_the_secret(
    ours: RamFolder, theirs: RamFolder, server: PeerServer, secret: str
) -> None:
    saved(ours, 7)
    saved(theirs, 6, rank=2)
    for act in (lambda p: p.keep(ours, 7, 3, 1), lambda p: p.fetch(ours, 6, 3, 2)):
        with Peer(server.address, secret) as peer, pytest.raises(Refused) as refusal:
            act(peer)
        assert refusal.value.status == 403
    assert list(held(theirs)) == [(6, 3, 2)]
    assert list(held(ours)) == [(7, 3, 1)]


def test_an_agent_without_a_secret_answers_nobody(ours: RamFolder, server: PeerServer) -> None:
    saved(ours, 7)
    server.begin(3, "", range(0))
    with Peer(server.address, "") as peer, pytest.raises(Refused, match="403"):
        peer.keep(ours, 7, 3, 1)


def test_a_proof_is_good_for_one_request_on_one_connection(theirs: RamFolder, server: PeerServer) -> None:
    saved(theirs, 6)
    heard: list[bytes] = []
    with Peer(server.address, SECRET) as peer:
        send = peer._link.socket.sendall
        spy = _Spy(peer._link.socket, heard, send)
        peer._link.socket = spy  # type: ignore[assignment]
        peer.fetch(theirs, 6, 3, 1)
        spy.sendall(heard[-1])  # the same request again
        answer = peer._link.head()
    assert answer is not None
    assert " 403 " in f"{answer[0]} "
    with socket.create_connection((server.address.host, server.address.port)) as other:
        other.sendall(heard[-1])
        assert b" 403 " in other.recv(4096)


class _Spy:
    def __init__(self, sock: socket.socket, heard: list[bytes], send: object) -> None:
        self._sock, self._heard = sock, heard

    def sendall(self, data: bytes) -> None:
        self._heard.append(data)
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def test_a_liar_at_a_peers_address_is_not_believed(ours: RamFolder, theirs: RamFolder) -> None:
    saved(theirs, 6)
    liar = PeerServer("127.0.0.1", theirs)
    liar.begin(3, "guessed", range(0))
    try:
        with Peer(liar.address, "guessed") as peer:
            peer._secret = SECRET
            peer_proof = peer._request

            def request(*args: object) -> object:
                peer._secret = "guessed"  # what the liar accepts
                answer = peer_proof(*args)  # type: ignore[arg-type]
                peer._secret = SECRET
                return answer

            peer._request = request  # type: ignore[method-assign,assignment]
            with pytest.raises(Refused, match="doesn't prove"):
                peer.fetch(ours, 6, 3, 1)
    finally:
        liar.close()
    assert held(ours) == {}


def test_a_state_whose_content_does_not_match_its_receipt_is_not_kept(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    saved(ours, 7)
    with open(ours.path(7, 3, 1), "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"!")
    with Peer(server.address, SECRET) as peer, pytest.raises(Refused, match=r"422.*checksum"):
        peer.keep(ours, 7, 3, 1)
    assert held(theirs) == {}
    assert leftovers(theirs) == []


def test_a_corrupt_copy_is_not_taken_back(ours: RamFolder, theirs: RamFolder, server: PeerServer) -> None:
    saved(theirs, 7)
    with open(theirs.path(7, 3, 1), "r+b") as file:
        file.write(b"!")
    with Peer(server.address, SECRET) as peer, pytest.raises(Refused, match="checksum"):
        peer.fetch(ours, 7, 3, 1)
    assert held(ours) == {}
    assert leftovers(ours) == []


def test_a_copy_that_breaks_off_leaves_nothing_and_the_one_before_stays(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    saved(ours, 6)
    saved(ours, 7)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 6, 3, 1)
        peer._link.socket = _Half(peer._link.socket)  # type: ignore[assignment]
        with pytest.raises(ConnectionError):
            peer.keep(ours, 7, 3, 1)
    for thread in [thread for thread in threading.enumerate() if thread.name == "peer"]:
        thread.join(10)
    assert list(held(theirs)) == [(6, 3, 1)]
    assert leftovers(theirs) == []


class _Half:
    """A socket whose owner dies in the middle of a file."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def sendfile(self, file: object) -> None:
        self._sock.sendall(b"x" * (SIZE // 2))
        self._sock.shutdown(socket.SHUT_RDWR)
        raise ConnectionError

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def test_a_fenced_rounds_states_are_not_kept(ours: RamFolder, theirs: RamFolder, server: PeerServer) -> None:
    saved(ours, 9, round=2)
    with Peer(server.address, SECRET) as peer, pytest.raises(Refused, match=r"409.*round 3 runs here, not 2"):
        peer.keep(ours, 9, 2, 1)
    assert held(theirs) == {}


def test_of_each_rank_two_states_are_kept_in_the_same_two_files(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    inodes = set()
    with Peer(server.address, SECRET) as peer:
        for step in range(5, 12):
            for rank in (1, 2):
                saved(ours, step, rank)
                peer.keep(ours, step, 3, rank)
                inodes.add((rank, os.stat(theirs.path(step, 3, rank)).st_ino))
                ours.remove(step, 3, rank)
    assert sorted(held(theirs)) == [(10, 3, 1), (10, 3, 2), (11, 3, 1), (11, 3, 2)]
    assert all(data == content(step, rank) for (step, _, rank), data in held(theirs).items())
    assert len(inodes) == 4


def test_a_state_that_somebody_reads_is_not_written_over(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    with Peer(server.address, SECRET) as peer:
        for step in (5, 6):
            saved(ours, step)
            peer.keep(ours, step, 3, 1)
        with theirs.reading(5, 3, 1) as file:
            saved(ours, 7)
            peer.keep(ours, 7, 3, 1)
            assert file.read() == content(5, 1)
    assert sorted(held(theirs)) == [(6, 3, 1), (7, 3, 1)]


def test_a_later_round_counts_more_than_a_higher_step(ours: RamFolder, theirs: RamFolder, server: PeerServer) -> None:
    saved(theirs, 50, round=2)
    saved(theirs, 51, round=2)
    saved(ours, 8)
    saved(ours, 9)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 8, 3, 1)
        assert sorted(held(theirs)) == [(8, 3, 1), (51, 2, 1)]
        peer.keep(ours, 9, 3, 1)
    assert sorted(held(theirs)) == [(8, 3, 1), (9, 3, 1)]


def test_room_is_made_of_others_files_of_earlier_rounds_and_of_nothing_else(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    for rank in (0, 2, 3):
        saved(theirs, 40, rank, round=2)
    for rank in (0, 4, 5):
        saved(theirs, 41, rank)
    saved(ours, 42)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 42, 3, 1)
        kept = [(40, 2, 0), (41, 3, 0), (41, 3, 4), (41, 3, 5), (42, 3, 1)]
        assert sorted(held(theirs)) == sorted([*kept, (40, 2, 3)])
        saved(theirs, 42, 5)
        saved(ours, 43)
        with pytest.raises(Refused, match="507"):
            peer.keep(ours, 43, 3, 1)
    assert sorted(held(theirs)) == sorted([*kept, (42, 3, 5)])


def test_a_peer_without_room_says_which_limit_has_room_for_copies_and_for_its_own_files(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    theirs.budget = memory_tier_size.budget(10 << 20)
    saved(ours, 41)
    saved(ours, 42)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 41, 3, 1)
        with pytest.raises(Refused) as refusal:
            peer.keep(ours, 42, 3, 1)
    assert str(refusal.value).endswith(
        "checkpoints in memory need 17Mi in each pod (1 rank, and copies for another pod), but "
        "spec.checkpoint.ram.limit is 10Mi; set spec.checkpoint.ram: {limit: 17Mi}"
    )
    theirs.budget = memory_tier_size.budget(17 << 20)
    for step in (41, 42):
        assert theirs.room(SIZE)
        saved(theirs, step, rank=0)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 42, 3, 1)
    assert len(held(theirs)) == 4


def test_what_is_larger_than_the_budget_is_refused_before_it_is_sent(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    saved(ours, 7, data=bytes(BUDGET // 2 + 1))
    with Peer(server.address, SECRET) as peer, pytest.raises(Refused, match=r"413.*half of the memory tier"):
        peer.keep(ours, 7, 3, 1)


@pytest.mark.parametrize(
    "request_line",
    [
        "GET / HTTP/1.1",
        "PUT /v1/ram/../../etc/passwd HTTP/1.1",
        "GET /v1/ram/step-1.r1/../1 HTTP/1.1",
        "GET /v1/ram/step-1.r1/-1 HTTP/1.1",
        "DELETE /v1/ram/step-1.r1/1 HTTP/1.1",
        "",
        "x" * 100_000,
    ],
    ids=lambda line: line[:30],
)
def test_nonsense_is_refused_and_the_server_goes_on(
    ours: RamFolder, theirs: RamFolder, server: PeerServer, request_line: str
) -> None:
    with socket.create_connection((server.address.host, server.address.port), 5) as sock:
        sock.sendall(f"{request_line}\r\nContent-Length: x\r\n\r\n".encode())
        answer = sock.recv(4096)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
    saved(ours, 7)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 7, 3, 1)
    assert list(held(theirs)) == [(7, 3, 1)]


def test_what_a_killed_reader_left_behind_is_swept(ours: RamFolder, theirs: RamFolder, server: PeerServer) -> None:
    saved(theirs, 7)
    folder = ours.path(6, 3, 1).parent
    folder.mkdir(parents=True)
    (folder / ".copy-1-abc").write_bytes(b"half")
    (folder / ".copy-2-abc").write_bytes(b"another rank's")
    with Peer(server.address, SECRET) as peer:
        peer.fetch(ours, 7, 3, 1)
    assert [path.name for path in leftovers(ours)] == [".copy-2-abc"]


class Copies:
    """Replicas, and what they tell."""

    def __init__(self, folder: RamFolder) -> None:
        self.told: queue.Queue[tuple[State, str]] = queue.Queue()
        self.replicas = Replicas(folder, lambda state, problem: self.told.put((state, problem)))

    def next(self) -> tuple[State, str]:
        return self.told.get(timeout=20)


@pytest.fixture
def copies(ours: RamFolder, server: PeerServer) -> Iterator[Copies]:
    copies = Copies(ours)
    copies.replicas.begin(3, [server.address], SECRET)
    yield copies
    copies.replicas.close()


def test_what_is_offered_is_copied_behind_the_callers_back(ours: RamFolder, theirs: RamFolder, copies: Copies) -> None:
    for rank in (1, 2):
        saved(ours, 7, rank)
        copies.replicas.offer((7, 3, rank))
    assert sorted([copies.next(), copies.next()]) == [((7, 3, 1), ""), ((7, 3, 2), "")]
    assert held(theirs) == held(ours)


def test_a_state_that_is_gone_meanwhile_is_left_out(ours: RamFolder, theirs: RamFolder, copies: Copies) -> None:
    copies.replicas.offer((6, 3, 1))
    saved(ours, 7)
    copies.replicas.offer((7, 3, 1))
    assert copies.next() == ((7, 3, 1), "")
    assert list(held(theirs)) == [(7, 3, 1)]


def test_states_of_another_round_are_not_copied(ours: RamFolder, copies: Copies) -> None:
    saved(ours, 7, round=2)
    saved(ours, 8)
    copies.replicas.offer((7, 2, 1))
    copies.replicas.offer((8, 3, 1))
    assert copies.next() == ((8, 3, 1), "")


def test_a_new_round_opens_the_kept_connection_anew(
    ours: RamFolder, theirs: RamFolder, server: PeerServer, copies: Copies
) -> None:
    saved(ours, 7)
    copies.replicas.offer((7, 3, 1))
    assert copies.next() == ((7, 3, 1), "")
    server.begin(4, "of round 4", range(0))
    copies.replicas.begin(4, [server.address], "of round 4")
    saved(ours, 8, round=4)
    copies.replicas.offer((8, 4, 1))
    assert copies.next() == ((8, 4, 1), "")


@pytest.mark.parametrize(
    "answer",
    ["", "HTTP/1.1 fine", "HTTP/1.1 200 OK\r\nContent-Length: -1", "HTTP/1.1 404 Not Found\r\nContent-Length: x"],
)
def test_an_answer_that_can_not_be_read_turns_copying_off_and_is_told(
    ours: RamFolder, copies: Copies, answer: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        copies.replicas.begin(3, [StoreAddress("127.0.0.1", other.getsockname()[1])], SECRET)
        for step in (7, 8):
            saved(ours, step)
            copies.replicas.offer((step, 3, 1))
            connection, _ = other.accept()
            with connection:
                connection.sendall(f"{answer}\r\n\r\n".encode())
                state, problem = copies.next()
            assert state == (step, 3, 1)
            assert "answer" in problem
            assert not copies.replicas.on
            copies.replicas.begin(3, [StoreAddress("127.0.0.1", other.getsockname()[1])], SECRET)


def test_a_peer_that_is_gone_turns_copying_off_and_is_told_why(ours: RamFolder, copies: Copies) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        gone = StoreAddress("127.0.0.1", sock.getsockname()[1])
    copies.replicas.begin(3, [gone], SECRET)
    assert copies.replicas.on
    saved(ours, 7)
    copies.replicas.offer((7, 3, 1))
    state, problem = copies.next()
    assert state == (7, 3, 1)
    assert str(gone.port) in problem
    assert not copies.replicas.on
    copies.replicas.begin(4, [gone], SECRET)
    assert copies.replicas.on


def test_copies_go_on_after_another_program_has_answered_at_the_address_of_a_peer(
    ours: RamFolder, server: PeerServer, copies: Copies
) -> None:
    saved(ours, 7)
    for round, answer in enumerate(
        (b"\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), 4
    ):
        with socket.create_server(("127.0.0.1", 0)) as other:
            copies.replicas.begin(round, [StoreAddress("127.0.0.1", other.getsockname()[1])], SECRET)
            saved(ours, 7, round=round)
            copies.replicas.offer((7, round, 1))
            link, _ = other.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)
                assert "is not that of a peer" in copies.next()[1]
    copies.replicas.begin(3, [server.address], SECRET)
    copies.replicas.offer((7, 3, 1))
    assert copies.next() == ((7, 3, 1), "")


def test_a_server_that_could_not_accept_a_connection_accepts_the_next_one(
    ours: RamFolder, theirs: RamFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(socket.socket):
        """A listening socket of a process that has too many open files, once."""

        failures = iter([OSError(errno.EMFILE, "Too many open files")])

        def accept(self) -> tuple[socket.socket, Any]:
            for failure in self.failures:
                raise failure
            return super().accept()

    def listen(*where: Any, **how: Any) -> socket.socket:
        return Full(fileno=create_server(*where, **how).detach())

    create_server = socket.create_server
    monkeypatch.setattr(peer_server, "_AGAIN_S", 0.0)
    monkeypatch.setattr(peer_server.socket, "create_server", listen)
    server = PeerServer("127.0.0.1", theirs)
    server.begin(3, SECRET, range(0))
    saved(ours, 7)
    with Peer(server.address, SECRET) as peer:
        peer.keep(ours, 7, 3, 1)
    server.close()
    assert list(held(theirs)) == [(7, 3, 1)]


def test_a_server_that_could_start_no_thread_hangs_up_and_serves_the_next_connection(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            monkeypatch.undo()
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(peer_server.threading, "Thread", Refused)
    with pytest.raises(ConnectionError):
        Peer(server.address, SECRET)
    Peer(server.address, SECRET).close()


def test_without_a_peer_or_a_secret_nothing_is_copied(ours: RamFolder, server: PeerServer) -> None:
    for addresses, secret in (([], SECRET), ([server.address], "")):
        copies = Copies(ours)
        copies.replicas.begin(3, addresses, secret)
        assert not copies.replicas.on
        copies.replicas.offer((7, 3, 1))
        assert copies.replicas._thread is None


def test_a_receipt_of_another_file_is_refused(ours: RamFolder, theirs: RamFolder) -> None:
    saved(ours, 7)
    receipt = ours.receipt_path(7, 3, 1).read_bytes()
    for wrong in ((8, 3, 1, SIZE), (7, 2, 1, SIZE), (7, 3, 2, SIZE), (7, 3, 1, SIZE - 1)):
        *state, size = wrong
        with pytest.raises(Refused, match="another file"):
            keep_whole(None, theirs, *state, receipt, size)  # type: ignore[arg-type]


def idle(server: PeerServer, count: int) -> contextlib.ExitStack:
    """Open connections that prove nothing, and keep them open."""
    opened = contextlib.ExitStack()
    for _ in range(count):
        opened.enter_context(socket.create_connection((server.address.host, server.address.port), 20))
    return opened


def test_connections_that_prove_nothing_do_not_keep_an_agent_of_the_round_out(
    ours: RamFolder, theirs: RamFolder, server: PeerServer
) -> None:
    saved(ours, 7)
    with idle(server, peer_server._CONNECTIONS), Peer(server.address, SECRET) as peer:
        peer.keep(ours, 7, 3, 1)
    assert list(held(theirs)) == [(7, 3, 1)]


def test_a_connection_that_has_proven_the_secret_keeps_its_place(server: PeerServer) -> None:
    server.imports = b"torch"
    with Peer(server.address, SECRET) as peer:
        peer.imports()
        with idle(server, 2 * peer_server._CONNECTIONS):
            with Peer(server.address, SECRET) as last:
                last.imports()  # the others have been accepted
            assert peer.imports() == b"torch"


def test_only_a_connection_that_has_proven_the_secret_may_last(
    server: PeerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    for module in (peer_server, peer_connection):
        monkeypatch.setattr(module, "time", clock)
    server.imports = b"torch"
    address = server.address.host, server.address.port
    with Peer(server.address, SECRET) as peer, socket.create_connection(address, 20) as other:
        peer.imports()
        other.sendall(b"GET /v1/ping HTTP/1.1\r\n\r\n")
        assert b" 204 " in other.recv(4096)
        clock.now += peer_server._PROOF_S
        other.sendall(b"GET /v1/ping HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):  # it has not read the request
            while other.recv(4096):  # it may have waited for this request before its time was over
                pass
        assert peer.imports() == b"torch"


def test_agents_of_a_round_are_told_what_the_ranks_of_another_pod_import(server: PeerServer) -> None:
    server.imports = b"torch, sklearn" * 5000
    with Peer(server.address, SECRET) as peer:
        assert peer.imports() == b"torch, sklearn" * 5000


def test_an_agent_that_knows_no_imports_says_so(server: PeerServer) -> None:
    with Peer(server.address, SECRET) as peer, pytest.raises(Refused) as refusal:
        peer.imports()
    assert refusal.value.status == 404


@pytest.mark.parametrize("secret", ["of round 2", ""])
def test_nobody_without_the_secret_of_the_round_is_told_imports(server: PeerServer, secret: str) -> None:
    server.imports = b"torch"
    with Peer(server.address, secret) as peer, pytest.raises(Refused) as refusal:
        peer.imports()
    assert refusal.value.status == 403


def test_imports_that_do_not_prove_the_secret_are_not_believed() -> None:
    """A module's name is code that is going to run."""
    liar = PeerServer("127.0.0.1", None)
    liar.imports = b"evil"
    liar.begin(3, "guessed", range(0))
    try:
        with Peer(liar.address, "guessed") as peer:
            ask = peer._request

            def request(*args: object) -> object:
                answer = ask(*args)  # type: ignore[arg-type]
                peer._secret = SECRET
                return answer

            peer._request = request  # type: ignore[method-assign, assignment]
            with pytest.raises(Refused, match="doesn't prove"):
                peer.imports()
    finally:
        liar.close()


def test_the_first_agent_that_knows_imports_is_believed_and_one_that_has_not_begun_is_asked_again(
    server: PeerServer,
) -> None:
    late = PeerServer("127.0.0.1", None)  # it has not begun the round
    answers: queue.Queue[KnownImports | None] = queue.Queue()
    try:
        known_imports.ask([server.address, late.address], SECRET, answers.put)
        late.imports = KnownImports([Imported("sklearn", "")]).pack()
        late.begin(3, SECRET, range(0))
        assert answers.get(timeout=60) == KnownImports([Imported("sklearn", "")])
    finally:
        late.close()


def test_where_no_agent_knows_imports_the_answer_comes_at_once(server: PeerServer) -> None:
    answers: queue.Queue[KnownImports | None] = queue.Queue()
    known_imports.ask([server.address, server.address], SECRET, answers.put)
    assert answers.get(timeout=60) is None
