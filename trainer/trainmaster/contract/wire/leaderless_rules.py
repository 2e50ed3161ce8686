"""The rules of the grant: what agents may do after a crash while no leader answers. The simulator runs these rules,
too."""

from __future__ import annotations

import dataclasses

from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode
from trainmaster.contract.wire.messages import Assignment, Directive, DirectiveState, StoreAddress, Verdict

SILENCE_S = 0.15  # seconds without an answer; several times what answers take, if that is more
AGAIN_S = 0.02  # between two tellings of the same word
TRIES = 150


def answered_by_restart(verdict: Verdict | None) -> bool:
    """Return True if a plain restart is the answer to this failure, and no rule of a user can apply to it."""
    if verdict is None or verdict.cascade or verdict.cause is not Cause.CRASH:
        return False
    return verdict.exit_code != ExitCode.DO_NOT_RESTART


def goes_on(assignment: Assignment, directive: Directive | None) -> bool:
    """Return True if the newest directive lets the round of `assignment` go on: no leader has begun anything else."""
    if directive is None or directive.state is not DirectiveState.RUN or directive.stop_at is not None:
        return False
    return directive.round <= assignment.round


def following(assignment: Assignment, store: StoreAddress) -> Assignment:
    """Return the assignment of the round that is opened without a leader.

    Its round number is one higher, as with a leader, so that storage refuses writes of the older round.
    """
    return dataclasses.replace(
        assignment,
        round=assignment.round + 1,
        minor=assignment.minor + 1,
        store=store,
        restart_count=assignment.restart_count + 1,
    )


def same_work(one: Assignment | None, other: Assignment) -> bool:
    """Return True if both assignments create the same ranks. Where the ranks resume is not compared."""
    return one is not None and _work(one) == _work(other)


def _work(assignment: Assignment) -> Assignment:
    return dataclasses.replace(
        assignment,
        store=StoreAddress("", 0),
        minor=0,
        grant=0,
        restart_count=0,
        resume="",
        peers=[],
        peer_secret="",
        ring=None,
        first=None,
    )
