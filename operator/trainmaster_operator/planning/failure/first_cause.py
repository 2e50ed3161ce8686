"""Which of several failures is the one to answer: the first cause, never its consequences."""

from __future__ import annotations

from dataclasses import replace

from trainmaster.contract.wire import Cause, ExitCode, Verdict
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.fault import FATAL, Fault, of_verdict
from trainmaster_operator.planning.facts.job_state import Rung
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.view import View
from trainmaster_operator.planning.failure import (
    drain,
    early_leaver,
    pod_differences,
    unstartable_program,
)
from trainmaster_operator.planning.lifecycle import suspend
from trainmaster_operator.planning.liveness import causes_of_ended_pods, hang, silent_agents, straggler

CASCADE_WAIT_S = 1.0
"""Seconds for which verdicts of ranks that only lost a peer wait for the report of the peer's own agent."""


def find_first_cause(view: View) -> Fault | None:
    """Return the one failure to answer, never its consequences on other ranks; None if there is none.

    The order is: failures that a restart cannot help against, pods whose software differs, proof (pods that ended, a
    lost store), the earliest verdict, silence. Verdicts of ranks that only lost a peer count if nothing better arrives
    in time.
    """
    verdicts = _verdicts(view)
    causes = [a for a in verdicts if a.verdict and not a.verdict.cascade]
    for agent in causes:
        assert agent.verdict is not None
        if _is_fatal(view, agent.verdict):
            return of_verdict(view, agent, agent.verdict, fatal=True, floor=Rung.IN_PLACE)
    hopeless = unstartable_program.on_every_rank(view, verdicts)
    if hopeless is not None and hopeless.verdict is not None:
        fault = of_verdict(view, hopeless, hopeless.verdict, fatal=True, floor=Rung.IN_PLACE)
        return replace(fault, hopeless=unstartable_program.EVERY_RANK)
    if (differing := pod_differences.differing_pods(view)) is not None:
        return differing
    found = (
        drain.saved(view)
        or causes_of_ended_pods.ended(view)
        or causes_of_ended_pods.replaced(view)
        or _store_lost(view)
    )
    if found is not None:
        return found
    if not causes and (silent := silent_agents.lost(view)) is not None:
        return silent  # This silence is the peer that the other ranks lost.
    if unstartable_program.waits_for_others(view, verdicts):
        return None
    lost = [] if causes else _cascade(view, verdicts)
    if lost and (left := early_leaver.behind(view, lost[0])) is not None:
        return left
    for agent in causes or lost:
        assert agent.verdict is not None
        floor = Rung.POD if agent.verdict.cause is Cause.HARDWARE_FAULT else Rung.IN_PLACE
        return of_verdict(view, agent, agent.verdict, floor=floor)
    return early_leaver.explained(view, hang.hang(view)) or straggler.straggler(view)


def _is_fatal(view: View, verdict: Verdict) -> bool:
    """Return whether a restart would fail in the same way, or would repeat what is done. For a job that was to stop
    before its end a failed save is not fatal, because it continues from an earlier checkpoint."""
    if verdict.cause is Cause.CHECKPOINT_FAILED:
        return not suspend.is_wanted(view) and not view.status.stopBound
    return verdict.cause in FATAL or verdict.exit_code == ExitCode.DO_NOT_RESTART


def cascade_due_s(view: View) -> float | None:
    """Return the seconds until verdicts of ranks that only lost a peer start to count; None if no verdict waits."""
    ages = [a.verdict_age_s for a in _verdicts(view)]
    waits = [CASCADE_WAIT_S - age for age in ages]
    if (wait := unstartable_program.due_s(view, _verdicts(view))) is not None:
        waits.append(wait)
    waits += [view.lost_after_s - min(age, view.observed.leading_s) for age in ages]
    return min((wait for wait in waits if wait > 0), default=None)


@once
def _verdicts(view: View) -> list[AgentRecord]:
    """Return the agents with a verdict of this round, the earliest first."""
    found = [a for a in view.in_round() if a.verdict is not None and a.verdict.round == view.status.round]
    return sorted(found, key=lambda a: (-a.verdict_age_s, a.slot))


def _cascade(view: View, verdicts: list[AgentRecord]) -> list[AgentRecord]:
    """Return the ranks that only lost a peer, if nothing better arrives in time. While a member has been silent
    since their verdicts, the report of its end is probably on its way: a restart now would be wasted, and the end of
    that member would count a second time. A new leader waits in the same way, because it knows only what it has
    heard itself."""
    late = [agent for agent in verdicts if agent.verdict_age_s >= CASCADE_WAIT_S]
    if not late or min(late[0].verdict_age_s, view.observed.leading_s) >= view.lost_after_s:
        return late
    agents = (view.agents[slot] for slot in view.members)
    return [] if any(a is None or a.silent_s >= late[0].verdict_age_s for a in agents) else late


def _store_lost(view: View) -> Fault | None:
    for agent in view.in_round():
        if agent.store_lost:
            pod = view.pods[agent.slot]
            return Fault(
                cause=Cause.STORE_LOST,
                message=f"{pod.name if pod else 'its pod'} no longer has the store of round {view.status.round}",
                slots=(agent.slot,),
                pod=pod.name if pod else "",
                node=pod.node if pod else "",
                step=view.highest_step(),
            )
    return None
