"""A failure as the evidence shows it, before anything is decided about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster.contract.wire import Cause, Recurrence, Verdict
from trainmaster_operator.planning.facts.job_state import Failure, Rung
from trainmaster_operator.planning.facts.observation import AgentRecord, PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.facts.view import View

MESSAGE = 1024  # Maximum number of characters of a message that the status keeps.
TRACEBACK = 3000  # Maximum number of characters at the end of a traceback that the status keeps.


FATAL = (Cause.CONFIG_ERROR, Cause.DATA_ERROR, Cause.DIVERGED)
"""Causes for which a restart would fail in the same way."""

NOT_THE_JOBS = (
    *(Cause.STORE_LOST, Cause.FENCED, Cause.PREEMPTED),
    *(Cause.EVICTED, Cause.NODE_LOST, Cause.REFUSED),
)
"""Causes for which the job is hardly responsible, unless they repeat: a pod that fills the disk of its node is
evicted each time."""


@dataclass(frozen=True)
class Fault:
    """The first cause of a failure. `slots`: the slots of pods that ended, or that are replaced if the recovery is
    at least of rung `pod`. `floor`: the lowest rung that can help."""

    cause: Cause
    message: str
    slots: tuple[int, ...]
    floor: Rung = Rung.IN_PLACE
    fatal: bool = False  # True if a restart would fail in the same way.
    free: bool = False  # True if the job is not responsible; then the restart uses no budget.
    rank: int | None = None
    pod: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: str = ""
    traceback: str = ""
    output: str = ""  # The last lines of the rank's output.
    on_device: bool = False  # True if a device ran out of memory, not the host.
    recurs: Recurrence = Recurrence.UNKNOWN  # Whether the same failure would happen again after a restart.
    hopeless: str = ""  # Why a restart would not help, if the cause alone does not say so.
    samples: tuple[int, ...] = ()  # The samples [first, end) of the step that diverged.
    rule: str = ""  # The name of the rule that decides what is done.
    step: int = 0
    age_s: float = 0.0  # Seconds since the failure.
    clock: dict[str, float] = field(default_factory=dict)  # Seconds of that time by phase: detect and decide.

    @property
    def shell_code(self) -> int | None:
        """The exit code in a shell's form: 128 + n after signal n, for which Python reports -n."""
        code = self.exit_code
        return 128 - code if code is not None and code < 0 else code

    @property
    def place(self) -> str:
        """The place of the failure for people, as far as it is known: "rank 2, pod gpt-worker-2-0, node a"."""
        named = (("rank", self.rank if self.rank is not None else ""), ("pod", self.pod), ("node", self.node))
        return ", ".join(f"{kind} {name}" for kind, name in named if name != "")

    @property
    def title(self) -> str:
        """The cause and the place, with which an event about the failure begins."""
        return f"{self.cause.value} ({self.place})" if self.place else self.cause.value

    def record(self, view: View) -> Failure:
        """Return the failure as the status records it."""
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
    """Return the failure that an agent's verdict describes."""
    pod = view.pods[agent.slot]
    detect = min(verdict.age_s, agent.verdict_age_s)
    return Fault(
        cause=verdict.cause,
        message=verdict.message or (verdict.last_lines[-1] if verdict.last_lines else "the rank left no message"),
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
    """Return the failure of pods that ended or must be replaced. The first of `slots` gives the failure its name.
    `said`: the last verdict of that pod."""
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
