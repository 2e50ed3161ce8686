"""Made-up scenes: the fleet that the documentation shows, and twelve incidents that on-call has to understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.history import Change, Controller, Episode, Job, openmetrics

END_S = 1_793_801_400.0
"""When each scene ends, in seconds since 1970: a morning in November 2026."""

HOUR_S = 3600.0
DOCUMENTATION = "documentation"
STATUS = "trainmaster status {job} -n {namespace}"
LEADER = "trainmaster-operator-6f4c-a"


@dataclass(frozen=True)
class Scene:
    """Jobs and operators over some hours. `dashboards`: those that are drawn, with the values of their variables.

    `signs`: what the tables of signs say of it, as (job or operator, sign, command); empty where nothing is wrong.
    """

    jobs: Sequence[Job]
    dashboards: Mapping[str, Mapping[str, str]]
    signs: Sequence[tuple[str, str, str]] = ()
    controller: Controller = field(default_factory=Controller)
    hours: float = 6.0

    @property
    def end_s(self) -> float:
        return END_S

    @property
    def begin_s(self) -> float:
        return END_S - self.hours * HOUR_S

    def history(self) -> str:
        return openmetrics(self.begin_s, self.hours * HOUR_S, self.jobs, self.controller)


def _at(
    hours: float, phase: str, reason: str = "", rung: str = "", category: str = "restart", lost: int = 0
) -> Episode:
    return Episode(hours * HOUR_S, phase, reason, rung, category, lost)


def _again(begin: float, end: float, every: float, down: float, cause: str, rung: str, lost: int = 0) -> list[Episode]:
    """Failures every so many hours, each with a recovery that takes `down` hours."""
    found, at = [], begin
    while at < end:
        found += [_at(at, "Recovering", cause, rung, lost=lost), _at(at + down, "Running")]
        at += every
    return found


def calm() -> list[Job]:
    """Jobs that nothing happens to."""
    return [
        Job("llama-70b", "language", queue="reserved", workers=32, steps_per_s=0.3, total_steps=12000),
        Job("vit-large", "vision", queue="shared", workers=8),
        Job("tabular", "growth", workers=2, accelerators=False, steps_per_s=2.5, total_steps=70000),
    ]


DOCUMENTED = Scene(
    [
        Job(
            "llama-70b",
            "language",
            queue="reserved",
            workers=32,
            steps_per_s=0.3,
            total_steps=12000,
            episodes=[
                _at(0, "Running"),
                _at(1.6, "Recovering", "NodeLost", "pod", "hardware", 40),
                _at(1.64, "Running"),
                _at(4.1, "Recovering", "HardwareFault", "pod", "hardware", 60),
                _at(4.16, "Running"),
            ],
        ),
        Job("vit-large", "vision", queue="shared", workers=8, slow_from_s=4.4 * HOUR_S, slowdown=1.7),
        Job(
            "tabular",
            "growth",
            workers=2,
            accelerators=False,
            steps_per_s=2.5,
            total_steps=70000,
            # A restart that answers no failure.
            episodes=[_at(0, "Running"), _at(2.8, "Resizing", rung="free"), _at(2.81, "Running")],
        ),
        Job(
            "mixtral",
            "language",
            queue="reserved",
            workers=16,
            episodes=[_at(0, "Running"), *_again(2.0, 3.0, 0.5, 0.05, "Crash", "inPlace", 10)],
        ),
        Job(
            "whisper",
            "speech",
            queue="shared",
            workers=4,
            episodes=[_at(0, "Running"), _at(3.2, "Failed", "DataError")],
        ),
        Job("diffusion", "vision", queue="shared", workers=8, episodes=[_at(0, "Running"), _at(5.0, "Succeeded")]),
        Job("reranker", "search", queue="shared", workers=8, episodes=[_at(0, "Pending", "Unschedulable")]),
    ],
    {
        "trainmaster-fleet": {},
        "trainmaster-job": {"namespace": "language", "job": "llama-70b"},
        "trainmaster-recovery": {},
        "trainmaster-operator": {},
    },
)


def _incident(job: Job, sign: str, others: Sequence[Job] = (), command: str = STATUS, **more: Any) -> Scene:
    """An incident of a job, or of several, beside jobs that nothing happens to. `sign`, `command`: what is told."""
    ill = [job, *others]
    shown: dict[str, Mapping[str, str]] = {f"trainmaster-{name}": {} for name in ("fleet", "recovery", "operator")}
    shown["trainmaster-job"] = {"namespace": job.namespace, "job": job.name}
    signs = [(one.name, sign, command.format(job=one.name, namespace=one.namespace)) for one in ill]
    return Scene([*calm(), *ill], shown, signs, hours=3.0, **more)


def _of_operator(name: str, sign: str, command: str, controller: Controller) -> Scene:
    shown: dict[str, Mapping[str, str]] = {f"trainmaster-{name}": {} for name in ("fleet", "recovery", "operator")}
    return Scene(calm(), shown, [(name, sign, command)], controller, hours=3.0)


def _from(hours: float, then: float, before: float = 0.0) -> Change:
    return lambda now, value, labels: then if now >= hours * HOUR_S else before


def _rises(hours: float, to: float) -> Change:
    """From `hours` on a straight line from the usual value to `to` at three hours."""

    def changed(now: float, value: float, labels: Mapping[str, str]) -> float:
        share = max(0.0, (now - hours * HOUR_S) / ((3.0 - hours) * HOUR_S))
        return value + share * (to - value)

    return changed


def _stops(hours: float) -> Change:
    return lambda now, value, labels: value if now < hours * HOUR_S else None


def _stands_still(hours: float, steps_per_s: float) -> Change:
    at_stop = int(2000 + steps_per_s * hours * HOUR_S)
    return lambda now, value, labels: min(value, at_stop)


def _saves(change: Change) -> Change:
    return lambda now, value, labels: change(now, value, labels) if labels.get("tier") == "storage" else value


def _lost_agents(hours: float, many: float) -> Controller:
    return Controller(change={"agents_lost_total": _from(hours, many)})


def _leaks(now: float, value: float, labels: Mapping[str, str]) -> float:
    """The operator's memory rises to its limit of 1 GiB within twenty minutes, again and again."""
    since = max(0.0, now - HOUR_S) % 1200.0 if now >= HOUR_S else 0.0
    return 2.0e8 + since / 1200.0 * 8.6e8


