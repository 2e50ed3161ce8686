"""Where a recovery's time goes: the operator's share (drain, schedule, start), then what the agents tell.

detect decide | drain schedule start | fork imports rendezvous build load first_step
the fault     | pods that go, pods that come, their agents | the ranks of the new round
"""

from __future__ import annotations

from trainmaster_operator.planning.facts.job_state import JobState, Recovery
from trainmaster_operator.planning.facts.timestamps import since
from trainmaster_operator.planning.facts.view import View

ENTRIES = 16


def update(view: View, status: JobState) -> list[Recovery]:
    """Return the recoveries with what is known by now of the last one's clock; the same list if nothing is new."""
    recoveries = status.recoveries
    if not recoveries or recoveries[-1].round != view.status.round:
        return recoveries
    last = recoveries[-1]
    clock = dict(last.clock)
    if not view.round_is_open:
        _forming(view, last, clock, opens=bool(status.roundStore))
    for agent in view.in_round():
        for name, seconds in sorted(agent.clock.items()):
            name = name[:32]
            if name in clock or len(clock) < ENTRIES:
                clock[name] = max(clock.get(name, 0.0), round(seconds, 4))
    if clock == last.clock:
        return recoveries
    return [*recoveries[:-1], last.model_copy(update={"clock": clock})]


def _forming(view: View, recovery: Recovery, clock: dict[str, float], *, opens: bool) -> None:
    """Set the phases up to the start of the round: the replaced pods end, the new pods run, their agents join."""
    passed = max(0.0, since(recovery.startedAt, view.now) - clock.get("detect", 0.0) - clock.get("decide", 0.0))
    if "drain" not in clock:
        if view.others and not opens:
            return
        clock["drain"] = round(passed, 4)
    if "schedule" not in clock:
        pods = [pod for slot in view.members if (pod := view.pods[slot]) is not None and pod.phase == "Running"]
        if len(pods) < len(view.members) and not opens:
            return
        runs = min((pod.running_s for pod in pods), default=0.0)  # For the pod that started last.
        clock["schedule"] = round(max(0.0, passed - clock["drain"] - runs), 4)
    if opens and "start" not in clock:
        clock["start"] = round(max(0.0, passed - clock["drain"] - clock["schedule"]), 4)
