"""Rounds that are over and whose ranks may still be ending: they may hold device memory, and are named if they do not
end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.survivor_time_limits import RESCUE_LIMIT_S

UNKILLABLE_AFTER_S = RESCUE_LIMIT_S + 10.0  # ranks that were killed and still exist then are named


class OldRounds:
    """The rounds before the present one. `event(reason, message)` adds an event to the job."""

    def __init__(self, event: Callable[[str, str], None]) -> None:
        self.rounds: list[Round] = []
        self._event = event

    def add(self, round: Round) -> None:
        """End the ranks of a round, and keep it until they have ended."""
        round.retire()
        self.rounds.append(round)
        asyncio.get_running_loop().call_later(UNKILLABLE_AFTER_S, self._name_survivors, round)
        self.bury()

    def bury(self) -> None:
        """Forget rounds whose ranks have all ended."""
        for old in [o for o in self.rounds if not o.alive]:
            self.rounds.remove(old)
            old.close()

    def device_holders(self) -> list[Rank]:
        """Return the ranks that hold device memory, which is free only when they are reaped."""
        return [r for old in self.rounds for r in old.ranks if not r.ended and r.progress().device_bytes]

    def living(self) -> int:
        """Return the number of ranks that have not ended."""
        return sum(not r.ended for old in self.rounds for r in old.ranks)

    def _name_survivors(self, old: Round) -> None:
        for words in old.survivors():
            self._event("ProcessUnkillable", words)
