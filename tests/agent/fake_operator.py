"""A tiny operator for tests: the control channel with a policy of three lines, in a thread of the test.

A round starts when all agents have joined and a store is open; a verdict starts the next one; when all agents
say done or saved, they are told to finish.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.contract.wire import (
    Assignment,
    Directive,
    DirectiveState,
    JoinRequest,
    Neighbour,
    Report,
    StoreAddress,
    Verdict,
    decode,
    encode,
)

WAIT_S = 180.0  # a test that waits longer than this has failed


@dataclass
class Slot:
    joined: bool = False
    next_store: StoreAddress | None = None
    peer: StoreAddress | None = None
    report: Report | None = None
    stop_bound: bool = False


@dataclass
class Operator:
    """`slots` agents of `ranks` ranks each. All state is guarded by `changed`."""

    slots: int = 1
    ranks: int = 1
    restarts: int = 10  # verdicts that lead to a new round
    epoch: int = 1
    grace_s: float = 0.3  # a cascade waits so long for its cause
    round: int = 0
    state: DirectiveState = DirectiveState.WAIT
    store: StoreAddress = field(default_factory=lambda: StoreAddress("", 0))
    stop_at: int | None = None
    stop_bound: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    events: list[dict[str, str]] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)  # the epochs that they came in
    gone: bool = False  # answers 410
    silent: bool = False  # cuts every connection
    deaf: int = 0  # joins of this epoch and before are never answered: that leader is gone, and its machine with it
    grant: int = 0
    minor: int = 0
    unable: bool = False
    ask_stacks: bool = False
    divisor: int = 1
    secret: str = "of this round"
    port: int = 0
    decided_ns: dict[int, int] = field(default_factory=dict)  # round -> when it was published
    heard_ns: dict[int, int] = field(default_factory=dict)  # round -> when its verdict came
    tokens: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.agents = [Slot() for _ in range(self.slots)]
        self._loop = asyncio.new_event_loop()
        self._new = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        ready = threading.Event()
        self._ready = ready
        self._thread.start()
        ready.wait(WAIT_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        with self.changed:
            if not self.changed.wait_for(condition, WAIT_S):
                raise AssertionError(f"not within {WAIT_S:g} s: {what}; round {self.round}, verdicts {self.verdicts}")
            return condition()

    def wait_for_step(self, step: int, round: int | None = None) -> Report:
        """The first report in which all ranks of all agents have completed `step`."""

        def reached() -> Report | None:
            latest = [a.report for a in self.agents]
            for report in latest:
                if report is None or not report.ranks or (round is not None and report.round != round):
                    return None
                if any(r.step < step for r in report.ranks):
                    return None
            return latest[0]

        found = self.wait_for(reached, f"step {step} in round {round}")
        assert isinstance(found, Report)
        return found

    def wait_for_verdict(self, count: int = 1) -> Verdict:
        self.wait_for(lambda: len(self.verdicts) >= count, f"{count} verdicts")
        return self.verdicts[count - 1]

    def direct(self, **changes: Any) -> None:
        """Change what the operator wants, and tell the agents."""
        self._loop.call_soon_threadsafe(self._change, changes)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _change(self, changes: dict[str, Any]) -> None:
        with self.changed:
            for name, value in changes.items():
                setattr(self, name, value)
            self._publish()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def serve() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()

        self._loop.run_until_complete(serve())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _publish(self) -> None:
        self._new.set()
        self._new = asyncio.Event()
        self.changed.notify_all()

    def _directive(self, slot: int) -> Directive:
        assignment = None
        if self.state is DirectiveState.RUN:
            assignment = Assignment(
                round=self.round,
                world_size=self.slots * self.ranks,
                first_rank=slot * self.ranks,
                ranks=self.ranks,
                group_rank=slot,
                group_world_size=self.slots,
                store=self.store,
                restart_count=self.round - 1,
                minor=self.minor,
                micro_divisor=self.divisor,
                grant=self.grant,
                peer_secret=self.secret,
                ring=self._neighbour((slot + 1) % self.slots) if self.slots > 1 else None,
                first=self._neighbour(0),
            )
        content = (self.stop_at, self.stop_bound, self.minor, self.divisor, self.unable, self.ask_stacks)
        tag = f"{self.epoch}/{self.state.value}/{self.round}/{content}"
        return Directive(
            epoch=self.epoch,
            state=self.state,
            round=self.round,
            tag=tag,
            assignment=assignment,
            stop_at=self.stop_at,
            stop_bound=self.stop_bound,
            keep_store=slot == 0,
            report_interval_s=0.1,
            unable=self.unable,
            ask_stacks=self.ask_stacks,
        )

    def _neighbour(self, slot: int) -> Neighbour | None:
        peer = self.agents[slot].peer
        return Neighbour(slot, peer) if peer is not None else None

    def _decide(self) -> None:
        """The whole planner."""
        if self.state is DirectiveState.FINISH:
            return
        open_store = self.agents[0].next_store
        current = [a.report for a in self.agents if a.report is not None and a.report.round == self.round]
        failed = [r.verdict for r in current if r.verdict is not None and r.verdict.round == self.round]
        causes = [v for v in failed if not v.cascade] or [v for v in failed if v.age_s > self.grace_s]
        if causes and (not self.verdicts or self.verdicts[-1].round != self.round):
            self.verdicts.append(causes[0])
            self.heard_ns[self.round] = time.monotonic_ns()
        if self.round == 0 or (self.verdicts and self.verdicts[-1].round == self.round):
            if open_store and open_store != self.store and all(a.joined for a in self.agents):
                if len(self.verdicts) > self.restarts:
                    return
                self.round += 1
                self.store, self.state = open_store, DirectiveState.RUN
                self.decided_ns[self.round] = time.monotonic_ns()
                self._publish()
        elif len(current) == self.slots and all(r.done or r.saved for r in current):
            self.state = DirectiveState.FINISH
            self._publish()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if self.silent:
                    return
                lines = head.split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                self.tokens.append(headers.get("authorization", ""))
                body = await reader.readexactly(int(headers["content-length"]))
                if self.gone:
                    status, answer = "410 Gone", json.dumps({"error": "stale incarnation"}).encode()
                elif lines[0].startswith("POST /v1/join"):
                    status, answer = "200 OK", encode(await self._join(decode(JoinRequest, body)))
                else:
                    status, answer = "200 OK", encode(self._report(decode(Report, body)))
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (EOFError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _join(self, request: JoinRequest) -> Directive:
        slot = request.identity.slot
        with self.changed:
            self.joins.append(self.epoch)
            self.changed.notify_all()
            self.agents[slot].joined = True
            self.agents[slot].peer = request.peer
            self.agents[slot].next_store = request.next_store or self.agents[slot].next_store
            self._decide()
        epoch, deadline = self.epoch, self._loop.time() + 20
        while (directive := self._directive(slot)).tag == request.seen_tag and self._loop.time() < deadline:
            try:
                await asyncio.wait_for(self._new.wait(), deadline - self._loop.time())
            except asyncio.TimeoutError:
                break
        while epoch <= self.deaf:
            await asyncio.sleep(3600)
        return self._directive(slot) if directive.tag == request.seen_tag else directive

    def _report(self, report: Report) -> Directive:
        slot = report.identity.slot
        with self.changed:
            self.reports.append(report)
            self.events += report.events
            self.agents[slot].report = report
            self.agents[slot].next_store = report.next_store
            self._decide()
            self.changed.notify_all()
            return self._directive(slot)
