"""Rounds that agents opened while no leader answered: how many they may open, and what a leader does about them later.

Such a round has the next number, the same members, and the store that was kept open. A returning leader takes it over
and counts it as if it had opened the round itself. Until all members have reported it, the leader concludes nothing
from their reports about the previous round.
"""

from __future__ import annotations

from typing import Any

from trainmaster.contract.wire import Granted
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState, Recovery, Rung
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.lifecycle import metric_categories
from trainmaster_operator.planning.lifecycle.recovery_clock import RECOVERIES
from trainmaster_operator.planning.rounds import leaderless_accounting, open_round

GRANT = 2
"""Number of restarts in succession that agents may do by themselves."""

SETTLED_S = 5.0
"""Seconds within which the members of such a round report it: agents pause for up to 3 s if no operator answers."""

SPLIT_S = 1.0
"""Seconds for which reports may differ before a round counts as opened twice."""

YOUNG_S = 0.3
"""Seconds for which a new leader acts on no verdict: what it hears first may be older than a round that was opened
without it."""


def highest(spec: JobSpec, status: JobState) -> int:
    """Return the highest minor number that agents may open within the budget. If the job has recovery rules, agents
    may open none, because only a leader applies rules."""
    if spec.recovery.rules:
        return 0
    limits = spec.recovery.budget
    spent = sum(entry.count for entry in status.spent if entry.rung is Rung.IN_PLACE)
    return status.roundMinor + max(0, min(GRANT, limits.perCause, limits.inPlace - spent))


def adopt_granted_rounds(view: View) -> Change | None:
    """Record granted rounds in the status. If not all members joined such a round, open another round for all.
    Return None if there is nothing to do."""
    if not view.round_is_open:
        return _outnumbered(view)
    ahead = _ahead(view)
    if not ahead:
        return _agreed(view)
    top = max(agent.round for agent in ahead)
    told = {granted.round: granted for agent in ahead for granted in agent.granted}
    known = [told[number] for number in range(view.status.round + 1, top + 1) if number in told]
    members = [view.agents[slot] for slot in view.members]
    whole = len(known) == top - view.status.round
    if whole and all(agent is not None and agent.round == top for agent in members):
        return _adopted(view, known)
    return _followed(view, known, top, ahead) if _overdue_s(view, ahead) <= 0 else None


def _agreed(view: View) -> Change | None:
    """Handle a round that a leader and the agents opened at the same time with the same number and content: the
    agents' store is used. If some agents began on the leader's store, another round follows."""
    status, members = view.status, view.in_round()
    early = [agent for agent in members if agent.minor > status.roundMinor and not agent.parked]
    told = [granted for agent in early for granted in agent.granted if granted.round == status.round]
    if not early or not told:
        return None
    if len(early) == len(view.members) or open_round.address(told[0].store) == status.roundStore:
        return changed(
            status, **open_round.on_store(view, open_round.address(told[0].store)), roundMinor=early[0].minor
        )
    if told[0].age_s < SPLIT_S:
        return None
    words = f"round {status.round} was opened twice, with and without a leader; the ranks restart in place"
    fields = {**open_round.reopened(view), "round": status.round + 1, "roundMinor": 0, "phase": JobPhase.RECOVERING}
    return changed(status, warning("Recovering", words), **fields)


def _outnumbered(view: View) -> Change | None:
    """Raise the number of the round that forms if agents, before they heard of it, opened a round with the same
    number: they obey a higher number. This holds for agents, too, that have ended the ranks of their round since, as
    the round that forms must not take its store and its lineage file."""
    status = view.status
    taken = max((agent.round for agent in view.agents if agent is not None), default=0)
    if not status.round or taken < status.round:
        return None
    recoveries = list(status.recoveries)
    if recoveries and recoveries[-1].round == status.round:
        recoveries[-1] = recoveries[-1].model_copy(update={"round": taken + 1})
    return changed(status, round=taken + 1, recoveries=recoveries)


def is_unsettled(view: View) -> bool:
    """Return whether the members' reports about the status' round may be out of date."""
    return bool(_ahead(view)) or _too_young_s(view) > 0


def due_s(view: View) -> float | None:
    """Return the seconds until granted rounds can be handled or reports are no longer out of date; None if there is
    no wait."""
    waits = [_too_young_s(view)] if view.round_is_open else []
    if ahead := _ahead(view):
        waits.append(_overdue_s(view, ahead))
    return min((wait for wait in waits if wait > 0), default=None)


@once
def _ahead(view: View) -> list[AgentRecord]:
    """Return the members that run a granted round after the one of the status."""
    if not view.round_is_open:
        return []
    agents = (view.agents[slot] for slot in view.members)
    return [agent for agent in agents if agent is not None and agent.minor > 0 and agent.round > view.status.round]


def _overdue_s(view: View, ahead: list[AgentRecord]) -> float:
    """Return the seconds that the other members still have; 0 or less if their time is over.

    Only the agent that opened the round can tell when that was. A member that followed it may report first.
    """
    told = [granted.age_s for agent in ahead for granted in agent.granted]
    youngest = min(told or (agent.round_s for agent in ahead))
    return SETTLED_S - min(youngest, view.observed.leading_s)


