"""How the ranks of a round are started: forked from the learned zygote, forked from the pristine one, or executed.

Forking is fast, and not always possible: a script's imports may depend on what it does before them. After a forked
round that failed at its start, the next one is started in a slower way. A script's first rank in a pod is executed,
unless other pods have forked the script already: then the zygote imports what their agents say, and the rank waits for
it instead of importing the same beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from trainmaster.agent.shell import known_imports
from trainmaster.agent.shell.known_imports import KnownImports
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.ranks.import_learning_times import Lessons
from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.unobserved_steps import STARTED_WELL_S
from trainmaster.agent.shell.zygote_client import Zygotes
from trainmaster.agent.zygote.import_plan import Imported
from trainmaster.contract.wire import Assignment, Cause


class StartMethod:
    """Chooses how ranks are started, and has the zygote learn their imports.

    `key`: of the zygotes, which were started for the agent's first settings. `settings` returns the present ones.
    `advise(reason, sentence)` tells the job's owner. `tell(imports)` is called with what other agents may be told of
    this script's imports, b"" if they may not. `ready` is called when a round need not wait for imports any more.
    """

    def __init__(
        self,
        key: str,
        settings: Callable[[], Settings],
        zygotes: Zygotes,
        advise: Callable[[str, str], None],
        tell: Callable[[bytes], None],
        ready: Callable[[], None],
    ) -> None:
        self._key = key
        self._settings = settings
        self._zygotes = zygotes
        self._advise = advise
        self._tell = tell
        self._ready = ready
        self.lessons = Lessons(self._learn, self._refuse_forks, told=settings().own_loop)
        self._steps_seen = False  # a rank of any round has completed a step
        self._distrusted: set[str] = set()  # ways of starting ranks that failed
        self._known = KnownImports()
        self._asked = False  # other agents
        self._waits: asyncio.TimerHandle | None = None  # for their answer, or for the zygote to import what they said

    def begin(self, assignment: Assignment) -> None:
        """Ask the other agents of a round for the script's imports, if no rank of this pod has told any and those of
        other pods may have."""
        peers = known_imports.others(assignment, self._settings().identity.slot)
        if self._asked or not peers or not asks_others(assignment, self._settings(), self._key, self.lessons):
            return
        self._asked = True
        self._wait(known_imports.ANSWER_S)
        loop = asyncio.get_running_loop()
        limit_s = min(known_imports.IMPORT_S, assignment.deadline_s / 2 or known_imports.IMPORT_S)

        def answered(known: KnownImports | None) -> None:
            loop.call_soon_threadsafe(self._answered, known, limit_s)

        known_imports.ask(peers, assignment.peer_secret, answered)

    def zygotes_changed(self) -> None:
        """Note that a zygote has appeared or ended."""
        zygotes = self._zygotes
        learned = self.lessons.forkable and zygotes.learned() is not None
        if learned or not zygotes.alive or zygotes.without_forks:
            self._stop_waiting()
        self._share()

    def close(self) -> None:
        self.lessons.close()
        self._stop_waiting()

    def choose(self) -> str | None:
        """Return how ranks are started: learned, pristine or exec; None until the zygote serves."""
        settings = self._settings()
        if not self._zygotes.alive:
            return None
        if settings.entry is None or settings.command.flags or settings.key() != self._key:
            return "exec"
        if self._zygotes.without_forks or "exec" in self._distrusted:
            return "exec"
        if not self.lessons.forkable:
            return "exec" if self._waits is None else None
        best = self._zygotes.best()
        if best is not None and best.kind == "learned" and "learned" not in self._distrusted:
            return "learned"
        if not settings.own_loop or "pristine" in self._distrusted:
            # a script's imports depend on what it does before them
            return "exec" if self._waits is None else None
        return "pristine" if self._zygotes.pristine() is not None else None

    def distrust_failed_start(self, failed: Round) -> None:
        """Start ranks in a slower way after a forked round in which no rank completed a step: the zygote may be the
        reason."""
        self._steps_seen |= failed.stepped
        if failed.way == "exec" or not failed_at_start(failed, shows_steps=self._steps_seen):
            return
        self._distrusted.add(failed.way)
        if failed.way == "learned":
            self._zygotes.bar()
            self._share()
        words = f"ranks forked from the {failed.way} zygote did not start: the next round does without it"
        self._advise("NotForked", words)

    def _answered(self, known: KnownImports | None, limit_s: float) -> None:
        if self._waits is None:  # too late
            return
        self._stop_waiting()
        if known is not None:
            self._known = known
            self.lessons.forkable = True
            self._zygotes.learn(known, self._settings().import_environment(), hurry=True)
            if self._zygotes.learned() is None:
                self._wait(limit_s)
        self._ready()

    def _wait(self, limit_s: float) -> None:
        self._waits = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        self._stop_waiting()
        self._ready()

    def _share(self) -> None:
        """Tell other agents what the ranks of this script import, once a zygote has shown that it can be forked."""
        link = self._zygotes.learned()
        forks = link is not None and self.lessons.forkable and not self._settings().own_loop
        self._tell(replace(self._known, barred=link.barred).pack() if link is not None and forks else b"")

    def _refuse_forks(self) -> None:
        self._tell(b"")
        self._advise(
            "NotForked",
            "ranks are executed, not forked: the script changes a variable that torch may read, and then imports torch",
        )

    def _learn(self, rank: Rank) -> None:
        """Let the zygote learn the imports of a rank. One rank is enough, because those of a round hardly differ."""
        settings = self._settings()
        nothing = settings.own_loop and not rank.imports  # then the pristine zygote will do
        if may_fork(settings, self._key) and not nothing and "learned" not in self._distrusted:
            told = KnownImports([Imported(*imported) for imported in rank.imports], rank.imported_variables)
            self._known = self._known.more(told)
            self._zygotes.learn(told, settings.import_environment())
            self._share()


def failed_at_start(round: Round, *, shows_steps: bool) -> bool:
    """Return True if a round failed at its start, for another reason than a killed rank or a lost peer.

    `shows_steps`: steps of this script have been observed before; otherwise only the time decides.
    """
    verdict = round.verdict
    if verdict is None or verdict.cascade or round.stepped or (not shows_steps and round.lived_s > STARTED_WELL_S):
        return False
    return verdict.cause in (Cause.CRASH, Cause.HANG) and verdict.signal not in ("SIGKILL", "SIGTERM")


def may_fork(settings: Settings, key: str) -> bool:
    """Return True if a zygote of `key` can do what the command of `settings` does. The restart command may have other
    variables than the command that the zygotes were started for."""
    forks = settings.zygote_enabled and settings.entry is not None and not settings.command.flags
    return forks and settings.key() == key


def asks_others(assignment: Assignment, settings: Settings, key: str, lessons: Lessons) -> bool:
    """Return True if the agents of other pods may know of imports that this pod's zygote can use: not in the job's
    first round, in which all of them are new, and not once a rank of this pod has told of its own."""
    new = not lessons.heard and not settings.own_loop
    return new and assignment.restart_count > 0 and may_fork(settings, key)
