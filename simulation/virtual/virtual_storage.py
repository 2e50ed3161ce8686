"""Checkpoints and lineage of a simulated job, with the rules of a real one: exclusive lineage files, manifests last.

A manifest is not fenced by itself: its writer looks at the newest lineage first and writes a little later, so that a
late writer of an old round can leave an orphan. Whoever reads follows the chain.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


class Fenced(Exception):
    """A newer round owns the storage."""


@dataclass(frozen=True, order=True)
class Checkpoint:
    round: int
    step: int


@dataclass
class Storage:
    manifests: dict[Checkpoint, None] = field(default_factory=dict)
    begun: dict[Checkpoint, None] = field(default_factory=dict)  # their files are being written, or never were whole
    lineage: dict[int, Checkpoint | None] = field(default_factory=dict)  # round -> what it resumed from

    @property
    def newest_round(self) -> int:
        return max(self.lineage, default=0)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint on the chain; of a script, which has no lineage: what was written last."""
        if not self.lineage:
            return next(reversed(self.manifests), None)
        own = [c for c in self.manifests if c.round == self.newest_round]
        return max(own) if own else self.lineage[self.newest_round]

    def open_round(self, round: int) -> Checkpoint | None:
        """Names what this round resumes from. Raises Fenced."""
        if self.newest_round >= round:
            raise Fenced(f"round {self.newest_round} owns the storage")
        self.lineage[round] = found = self.newest()
        return found

    def write_over(self, checkpoint: Checkpoint) -> None:
        """A script writes its own file, whoever has written it last."""
        self.manifests.pop(checkpoint, None)
        self.manifests[checkpoint] = None

    def broken(self) -> list[str]:
        """What is wrong with the chain."""
        wrong = []
        rounds = sorted(self.lineage)
        for earlier, later in itertools.pairwise(rounds):
            found, before = self.lineage[later], self.lineage[earlier]
            if found is None:
                if before is not None:
                    wrong.append(f"round {later} started afresh although round {earlier} had a checkpoint")
            elif found not in self.manifests:
                wrong.append(f"round {later} resumed from {found}, which has no manifest")
            elif found != before and found.round != earlier:
                wrong.append(f"round {later} resumed from {found}, which is not on the chain of round {earlier}")
        return wrong
