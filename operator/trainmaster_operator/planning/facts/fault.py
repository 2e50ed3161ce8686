"""What went wrong, as evidence shows it, before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster.contract.wire import Cause, Recurrence, Verdict
from trainmaster_operator.planning.facts.job_state import Failure, Rung
from trainmaster_operator.planning.facts.observation import AgentRecord, PodRecord
from trainmaster_operator.planning.facts.times import rfc3339
from trainmaster_operator.planning.facts.view import View

MESSAGE = 1024  # characters that the status keeps of a message...
TRACEBACK = 3000  # ...and of the end of a traceback


FATAL = (Cause.CONFIG_ERROR, Cause.DATA_ERROR, Cause.DIVERGED)
"""A restart would fail in the same way."""

NOT_THE_JOBS = (
    *(Cause.STORE_LOST, Cause.FENCED, Cause.PREEMPTED),
    *(Cause.EVICTED, Cause.NODE_LOST, Cause.REFUSED),
)
"""Hardly the job's doing, unless it happens again and again: a pod that fills its node's disk is evicted each time."""


@dataclass(frozen=True)
class Fault:
    """The first cause of a failure. `slots`: pods that ended or must be replaced if the floor is a pod's."""

    cause: Cause
    message: str
    slots: tuple[int, ...]
    floor: Rung = Rung.IN_PLACE
    fatal: bool = False  # a restart would fail in the same way
    free: bool = False  # not the job's doing: counts nothing
    rank: int | None = None
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: str = ""
    traceback: str = ""
    output: str = ""  # the rank's last lines
    on_device: bool = False  # the memory that ran out
    recurs: Recurrence = Recurrence.UNKNOWN  # whether the same would happen again
    hopeless: str = ""  # why a restart would not help, where the cause alone doesn't say so
    samples: tuple[int, ...] = ()  # [first, end) of the step that diverged
    rule: str = ""  # that decides what is done
    step: int = 0
    age_s: float = 0.0  # since it happened
    clock: dict[str, float] = field(default_factory=dict)  # detect, decide: how that time went

    @property
    def shell_code(self) -> int | None:
        """The exit code as a shell has it: 128 + n after signal n, where Python has -n."""
        code = self.exit_code
        return 128 - code if code is not None and code < 0 else code

    @property
    def place(self) -> str:
        """Where it happened, for people, as far as that is known: "rank 2, pod gpt-worker-2-0, node a"."""
        named = (("rank", self.rank if self.rank is not None else ""), ("pod", self.pod), ("node", self.node))
        return ", ".join(f"{kind} {name}" for kind, name in named if name != "")

    @property
    def title(self) -> str:
        """Its cause and its place: how an event about it begins."""
        return f"{self.cause.value} ({self.place})" if self.place else self.cause.value

    def record(self, view: View) -> Failure:
        """Return the failure as the status keeps it, cut to size, with the time at which it happened."""
        return Failure(
            cause=self.cause.value,
            rank=self.rank,
            pod=self.pod,
            node=self.node,
            exitCode=self.shell_code,
            signal=self.signal,
            message=self.message[:MESSAGE],
            traceback=self.traceback[-TRACEBACK:],
            step=self.step,
            round=view.status.round,
            time=rfc3339(view.now - self.age_s),
            rule=self.rule,
        )


def of_verdict(view: View, agent: AgentRecord, verdict: Verdict, *, fatal: bool = False, floor: Rung) -> Fault:
    """Return the fault that an agent's verdict tells. `fatal`: no restart can help. `floor`: the lowest rung to try."""
    pod = view.pods[agent.slot]
    detect = min(verdict.age_s, agent.verdict_age_s)
    return Fault(
        cause=verdict.cause,
        message=verdict.message or (verdict.last_lines[-1] if verdict.last_lines else "no last words"),
        slots=(agent.slot,),
        floor=floor,
        fatal=fatal,
        rank=verdict.rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        traceback=verdict.traceback,
        output="\n".join(verdict.last_lines),
        on_device=verdict.on_device,
        recurs=verdict.recurs,
        samples=tuple(verdict.samples),
        step=verdict.step,
        age_s=agent.verdict_age_s,
        clock={"detect": detect, "decide": agent.verdict_age_s - detect},
    )


def of_pods(
    view: View,
    cause: Cause,
    message: str,
    slots: tuple[int, ...],
    pod: PodRecord | None,
    *,
    free: bool = False,
    fatal: bool = False,
    age_s: float = 0.0,
    said: Verdict | None = None,
) -> Fault:
    """Pods that ended, or that must: the first of `slots` names the failure. `said`: the pod's last words."""
    return Fault(
        cause=cause,
        message=message,
        slots=slots,
        floor=Rung.POD,
        fatal=fatal,
        free=free,
        rank=said.rank if said else None,
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        exit_code=pod.exit_code if pod else None,
        signal=said.signal if said else "",
        traceback=said.traceback if said else "",
        step=view.highest_step(),
        age_s=age_s,
        clock={"detect": age_s, "decide": 0.0} if age_s else {},
    )