def _too_young_s(view: View) -> float:
    """Return the seconds for which a report may still be older than a round that was opened without this leader; 0
    or less if none can be."""
    left = YOUNG_S - view.observed.leading_s
    if left <= 0 or not view.round_is_open:
        return 0.0
    return left if highest(view.spec, view.status) > view.status.roundMinor else 0.0


def _adopted(view: View, known: list[Granted]) -> Change:
    last, fields = known[-1], _counted(view, known)
    fields |= leaderless_accounting.accounted(view, fields["recoveries"])
    recovery = fields["recoveries"][-1]
    over = recovery.totalSeconds is not None
    took = f" in {recovery.totalSeconds:.2f} s" if over else ""
    fields["phase"] = JobPhase.RUNNING if over else JobPhase.RECOVERING
    return changed(
        view.status,
        warning("Recovered", f"{_words(view, known)}{took} (round {last.round})"),
        round=last.round,
        roundMinor=view.status.roundMinor + len(known),
        roundOpenedAt=rfc3339(view.now - last.age_s),
        **script_step_count.at_the_end(view),
        **open_round.on_store(view, open_round.address(last.store)),
        **fields,
    )


def _followed(view: View, known: list[Granted], top: int, ahead: list[AgentRecord]) -> Change:
    """Return the change to a round above all others, for all members."""
    words = _words(view, known) if known else "some members restarted while no operator answered"
    fields = _counted(view, known) if known else _counted_without_cause(view, words, ahead)
    recoveries = [*fields["recoveries"][:-1], fields["recoveries"][-1].model_copy(update={"round": top + 1})]
    fields |= leaderless_accounting.accounted(view, recoveries)
    return changed(
        view.status,
        warning("Recovering", f"{words}, but some pods did not join; the ranks restart in place (round {top + 1})"),
        **{**fields, **open_round.reopened(view), "round": top + 1, "roundMinor": 0},
    )


def _words(view: View, known: list[Granted]) -> str:
    fault = _fault(view, known[-1])
    often = "" if len(known) == 1 else f" {len(known)} times, the last time"
    return f"{fault.title}: {fault.message[:700]}; no operator answered:" + (
        f" the agents restarted the ranks{often} by themselves"
    )


def _counted(view: View, known: list[Granted]) -> dict[str, Any]:
    """Return the fields that count each of these restarts as one in place, with its own record."""
    status, limits = view.status, view.spec.recovery.budget
    spent, recoveries, failure = list(status.spent), list(status.recoveries), status.lastFailure
    highest_step = status.progress.highestStep
    for granted in known:
        fault = _fault(view, granted)
        at = view.now - fault.age_s
        highest_step = max(highest_step, fault.step)
        spent = failure_budget.charge(limits, spent, Rung.IN_PLACE, fault.cause.value, highest_step, at)
        failure = fault.record(view).model_copy(update={"round": granted.round - 1})
        record = Recovery(
            round=granted.round,
            cause=fault.cause.value,
            rung=Rung.IN_PLACE,
            rank=fault.rank,
            pod=fault.pod,
            step=highest_step,
            startedAt=rfc3339(at),
        )
        recoveries = [*recoveries, record][-RECOVERIES:]
    restarts = status.restarts.model_copy(update={"inPlace": status.restarts.inPlace + len(known)})
    return {
        "phase": JobPhase.RECOVERING,
        "spent": spent,
        "recoveries": recoveries,
        "lastFailure": failure,
        "restarts": restarts,
    }


def _counted_without_cause(view: View, words: str, ahead: list[AgentRecord]) -> dict[str, Any]:
    """Return the fields that count one restart in place, of which nobody reports why it was necessary: the agent that
    opened the round is silent."""
    status, limits = view.status, view.spec.recovery.budget
    step, at = view.highest_step(), view.now - min(SETTLED_S, max(agent.round_s for agent in ahead))
    record = Recovery(
        round=status.round + 1, cause=metric_categories.OTHER, rung=Rung.IN_PLACE, step=step, startedAt=rfc3339(at)
    )
    return {
        "phase": JobPhase.RECOVERING,
        "spent": failure_budget.charge(limits, list(status.spent), Rung.IN_PLACE, metric_categories.OTHER, step, at),
        "recoveries": [*status.recoveries, record][-RECOVERIES:],
        "lastFailure": Failure(
            cause=metric_categories.OTHER, message=words, step=step, round=status.round, time=rfc3339(at)
        ),
        "restarts": status.restarts.model_copy(update={"inPlace": status.restarts.inPlace + 1}),
    }


def _fault(view: View, granted: Granted) -> Fault:
    verdict = granted.verdict
    place = verdict.rank // view.spec.workers.ranksPerPod
    slot = view.members[place] if place < len(view.members) else view.members[0]
    pod = view.pods[slot]
    return Fault(
        cause=verdict.cause,
        message=verdict.message,
        slots=(slot,),
        rank=verdict.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        step=verdict.step,
        age_s=granted.age_s + granted.verdict.age_s,
    )
