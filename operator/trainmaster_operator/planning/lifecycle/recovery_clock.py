"""Where a recovery's time goes: the operator's share (drain, schedule, start), then what the agents tell.

detect decide | drain schedule start | drain fork imports rendezvous | build load first_step
the fault     | pods that go, pods that come, their agents | the ranks meet | from there to their first step

Ranks wait for each other twice: in the rendezvous, and in the first step. While one agent waits another one works, so
the time is counted where it was spent: up to the meeting by the agent that came last, which waited for nobody, and from
there on by the agent that was the last to begin the first step. So the phases are parts of one line, and their sum is
never more than the time that has passed since the failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainmaster_operator.planning.facts.job_state import JobState, Recovery
from trainmaster_operator.planning.facts.observation import AgentRecord
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.facts.view import View

RECOVERIES = 10
"""Number of recoveries that the status keeps, each with its clock."""

_OPERATORS = ("drain", "schedule", "start")
_TO_THE_MEETING = ("drain", "fork", "imports", "rendezvous")
_TO_THE_STEP = ("build", "load", "first_step")


def update(view: View, status: JobState) -> list[Recovery]:
    """Return the recoveries with what is known by now of the last one's clock; the same list if nothing is new."""
    recoveries = status.recoveries
    if not recoveries or recoveries[-1].round != view.status.round:
        return recoveries
    last = recoveries[-1]
    clock = dict(last.clock)
    passed = since(last.startedAt, view.now) if last.totalSeconds is None else last.totalSeconds
    if not view.round_is_open:
        _forming(view, passed, clock, opens=bool(status.roundStore))
    elif "first_step" not in clock:
        _measured(view, passed, clock)
    if clock == last.clock:
        return recoveries
    return [*recoveries[:-1], last.model_copy(update={"clock": clock})]


def begun(parts: Mapping[str, float], age_s: float) -> dict[str, float]:
    """Return the clock of a recovery that begins now: what went by from the failure, `age_s` seconds ago."""
    clock: dict[str, float] = {}
    _add(clock, parts, age_s)
    return clock


def wall_s(recovery: Recovery, now: float) -> float:
    """Return the seconds from the failure to `now`. Clocks of two leaders may differ, so it is at least what the phases
    have taken by now."""
    return round(max(since(recovery.startedAt, now), sum(recovery.clock.values())), 4)


def _forming(view: View, passed: float, clock: dict[str, float], *, opens: bool) -> None:
    """Set the phases up to the start of the round: the replaced pods end, the new pods run, their agents join."""
    passed = max(0.0, passed - clock.get("detect", 0.0) - clock.get("decide", 0.0))
    if "drain" not in clock:
        if view.others and not opens:
            return
        clock["drain"] = _rounded(passed)
    if "schedule" not in clock:
        pods = [pod for slot in view.members if (pod := view.pods[slot]) is not None and pod.phase == "Running"]
        if len(pods) < len(view.members) and not opens:
            return
        runs = min((pod.running_s for pod in pods), default=0.0)  # For the pod that started last.
        clock["schedule"] = _rounded(passed - clock["drain"] - max(0.0, runs))
    if opens and "start" not in clock:
        clock["start"] = _rounded(passed - clock["drain"] - clock["schedule"])


def _measured(view: View, passed: float, clock: dict[str, float]) -> None:
    """Add what the agents have measured, once all of them have reported it. Each phase is added once, because the
    totals of a job add up what is new in a clock."""
    agents = view.in_round()
    # It counts from a failure's arrival until the round is published, so what the operator waited for is in it.
    decided = max((agent.clock.get("decide", 0.0) for agent in agents), default=0.0)
    known = sum(clock.get(name, 0.0) for name in ("decide", *_OPERATORS))
    _add(clock, {"decide": decided - known}, passed)
    if len(agents) < len(view.members):
        return
    if not _is_known(clock) and all(_has_met(agent) for agent in agents):
        _add(clock, _parts(_came_last(agents), _TO_THE_MEETING), passed)
    if _is_known(clock) and all("first_step" in agent.clock for agent in agents):
        waited_least = min(agents, key=lambda agent: agent.clock["first_step"])
        _add(clock, _parts(waited_least, _TO_THE_STEP), passed)


def _is_known(clock: Mapping[str, float]) -> bool:
    """Return whether the agents' time up to the meeting is in a clock. `drain` may be the operator's alone."""
    return any(name in clock for name in _TO_THE_MEETING[1:])


def _has_met(agent: AgentRecord) -> bool:
    """Return whether all ranks of an agent have met the others. Scripts show only some of the milestones."""
    return any(name in agent.clock for name in ("rendezvous", *_TO_THE_STEP)) and _is_known(agent.clock)


def _came_last(agents: Sequence[AgentRecord]) -> AgentRecord:
    """Return the agent that waited least in the rendezvous. If none tells of it, the one that began last."""
    return min(
        agents,
        key=lambda agent: (
            agent.clock.get("rendezvous", math.inf),
            -sum(_parts(agent, _TO_THE_MEETING).values()),
        ),
    )


def _parts(agent: AgentRecord, names: Sequence[str]) -> dict[str, float]:
    return {name: agent.clock[name] for name in names if name in agent.clock}


def _add(clock: dict[str, float], parts: Mapping[str, float], passed: float) -> None:
    """Add seconds to phases, as far as so much time has passed: an agent may report anything."""
    for name, seconds in parts.items():
        more = _rounded(min(max(0.0, seconds), passed - sum(clock.values())))
        if more > 0 or name not in clock:
            clock[name] = round(clock.get(name, 0.0) + more, 4)


def _rounded(seconds: float) -> float:
    """Return seconds in the digits of the status, rounded down, so that a sum of phases is not too much. What a float
    of the present time can't tell, some ten-millionths of a second, is no reason to round down."""
    return max(0.0, math.floor(seconds * 1e4 + 0.01) / 1e4)
