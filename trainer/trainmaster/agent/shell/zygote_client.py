"""The supervisor's view of its zygotes: which exist, how processes are started through them, and how these end.

Every process of a pod is a child of a zygote, also one that is executed. The zygote reaps it, and reports its end over
a connection that this module reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.agent.shell.known_imports import KnownImports
from trainmaster.agent.shell.launching.import_environment import ImportEnvironment
from trainmaster.agent.zygote import packets
from trainmaster.agent.zygote.variables_that_must_match import load_environment
from trainmaster.host.own_package import code_of_call

_CONNECT_TRIES = 40
_CONNECT_PAUSE_S = 0.25  # while the machine's zygote comes up


@dataclass(eq=False)
class Link:
    """A connection to one zygote. What does not fit into its socket waits in `outbox`, with copies of descriptors."""

    kind: str  # root, pristine, learned
    socket: socket.socket
    modules: int = 0
    barred: list[str] = field(default_factory=list)  # modules that it must not import
    ids: set[int] = field(default_factory=set)
    outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque)

    def send(self, body: dict[str, Any], fds: Iterable[int] = ()) -> None:
        """Send or queue a packet. A zygote that has ended gets none: its end is noticed where its packets are read."""
        if self.socket.fileno() < 0:
            return
        waiting = bool(self.outbox)
        self.outbox.append((body, [os.dup(fd) for fd in fds]))
        if not waiting:
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it: a zygote that forks reads nothing meanwhile."""
        loop = asyncio.get_running_loop()
        while self.outbox:
            body, fds = self.outbox[0]
            try:
                packets.send(self.socket, body, fds)
            except BlockingIOError:
                loop.add_writer(self.socket, self.flush)
                return
            except ConnectionError:
                self.drop()
                return
            self.outbox.popleft()
            packets.close_all(fds)
        loop.remove_writer(self.socket)

    def drop(self) -> None:
        """Drop what waits."""
        while self.outbox:
            packets.close_all(self.outbox.popleft()[1])
        if self.socket.fileno() >= 0:
            asyncio.get_running_loop().remove_writer(self.socket)

    def close(self) -> None:
        """Close the connection."""
        self.drop()
        if self.socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.socket)
            self.socket.close()


@dataclass
class Process:
    """A process that a zygote started for us."""

    id: int
    link: Link
    on_exit: Callable[[int | None], None]  # wait status; None: its zygote ended, and it with it
    pid: int = 0
    ended: bool = False

    def signal(self, number: int) -> None:
        if not self.ended:
            signal_all([self], number)


