"""Ranks that hang: silent for longer than is expected from the run so far, and with a stack that does not change.

Three conditions must hold before ranks are killed. First, all ranks are silent for longer than the limit of their phase
(ranks that save or evaluate get their time, and so do ranks that wait for these). Second, the suspicion is written and
the agents are asked for stacks. Third, the ranks stay silent for another while, and the stacks of those that are
furthest behind do not change. All of it is valid for one round only.

Silence means something only where steps are seen. A script that has completed no step in this round may evaluate,
prepare its data, or run a program that cannot be observed, and a restart would do all of that again: with the default
limit, only a rank that the kernel reports as stopped counts as hanging.
"""

from __future__ import annotations

from trainmaster.contract.wire import Cause, RankReport, RankState, Recurrence
from trainmaster_operator.api.hang_and_straggler_spec import HANG_LIMIT_S, HangMode
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.planning.facts.change import Change, changed, normal, warning
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.fault import TRACEBACK, Fault
from trainmaster_operator.planning.facts.frozen_record import dataclass
from trainmaster_operator.planning.facts.job_state import JobState, Suspicion
from trainmaster_operator.planning.facts.observation import AgentRecord, JobSpec, PlannedEvent, PodRecord
from trainmaster_operator.planning.facts.stack_frames import innermost, is_in_own_code, place, waits
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import BEFORE_STEPS, View, stepped_to
from trainmaster_operator.planning.liveness.hang_thresholds import SHORTEST_S, limits
from trainmaster_operator.planning.liveness.late_round_start import find_late_agent, measure_round_age_s

WATCHED = (*BEFORE_STEPS, "STEP", "SAVE", "EVAL")
"""Phases in which silence counts. Ranks may be silent while they end, but a stopped rank counts in every phase."""

CONFIRM_SHARE = 0.25  # Share of the limit for which suspected ranks are observed.
LONGEST_CONFIRM_S = 15.0  # Largest value of that time, in seconds.


@dataclass(frozen=True)
class Silence:
    """A watched rank with the seconds for which it may be silent."""

    agent: AgentRecord
    rank: RankReport
    limit_s: float

    @property
    def is_over(self) -> bool:
        """True if the rank has been silent for longer than its limit."""
        return self.rank.silent_s >= self.limit_s

    @property
    def is_stopped(self) -> bool:
        """True if the kernel reports the rank as stopped."""
        return self.rank.state is RankState.STOPPED

    @property
    def place(self) -> tuple[int, int, int]:
        """How far the rank has come, as (step, phase of the start, number of the collective). A rank with a lower
        value has not arrived where the others wait."""
        phase = self.rank.phase.upper()
        start = BEFORE_STEPS.index(phase) if phase in BEFORE_STEPS else len(BEFORE_STEPS)
        number, _, _ = self.rank.collective.partition(" ")
        return (self.rank.step, start, int(number) if number.isdigit() else 0)


def hang(view: View) -> Fault | None:
    """Return the fault of ranks that certainly hang, if spec.recovery.hang.mode is Enforce, or of an agent that
    never started the round. Return None otherwise."""
    spec = view.spec.recovery.hang
    if spec.mode is not HangMode.ENFORCE or not view.round_is_open:
        return None
    silences, over = _look(view)
    if over and _confirmed(view, over):
        return _fault(view, silences, over)
    return find_late_agent(view, spec.limitSeconds)


def suspect(view: View) -> Change | None:
    """Return the next change of the suspicion that ranks hang: raise it, confirm it if the mode only reports, or
    drop it. Return None if nothing changes."""
    known = _known(view)
    _, over = _look(view)
    if not over:
        return _dropped(view, known) if known is not None and _is_heard(view, known) else None
    if known is None:
        return _raised(view, over)
    enforced = view.spec.recovery.hang.mode is HangMode.ENFORCE
    return None if enforced or known.confirmed or not _confirmed(view, over) else _report_hang(view, known, over)


