"""Reports, once, that nothing is observed of running ranks, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable

from trainmaster.agent.shell.ranks.round import Round

AFTER_S = 30.0
"""Seconds after which a program of which nothing was observed counts as one that can't be observed."""

STARTED_WELL_S = 2.0
"""A rank whose steps are not observed has started well if it runs for this many seconds. If that is wrong, the failure
repeats until its pod is replaced; the first ranks of a new pod are executed."""


class Sight:
    """`program` is what the ranks execute, "" if the agent starts their Python itself. `note` is called with sentences
    for people."""

    def __init__(self, program: str, note: Callable[[str], None]) -> None:
        self._program = program
        self._note = note
        self._told = False

    def look(self, round: Round) -> None:
        """Look at the ranks of a round, AFTER_S after their start."""
        unwatched = round.unwatched
        if not self._program or not unwatched or self._told:
            return
        self._told = True
        self._note(
            f"rank {unwatched[0]} is not watched: {self._program} has started no Python that imports sitecustomize "
            "(with -I, -E or -S none does, nor does one before 3.9 or one whose PYTHONPATH was replaced). Its "
            "steps aren't counted, and it is taken for stuck only by a value of recovery.hang.limitSeconds other than "
            "the default"
        )
