"""The registry of the root: which zygotes exist, for which key, and which agents are told."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from trainmaster.agent.zygote import packets, variables_that_must_match
from trainmaster.agent.zygote.fork_server import Birth, Child, Connection, Server
from trainmaster.agent.zygote.import_plan import MOST_RETRIES, Imported, blame, choose, join, packages


@dataclass(frozen=True)
class Lesson:
    """What a zygote imports: the imports of ranks, the variables that the imports set, and the environment of ranks.

    own: names of variables that differ from rank to rank, or from round to round, and are not in `env`.
    """

    imports: list[Imported]
    variables: dict[str, str | None]
    env: dict[str, str]
    own: list[str]

    def more(self, other: Lesson) -> Lesson:
        """Return this lesson, followed by what only `other` has."""
        return Lesson(join(self.imports, other.imports), {**other.variables, **self.variables}, other.env, other.own)


@dataclass(eq=False)
class Zygote:
    """A process that forks for agents of one key. The key of the pristine zygote is ""."""

    key: str
    control: Connection | None
    lesson: Lesson = field(default_factory=lambda: Lesson([], {}, {}, []))
    modules: int = 0
    ready: bool = False
    diary: int = -1
    tries: int = 0


class Nursery:
    def __init__(self, server: Server, *, forking: bool) -> None:
        self._server = server
        self._forking = forking
        self._agents: set[Connection] = set()
        self._pristine: Zygote | None = None
        self._learned: dict[str, Zygote] = {}
        self._learning: dict[str, Zygote] = {}
        self._wanted: dict[str, Lesson] = {}  # to be learned when the candidate of this key, or pristine, is through
        self._barred: dict[str, set[str]] = {}
        self._reads_kmp = False  # the pristine zygote has loaded an OpenMP that reads KMP_ variables; known once it is
        self._closed_keys: set[str] = set()
        self._listener: socket.socket | None = None
        server.handle("hello", self._hello)
        server.handle("learn", self._learn)
        server.handle("bar", self._bar)

    def listen(self, path: str) -> None:
        """Accept agents on a unix socket; only the owner of this process may connect."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(mask)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._server.watch(self._listener, self._accept)

    def adopt(self, sock: socket.socket, *, only: bool = False) -> None:
        """Serve an agent. `only`: when it ends, so does the zygote."""
        self._agents.add(self._server.connect(sock, closed=partial(self._left, only=only)))

    def raise_pristine(self) -> Birth | None:
        """Fork the pristine zygote. Return its birth in the child."""
        ours, theirs = packets.pair()
        self._pristine = Zygote(key="", control=None)
        control = self._server.connect(ours, closed=partial(self._control_closed, self._pristine))
        self._pristine.control = control
        self._server.handle("raised", self._raised)
        child = Child(pid=0)
        birth = self._server.fork(Birth("pristine", {}, [theirs.detach()], self._server.pid), child)
        if birth is not None and self._listener is not None:
            self._listener.close()
        return birth

    def end(self) -> None:
        """End all zygotes and everything below them."""
        self._server.end()

    def _accept(self) -> None:
        assert self._listener is not None
        sock, _ = self._listener.accept()
        self.adopt(sock)

    def _left(self, connection: Connection, *, only: bool) -> None:
        self._agents.discard(connection)
        if only:
            self._server.running = False

    def _hello(self, connection: Connection, body: dict[str, Any], _: list[int]) -> None:
        connection.key, connection.load = body["key"], body["load"]
        self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        """Send an agent the connections to the zygotes that can fork for it, or report that none can."""
        differing = self._differing(connection)
        if differing and self._forking:
            message = variables_that_must_match.refusal(differing)
            self._server.send(connection, {"event": "note", "message": message})
        if not self._forking or differing:
            connection.key = ""
            body = {"event": "zygote", "kind": "none", "modules": 0, "differs": self._forking}
            self._server.send(connection, body)
            return
        if self._pristine is not None and self._pristine.ready:
            self._introduce(connection, self._pristine)
        if connection.key in self._learned:
            self._introduce(connection, self._learned[connection.key])

    def _differing(self, connection: Connection) -> list[str]:
        """Return the variables in which an agent's ranks differ from those that a zygote read when it loaded its
        libraries."""
        ours = variables_that_must_match.load_environment(os.environ)
        return variables_that_must_match.differing(ours, connection.load, reads_kmp=self._reads_kmp)

    def _introduce(self, agent: Connection, zygote: Zygote) -> None:
        """Send the agent one end of a connection, and the zygote the other one."""
        if zygote.control is None:
            return
        one, other = packets.pair()
        self._server.send(zygote.control, {"op": "connect"}, [one.detach()])
        kind = "learned" if zygote.key else "pristine"
        barred = sorted(self._barred.get(zygote.key, ()))
        body = {"event": "zygote", "kind": kind, "modules": zygote.modules, "barred": barred}
        self._server.send(agent, body, [other.detach()])

    def _raised(self, connection: Connection, body: dict[str, Any], _: list[int]) -> None:
        zygote = self._of(connection)
        if zygote is None:
            return
        for name, reason in body["failed"].items():
            self._note(zygote.key, f"{name} was not imported in advance: {reason}")
        zygote.modules = body["modules"]
        if zygote is self._pristine:
            if body["refused"]:
                self._stop_forking(body["refused"]["reason"])
                return
            zygote.ready = True
            self._reads_kmp = body["reads_kmp"]
            for agent in self._agents:
                if agent.key:
                    self._answer(agent)
            for key in list(self._wanted):
                self._teach_wanted(key)
        elif body["refused"] is None:
            self._promote(zygote)
        else:
            self._refuse(zygote, body["refused"]["stack"], body["refused"]["reason"])

    def _of(self, connection: Connection) -> Zygote | None:
        for zygote in [self._pristine, *self._learning.values(), *self._learned.values()]:
            if zygote is not None and zygote.control is connection:
                return zygote
        return None

    def _control_closed(self, zygote: Zygote, _: Connection) -> None:
        zygote.control = None
        if zygote is self._pristine:
            if zygote.ready:
                self._pristine_ended()
            elif self._forking:
                self._stop_forking("the zygote ended while it imported what ranks need")
        elif self._learning.get(zygote.key) is zygote and not zygote.ready:
            name = os.pread(zygote.diary, 200, 0).decode().strip() if zygote.diary >= 0 else ""
            stack = [name, *packages(name)] if name else []
            self._refuse(zygote, stack, "the candidate ended while importing it")
        elif self._learned.get(zygote.key) is zygote:
            del self._learned[zygote.key]

    def _stop_forking(self, reason: str) -> None:
        """Only execute ranks from now on, because this image has a torch that cannot be imported in advance."""
        self._forking = False
        self._note("", f"ranks are executed, not forked: {reason}")
        for agent in self._agents:
            self._server.send(agent, {"event": "zygote", "kind": "none", "modules": 0})

    def _pristine_ended(self) -> None:
        """End the server: the pristine zygote's ranks are gone with it, and a new root creates another one."""
        self._note("", "the zygote that ranks are forked from ended")
        self._server.running = False

    def _learn(self, connection: Connection, body: dict[str, Any], _: list[int]) -> None:
        if self._differing(connection):
            return
        connection.key = key = body["key"]
        if key in self._closed_keys or self._pristine is None or not self._forking:
            return
        imports = [Imported(*imported) for imported in body["imports"]]
        told = Lesson(imports, body["variables"], body["env"], body.get("own", []))
        if body.get("barred"):
            self._barred.setdefault(key, set()).update(body["barred"])
        if body.get("hurry") and not self._pristine.ready and self._pristine.control is not None:
            self._server.send(self._pristine.control, {"op": "hurry"})
        if key in self._learning or not self._pristine.ready:
            wanted = self._wanted.get(key)
            self._wanted[key] = wanted.more(told) if wanted is not None else told
        else:
            self._teach(key, told)

    def _teach(self, key: str, told: Lesson) -> None:
        """Let a zygote import what is told, unless there is one. With nothing to import, it is one that is known to
        fit."""
        learned = self._learned.get(key)
        lesson = learned.lesson.more(told) if learned is not None else told
        barred = self._barred.get(key, set())
        if learned is None or choose(lesson.imports, barred) != choose(learned.lesson.imports, barred):
            self._conceive(key, lesson, tries=0)

    def _conceive(self, key: str, lesson: Lesson, *, tries: int) -> None:
        """Let the pristine zygote fork a candidate that imports what is left of `lesson`."""
        assert self._pristine is not None
        if self._pristine.control is None:
            return
        ours, theirs = packets.pair()
        zygote = Zygote(key, None, lesson, tries=tries)
        zygote.diary = os.memfd_create("trainmaster-diary", os.MFD_CLOEXEC)
        zygote.control = self._server.connect(ours, closed=partial(self._control_closed, zygote))
        self._learning[key] = zygote
        barred = self._barred.get(key, set())
        body = {
            "op": "candidate",
            "names": choose(lesson.imports, barred),
            "barred": sorted(barred),
            "variables": lesson.variables,
            "env": lesson.env,
            "own": lesson.own,
        }
        self._server.send(self._pristine.control, body, [theirs.detach(), os.dup(zygote.diary)])

    def _promote(self, zygote: Zygote) -> None:
        self._forget_candidate(zygote)
        old = self._learned.get(zygote.key)
        if old is not None and old.control is not None:
            self._server.send(old.control, {"op": "retire"})
        zygote.ready = True
        self._learned[zygote.key] = zygote
        for agent in self._agents:
            if agent.key == zygote.key:
                self._introduce(agent, zygote)
        self._teach_wanted(zygote.key)

    def _teach_wanted(self, key: str) -> None:
        wanted = self._wanted.pop(key, None)
        if wanted is not None and key not in self._closed_keys:
            self._teach(key, wanted)

    def _refuse(self, zygote: Zygote, stack: list[str], reason: str) -> None:
        """Bar the module that did harm to this candidate, and try again without it.

        `stack` has the imports that the candidate was in, innermost first. If none of them is to blame, learn no more
        for this key; what was imported for all ranks can still be forked.
        """
        self._forget_candidate(zygote)
        zygote.ready = True  # its connection will close: that is no further failure
        key = zygote.key
        barred = self._barred.setdefault(key, set())
        name = blame(zygote.lesson.imports, barred, stack)
        self._note(key, f"{name or 'what ranks import'} can't be imported in advance: {reason}")
        if not name or zygote.tries >= MOST_RETRIES:
            self._closed_keys.add(key)
            if key not in self._learned and zygote.lesson.imports:
                self._conceive(key, replace(zygote.lesson, imports=[], variables={}), tries=MOST_RETRIES)
            return
        barred.add(name)
        self._conceive(key, zygote.lesson, tries=zygote.tries + 1)

    def _forget_candidate(self, zygote: Zygote) -> None:
        self._learning.pop(zygote.key, None)
        if zygote.diary >= 0:
            os.close(zygote.diary)
            zygote.diary = -1

    def _bar(self, connection: Connection, body: dict[str, Any], _: list[int]) -> None:
        """Never fork from this key's learned zygote again, because a round that was forked from it failed to start."""
        key = body["key"]
        self._closed_keys.add(key)
        zygote = self._learned.pop(key, None)
        if zygote is not None and zygote.control is not None:
            self._server.send(zygote.control, {"op": "retire"})

    def _note(self, key: str, message: str) -> None:
        for agent in self._agents:
            if not key or agent.key == key:
                self._server.send(agent, {"event": "note", "message": message})
