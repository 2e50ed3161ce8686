"""One round on this agent: its ranks, how they started, and how they ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.survivor_time_limits import (
    CASCADE_GRACE_S,
    PEER_FAILURE_S,
    RESCUE_ANSWER_S,
    RESCUE_LIMIT_S,
)
from trainmaster.agent.shell.ranks.verdict import End, exit_code_of, judge
from trainmaster.agent.shell.zygote_client import Process, signal_all
from trainmaster.contract.wire import Assignment, Cause, Control, ExitCode, Phase, Verdict, channel
from trainmaster.contract.wire.progress_record import OBEYS_STOP
from trainmaster.host import processes

_PHASES = ("started_ns", "imported_ns", "rendezvous_ns", "built_ns", "loaded_ns", "first_step_ns")
_CLOCK = ("fork", "imports", "rendezvous", "build", "load", "first_step")

_LOOK_S = 0.02
"""The shortest pause between two looks for milestones of a start. They are reported, and nothing waits for them."""


class Round:
    """One round. `changed` is called at once when something happened that the operator must know."""

    def __init__(self, assignment: Assignment, obeyed_ns: int, *, own_loop: bool, changed: Callable[[], None]) -> None:
        self.assignment = assignment
        self.ranks: list[Rank] = []
        self.way = ""  # learned, pristine or exec: how its ranks were started
        self.verdict: Verdict | None = None
        self.verdict_ns = 0
        self.resumed_step: int | None = None
        self.resumed_tier = ""
        self.clock: dict[str, float] = {}
        self.ending = False  # its ranks were killed on purpose
        self.stopping = False  # ranks that know nothing of stops got SIGTERM
        self.ended_ns = 0  # when the last of its ranks ended
        self.not_saved = False  # they have ended, and storage lacks what they saved last
        self.oom_kills: Callable[[], bool] = lambda: False
        self._obeyed_ns = obeyed_ns
        self._forked_ns = obeyed_ns
        self._zygote_s = 0.0  # for which its ranks waited for the process that they are forked from
        self._own_loop = own_loop
        self._changed = changed
        self._milestone = 0
        self._grace: asyncio.TimerHandle | None = None

    @property
    def number(self) -> int:
        return self.assignment.round

    @property
    def processes(self) -> list[Process]:
        return [rank.process for rank in self.ranks if rank.process is not None]

    @property
    def alive(self) -> bool:
        return any(not rank.ended for rank in self.ranks)

    @property
    def started(self) -> bool:
        """Return True if each of its ranks has completed a step or ended."""
        return bool(self.ranks) and all(r.ended or r.progress().first_step_ns for r in self.ranks)

    @property
    def unwatched(self) -> list[int]:
        """Return the running ranks of which nothing was ever observed."""
        return [r.number for r in self.ranks if not r.ended and not r.progress().started_ns]

    def exit_codes(self) -> list[int] | None:
        """Return the exit codes of all ranks when all have ended, None before."""
        if not self.ranks or self.alive:
            return None
        return [exit_code_of(r.status) if r.status is not None else int(ExitCode.CRASH) for r in self.ranks]

    @property
    def done(self) -> bool:
        """Return True if all ranks ended with 0 on their own.

        A script that was told to end has stopped, not finished.
        """
        codes = self.exit_codes()
        return codes is not None and not any(codes) and not self.stopping and not self.not_saved

    @property
    def saved(self) -> bool:
        """Return True if all ranks stopped on request. `kept` says whether they saved before that."""
        codes = self.exit_codes()
        if codes is None or self.verdict is not None:
            return False
        return self.stopping or (ExitCode.SAVED in codes and set(codes) <= {ExitCode.SAVED, ExitCode.OK})

    @property
    def kept(self) -> bool:
        """Return True if every rank that stopped on request had saved its step.

        A script that got SIGTERM may have saved something of its own, which the agent does not know.
        """
        return not self.stopping and all(
            rank.kept for rank in self.ranks if rank.status is not None and exit_code_of(rank.status) == ExitCode.SAVED
        )

    @property
    def stepped(self) -> bool:
        """Return True if any of its ranks has completed a step."""
        return any(rank.progress().first_step_ns for rank in self.ranks)

    @property
    def lived_s(self) -> float:
        """Return the seconds that its ranks ran before the verdict, 0 without a verdict."""
        return max(0, self.verdict_ns - self._forked_ns) / 1e9

    def resumed(self) -> int | None:
        """Return the step after which its ranks began, as they reported it or as a script's optimizer counts; None:
        unknown."""
        if self.resumed_step is not None or self._own_loop:
            return self.resumed_step
        counted = max((rank.progress().resumed_step for rank in self.ranks), default=-1)
        return counted if counted >= 0 else None

    def stepless_s(self, now_ns: int) -> float:
        """Return the seconds since the first of its ranks, which have ended, reported last: the end of its last
        step."""
        return max((now_ns - rank.progress().beat_ns for rank in self.ranks), default=0) / 1e9

    def forked(self, drained_ns: int, forked_ns: int) -> None:
        """Note that all ranks are being started, since `forked_ns`. `drained_ns` is when those of the round before were
        dead, or told to end; from then on the ranks have waited for the zygote's imports, which count as theirs."""
        self._forked_ns = forked_ns
        self._zygote_s = (forked_ns - drained_ns) / 1e9
        self.clock["drain"] = (drained_ns - self._obeyed_ns) / 1e9

    def kill(self) -> None:
        """Kill all ranks with their process trees. Nothing that they do from now on is a failure."""
        self.ending = True
        if self._grace is not None:
            self._grace.cancel()
        signal_all(self.processes, signal.SIGKILL)

    def retire(self) -> None:
        """End all ranks for another round. Ranks that hold more than they resumed with save it first."""
        self.ending = True
        if self._grace is not None:
            self._grace.cancel()
        rescuing = [rank for rank in self.ranks if rank.can_rescue()]
        signal_all([r.process for r in self.ranks if r.process is not None and r not in rescuing], signal.SIGKILL)
        loop = asyncio.get_running_loop()
        for rank in rescuing:
            rank.send(channel.RESCUE, {})
            loop.call_later(RESCUE_ANSWER_S, self._end_silent, rank)
            loop.call_later(RESCUE_LIMIT_S, self._end, rank)

    def survivors(self) -> list[str]:
        """Return one sentence for each of its ranks that still exists. Call this long after all were killed."""
        alive = [(r.number, r.process.pid) for r in self.ranks if not r.ended and r.process is not None]
        return [
            f"process {pid}, rank {number} of round {self.number}, was killed and still exists (state "
            f"{processes.state(pid)}): it waits in the kernel, for a file system that does not answer or for a device. "
            f"Nothing that it saves is used"
            for number, pid in alive
        ]

    def said(self, rank: Rank, kind: str) -> None:
        """Handle what a rank reports of its rescue."""
        rank.rescuing = True
        if kind == channel.RESCUED:
            rank.rescued = True
            if self.ending:
                self._end(rank)

    def _end_silent(self, rank: Rank) -> None:
        if not rank.rescuing:
            self._end(rank)

    def _end(self, rank: Rank) -> None:
        if rank.process is not None:
            signal_all([rank.process], signal.SIGKILL)

    def terminate(self) -> None:
        """Ask ranks that know nothing of stops to end."""
        self.stopping = self.alive  # those that have all ended did so of themselves
        for rank in self.ranks:
            rank.told_to_end = True
        signal_all(self.processes, signal.SIGTERM)

    def set_stop(self, control: Control) -> tuple[int | None, int | None]:
        """Write a stop to the records of all ranks.

        Return (acknowledged stop_at, step of a rank that had already passed it).
        """
        for rank in self.ranks:
            rank.set_control(control)
        if control.stop_at < 0:
            return None, None
        passed = max((r.progress().step for r in self.ranks if not r.ended), default=0)
        if passed >= control.stop_at and not control.stop_bound:
            return None, passed
        return control.stop_at, None

    def heeds_stops(self) -> bool:
        return self._own_loop or all(r.progress().flags & OBEYS_STOP for r in self.ranks)

    def spoke(self, rank: Rank, words: dict[str, Any]) -> None:
        """Handle the last words of a rank, so that the verdict need not wait for the process to end."""
        if words.get("may_go_on"):
            rank.words_of_part = words
        elif rank.words is None:
            rank.words = words
            self._judge(rank)

    def exited(self, rank: Rank) -> None:
        code = exit_code_of(rank.status) if rank.status is not None else None
        fine = code in (ExitCode.OK, ExitCode.SAVED) or rank.told_to_end or self.ending
        if not fine and rank.words is None:
            rank.words = rank.words_of_last_part()
            self._judge(rank)
        if not self.alive:
            self.ended_ns = time.monotonic_ns()
        self._changed()

    def unsaved(self, number: int, step: int, error: str, *, fenced: bool) -> None:
        """Note that the last save of its ranks will not reach storage: the ranks ended well, but the round has
        failed."""
        self.not_saved = True
        rank = next((rank for rank in self.ranks if rank.number == number), self.ranks[0])
        self._set_verdict(
            Verdict(
                rank=rank.number,
                cause=Cause.FENCED if fenced else Cause.CHECKPOINT_FAILED,
                round=self.number,
                message=f"step {step} is not saved: {error}",
                step=step,
            )
        )
        self._changed()

    def watch(self) -> bool:
        """Check for milestones of the start. Return True if more are to come."""
        if not self.ranks or self.ending:
            return False
        records = [r.progress() for r in self.ranks]
        times = [max(getattr(p, name) for p in records) for name in _PHASES]
        complete = [all(getattr(p, name) for p in records) for name in _PHASES]
        # Scripts show only some of the milestones: time up to the next one counts as the next one's.
        last = self._forked_ns
        for name, ns, whole in zip(_CLOCK, times, complete, strict=True):
            if whole and ns >= last:
                self.clock[name] = (ns - last) / 1e9 + (self._zygote_s if name == "imports" else 0.0)
                last = ns
        milestone = max((i for i, whole in enumerate(complete) if whole), default=0)
        if milestone > self._milestone and milestone in (_PHASES.index("rendezvous_ns"), len(_PHASES) - 1):
            self._changed()
        self._milestone = max(self._milestone, milestone)
        late = self.assignment.deadline_s and time.monotonic_ns() - self._forked_ns > self.assignment.deadline_s * 1e9
        if late and not self.started and self.verdict is None:
            self._blame_the_slowest()
        return not self.started and self.alive

    def next_look_s(self) -> float:
        """Return the seconds until milestones are looked for again: a hundredth of the time since the start, because
        steps of a script may never be seen."""
        return max(_LOOK_S, (time.monotonic_ns() - self._forked_ns) / 1e9 / 100)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def _judge(self, rank: Rank) -> None:
        """Make the verdict on `rank` this round's, if it is the first cause."""
        if self.ending:
            return
        rank.output.drain()
        zygote_lost = rank.ended and rank.status is None
        verdict = judge(
            End(
                rank=rank.number,
                round=self.number,
                step=rank.progress().step,
                status=rank.status,
                words=rank.words,
                lines=list(rank.output.lines),
                exits=rank.exits is not None,
                forked_warm=self.way == "learned",
                own_loop=self._own_loop,
                oom_killed=self.oom_kills(),
                note="its zygote ended, and all ranks with it" if zygote_lost else "",
                peer_failed=self._failed_shortly_before(rank),
            )
        )
        if self.verdict is not None and (verdict.cascade or not self.verdict.cascade):
            return
        if verdict.cascade:
            self._set_verdict(verdict)
            self._grace = asyncio.get_running_loop().call_later(CASCADE_GRACE_S, self._changed)
            return
        if self._grace is not None:
            self._grace.cancel()
        self._set_verdict(verdict)
        self._changed()

    def _failed_shortly_before(self, rank: Rank) -> bool:
        """Return True if another rank than `rank` has failed within the last PEER_FAILURE_S seconds."""
        verdict, ago_ns = self.verdict, time.monotonic_ns() - self.verdict_ns
        return verdict is not None and verdict.rank != rank.number and ago_ns < PEER_FAILURE_S * 1e9

    def reportable_verdict(self, now_ns: int) -> Verdict | None:
        """Return the verdict, or None while it is a cascade whose cause may still be found."""
        verdict = self.verdict
        if verdict is None or (verdict.cascade and now_ns - self.verdict_ns < CASCADE_GRACE_S * 1e9):
            return None
        return verdict

    def _set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.verdict_ns = time.monotonic_ns()

    def _blame_the_slowest(self) -> None:
        rank = min((r for r in self.ranks if not r.ended), key=lambda r: (r.progress().phase, r.number))
        phase = Phase(rank.progress().phase).name.lower()
        self._set_verdict(
            Verdict(
                rank=rank.number,
                cause=Cause.HANG,
                round=self.number,
                message=f"no step within {self.assignment.deadline_s:g} s of the start: still in phase {phase}",
                last_lines=list(rank.output.lines)[-20:],
            )
        )
        self._changed()
