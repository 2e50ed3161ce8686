"""The loop that every zygote runs: start children for agents, reap them, tell the owner at once.

Single-threaded on purpose: a fork copies only the calling thread. `serve` returns a `Birth` in each child that
it forks, so that the child unwinds from the loop instead of running inside it; it returns None when the server ends.

Packets from an agent:
    {"op": "start", "id": n, "entry": {...}, "env": {...}, "cwd": path, "mark": text, "fds": [names]} with descriptors:
        output, progress, channel
    {"op": "signal", "ids": [n...], "signal": 9}
Packets to an agent:
    {"event": "born", "id": n, "pid": p}    {"event": "exit", "id": n, "pid": p, "status": wait status}
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.agent.zygote import packets
from trainmaster.host import processes

MARK = "TRAINMASTER_RANK_MARK"  # tells whose daemon a process is that left its rank's session


@dataclass
class Birth:
    """What a newly forked child is to become."""

    kind: str  # start, candidate
    request: dict[str, Any]
    fds: list[int]
    parent: int


@dataclass
class Child:
    pid: int
    id: int = -1
    mark: str = ""
    owner: Connection | None = None
    on_exit: Callable[[int], None] | None = None


@dataclass(eq=False)
class Connection:
    """A connection to one agent, or to a zygote. Sends never block: what does not fit waits in `outbox`."""

    socket: socket.socket
    outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque)
    key: str = ""
    load: dict[str, str] = field(default_factory=dict)  # variables that only a process started with them has

    def fileno(self) -> int:
        return self.socket.fileno()


Handler = Callable[[Connection, dict[str, Any], list[int]], "Birth | None"]


class Server:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.children: dict[int, Child] = {}
        self.connections: set[Connection] = set()
        self.running = True
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._handlers: dict[str, Handler] = {"start": self._start, "signal": self._signal}
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)

    def handle(self, op: str, handler: Handler) -> None:
        self._handlers[op] = handler

    def watch(self, sock: socket.socket, callback: Callable[[], Birth | None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, callback)

    def connect(self, sock: socket.socket, closed: Callable[[Connection], None] | None = None) -> Connection:
        """Serve packets from `sock`; its end kills the children it owns and calls `closed`."""
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.add(connection)
        self._selector.register(
            sock, selectors.EVENT_READ, lambda: self._readable(connection, closed or (lambda _: None))
        )
        return connection

    def serve(self) -> Birth | None:
        """Serve until the server ends, and return None then. In a forked child, return its birth."""
        while self.running:
            for key, events in self._selector.select():
                if events & selectors.EVENT_WRITE:
                    self._flush(key.fileobj)
                if events & selectors.EVENT_READ:
                    birth: Birth | None = key.data()
                    if birth is not None:
                        return birth
        return None

    def fork(self, birth: Birth, child: Child) -> Birth | None:
        """Fork a child. Return `birth` in the child, and None here, where `child` is registered."""
        pid = os.fork()
        if pid == 0:
            self._leave()
            return birth
        child.pid = pid
        self.children[pid] = child
        packets.close_all(birth.fds)
        return None

    def send(self, connection: Connection, body: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send or queue. The descriptors are closed here once they are sent."""
        if connection not in self.connections:
            packets.close_all(fds or [])
            return
        connection.outbox.append((body, fds or []))
        self._flush_connection(connection)

    def end(self) -> None:
        """Kill all children and their trees and wait for them, for at most a second, then leave the loop."""
        self.running = False
        signal.set_wakeup_fd(-1)
        for child in self.children.values():  # zygotes end their own trees first
            processes.kill_group(child.pid, signal.SIGKILL if child.id >= 0 else signal.SIGTERM)
        signal.signal(signal.SIGALRM, _give_up)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with contextlib.suppress(ChildProcessError, TimeoutError):
            while True:
                pid, _ = os.waitpid(-1, 0)
                self.children.pop(pid, None)
                self._sweep()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for child in self.children.values():
            processes.kill_group(child.pid)
        self._sweep()

    def _terminate(self, *_: Any) -> None:
        self.running = False

    def _leave(self) -> None:
        """Close everything that belongs to the server, in a child."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for connection in self.connections:
            connection.socket.close()
            for _, fds in connection.outbox:
                packets.close_all(fds)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass
        self._reap()

    def _reap(self) -> None:
        reaped = False
        with contextlib.suppress(ChildProcessError):
            while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                child = self.children.pop(info.si_pid, None)
                # The zombie still holds its pid: the group that it led can be killed without hitting a stranger.
                if child is not None and child.id >= 0:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(info.si_pid, signal.SIGKILL)
                _, status = os.waitpid(info.si_pid, 0)
                reaped = True
                if child is None:
                    continue
                if child.owner is not None:
                    event = {"event": "exit", "id": child.id, "pid": child.pid, "status": status}
                    self.send(child.owner, event)
                if child.on_exit is not None:
                    child.on_exit(status)
        if reaped:
            self._sweep()

    def _sweep(self) -> None:
        """End orphans that left their rank's session: as the subreaper we have become their parent."""
        living = {child.mark for child in self.children.values() if child.mark}
        for pid in processes.children(self.pid):
            if pid in self.children or (living and processes.environment_of(pid).get(MARK) in living):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _readable(self, connection: Connection, closed: Callable[[Connection], None]) -> Birth | None:
        while connection in self.connections:
            try:
                received = packets.receive(connection.socket)
            except BlockingIOError:
                return None
            if received is None:
                self._disconnect(connection, closed)
                return None
            body, fds = received
            birth = self._handlers[body["op"]](connection, body, fds)
            if birth is not None:
                return birth
        return None

    def _disconnect(self, connection: Connection, closed: Callable[[Connection], None]) -> None:
        self.connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        for _, fds in connection.outbox:
            packets.close_all(fds)
        for child in self.children.values():
            if child.owner is connection:
                child.owner = None
                processes.kill_group(child.pid)
        closed(connection)

    def _start(self, connection: Connection, body: dict[str, Any], fds: list[int]) -> Birth | None:
        child = Child(pid=0, id=body["id"], mark=body["mark"], owner=connection)
        birth = self.fork(Birth("start", body, fds, self.pid), child)
        if birth is None:
            self.send(connection, {"event": "born", "id": child.id, "pid": child.pid})
        return birth

    def _signal(self, connection: Connection, body: dict[str, Any], _: list[int]) -> None:
        wanted = set(body["ids"])
        for child in self.children.values():
            if child.owner is connection and child.id in wanted:
                processes.kill_group(child.pid, body["signal"])

    def _flush(self, sock: Any) -> None:
        for connection in list(self.connections):
            if connection.socket is sock:
                self._flush_connection(connection)

    def _flush_connection(self, connection: Connection) -> None:
        while connection.outbox:
            body, fds = connection.outbox[0]
            try:
                packets.send(connection.socket, body, fds)
            except BlockingIOError:
                break
            except OSError:  # its end is read, and handled, in _readable
                for _, unsent in connection.outbox:
                    packets.close_all(unsent)
                connection.outbox.clear()
                return
            connection.outbox.popleft()
            packets.close_all(fds)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)


def _give_up(*_: Any) -> None:
    raise TimeoutError