def asks_stacks(status: JobState) -> bool:
    """Return whether agents are to report the stacks of their ranks."""
    return status.suspicion is not None and status.suspicion.round == status.round and not status.suspicion.confirmed


def start_limit_s(spec: JobSpec) -> float:
    """Return the seconds after which an agent ends a round that has not completed a step, without further
    observation; 0 for no limit."""
    hang = spec.recovery.hang
    if hang.mode is not HangMode.ENFORCE or not _counts_before_steps(spec):
        return 0.0
    return hang.limitSeconds


def hang_due_s(view: View) -> float | None:
    """Return the seconds until the planner may have to act on silent ranks; None if it will not. At that time it
    asks for the agents' reports, so it is at least one report interval away."""
    spec = view.spec.recovery.hang
    if spec.mode is HangMode.OFF or not view.round_is_open:
        return None
    silences = _silences(view)
    due = [max(view.interval_s, s.limit_s - s.rank.silent_s - s.agent.silent_s) for s in silences]
    late = spec.limitSeconds - measure_round_age_s(view)
    if late > 0 and len(view.in_round()) < len(view.members):
        due.append(late)
    return min(due, default=None)


def _known(view: View) -> Suspicion | None:
    """Return the suspicion of this round, or None."""
    suspicion = view.status.suspicion
    return suspicion if suspicion is not None and suspicion.round == view.status.round else None


def _is_heard(view: View, known: Suspicion) -> bool:
    """Return whether the agent of the suspected rank reports. If it does not, as before a new leader has heard it,
    nothing is known of the rank, so the suspicion stays."""
    return any(agent.slot == known.slot and agent.silent_s < _fresh_s(view) for agent in view.in_round())


def _fresh_s(view: View) -> float:
    """Return the largest age in seconds of a report that still says what a rank does."""
    return max(2.0, 4 * view.interval_s)


@once
def _look(view: View) -> tuple[list[Silence], list[Silence]]:
    """Return all watched ranks, and those of them that may hang. In most passes a quick check is enough."""
    spec = view.spec.recovery.hang
    if spec.mode is HangMode.OFF or not view.round_is_open:
        return [], []
    shortest = min(spec.limitSeconds, SHORTEST_S)
    if not any(rank.silent_s >= shortest for agent in view.in_round() for rank in agent.ranks):
        return [], []
    silences = _silences(view)
    return silences, _overdue(silences)


def _counts_before_steps(spec: JobSpec) -> bool:
    """Return whether silence before the first step of a round counts: the built-in trainer reports everything it
    does, and a limit that a user has set holds for any script."""
    return spec.framework is Framework.TRAINMASTER or spec.recovery.hang.limitSeconds != HANG_LIMIT_S


def _has_stepped(view: View) -> bool:
    """Return whether a rank has completed a step of this round. If so, ranks that have not completed one keep it
    waiting."""
    return any(stepped_to(view, agent, rank) > 0 for agent in view.in_round() for rank in agent.ranks)


@once
def _silences(view: View) -> list[Silence]:
    """Return the ranks whose silence means something: their agent reports, and they have not ended."""
    told = _counts_before_steps(view.spec) or _has_stepped(view)
    fresh = _fresh_s(view)
    of = limits(view).of
    return [
        Silence(agent, rank, of(agent, rank))
        for agent in view.in_round()
        if agent.silent_s < fresh
        for rank in agent.ranks
        if (told and rank.state in (RankState.RUNNING, RankState.STARTING) and rank.phase.upper() in WATCHED)
        or rank.state is RankState.STOPPED
    ]


def _overdue(silences: list[Silence]) -> list[Silence]:
    """Return the ranks that may hang, the one to blame first; [] while the silence of some has another reason.

    For a stopped rank the kernel's report is enough. Otherwise all ranks must be silent for too long: ranks step
    together, so a rank within its limit may be the one for which the others wait. This does not excuse a rank that is
    steps behind ranks that continue without it.
    """
    over = [s for s in silences if s.is_over]
    if not over:
        return []
    stopped = [s for s in over if s.is_stopped]
    if stopped:
        return sorted(stopped, key=_blame)
    if len(over) < len(silences):
        goes_on = min(s.rank.step for s in silences if not s.is_over)
        over = [s for s in over if 0 < s.rank.step < goes_on - 1]
    return sorted(over, key=_blame)


