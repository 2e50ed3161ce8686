"""A program that no rank can start, because it cannot be loaded or refuses its arguments.

The first such failure ends the job, after the other ranks have had time to fail in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.contract.wire import RankState, Recurrence
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure.message_comparison import way_of
from trainmaster_operator.planning.failure.repeated_failure import is_early

EVERY_RANK = "every rank failed in this way before its first step, so a restart would not help"
OTHERS_WAIT_S = 5.0
"""Seconds for which the verdict of a program that certainly cannot start on one rank waits for the other ranks,
which import for seconds and at different speeds."""


def on_every_rank(view: View, verdicts: Sequence[AgentRecord]) -> AgentRecord | None:
    """Return the first of `verdicts` if no restart can help: every rank of the round has ended in the same way
    without a step, because its program cannot be loaded or refuses its arguments. `verdicts`: the earliest first."""
    if not _alike(view, verdicts) or len(verdicts) < len(view.members):
        return None
    ended = all(r.state is RankState.EXITED and r.exit_code != 0 for a in verdicts for r in a.ranks)
    return verdicts[0] if ended else None


def waits_for_others(view: View, verdicts: Sequence[AgentRecord]) -> bool:
    """Return whether other ranks may soon fail in the same way, so that waiting for them can save a useless restart."""
    return _alike(view, verdicts) and verdicts[0].verdict_age_s < OTHERS_WAIT_S


def due_s(view: View, verdicts: Sequence[AgentRecord]) -> float | None:
    """Return the seconds until that wait ends; None if there is no wait."""
    return OTHERS_WAIT_S - verdicts[0].verdict_age_s if waits_for_others(view, verdicts) else None


def _alike(view: View, verdicts: Sequence[AgentRecord]) -> bool:
    """Return whether all verdicts report, with the same message, a program that cannot start."""
    said = [agent.verdict for agent in verdicts if agent.verdict is not None]
    certain = bool(said) and all(verdict.recurs is Recurrence.CERTAIN for verdict in said)
    return certain and len({way_of(verdict) for verdict in said}) == 1 and is_early(view)