class Zygotes:
    """All zygotes. `changed` is called when one appears or ends, `note` with sentences for people."""

    def __init__(
        self, key: str, load: dict[str, str], changed: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        self._key = key
        self._load = load
        self._changed = changed
        self._note = note
        self._root: Link | None = None
        self._links: dict[str, Link] = {}
        self._processes: dict[int, Process] = {}
        self._next_id = 0
        self._own: subprocess.Popen[bytes] | None = None
        self._unsent: dict[str, Any] | None = None  # what is to be learned as soon as there is a zygote
        self._closing = False
        self.without_forks = False  # the root said that it forks nothing

    async def open(self, path: str, *, bare: bool) -> None:
        """Connect to the machine's zygote at `path`; without one, start our own. `bare`: one that only executes."""
        sock = await self._connect(path) if path and not bare else None
        if sock is None:
            sock = self._start_own(bare=bare)
        root = self._greet(sock)
        if self._unsent is not None:
            root.send(self._unsent)
            self._unsent = None

    def _greet(self, sock: socket.socket) -> Link:
        root = self._root = self._adopt(Link("root", sock))
        root.send({"op": "hello", "key": self._key, "load": self._load})
        return root

    @property
    def alive(self) -> bool:
        return self._root is not None

    def best(self) -> Link | None:
        """Return the zygote with the most imports: the learned one, else the pristine one, else None."""
        return self._links.get("learned") or self._links.get("pristine")

    def pristine(self) -> Link | None:
        return self._links.get("pristine")

    def root(self) -> Link:
        if self._root is None:
            raise OSError("the zygote ended")
        return self._root

    def start(
        self,
        link: Link,
        entry: dict[str, Any],
        env: dict[str, str],
        cwd: str,
        fds: dict[str, int],
        on_exit: Callable[[int | None], None],
    ) -> Process:
        """Start a process through `link`. If that zygote has just ended, the process ends with it."""
        self._next_id += 1
        process = Process(self._next_id, link, on_exit)
        request = {
            "op": "start",
            "id": process.id,
            "entry": entry,
            "env": env,
            "cwd": cwd,
            "fds": list(fds),
            "mark": f"{os.getpid()}-{process.id}",
        }
        self._processes[process.id] = process
        link.ids.add(process.id)
        link.send(request, fds.values())
        return process

    def learned(self) -> Link | None:
        return self._links.get("learned")

    def learn(self, known: KnownImports, env: ImportEnvironment, *, hurry: bool = False) -> None:
        """Let a zygote import what ranks have imported, as soon as there is one. `env` is the environment of ranks.
        `hurry`: a rank waits for it."""
        body = {
            "op": "learn",
            "key": self._key,
            "imports": known.imports,
            "variables": known.variables,
            "env": env.variables,
            "own": env.own,
            "barred": known.barred,
            "hurry": hurry,
        }
        if self._root is None:
            self._unsent = body
        else:
            self._root.send(body)

    def bar(self) -> None:
        """Never fork from the learned zygote again."""
        link = self._links.pop("learned", None)
        if link is not None and not link.ids:
            link.close()
        if self._root is not None:
            self._root.send({"op": "bar", "key": self._key})

    def close(self) -> None:
        """Close the connections to all zygotes. Each kills the processes that it started for us, and our own zygote
        ends."""
        self._closing = True
        for link in [self._root, *self._links.values(), *(p.link for p in self._processes.values())]:
            if link is not None:
                link.close()
        self._root = None
        self._links.clear()
        if self._own is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._own.wait(timeout=3)
            if self._own.returncode is None:
                self._own.send_signal(signal.SIGKILL)
                self._own.wait()

    async def _connect(self, path: str) -> socket.socket | None:
        for _ in range(_CONNECT_TRIES):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                sock.connect(path)
            except OSError:
                sock.close()
                await asyncio.sleep(_CONNECT_PAUSE_S)
                continue
            return sock
        self._note(f"no zygote answers at {path}: this pod starts its own")
        return None

    def _start_own(self, *, bare: bool) -> socket.socket:
        ours, theirs = packets.pair()
        # The agent may lie in a folder of its own that the image's Python doesn't know.
        argv = [
            sys.executable,
            "-c",
            code_of_call("trainmaster.agent.zygote.root", "main"),
            "--fd",
            str(theirs.fileno()),
        ]
        # A command may set or take away variables that are read at load: its ranks' zygote starts with them.
        others = {name: value for name, value in os.environ.items() if name not in load_environment(os.environ)}
        self._own = subprocess.Popen(
            [*argv, *(["--bare"] if bare else [])],
            env=others | self._load,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        return ours

    def _adopt(self, link: Link) -> Link:
        link.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(link.socket, self._readable, link)
        return link

    def _readable(self, link: Link) -> None:
        while link.socket.fileno() >= 0:
            try:
                received = packets.receive(link.socket)
            except BlockingIOError:
                return
            if received is None:
                self._lost(link)
                return
            body, fds = received
            if body["event"] == "exit":
                self._exited(body["id"], body["status"])
            elif body["event"] == "born":
                if body["id"] in self._processes:
                    self._processes[body["id"]].pid = body["pid"]
            elif body["event"] == "zygote":
                self._introduced(body, fds)
            elif body["event"] == "note":
                self._note(body["message"])

    def _introduced(self, body: dict[str, Any], fds: list[int]) -> None:
        kind = body["kind"]
        if kind == "none" and body.get("differs") and self._own is None:
            self._leave_machine()
        elif kind == "none":
            self.without_forks = True
        else:
            old = self._links.get(kind)
            self._links[kind] = self._adopt(Link(kind, socket.socket(fileno=fds[0]), body["modules"], body["barred"]))
            if old is not None and not old.ids:
                old.close()
            if kind == "learned":
                self._note(f"ranks are forked from now on, with {body['modules']} modules imported")
        self._changed()

    def _leave_machine(self) -> None:
        """Start a zygote of our own, because the one of the machine was started with other variables."""
        machine = self._root
        self._greet(self._start_own(bare=False))
        if machine is not None and not machine.ids:  # or it is closed with the last process that it has started for us
            machine.close()

    def _exited(self, id: int, status: int | None) -> None:
        process = self._processes.pop(id, None)
        if process is None:
            return
        link = process.link
        link.ids.discard(id)
        if not link.ids and link is not self._root and link not in self._links.values():
            link.close()
        process.ended = True
        process.on_exit(status)

    def _lost(self, link: Link) -> None:
        if self._closing:
            return
        link.close()
        if link is self._root:
            self._root = None
        for kind in [k for k, other in self._links.items() if other is link]:
            del self._links[kind]
        for id in list(link.ids):
            self._exited(id, None)
        self._changed()


def signal_all(processes: list[Process], number: int) -> None:
    """Signal the trees of all of `processes`, with one packet to each zygote."""
    by_link: dict[Link, list[int]] = {}
    for process in processes:
        if not process.ended:
            by_link.setdefault(process.link, []).append(process.id)
    for link, ids in by_link.items():
        link.send({"op": "signal", "ids": ids, "signal": int(number)})