def _blame(silence: Silence) -> tuple[tuple[int, int, int], bool, float, int]:
    """Return a sort key: the rank furthest behind comes first, then a rank whose stack does not wait for others,
    then the longest silence."""
    rank = silence.rank
    return (silence.place, waits(rank.stack), -rank.silent_s, rank.rank)


def _confirmed(view: View, over: list[Silence]) -> bool:
    """Return whether the ranks have been observed for long enough and either do not move, or have moved for too long
    without a sign of life. A stopped rank needs no observation."""
    if over[0].is_stopped:
        return True
    suspicion = _known(view)
    if suspicion is None:
        return False
    behind = [s for s in over if s.place == over[0].place]
    window = _window_s(view, over[0].limit_s)
    if any(not s.rank.stack for s in behind):
        window += min(2 * view.interval_s, over[0].limit_s / 4)  # An answer may still be on its way.
    looked = since(suspicion.since, view.now)
    if looked < window or any(s.agent.silent_s > looked - window / 2 for s in behind):
        return False
    moving = [s for s in behind if s.rank.stack and s.rank.still_s < window / 2]
    return not moving or min(s.rank.silent_s for s in moving) >= limits(view).patience_s


def _window_s(view: View, limit: float) -> float:
    return max(min(CONFIRM_SHARE * limit, LONGEST_CONFIRM_S), min(2 * view.interval_s, limit / 2))


def _raised(view: View, over: list[Silence]) -> Change:
    """Suspect the ranks. The one that stands still is named only if it is known: the stacks are not yet."""
    first = over[0]
    pod = view.pods[first.agent.slot]
    alike = [s for s in over if _blame(s)[:2] == _blame(first)[:2]]
    named = first.is_stopped or len(alike) == 1
    words, reason = _words(first) if named else _words_of_all(alike), _reason_for_limit(view, first)
    suspicion = Suspicion(
        round=view.status.round,
        rank=first.rank.rank,
        slot=first.agent.slot,
        pod=pod.name if pod else "",
        phase=first.rank.phase,
        step=first.rank.step,
        limitSeconds=round(first.limit_s, 3),
        since=rfc3339(view.now),
        message=f"{words}{reason}",
    )
    told = warning("HangSuspected", f"{words}{_place(pod) if named else ''}{reason}")
    return changed(view.status, *_events(view, told), suspicion=suspicion)


def _dropped(view: View, known: Suspicion) -> Change:
    over = normal("HangOver", f"rank {known.rank} reports again, so it did not hang")
    return changed(view.status, *_events(view, over), suspicion=None)


def _report_hang(view: View, known: Suspicion, over: list[Silence]) -> Change:
    """Confirm the suspicion and emit a warning event; restart nothing, because recovery.hang.mode says so."""
    first = over[0]
    words = f"{_words(first)}{_where(first)}"
    suspicion = known.model_copy(
        update={
            "rank": first.rank.rank,
            "slot": first.agent.slot,
            "confirmed": True,
            "message": words[:1024],
            "traceback": first.rank.stack[-TRACEBACK:],
        }
    )
    place = _place(view.pods[first.agent.slot])
    mode = view.spec.recovery.hang.mode.value
    why_not = f"recovery.hang.mode is {mode}, so the operator does not restart the ranks"
    told = warning("HangDetected", f"{words}{place}; {why_not}"[:1024])
    return changed(view.status, *_events(view, told), suspicion=suspicion)


def _events(view: View, event: PlannedEvent) -> tuple[PlannedEvent, ...]:
    return () if view.spec.recovery.hang.mode is HangMode.OBSERVE else (event,)


