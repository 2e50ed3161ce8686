"""One rank as its agent sees it: a process, a progress record, a channel, and a pipe with its output."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeGuard

from trainmaster.agent.shell import pod_log
from trainmaster.agent.shell.ranks.output_pipe import Output
from trainmaster.agent.shell.ranks.verdict import exit_code_of
from trainmaster.agent.shell.zygote_client import Process
from trainmaster.agent.zygote import packets
from trainmaster.contract.wire import Control, ExitCode, Phase, Progress, ProgressRecord, RankReport, RankState
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import COLLECTIVES, RESCUES
from trainmaster.host import processes, rank_memory
from trainmaster.rank.stacks import Look

_AT_ONCE = 64
"""Messages of a rank that are handled before anything else is due again: it may send faster than its agent reads."""

_AT_THE_END = 4096
"""Messages that are looked for at its end: more than a socket holds."""


class Rank:
    """One rank. `on_message(rank, message, fds)` gets its messages, and `on_exit(rank)` is called at its end, after the
    last one."""

    def __init__(
        self,
        number: int,
        round: int,
        on_message: Callable[[Rank, dict[str, Any], list[int]], None],
        on_exit: Callable[[Rank], None],
    ) -> None:
        self.number = number
        self.round = round
        self.record = ProgressRecord.create(round, number)
        self.output = Output(f"[rank {number}] ")
        self.channel, self._theirs = Channel.pair()
        self.channel.socket.setblocking(False)
        self.process: Process | None = None
        self.status: int | None = None
        self.ended = False
        self.told_to_end = False  # its end is our doing and no failure
        self.copied_step = 0  # see Control
        self.memory_step = 0  # the newest that it has saved to memory
        self.kept = False  # it stopped on request, and had saved the step at which it did
        self.rescuing = False  # it is saving its last completed step...
        self.rescued = False  # ...and has done so, or can't
        self.words: dict[str, Any] | None = None
        self.words_of_part: dict[str, Any] | None = None  # of a program after which the rank may go on
        self.imports: list[list[str]] = []  # see channel.MODULES
        self.imported_variables: dict[str, str | None] = {}
        self.exits: dict[str, Any] | None = None  # a program of it ends, or has ended, by SystemExit: channel.EXITS
        self.look = Look()
        self._on_message = on_message
        self._on_exit = on_exit
        self._last = Progress(round=round, rank=number)
        asyncio.get_running_loop().add_reader(self.channel.socket, self._receive)

    def descriptors(self) -> dict[str, int]:
        return {"output": self.output.write_fd, "progress": self.record.fd, "channel": self._theirs.fileno()}

    def started(self, process: Process) -> None:
        self.process = process
        self.output.started()
        self._theirs.close()

    def exited(self, status: int | None) -> None:
        """Handle the end of the process, which its zygote reports, after all of its messages and output."""
        try:
            self._receive(_AT_THE_END)
        finally:  # whatever the last message was: a rank that never counts as ended would keep the next round waiting
            self.output.drain()
            self._last = self.record.read()
            self.status, self.ended = self._code_of_pipeline() << 8 if status == 0 else status, True
            self._on_exit(self)

    def progress(self) -> Progress:
        return self._last if self.ended else self.record.read()

    def words_of_last_part(self) -> dict[str, Any] | None:
        """Return the words of the last program that was observed, or None if it did not fail."""
        return self.words_of_part if self._is_last(self.words_of_part) else None

    def _code_of_pipeline(self) -> int:
        """Return the exit code of the last program that was observed if it was part of a pipeline, else 0.

        A pipeline itself ends with the exit code of another program.
        """
        if self._is_last(self.exits) and self.exits.get("piped"):
            return int(self.exits["code"]) & 0xFF
        failed = any(self._is_last(words) and words.get("piped") for words in (self.words, self.words_of_part))
        return ExitCode.CRASH if failed else ExitCode.OK

    def _is_last(self, told: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
        """Return True if no program was observed in this rank that began after this was told."""
        return told is not None and self._last.started_ns <= int(told.get("at_ns", 0))

    def set_control(self, control: Control) -> None:
        if not self.ended:
            self.record.set_control(dataclasses.replace(control, copied_step=self.copied_step))

    def copied(self, step: int) -> None:
        """Tell the rank that a peer has its state after `step`, or, with 0, that no peer keeps any."""
        self.copied_step = step
        if not self.ended:
            self.set_control(self.record.control())

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        if not self.ended:
            with contextlib.suppress(OSError):  # it is ending
                self.channel.send(kind, fields)

    @property
    def joined(self) -> bool:
        """Return True if it has ended, or was seen in its round's rendezvous or in a step."""
        p = self.progress()
        return self.ended or bool(p.rendezvous_ns or p.first_step_ns)

    def can_rescue(self) -> bool:
        """Return True if it may hold a step that no other process has, and would answer a request to save it."""
        p = self.progress()
        asked = self.ended or self.rescued or not p.flags & RESCUES or p.step <= max(p.resumed_step, 0)
        return not asked and not self.stopped

    @property
    def program(self) -> int:
        """Return the pid of the process that trains, 0 if it is not known yet.

        If `process` is a shell or a wrapper, it is the Python program below it.
        """
        return self.record.claimant() or (self.process.pid if self.process else 0)

    @property
    def stopped(self) -> bool:
        """Return True if the kernel has stopped the process (SIGSTOP, a debugger)."""
        if self.ended or self.process is None:
            return False
        return any(processes.state(pid) == "T" for pid in {self.process.pid, self.program} if pid)

    def report(self) -> RankReport:
        p = self.progress()
        pid = self.process.pid if self.process else 0
        state = RankState.RUNNING if p.phase >= Phase.STEP else RankState.STARTING
        if self.ended:
            state = RankState.EXITED
        elif self.stopped:
            state = RankState.STOPPED
        silent_ns = 0 if self.ended else time.monotonic_ns() - p.beat_ns
        collective = COLLECTIVES[p.collective] if p.collective < len(COLLECTIVES) else "collective of an unknown kind"
        rss, rss_peak = (p.rss_bytes, p.rss_peak_bytes) if p.rss_bytes else rank_memory.of_process(pid)
        return RankReport(
            rank=self.number,
            pid=pid,
            state=state,
            phase=Phase(p.phase).name.lower() if 0 <= p.phase <= Phase.DONE else "",
            step=p.step,
            total_steps=p.total_steps,
            loss=p.loss if p.loss == p.loss else None,
            tokens=p.tokens,
            silent_s=max(silent_ns, 0) / 1e9,
            rss_bytes=rss,
            device_bytes=p.device_bytes,
            exit_code=exit_code_of(self.status) if self.status is not None else None,
            step_seconds=p.step_ns / 1e9,
            wait_seconds=p.wait_ns / 1e9,
            stack=self.look.stack,
            still_s=self.look.still_s,
            collective=f"{p.collectives} {collective}" if p.collectives else "",
            rss_peak_bytes=rss_peak,
            device_peak_bytes=p.device_peak_bytes,
            device_limit_bytes=p.device_limit_bytes,
            mfu=p.mfu,
        )

    def close(self) -> None:
        """Close the descriptors of the rank, after it has ended."""
        if self.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.channel.socket)
            self.channel.close()
        if self._theirs.fileno() >= 0:
            self._theirs.close()
        self.output.close()
        self.record.close()

    def _receive(self, most: int = _AT_ONCE) -> None:
        """Handle the messages that are there, at most so many: the event loop calls this again while there are more."""
        for _ in range(most):
            if self.channel.fileno() < 0:
                return
            try:
                received = self.channel.receive()
            except BlockingIOError:
                return
            except ValueError as error:
                pod_log.note(f"rank {self.number} sent a message that is dropped, because it is not JSON: {error}")
                continue
            except OSError:
                received = None
            if received is None:
                asyncio.get_running_loop().remove_reader(self.channel.socket)
                return
            message, fds = received
            try:
                self._on_message(self, message, fds)
            finally:
                packets.close_all(fds)
