"""Reads an agent's settings, and reports to the operator while a launcher's own parser reads the command.

Such a parser imports torch, which takes half a minute on a slow machine, and an agent that is silent for so long counts
as lost. So the agent reports that it lives. It does not join yet: the operator opens rounds only with agents that have
joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from trainmaster.agent.shell import adopted_processes
from trainmaster.agent.shell.control_client import Access, Connection, Refused, Unreachable
from trainmaster.agent.shell.launching.agent_settings import Settings, read_identity
from trainmaster.agent.shell.reports_to_operator import REPORT_SPREAD, report_timeout_s
from trainmaster.contract.wire import Directive, DirectiveState, ExitCode, Report, environment
from trainmaster.host import processes

READING = "ReadingCommand"
"""Reason of the event that says why a running pod is in no round yet."""

_WORDS = (
    "{} reads the options of the command itself and imports torch for that, which takes some seconds and on a slow "
    "machine half a minute; the pod takes part in a round after that"
)
_PAUSES_S = (0.05, 2.0)  # first and longest pause while the operator is away
_INTERVAL_S = 0.5  # between reports, until the operator says it
_GONE = 410
_END_S = 5.0  # for which the agent waits at its end for what a launcher's parser has started

T = TypeVar("T")


class EndedEarly(Exception):
    """The agent ends before its settings are known: the operator or a signal has told it to."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


async def read_settings(env: Mapping[str, str]) -> Settings:
    """Return the settings of the agent with these variables. Raises EndedEarly, and ValueError that says which variable
    is missing or wrong."""
    reading = _Reading(env)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _set, reading.ended, 128 + signal.SIGTERM)
    processes.become_subreaper()  # of what a wrapper of the launcher starts
    reading.start()
    reports = loop.create_task(reading.report())
    first: set[asyncio.Future[Any]] = {reading.settings, reading.ended, reports}
    try:
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if reports.done():
            reports.result()  # an exception of it says that something is broken
    finally:
        reports.cancel()
        await asyncio.wait({reports}, timeout=1)
        if not reading.settings.done():
            reading.settings.cancel()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(adopted_processes.end(lambda reason, words: None), _END_S)
    if reading.ended.done():
        raise EndedEarly(reading.ended.result())
    return reading.settings.result()


def next_report(answer: Directive | Refused | Unreachable, pause_s: float) -> tuple[int | None, float]:
    """Return the exit code with which the agent ends, or None, and the seconds until its next report.

    `pause_s`: how long it waits if the operator says no time. Other directives than FINISH are for agents that have
    joined.
    """
    if isinstance(answer, Directive):
        return (int(ExitCode.OK) if answer.state is DirectiveState.FINISH else None), answer.report_interval_s
    if isinstance(answer, Refused):
        return (int(ExitCode.FENCED) if answer.status == _GONE else None), max(pause_s, answer.retry_after_s)
    return None, pause_s


class _Reading:
    """The reading of the settings in a thread, and the reports meanwhile."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[str] = self._loop.create_future()  # the launcher whose parser is asked
        self.settings: asyncio.Future[Settings] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()  # with this exit code

    def start(self) -> None:
        """Start to read. The thread is a daemon: if it waits for the lock of an answer, it must not delay the end of
        the agent."""
        threading.Thread(target=self._read, name="settings", daemon=True).start()

    async def report(self) -> None:
        """Report from the moment that a parser is asked until the settings are known or the agent must end. Raises
        ValueError if the variables do not say who this agent is and where its operator is."""
        launcher = await self._asked
        env, words = self._env, _WORDS.format(launcher)
        report = Report(read_identity(env), round=0, warming=True, events=[{"reason": READING, "message": words}])
        places = (env.get(name, "") for name in (environment.OPERATOR_URL, environment.TOKEN_FILE, environment.CA_FILE))
        connection = Connection(Access(*places))
        interval_s, pause_s = _INTERVAL_S, _PAUSES_S[0]
        try:
            # Before Python 3.12 wait_for may swallow a cancellation, so the end is looked at too.
            while not (self.settings.done() or self.ended.done()):
                answer: Directive | Refused | Unreachable
                try:
                    answer = await connection.report(report, report_timeout_s(interval_s))
                    report = replace(report, events=[])
                    interval_s, pause_s = answer.report_interval_s, _PAUSES_S[0]
                except (Refused, Unreachable) as error:
                    answer, pause_s = error, min(2 * pause_s, _PAUSES_S[1])
                code, wait_s = next_report(answer, pause_s)
                if code is not None:
                    _set(self.ended, code)
                    return
                await asyncio.sleep(wait_s * random.uniform(*REPORT_SPREAD))
        finally:
            connection.close()

    def _read(self) -> None:
        try:
            found = Settings.read(self._env, lambda launcher: self._tell(_set, self._asked, launcher))
        except Exception as error:  # noqa: BLE001  raised again where the settings are awaited
            self._tell(_set_exception, self.settings, error)
        else:
            self._tell(_set, self.settings, found)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the agent has ended meanwhile, and so has its loop
            self._loop.call_soon_threadsafe(function, *arguments)


def _set(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