def _fault(view: View, silences: list[Silence], over: list[Silence]) -> Fault:
    first = over[0]
    rank, pod = first.rank, view.pods[first.agent.slot]
    detect = min(rank.silent_s, first.limit_s)
    return Fault(
        cause=Cause.HANG,
        message=f"{_words(first)}{_where(first)}{_waiting(silences, first)}",
        slots=(first.agent.slot,),
        rank=rank.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        traceback=rank.stack,
        recurs=Recurrence.LIKELY if _is_of_the_program(view, silences, first) else Recurrence.UNKNOWN,
        step=rank.step,
        age_s=rank.silent_s,
        clock={"detect": detect, "decide": rank.silent_s - detect},
    )


def _is_of_the_program(view: View, silences: list[Silence], first: Silence) -> bool:
    """Return whether the rank stands in the script itself, so that the same hang may come again at the same step.

    Everything else may have a cause outside, which may end by itself: a rank that saves, loads or waits for others
    (storage, network), one that stands in a library (a download, the queue of a loader), one without a stack (the
    kernel holds it, as it does while a disk doesn't answer), and one that stands where another rank stands too (the
    network of GPUs, or something for which the script waits). A round without a step shows neither that the network
    works nor that the storage does.
    """
    rank = first.rank
    if not view.scripted or first.is_stopped or rank.phase.upper() != "STEP" or not is_in_own_code(rank.stack):
        return False
    alone = all(place(s.rank.stack) != place(rank.stack) for s in silences if s.rank.rank != rank.rank)
    return alone and _has_stepped(view)


def _words(silence: Silence) -> str:
    rank = silence.rank
    stopped = " and is stopped (SIGSTOP or a debugger)" if silence.is_stopped else ""
    phase = f" in phase {rank.phase.upper()}" if rank.phase else ""
    after = f", last in collective {rank.collective}" if rank.collective else ""
    limit = f" (limit {silence.limit_s:.1f} s)"
    return (
        f"rank {rank.rank} has been silent for {rank.silent_s:.1f} s{limit}{phase} at step {rank.step}{after}{stopped}"
    )


def _words_of_all(alike: list[Silence]) -> str:
    """Return the words for ranks of which any may be the one for which the others wait."""
    shortest, first = min(alike, key=lambda s: s.rank.silent_s), alike[0].rank
    phase = f" in phase {first.phase.upper()}" if first.phase else ""
    return (
        f"{len(alike)} ranks have been silent for {shortest.rank.silent_s:.1f} s (limit {shortest.limit_s:.1f} s)"
        f"{phase} at step {first.step}; their stacks are read to find the one that stands still"
    )


def _reason_for_limit(view: View, silence: Silence) -> str:
    """Return the pause that made the limit longer than it could be, as a clause; "" if none did. Only a suspicion has
    it: the messages of failures are compared, and a limit that was learned meanwhile makes no other failure."""
    pause = limits(view).long_pause(silence.agent, silence.rank)
    if pause is None:
        return ""
    return (
        f"; the limit follows from the longest healthy pause of this kind, {pause.longest:.3g} s "
        f"(usually {pause.typical:.3g} s)"
    )


def _place(pod: PodRecord | None) -> str:
    if pod is None:
        return ""
    return f" (pod {pod.name}, node {pod.node})" if pod.node else f" (pod {pod.name})"


def _where(silence: Silence) -> str:
    """Return the innermost calls of the rank as a clause; "" without a stack."""
    calls = innermost(silence.rank.stack)
    return f"; it is in {calls}" if calls else ""


def _waiting(silences: list[Silence], first: Silence) -> str:
    """Return what the other ranks do meanwhile, as a clause."""
    ahead = [s.rank for s in silences if s.place > first.place]
    if not ahead:
        return ""
    furthest = max((s for s in silences if s.place > first.place), key=lambda s: s.place).rank
    where = f", in collective {furthest.collective}" if furthest.collective else ""
    return f"; {len(ahead)} of {len(silences)} ranks wait for it (at step {furthest.step}{where})"
