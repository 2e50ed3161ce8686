"""How the ranks of a round are started: forked from the learned zygote, forked from the pristine one, or executed.

Forking is fast, and not always possible: a script's imports may depend on what it does before them. After a forked
round that failed at its start, the next one is started in a slower way.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.ranks.learning_policy import Lessons
from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.round import Round, failed_at_start
from trainmaster.agent.shell.zygote_client import Zygotes


class StartMethod:
    """Chooses how ranks are started, and has the zygote learn their imports.

    `key`: of the zygotes, which were started for the agent's first settings. `settings` returns the present ones.
    `advise(reason, sentence)` tells the job's owner.
    """

    def __init__(
        self, key: str, settings: Callable[[], Settings], zygotes: Zygotes, advise: Callable[[str, str], None]
    ) -> None:
        self._key = key
        self._settings = settings
        self._zygotes = zygotes
        self._advise = advise
        self.lessons = Lessons(self._learn, self._refuse_forks, told=settings().own_loop)
        self._steps_seen = False  # a rank of any round has completed a step
        self._distrusted: set[str] = set()  # ways of starting ranks that failed

    def choose(self) -> str | None:
        """Return how ranks are started: learned, pristine or exec; None until the zygote serves."""
        settings = self._settings()
        if not self._zygotes.alive:
            return None
        if settings.entry is None or settings.command.flags or settings.key() != self._key:
            return "exec"
        if self._zygotes.without_forks or "exec" in self._distrusted or not self.lessons.forkable:
            return "exec"
        best = self._zygotes.best()
        if best is not None and best.kind == "learned" and "learned" not in self._distrusted:
            return "learned"
        if not settings.own_loop or "pristine" in self._distrusted:
            return "exec"  # a script's imports depend on what it does before them
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
        words = f"ranks forked from the {failed.way} zygote did not start: the next round does without it"
        self._advise("NotForked", words)

    def _refuse_forks(self) -> None:
        self._advise(
            "NotForked",
            "ranks are executed, not forked: the script changes a variable that torch may read, and then imports torch",
        )

    def _learn(self, rank: Rank) -> None:
        """Let the zygote learn the imports of a rank. One rank is enough, because those of a round hardly differ."""
        settings = self._settings()
        if settings.key() != self._key:
            return  # the restart command has other variables than the command that the zygotes were started for
        forks = settings.zygote_enabled and settings.entry is not None and not settings.command.flags
        nothing = settings.own_loop and not rank.imports  # then the pristine zygote will do
        if forks and not nothing and "learned" not in self._distrusted:
            self._zygotes.learn(rank.imports, rank.imported_variables, settings.import_environment())
