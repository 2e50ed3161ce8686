"""The rank for which all others wait in every step: it computes for much longer than they do, and they spend time
waiting.

A rank's own part of a step is its wall time without the time in collectives. Median and MAD of the others are robust
against a second straggler. The waiting time of the others distinguishes a slow rank from one that only measures its
time differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low
from typing import NamedTuple

from trainmaster.contract.wire import Cause, RankReport, RankState
from trainmaster_operator.api.hang_and_straggler_spec import StragglerAction
from trainmaster_operator.planning.facts.change import Change, changed, warning
from trainmaster_operator.planning.facts.fault import Fault
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Rung, Straggler
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View, stepped_to
from trainmaster_operator.planning.failure import failure_budget, rule_matching

OUTLIER = 4.0  # In robust standard deviations.
SIGMA = 1.4826  # The standard deviation of a normal distribution, in MADs.
LEAST_SPREAD = 0.05  # As a share of the median: for ranks that are nearly alike the MAD is close to 0.
WAITED_SHARE = 0.5  # The share of the difference for which the typical other rank must wait.


class _Slowest(NamedTuple):
    """A straggler as it is now: the seconds that it computes in a step, and the median of the other ranks."""

    rank: int
    slot: int
    computes_s: float
    usual_s: float


def straggler(view: View) -> Fault | None:
    """Return the fault of a rank that has been a straggler for the whole window, if its pod is to be replaced.
    Return None otherwise, also if the budget for replaced pods is exhausted and no rule for stragglers says what is
    done: the job trains, although slowly, so it must not restart all pods or fail."""
    known = _known(view)
    spec = view.spec.recovery.straggler
    if known is None or spec.action is not StragglerAction.REPLACE or not _is_proven(view, known):
        return None
    found = _find(view)
    if found is None or found.rank != known.rank:
        return None
    pod = view.pods[found.slot]
    fault = Fault(
        cause=Cause.STRAGGLER,
        message=_words(view, _measured(known, found)),
        slots=(found.slot,),
        floor=Rung.POD,
        rank=known.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        step=view.highest_step(),
    )
    return fault if _is_affordable(view) or _has_own_rule(view, fault) else None


def report_straggler(view: View) -> Change | None:
    """Emit one warning event once a rank has been a straggler for the whole window."""
    known = _known(view)
    if known is None or known.told or not _is_proven(view, known):
        return None
    found = _find(view)
    if found is not None and found.rank == known.rank:
        known = _measured(known, found)
    return changed(
        view.status,
        warning("Straggler", f"{_words(view, known)}{_why_not_replaced(view)}"),
        straggler=known.model_copy(update={"told": True}),
    )


def update(view: View, status: JobState) -> Straggler | None:
    """Return the straggler for the status after this pass, with the present times of its steps; the same object if
    nothing has changed."""
    known = status.straggler
    if status.phase is not JobPhase.RUNNING or not view.round_is_open:
        return known if known is not None and known.round == status.round else None
    if known is not None and known.round == status.round and len(view.in_round()) < len(view.members):
        return known  # A new leader has not heard all ranks yet, so it cannot compare them.
    found = _find(view)
    if found is None:
        return None
    if known is not None and (known.round, known.rank) == (status.round, found.rank):
        return _measured(known, found)
    pod = view.pods[found.slot]
    first_seen = Straggler(
        round=status.round,
        rank=found.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        since=rfc3339(view.now),
    )
    return _measured(first_seen, found)


def _measured(known: Straggler, found: _Slowest) -> Straggler:
    """Return `known` with the times of this pass, because the rank may have become slower since it was first seen."""
    times = {"computeSeconds": round(found.computes_s, 6), "usualSeconds": round(found.usual_s, 6)}
    if (known.computeSeconds, known.usualSeconds) == tuple(times.values()):
        return known
    return known.model_copy(update=times)


def due_s(view: View) -> float | None:
    """Return the seconds until a rank will have been a straggler for the whole window, or until the budget may allow
    again that its pod is replaced; None if there is none."""
    known, spec = _known(view), view.spec.recovery
    if known is None:
        return None
    left = spec.straggler.windowSeconds - since(known.since, view.now)
    if left > 0:
        return None if known.told else left
    if spec.straggler.action is not StragglerAction.REPLACE:
        return None
    return failure_budget.next_expiry_s(spec.budget, view.status.spent, Rung.POD, view.now)


def _known(view: View) -> Straggler | None:
    known = view.status.straggler
    trains = view.status.phase is JobPhase.RUNNING and view.round_is_open
    return known if trains and known is not None and known.round == view.status.round else None


def _is_affordable(view: View) -> bool:
    """Return whether the budget allows that the pod of a straggler is replaced."""
    budget, spent = view.spec.recovery.budget, view.status.spent
    return failure_budget.left(budget, spent, Cause.STRAGGLER.value, Rung.POD, view.highest_step(), view.now) > 0


def _has_own_rule(view: View, fault: Fault) -> bool:
    """Return whether the rule that matches the fault names stragglers. A rule for any failure may restart all pods when
    the budget for replaced pods is exhausted."""
    found = rule_matching.first_match(view, fault)
    return found is not None and fault.cause.value in found[0].causes


def _why_not_replaced(view: View) -> str:
    """Return as a clause why the pod stays although the spec says that it is replaced; "" if there is no reason."""
    if view.spec.recovery.straggler.action is not StragglerAction.REPLACE or _is_affordable(view):
        return ""
    budget, step = view.spec.recovery.budget, view.highest_step()
    tried = failure_budget.without_progress(view.status.spent, Cause.STRAGGLER.value, Rung.POD, step)
    if tried >= budget.perCause:
        return f"; its pod is not replaced before the job is beyond step {step} (recovery.budget.perCause)"
    return "; its pod is not replaced, because the budget for replaced pods (recovery.budget.pod) is exhausted"


def _is_proven(view: View, known: Straggler) -> bool:
    return since(known.since, view.now) >= view.spec.recovery.straggler.windowSeconds


def _ranks(view: View) -> list[tuple[AgentRecord, RankReport]]:
    """Return the ranks that report how long their steps take, with their agents."""
    return [
        (agent, rank)
        for agent in view.in_round()
        for rank in agent.ranks
        if rank.state is RankState.RUNNING and rank.step_seconds > 0 and stepped_to(view, agent, rank) > 0
    ]


def _computes(rank: RankReport) -> float:
    return max(0.0, rank.step_seconds - rank.wait_seconds)


def _find(view: View) -> _Slowest | None:
    """Return the slowest rank if it is far slower than the others and they wait for it, else None."""
    ranks = _ranks(view)
    if len(ranks) < 2:
        return None
    computes = [_computes(rank) for _, rank in ranks]
    slowdown = view.spec.recovery.straggler.slowdown
    if max(computes) < slowdown * min(computes):
        return None  # This is nearly always so, and it needs no median.
    place = max(range(len(ranks)), key=lambda i: (computes[i], -ranks[i][1].rank))
    others = [rank for i, (_, rank) in enumerate(ranks) if i != place]
    mine = computes.pop(place)
    usual, spread = _spread(computes)
    excess = mine - usual
    if mine < slowdown * usual or excess < OUTLIER * spread:
        return None
    waits = median_low(rank.wait_seconds for rank in others)
    if waits < WAITED_SHARE * excess:
        return None
    agent, rank = ranks[place]
    return _Slowest(rank.rank, agent.slot, mine, usual)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and a robust standard deviation."""
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    return middle, max(SIGMA * mad, LEAST_SPREAD * middle)


def _others(view: View) -> str:
    """Return whose time the usual time is."""
    ranks = len(view.members) * view.spec.workers.ranksPerPod
    return "the other rank" if ranks == 2 else "the median of the other ranks"


def _words(view: View, known: Straggler) -> str:
    where = f" on node {known.node}" if known.node else ""
    return (
        f"rank {known.rank} ({known.pod}{where}) computes for {known.computeSeconds:.3g} s in each step, "
        f"{_others(view)} for {known.usualSeconds:.3g} s: the job has waited for rank {known.rank} for "
        f"{since(known.since, view.now):.0f} s"
    )
