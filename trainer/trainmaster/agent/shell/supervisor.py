"""The supervisor of one pod: it obeys the operator's directives, runs the pod's ranks, and reports on them.

Torch is never imported here. Everything between the death of a rank and the fork of its successor is a chain of
callbacks in one event loop, without a polling interval or a pause.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from trainmaster.agent.shell import adopted_processes, pod_log
from trainmaster.agent.shell.datagrams import Datagrams
from trainmaster.agent.shell.fault_socket import Faults
from trainmaster.agent.shell.launching import foreign_launchers, rank_software
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.peer_heartbeat import PING, PONG, Ring
from trainmaster.agent.shell.rank_start import start_rank
from trainmaster.agent.shell.ranks.old_rounds import OldRounds
from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.round_history import RoundHistory
from trainmaster.agent.shell.ranks.unobserved_steps import AFTER_S, Sight
from trainmaster.agent.shell.reports_to_operator import Reporter
from trainmaster.agent.shell.restart_without_leader import Grant
from trainmaster.agent.shell.round_stores import Stores
from trainmaster.agent.shell.saves.last_saves import AFTER_END_S, LastSaves
from trainmaster.agent.shell.saves.peer_tier import Peers
from trainmaster.agent.shell.saves.upload_queue import Uploads
from trainmaster.agent.shell.start_method import StartMethod
from trainmaster.agent.shell.zygote_client import Zygotes
from trainmaster.contract.wire import (
    Assignment,
    Control,
    Directive,
    DirectiveState,
    ExitCode,
    StoreAddress,
    channel,
    termination_message,
)
from trainmaster.host import processes, rank_memory
from trainmaster.rank.stacks import Looks


class Supervisor:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.round: Round | None = None
        self.directive: Directive | None = None
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stop_ack: int | None = None
        self.stop_passed: int | None = None
        self.draining_until: float | None = None
        self.events: list[dict[str, str]] = []
        self.software: dict[str, str] = {}  # that ranks here will run; empty until it has been read
        self.reporter = Reporter(self)
        key = settings.key()
        self.zygotes = Zygotes(key, settings.load_environment(), self._zygotes_changed, pod_log.note)
        self.stores = Stores(settings, self.zygotes, self.reporter.at_once, self._keeps_store)
        self.uploads = Uploads(self._upload_changed)
        self.last_saves = LastSaves(self.uploads, settings.checkpoint_timeout_s)
        self.peers = Peers(settings, self._copied, self._event)
        self.faults = Faults(self)
        self.datagrams = Datagrams(self._heard)
        self.ring = Ring(self.datagrams, self.reporter.at_once)
        self.grant = Grant(self, self.datagrams, self.ring)
        self.history = RoundHistory()
        self.looks = Looks(lambda: self.round.ranks if self.round is not None else [])
        self._begun = 0  # the highest round that was ever begun here
        self._unconfirmed = False  # it was opened by the grant, and no leader has published it
        self.old_rounds = OldRounds(self._event)
        self._waiting: tuple[Assignment, int] | None = None  # a begun round that can't start, and when it was obeyed
        self._drained_ns = 0  # when it began to wait for nothing but the zygote
        self.start_method = StartMethod(
            key, lambda: self.settings, self.zygotes, self._advise, self.peers.tell_imports, self._start_waiting_round
        )
        program = "" if settings.entry is not None else settings.command.argv[0]
        self.sight = Sight(program, lambda words: self._advise("NotWatched", words))
        self._reopening: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run until the operator, a signal or a fence ends it. Return the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGINT, self._terminated)
        processes.become_subreaper()
        processes.hurry()
        await self.faults.open()
        await self.datagrams.open(self.peers.address)
        for note in self.settings.notes:
            pod_log.note(note)
        # Joining does not wait for the zygote: the operator plans meanwhile.
        works = (self._open_zygotes(), self._read_software(), adopted_processes.reap())
        tasks = [*map(asyncio.create_task, works), *self.reporter.start()]
        try:
            return await self._first_end(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
            await self._close()

    def obey(self, directive: Directive) -> None:
        """Do what the operator wants. An older leader's words, and those of an older round, are ignored."""
        if self.directive is not None and directive.epoch < self.directive.epoch:
            return
        self.directive = directive
        assignment = directive.assignment
        if directive.state is DirectiveState.FINISH:
            self.end(ExitCode.OK)
        elif directive.state is DirectiveState.HOLD:
            if self._begun - self._unconfirmed < directive.round:
                self._waiting = None
                self._retire_round()
        elif directive.state is DirectiveState.RUN and assignment is not None:
            granted = self._unconfirmed and assignment.round == self._begun
            runs = self.round is not None or self._waiting is not None
            if assignment.round > self._begun or (granted and not (runs and self.grant.foresaw(assignment))):
                self._begin(assignment, time.monotonic_ns())
            elif self.round is not None and assignment.round == self.round.number:
                self._unconfirmed = False
                self.grant.confirm(assignment)
                self.history.confirm(assignment)
                self.peers.update_peers(assignment)
                self._stop(directive)
        self.looks.want(directive.ask_stacks and self.round is not None and directive.round == self.round.number)
        self.stores.offer_if_kept()

    def end(self, code: int) -> None:
        if not self.exit_code.done():
            self.exit_code.set_result(int(code))

    def fail(self, error: OSError) -> None:
        """End the agent, which can start no ranks. `run` raises the error."""
        if not self.exit_code.done():
            self.exit_code.set_exception(error)

    def begin_granted(self, assignment: Assignment) -> None:
        """Begin a round that no leader has published. A round that a leader publishes replaces it, even with the same
        number."""
        pod_log.note(f"round {assignment.round} opens by the grant: no operator answers")
        self._begin(assignment, time.monotonic_ns())
        self.reporter.drop()

    def _begin(self, assignment: Assignment, obeyed_ns: int) -> None:
        """End the ranks of the round before, and start this one's as soon as they can be. Call it once for a round."""
        self._begun = assignment.round
        self.settings = self.settings.of_round(assignment)
        if wrong := self.settings.wrong_size(assignment):
            pod_log.complain(wrong)
            self.end(ExitCode.CONFIG_ERROR)
            return
        self._unconfirmed = assignment.minor > 0 and (self.directive is None or self.directive.round < assignment.round)
        if self.round is not None:
            self.start_method.distrust_failed_start(self.round)
        self.history.begin(assignment, self.round)
        self._retire_round()
        self.uploads.give_up(failing_only=True, below_round=assignment.round)
        self.stop_ack = self.stop_passed = None
        self.stores.take(assignment.store)
        self.peers.begin(assignment)
        self.grant.begin(assignment)
        self.start_method.begin(assignment)
        self._waiting, self._drained_ns = (assignment, obeyed_ns), 0
        self._start_waiting_round()

    def _start_waiting_round(self) -> None:
        """Start the ranks of a round that has begun, if there is one and nothing stands in their way any more."""
        if self._waiting is None or self.old_rounds.device_holders():
            return
        self._drained_ns = self._drained_ns or time.monotonic_ns()
        way = self.start_method.choose()
        if way is None:
            return
        (assignment, obeyed_ns), self._waiting = self._waiting, None
        try:
            self.round = self._start(assignment, obeyed_ns, way)
        except OSError as error:
            self.fail(error)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self.round.next_look_s(), self._watch, self.round)
        loop.call_later(AFTER_S, self.sight.look, self.round)
        if not self.settings.own_loop:
            foreign_launchers.watch(self.round, lambda round: round is self.round)
        self.stores.offer_later()
        self.reporter.at_once()

    @property
    def warming(self) -> bool:
        """Return True while ranks cannot be started yet, because the zygote still imports."""
        return self.start_method.choose() is None

    def _start(self, assignment: Assignment, obeyed_ns: int, way: str) -> Round:
        round = Round(assignment, obeyed_ns, own_loop=self.settings.own_loop, changed=self._round_changed)
        round.way = way
        kills = rank_memory.oom_kills()
        round.oom_kills = lambda: rank_memory.oom_kills() > kills
        forked_ns = time.monotonic_ns()
        control = self._control()
        for pod_rank in range(assignment.ranks):
            rank = Rank(assignment.first_rank + pod_rank, assignment.round, self._said, self._exited)
            rank.copied_step = self.peers.first_copied_step()
            rank.set_control(control)
            round.ranks.append(rank)
            more = self.faults.environment() | self.peers.environment(assignment) | self.history.environment()
            start_rank(rank, self.settings, self.zygotes, assignment, pod_rank, way, more, self._advise)
        round.forked(self._drained_ns, forked_ns)
        return round

    def _round_changed(self) -> None:
        self.reporter.at_once()
        self.grant.look()

    def _heard(self, message: dict[str, Any], sender: StoreAddress) -> None:
        """Handle a message of another agent of the round."""
        kind = message["kind"]
        (self.ring if kind in (PING, PONG) else self.grant).heard(kind, message, sender)

    def _control(self) -> Control:
        d = self.directive
        uploads, ending = self.uploads, self.old_rounds.living()
        control = Control(uploads_pending=uploads.under_way, uploads_step=uploads.newest_step, ranks_ending=ending)
        if d is not None and d.stop_at is not None:
            control.stop_at, control.stop_bound = d.stop_at, int(d.stop_bound)
        return control

    def _retire_round(self) -> None:
        if self.round is not None:
            self.history.retire(self.round)
            self.old_rounds.add(self.round)
            self.round = None

    def _exited(self, rank: Rank) -> None:
        if self.round is not None and rank in self.round.ranks:
            self.round.exited(rank)
            self._look_at_last_saves()
            return
        self.old_rounds.bury()
        self._update_pending()
        self._start_waiting_round()

    def _said(self, rank: Rank, message: dict[str, Any], fds: list[int]) -> None:
        kind = message.pop("kind")
        current = self.round if self.round is not None and rank in self.round.ranks else None
        if kind == channel.STAGED and fds:
            message["rank"] = message.get("rank", rank.number)
            self.uploads.submit(message, fds[0])
            if current is None:
                self._update_pending()
        elif kind == channel.MODULES:
            self.start_method.lessons.hear(rank, message)
        elif kind in (channel.RESCUING, channel.RESCUED):
            for round in [r for r in (current, *self.old_rounds.rounds) if r is not None and rank in r.ranks]:
                round.said(rank, kind)
        elif current is None:
            return
        elif kind == channel.IN_MEMORY:
            rank.memory_step = int(message["step"])
            self.peers.saved(rank.number, message)
        elif kind == channel.FAILED:
            current.spoke(rank, message)
        elif kind == channel.EXITS:
            rank.exits = message
        elif kind == channel.RESUMED:
            current.resumed_step, current.resumed_tier = int(message["step"]), str(message.get("tier", ""))
            self.reporter.at_once()
        elif kind == channel.SAVED:
            rank.kept = bool(message.get("kept", True))
        elif kind == channel.EVENT:
            self._event(str(message.get("reason", "")), str(message.get("message", "")))

    def _stop(self, directive: Directive) -> None:
        round = self.round
        assert round is not None
        told = self.stop_ack, self.stop_passed
        self.stop_ack, self.stop_passed = round.set_stop(self._control())
        if directive.stop_at is None:
            return
        self._look_at_last_saves()
        if not round.heeds_stops():
            # Such a script can't save at a step; it gets SIGTERM and its grace period once all agree to stop.
            self.stop_ack, self.stop_passed = directive.stop_at, None
            if directive.stop_bound and not round.stopping:
                round.terminate()
                asyncio.get_running_loop().call_later(self.settings.grace_s, round.kill)
        # Answers to reports are directives too: the same words again would make report follow report.
        if (self.stop_ack, self.stop_passed) != told:
            self.reporter.at_once()

    def _upload_changed(self, message: dict[str, Any], error: str | None) -> None:
        self._update_pending()
        if self.round is not None:
            for rank in self.round.ranks:
                if rank.number == message["rank"] and self.round.number == message.get("round", self.round.number):
                    rank.send(channel.UPLOADED, {"step": message.get("step", 0), "error": error or None})
        self._look_at_last_saves()
        self.reporter.at_once()

    def _look_at_last_saves(self) -> None:
        self.last_saves.look(self.round, stops=self.directive is not None and self.directive.stop_at is not None)

    def _copied(self, number: int, rank_number: int, step: int) -> None:
        ranks = self.round.ranks if self.round is not None and self.round.number == number else []
        for rank in [rank for rank in ranks if rank.number == rank_number]:
            rank.copied(step)

    def _update_pending(self) -> None:
        """Tell ranks that choose a resume point how many checkpoints of earlier rounds are still on their way."""
        control = self._control()
        for rank in self.round.ranks if self.round is not None else []:
            rank.set_control(control)

    def _watch(self, round: Round) -> None:
        if round is not self.round:
            return
        if round.watch():
            asyncio.get_running_loop().call_later(round.next_look_s(), self._watch, round)
        else:
            self.stores.end_wait()

    def _keeps_store(self) -> bool:
        return self.directive is not None and self.directive.keep_store

    def _zygotes_changed(self) -> None:
        self.start_method.zygotes_changed()
        self.stores.offer_if_kept()
        if self.round is None and self._waiting is None:
            self.reporter.at_once()  # a round may wait until this pod is warm
        self._start_waiting_round()
        # If its successor is awaited already, this was another zygote of the lost one.
        if not self.zygotes.alive and not self.exit_code.done() and (self._reopening is None or self._reopening.done()):
            self._advise("ZygoteLost", "the zygote ended and this pod's ranks with it: connecting to its successor")
            reopening = adopted_processes.end(self._advise, self._open_zygotes)
            self._reopening = asyncio.get_running_loop().create_task(reopening)

    async def _open_zygotes(self) -> None:
        """Open the zygotes. An error ends the agent, which can start no rank without them."""
        try:
            await self.zygotes.open(self.settings.zygote, bare=not self.settings.zygote_enabled)
        except OSError as error:
            self.fail(error)
        else:
            self._zygotes_changed()

    async def _read_software(self) -> None:
        self.software = await rank_software.read(self.settings)
        self.reporter.at_once()

    async def _first_end(self, tasks: list[asyncio.Task[None]]) -> int:
        """Return the exit code, or raise the exception of a task: tasks end only if something is broken."""
        waiting: set[asyncio.Future[Any]] = {self.exit_code, *tasks}
        while not self.exit_code.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {self.exit_code}:
                task.result()
        return self.exit_code.result()

    def _terminated(self) -> None:
        """Handle SIGTERM: tell the operator, which lets all ranks save; end when they have, or when the grace is
        over."""
        if self.draining_until is not None or self.round is None or not self.round.alive:
            self.end(128 + signal.SIGTERM)
            return
        self.draining_until = time.monotonic() + self.settings.grace_s
        self.reporter.at_once()
        # The last second is for killing and saying so.
        asyncio.get_running_loop().call_later(max(self.settings.grace_s - 1, 0), self.end, 128 + signal.SIGTERM)

    async def _close(self) -> None:
        round = self.round
        termination_message.write(self.settings.termination_log, round.verdict if round else None)
        self.exit_code.cancel()
        self.start_method.close()
        self.faults.close()
        self.grant.close()
        self.ring.close()
        self.datagrams.close()
        if round is not None:
            round.kill()
        self.stores.end()
        self.peers.close()
        self.last_saves.close()
        if not self.reporter.fenced:  # another pod takes this one's place, and waits for its end
            await self.uploads.drained(AFTER_END_S)
        await self.reporter.last_words()
        self.zygotes.close()
        self.uploads.close()

    def _event(self, reason: str, message: str) -> None:
        self.events.append({"reason": reason, "message": message})
        self.reporter.at_once()

    def _advise(self, reason: str, message: str) -> None:
        """Write a sentence to the log and to the job's events, because the job's owner can act on it."""
        pod_log.note(message)
        self._event(reason, message)
