"""The agents of one job as the fleet knows them: their slots, polls, directives, news and usage, and the newest
checkpoint that they report."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.contract.wire import CheckpointRecord, Directive
from trainmaster_operator.control.agent_state import SlotState
from trainmaster_operator.control.job_usage_and_mfu import UsageSum
from trainmaster_operator.planning.facts.observation import CheckpointSeen, SaveFailed


@dataclass
class JobFleet:
    """The agents of one job. `directive_of` is None until the first pass over the job has published."""

    slots: dict[int, SlotState] = field(default_factory=dict)
    uid: str = ""
    incarnations: Sequence[int] = ()
    directive_of: Callable[[int], Directive] | None = None
    directives: dict[int, Directive] = field(default_factory=dict)
    round: int = 0
    epoch: int = 0  # The highest epoch that its agents have obeyed.
    # (round, seconds from the arrival of the first verdict to the publication of the round).
    decided: tuple[int, float] | None = None
    checkpoint: CheckpointSeen | None = None
    failed_save: SaveFailed | None = None
    published: asyncio.Event = field(default_factory=asyncio.Event)
    # Open polls: the slot and the tag that its agent knows.
    polls: dict[asyncio.Future[None], tuple[int, str]] = field(default_factory=dict)
    events: deque[tuple[float, dict[str, Any]]] = field(default_factory=deque)
    unable: bool = False  # True while decisions about the job cannot be written.
    usage: UsageSum = field(default_factory=UsageSum)
    # By uid of the pod: the time of the last answer to its agent.
    answered: dict[str, float] = field(default_factory=dict)

    def directive(self, slot: int) -> Directive:
        """Return the directive for a slot, from a cache."""
        assert self.directive_of is not None
        known = self.directives.get(slot)
        if known is None:
            known = self.directives[slot] = self.directive_of(slot)
        return known


def incarnation_of(job: JobFleet, slot: int) -> int:
    """Return the current incarnation of a slot; -1 if there is no such slot any more."""
    return job.incarnations[slot] if 0 <= slot < len(job.incarnations) else -1


def newest_checkpoint(known: CheckpointSeen | None, inventory: list[CheckpointRecord]) -> CheckpointSeen | None:
    """Return the newest checkpoint. One of a newer round always wins, because what an older round wrote later may be
    unusable."""
    for record in inventory:
        if not record.error and (known is None or (record.round, record.step) > (known.round, known.step)):
            known = CheckpointSeen(record.step, record.round, record.tier)
    return known


def newest_failure(known: SaveFailed | None, inventory: list[CheckpointRecord]) -> SaveFailed | None:
    """Return the newest checkpoint that failed, with the message of the first rank whose own part failed."""
    for record in inventory:
        if (
            record.error
            and not record.cascade
            and (known is None or (record.round, record.step) > (known.round, known.step))
        ):
            known = SaveFailed(record.step, record.round, record.error)
    return known