_LOST = [_at(0, "Running"), _at(2.5, "Recovering", "NodeLost", "pod", "hardware", 80), _at(2.6, "Running")]

INCIDENTS: dict[str, Scene] = {
    "crash-loop": _incident(
        Job(
            "rl-agent",
            "robotics",
            workers=4,
            episodes=[_at(0, "Running"), *_again(1.5, 3.0, 0.08, 0.02, "Crash", "inPlace", 25)],
        ),
        "It fails again and again: Crash",
    ),
    "hang": _incident(
        Job(
            "seq2seq",
            "speech",
            workers=4,
            change={
                "step": _stands_still(1.5, 1.2),
                "tokens_per_second": _stops(1.5),
                "mfu_ratio": _stops(1.5),
                "network_receive_bytes_total": lambda now, value, labels: min(value, 1.9e11 / 3.0 * 1.5),
                "checkpoint_age_seconds": lambda now, value, labels: (
                    value if now < 1.5 * HOUR_S else now - 1.5 * HOUR_S + 200
                ),
            },
        ),
        "It runs, and makes no step",
        controller=Controller(
            change={
                "hang_suspicions_total": lambda now, value, labels: float(
                    labels["result"] != "dropped" and now >= 1.6 * HOUR_S
                )
            }
        ),
    ),
    "straggler": _incident(
        Job("detector", "vision", workers=8, slow_from_s=1.2 * HOUR_S, slowdown=2.1),
        "One rank is slow, and all others wait for it",
        command="kubectl get dtj {job} -n {namespace} -o jsonpath='{{.status.internal.straggler}}'",
    ),
    "lost-node": _incident(
        Job("gpt-medium", "language", workers=8, episodes=_LOST),
        "It lost a pod with its node in the last hour",
        [Job(f"probe-{n}", "language", workers=4, episodes=_LOST) for n in (1, 2)],
        command="kubectl get nodes",
        controller=_lost_agents(2.5, 9),
    ),
    "image": _incident(
        Job("ocr", "documents", workers=2, episodes=[_at(0, "Pending", "ImageError")]),
        "Its image can't be pulled: ImageError",
    ),
    "quota": _incident(
        Job("ranker", "search", workers=16, episodes=[_at(0, "Pending", "QuotaExceeded")]),
        "Its quota has no room for its pods: QuotaExceeded",
    ),
    "out-of-memory": _incident(
        Job(
            "long-context",
            "language",
            workers=8,
            accelerators=False,
            episodes=[_at(0, "Running"), *_again(2.0, 3.0, 0.33, 0.03, "OutOfMemory", "pod", 30)],
            change={"memory_used_ratio": lambda now, value, labels: 0.55 + 0.44 * ((now / HOUR_S) % 0.33) / 0.33},
        ),
        "It fails again and again: OutOfMemory",
    ),
    "slow-storage": _incident(
        Job(
            "segmenter",
            "vision",
            workers=8,
            save_every_s=600,
            saves_fail_from_s=2.1 * HOUR_S,
            change={"checkpoint_duration_seconds": _saves(_rises(1.0, 900.0))},
        ),
        "Storage is slow: saves take ever longer",
    ),
    "nan": _incident(
        Job(
            "gan",
            "vision",
            workers=4,
            framework="PyTorch",
            change={"loss": lambda now, value, labels: value if now < 1.9 * HOUR_S else float("nan")},
        ),
        "Its loss is not a number",
    ),
    "held": _incident(
        Job("pretrain", "language", workers=16, episodes=[_at(0, "Running"), _at(2.0, "Held", "DataError")]),
        "Held: DataError",
    ),
    "no-leader": _of_operator(
        "",
        "No operator leads",
        "kubectl get lease trainmaster-operator -n trainmaster-system",
        controller=Controller(leads_until_s=2.4 * HOUR_S),
    ),
    "operator-memory": _of_operator(
        LEADER,
        "An operator starts again and again",
        f"kubectl describe pod {LEADER} -n trainmaster-system",
        controller=Controller(
            change={"process_resident_memory_bytes": _leaks},
            starts_at_s=[HOUR_S + 1200.0 * n for n in range(1, 6)],
        ),
    ),
}

SCENES: dict[str, Scene] = {DOCUMENTATION: DOCUMENTED, **INCIDENTS}
