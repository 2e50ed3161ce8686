"""One simulated agent of fleet.py: it joins and reports as a real one does, and its rank is two numbers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from trainmaster.agent.shell.reports_to_operator import REPORT_SPREAD, report_timeout_s
from trainmaster.contract.wire import (
    SESSION_HEADER,
    Cause,
    Directive,
    DirectiveState,
    Identity,
    JoinRequest,
    RankReport,
    RankState,
    Report,
    StoreAddress,
    Verdict,
    decode,
    encode,
)

JOIN_TIMEOUT_S = 40.0
HANDSHAKE_S = 20.0
BACKOFF_S = (0.05, 2.0)
MILESTONE_S, FIRST_STEP_S = 0.3, 0.6  # after a rank's start
STEPS_PER_S = 2.0
CASCADE_S = 0.05  # within which peers notice a death
HEADER = SESSION_HEADER.lower().encode()
FIRST_STORE_PORT = 20_000


class Surroundings(Protocol):
    """What agents share. `heard` is told whenever the operator has answered one."""

    name: str
    replicas: list[tuple[str, int]]
    tls: ssl.SSLContext

    def heard(self, agent: Agent) -> None: ...


class Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.opened_at = 0.0
        self.served = False  # since it was opened
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes, bytes]] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def open(self, address: tuple[str, int], tls: ssl.SSLContext, name: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(
            lambda: self, *address, ssl=tls, server_hostname=name, ssl_handshake_timeout=HANDSHAKE_S
        )
        self.opened_at, self.served = time.monotonic(), False

    async def ask(self, request: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
        """Status, headers and body of the answer. Raises ConnectionError, TimeoutError."""
        if self._transport is None:
            raise ConnectionResetError
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer
        except TimeoutError:
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._received.clear()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        _, _, length = head.lower().partition(b"content-length:")
        whole = end + 4 + int(length.split(b"\r\n", 1)[0])
        if len(self._received) < whole:
            return
        body = bytes(self._received[end + 4 : whole])
        self._received.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


class Agent:
    """Joins and reports as `trainmaster.agent.shell.reports_to_operator` does."""

    def __init__(self, fleet: Surroundings, identity: Identity, token: str) -> None:
        self.identity, self._fleet, self._token = identity, fleet, token
        self.directive: Directive | None = None
        self.round = 0
        self.trains = False  # and the operator knows it
        self.joining, self._reporting = Line(), Line()
        self._begun = 0
        self._tag = ""
        self._session = ""
        self._leader: tuple[str, int] | None = None
        self._state, self._resumed, self._stepping_since, self._verdict = RankState.STARTING, 0, 0.0, None
        self._clock: dict[str, float] = {}
        self._ports = 0
        self._store: StoreAddress | None = None
        self._joined, self._wake = asyncio.Event(), asyncio.Event()

    async def keep_joined(self) -> None:
        while True:
            self._obey(await self._post(self.joining, "/v1/join", self._join, JOIN_TIMEOUT_S))
            if not self._joined.is_set():
                self._joined.set()
                self._wake.set()
            self._fleet.heard(self)

    async def keep_reporting(self) -> None:
        await self._joined.wait()
        while True:
            assert self.directive is not None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.directive.report_interval_s * random.uniform(*REPORT_SPREAD)):
                    await self._wake.wait()
            self._wake.clear()
            told = self._stepping
            timeout_s = report_timeout_s(self.directive.report_interval_s)
            self._obey(await self._post(self._reporting, "/v1/report", self._report, timeout_s))
            self.trains = told and self._stepping
            self._fleet.heard(self)

    @property
    def _stepping(self) -> bool:
        return "first_step" in self._clock

    def lose_connections(self) -> None:
        self.joining.abort()
        self._reporting.abort()

    def fail(self) -> None:
        """Its rank dies."""
        self._verdict = Verdict(
            self.identity.slot,
            Cause.CRASH,
            self.round,
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            exit_code=1,
            traceback='  File "train.py", line 1, in step\n' * 30,
            last_lines=["step 1: loss 2.345, 1234 tokens/s"] * 20,
            step=self._step(),
        )
        self._exit(self.round)

    def follow(self) -> None:
        """Its rank loses a peer."""
        asyncio.get_running_loop().call_later(CASCADE_S * random.random(), self._exit, self.round)

    def _exit(self, round: int) -> None:
        if round == self.round:
            self._state = RankState.EXITED
            self._wake.set()

    def _obey(self, directive: Directive) -> None:
        if self.directive is not None and directive.epoch < self.directive.epoch:
            return
        self.directive, self._tag = directive, directive.tag
        assignment = directive.assignment
        if directive.state is DirectiveState.HOLD and self._begun < directive.round:
            self.round = 0
        elif assignment is not None and assignment.round > self._begun:
            self._begin(assignment.round)
        if directive.keep_store and self._store is None and self.round == 0:
            self._offer()

    def _begin(self, round: int) -> None:
        self.round = self._begun = round
        self.trains = False
        self._resumed = self._step()
        self._state, self._verdict, self._clock, self._store = RankState.STARTING, None, {"drain": 0.001}, None
        self._wake.set()
        loop = asyncio.get_running_loop()
        loop.call_later(MILESTONE_S * (0.5 + random.random()), self._reach, round, "rendezvous")
        loop.call_later(FIRST_STEP_S * (1 + random.random()), self._reach, round, "first_step")

    def _reach(self, round: int, milestone: str) -> None:
        if round != self.round or self._state is RankState.EXITED:
            return
        self._clock[milestone] = 0.3
        self._state = RankState.RUNNING
        if milestone == "first_step":
            self._stepping_since = time.monotonic()
            if self.directive is not None and self.directive.keep_store:
                self._offer()
        self._wake.set()

    def _offer(self) -> None:
        self._ports += 1
        self._store = StoreAddress("127.0.0.1", FIRST_STORE_PORT + self.identity.slot + 2 * self._ports)
        self._wake.set()

    def _join(self) -> JoinRequest:
        return JoinRequest(
            self.identity,
            epoch=self.directive.epoch if self.directive else 0,
            round=self.round,
            # What a broken connection has cost shows in the next answer, so that one must come at once.
            seen_tag=self._tag if self.joining.served else "",
            next_store=self._store,
        )

    def _step(self) -> int:
        return self._resumed + self._stepping * (1 + int(STEPS_PER_S * (time.monotonic() - self._stepping_since)))

    def _report(self) -> Report:
        stepping, step = self._stepping, self._step()
        rank = RankReport(
            rank=self.identity.slot,
            pid=4321,
            state=self._state,
            phase="STEP" if stepping else "BUILD",
            step=step,
            total_steps=1_000_000,
            loss=2.0 + 1 / (step + 1),
            tokens=4096 * (step - self._resumed),
            silent_s=0.123456,
            rss_bytes=2**33,
            exit_code=1 if self._state is RankState.EXITED else None,
        )
        return Report(
            self.identity,
            self.round,
            epoch=self.directive.epoch if self.directive else 0,
            ranks=[rank] if self.round else [],
            verdict=self._verdict,
            next_store=self._store,
            resumed_step=self._resumed if stepping else None,
            clock=self._clock,
        )

    async def _post(
        self, line: Line, path: str, compose: Callable[[], JoinRequest | Report], timeout_s: float
    ) -> Directive:
        """As `trainmaster.agent.shell.control_client` does, and tries until it is served."""
        fleet, pause = self._fleet, BACKOFF_S[0]
        while True:
            kept, asked_s, shown = line.is_open, 0.0, self._session
            try:
                if not kept:
                    await line.open(self._leader or random.choice(fleet.replicas), fleet.tls, fleet.name)
                body = encode(compose())
                proof = f"Session {shown}" if shown else f"Bearer {self._token}"
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: {fleet.name}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nAuthorization: {proof}\r\n\r\n"
                )
                status, headers, answer = await line.ask(head.encode() + body, timeout_s)
            except OSError:  # a time-out too
                line.abort()
                if kept or self._leader is not None:
                    self._leader = self._leader if kept else None
                    continue
            else:
                if status == 200:
                    line.served = True
                    self._session = _header(headers, HEADER) or self._session
                    return decode(Directive, answer)
                if status == 401 and shown:
                    self._session = self._session if self._session != shown else ""
                    continue
                if status == 421:
                    host, _, port = json.loads(answer)["leader"].removeprefix("https://").rpartition(":")
                    self._leader = (host, int(port))
                    line.abort()
                    continue
                asked_s = float(_header(headers, b"retry-after") or 0)
            await asyncio.sleep(max(pause * random.uniform(0.5, 1.5), asked_s * random.uniform(1.0, 1.5)))
            pause = min(2 * pause, BACKOFF_S[1])


def _header(head: bytes, name: bytes) -> str:
    at = head.lower().find(b"\r\n" + name + b":")
    return "" if at < 0 else head[at:].split(b"\r\n", 2)[1].partition(b":")[2].strip().decode()
