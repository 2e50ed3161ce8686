"""When a zygote learns what ranks have imported.

Ranks report their imports as they go. A list is learned once it is complete: after some steps, when modules that are
imported lazily are in it, too. With a script without optimizer steps, it is learned when nothing has been imported for
a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.contract.wire.progress_record import IMPORTING

_AFTER_STEPS_S = 0.3  # after the last part of the list
_QUIET_S = 2.0


class Lessons:
    """Decides when to learn.

    `teach` is called with a rank whose list is to be learned; one rank is enough, because the lists of a round hardly
    differ. `refused` is called once if the script cannot be forked. `told` says whether it is known that it can.
    """

    def __init__(self, teach: Callable[[Rank], None], refused: Callable[[], None], *, told: bool) -> None:
        self.forkable = told
        self.heard = False  # a rank of this pod has told of its imports
        self._teach = teach
        self._refused = refused
        self._unforkable = False
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, rank: Rank, message: dict[str, Any]) -> None:
        """Take a part of a rank's list (channel.MODULES)."""
        self.heard = True
        rank.imports += message.get("imports", [])
        rank.imported_variables |= message.get("variables", {})
        if message.get("forkable") is False and not self._unforkable:
            self._unforkable = True
            self._refused()
        self.forkable = not self._unforkable
        if self.forkable:
            self._wait(rank, _AFTER_STEPS_S if message.get("settled") else _QUIET_S)
        else:
            self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, rank: Rank, delay_s: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._due, rank)

    def _due(self, rank: Rank) -> None:
        self._timer = None
        if rank.ended:
            return
        if rank.progress().flags & IMPORTING:
            self._wait(rank, _QUIET_S)
        else:
            self._teach(rank)
