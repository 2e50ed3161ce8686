"""Communication with the operator: a join that is always open, and reports at intervals and at once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from trainmaster.agent.shell import pod_log, self_fencing
from trainmaster.agent.shell.control_client import Access, Connection, Refused, Unreachable
from trainmaster.contract.wire import Directive, ExitCode, JoinRequest, Report, termination_message
from trainmaster.contract.wire.progress_record import LOADED
from trainmaster.host import processes, rank_memory, step_timing
from trainmaster.host.pod_usage_meter import UsageMeter

if TYPE_CHECKING:
    from trainmaster.agent.shell.supervisor import Supervisor

REPORT_SPREAD = (0.75, 1.25)  # of the interval: what thousands began together they must not repeat together
_JOIN_TIMEOUT_S = 40.0  # the operator holds a join for at most 20 s
_REPORT_TIMEOUT_S = 10.0
_BACKOFF_S = (0.05, 2.0)  # first and longest pause while the operator is away
_GONE = 410
_SLOW = 5
_MOST_EVENTS = 50
_EVENT_CHARACTERS = 1000  # of a sentence, which is all that the operator shows


def report_timeout_s(interval_s: float) -> float:
    """Return the limit of a report, in seconds, which is longer for long intervals.

    Long intervals mean many agents. After a failure their leader may be busy for longer, and agents that give up and
    connect again would make it busier.
    """
    return max(_REPORT_TIMEOUT_S, 2 * interval_s)


class Reporter:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        settings = supervisor.settings
        access = self._access = Access(settings.operator_url, settings.token_file, settings.ca_file)
        self._join = Connection(access)
        self._report = Connection(access)
        self._wake = asyncio.Event()
        self._joined = asyncio.Event()
        self.fenced = False  # the operator refuses this pod for good: another one takes its place
        self._meter = UsageMeter(one_machine=settings.one_machine)
        api = self_fencing.api_server(os.environ)
        self._lease = self_fencing.Lease(api) if api is not None and not settings.own_loop else None
        self._told_software = False
        self._urgent = asyncio.Event()
        self._sent_at: float | None = None  # the report that isn't answered yet
        self._failed: tuple[float, bool] | None = None  # the last one was not: when it was sent; it was refused
        self._exchange: asyncio.Future[Directive] | None = None
        self._joining: tuple[int, asyncio.Future[Directive]] | None = None  # and the epoch that it was sent in
        self._superseded = False
        self._dropped = False
        self._answer_s = 0.0  # how long an answer takes, smoothed

    def start(self) -> list[asyncio.Task[None]]:
        works = [self._keep_joined(), self._keep_reporting()]
        if self._lease is not None:
            works.append(self._keep_lease(self._lease))
        return [asyncio.create_task(work) for work in works]

    def at_once(self) -> None:
        """Report as soon as the report in flight, if any, is answered."""
        self._wake.set()
        self._urgent.set()
        round = self._supervisor.round
        if round is not None and round.verdict is not None:
            termination_message.write(self._supervisor.settings.termination_log, round.verdict)

    def cut_off(self, seconds: float) -> None:
        """Reach no operator for `seconds`, as behind a broken network. It is an injected fault."""
        self._access.cut_off_until = time.monotonic() + seconds
        self._join.close()
        self._report.close()

    def unanswered(self, since: float, silence_s: float) -> bool:
        """Return True if no leader has answered a request since `since`, in monotonic seconds.

        Either no operator was reached, or none that leads has answered for `silence_s`, and for several times as long
        as recent answers have taken.
        """
        now = time.monotonic()
        silence_s = max(silence_s, _SLOW * self._answer_s)
        if self._failed is not None and self._failed[0] >= since:
            return not self._failed[1] or now - since >= silence_s
        return self._sent_at is not None and now - max(self._sent_at, since) >= silence_s

    def drop(self) -> None:
        """Cancel the report in flight, because its content is no longer true."""
        if self._exchange is not None:
            self._dropped = self._exchange.cancel()

    async def last_words(self) -> None:
        """Send one more report at the end, if the operator still answers."""
        if not self.fenced and self._joined.is_set():
            with contextlib.suppress(Unreachable, Refused):
                await self._report.report(self._compose(), 2.0)
        self._join.close()
        self._report.close()

    async def _keep_lease(self, lease: self_fencing.Lease) -> None:
        words = await lease.over()
        pod_log.note(f"{words}: this pod may be replaced, so its ranks end")
        self._supervisor.end(ExitCode.FENCED)
        await asyncio.Event().wait()

    def _heard(self, connection: Connection, leaderless_s: float = 0.0) -> None:
        """Note that a leader has answered the last request of a connection, or that an operator refused it and knows
        that this pod could not be replaced `leaderless_s` before that."""
        if self._lease is not None:
            self._lease.renew(connection.sent_at - leaderless_s)

    async def _keep_joined(self) -> None:
        s = self._supervisor
        pause = _BACKOFF_S[0]
        # Before Python 3.12 wait_for may swallow a cancellation, so the end is looked at too.
        while not s.exit_code.done():
            request = JoinRequest(
                identity=s.settings.identity,
                epoch=s.directive.epoch if s.directive else 0,
                round=s.round.number if s.round else 0,
                seen_tag=s.directive.tag if s.directive else "",
                next_store=s.stores.next_address,
                peer=s.peers.address,
                facts=_facts(s.settings.framework),
                software=s.software,
                warming=s.warming,
            )
            self._joining = request.epoch, asyncio.ensure_future(self._join.join(request, _JOIN_TIMEOUT_S))
            try:
                directive = await self._joining[1]
            except (Unreachable, Refused) as error:
                pause = await self._away(error, self._join, pause)
                continue
            except asyncio.CancelledError:
                if not self._superseded:
                    self._joining[1].cancel()
                    raise
                self._superseded = False
                continue
            self._heard(self._join)
            pause = _BACKOFF_S[0]
            if not self._joined.is_set():
                self._joined.set()
                self._wake.set()
            s.obey(directive)

    def _join_the_leader(self) -> None:
        """Cancel the join at a leader that has been replaced.

        A leader that is gone with its machine never answers the join, and an agent that knows a newer leader from a
        report need not wait.
        """
        epoch = self._supervisor.directive.epoch if self._supervisor.directive else 0
        if self._joining is not None and self._joining[0] < epoch:
            self._superseded = self._joining[1].cancel()

    async def _keep_reporting(self) -> None:
        s = self._supervisor
        await self._joined.wait()
        pause = _BACKOFF_S[0]
        while not s.exit_code.done():
            interval = s.directive.report_interval_s if s.directive else 0.5
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval * random.uniform(*REPORT_SPREAD))
            self._wake.clear()
            self._urgent.clear()
            events = [_cut(event) for event in s.events[-_MOST_EVENTS:]]
            s.events = []
            records = s.uploads.take_records()
            software = {} if self._told_software else s.software
            report = self._compose()
            inventory = [*records, *(record for record in report.inventory if record not in records)]
            report = dataclasses.replace(report, events=events, inventory=inventory, software=software)
            sent_at = self._sent_at = time.monotonic()
            self._exchange = asyncio.ensure_future(self._report.report(report, report_timeout_s(interval)))
            try:
                directive = await self._exchange
            except (Unreachable, Refused, asyncio.CancelledError) as error:
                s.events[:0] = events
                s.uploads.give_back(records)
                self._sent_at = None
                if isinstance(error, asyncio.CancelledError):
                    if not self._dropped:
                        self._exchange.cancel()
                        raise
                    self._dropped = False
                else:
                    self._failed = (sent_at, isinstance(error, Refused))
                    pause = await self._away(error, self._report, pause, self._urgent)
                self._wake.set()
                continue
            self._answer_s += (time.monotonic() - sent_at - self._answer_s) / 8
            self._sent_at, self._failed = None, (sent_at, True) if directive.unable else None
            self._heard(self._report)
            pause = _BACKOFF_S[0]
            self._told_software |= bool(software)
            s.obey(directive)
            self._join_the_leader()
            if s.draining_until is not None and report.saved:  # of an earlier round it would mean nothing
                s.end(ExitCode.SAVED)

    def _compose(self) -> Report:
        s = self._supervisor
        round = s.round
        now = time.monotonic_ns()
        ranks = [rank.process.pid for rank in round.ranks if rank.process and not rank.ended] if round else []
        common = {
            "usage": self._meter.read(ranks),
            "identity": s.settings.identity,
            "epoch": s.directive.epoch if s.directive else 0,
            "next_store": s.stores.next_address,
            "warming": s.warming,
            "upload": s.uploads.trouble(),
            # Told each time: a leader that dies before it writes what it has heard takes it along.
            "inventory": [s.uploads.newest_saved] if s.uploads.newest_saved is not None else [],
            "draining_s": max(s.draining_until - time.monotonic(), 0.0) if s.draining_until is not None else None,
        }
        if round is None:
            return Report(round=0, **common)  # type: ignore[arg-type]
        verdict = round.reportable_verdict(now)
        if verdict is not None:
            verdict = dataclasses.replace(verdict, age_s=(now - round.verdict_ns) / 1e9)
        round.watch()
        container = rank_memory.container()
        progress = [rank.progress() for rank in round.ranks]
        at_rest = s.uploads.pending == 0  # what a rank staged is part of its being done
        return Report(
            round=round.number,
            minor=round.assignment.minor,
            ranks=[rank.report() for rank in round.ranks],
            verdict=verdict,
            saved=round.saved and at_rest,
            nothing_saved=round.saved and not round.kept,
            saved_s=round.stepless_s(now) if round.saved else 0.0,
            done=round.done and at_rest,
            store_lost=s.stores.lost,
            neighbour_lost=s.ring.lost,
            granted=s.grant.list_granted(),
            stop_ack=s.stop_ack,
            stop_passed=s.stop_passed,
            resumed_step=round.resumed(),
            resumed_tier=round.resumed_tier,
            memory_step=min((rank.memory_step for rank in round.ranks), default=0),
            last_save=max((p.last_save for p in progress), default=0),
            saved_before=s.history.saved_before(round.number),
            loaded=any(p.flags & LOADED for p in progress),
            clock=dict(round.clock),
            pauses=step_timing.merge_pauses(progress),
            trained=s.history.list_rounds(round, now),
            container_bytes=(container.used() or 0) if container is not None else 0,
            container_limit_bytes=(container.limit() or 0) if container is not None else 0,
            **common,  # type: ignore[arg-type]
        )

    async def _away(
        self,
        error: Unreachable | Refused,
        connection: Connection,
        pause: float,
        urgent: asyncio.Event | None = None,
    ) -> float:
        """Wait with jitter before trying again, not shorter than the operator asks, and return the next pause.

        Urgent news do not wait if the operator is only unreachable. A fenced agent ends.
        """
        if isinstance(error, Refused):
            self._heard(connection, error.leaderless_s)
        if isinstance(error, Refused) and error.status == _GONE:
            self.fenced = True
            self._supervisor.end(ExitCode.FENCED)
        if self._supervisor.draining_until is not None and isinstance(error, Unreachable):
            self._supervisor.end(128 + 15)  # without an operator, ranks cannot save together
        asked = error.retry_after_s if isinstance(error, Refused) else 0.0
        wait = max(pause * random.uniform(0.5, 1.5), asked * random.uniform(1.0, 1.5))
        if urgent is None or asked:
            await asyncio.sleep(wait)
        else:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(urgent.wait(), wait)
        return min(pause * 2, _BACKOFF_S[1])


def _cut(event: dict[str, str]) -> dict[str, str]:
    """Return an event that is no longer than what the operator shows: it refuses reports that are too long."""
    return {name: text[:_EVENT_CHARACTERS] for name, text in event.items()}


def _facts(framework: str) -> dict[str, Any]:
    """Return what a join says of this pod."""
    return {
        "hostname": socket.gethostname(),
        "cpus": processes.available_cpus(),
        "python": sys.version.split()[0],
        "framework": framework,
    }
