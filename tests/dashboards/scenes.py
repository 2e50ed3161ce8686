"""Made-up scenes: the fleet that the documentation shows, and twelve incidents that on-call has to understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.dashboards.history import Controller, Episode, Job, openmetrics

END_S = 1_793_800_800.0
"""When each scene ends, in seconds since 1970: a morning in November 2026."""

HOUR_S = 3600.0
DOCUMENTATION = "documentation"


@dataclass(frozen=True)
class Scene:
    """Jobs and operators over some hours. `dashboards`: those that are drawn, with the values of their variables.

    `job`, `cause` and `command`: what a reader of the pictures should name; empty for a scene that is no incident.
    """

    jobs: Sequence[Job]
    dashboards: Mapping[str, Mapping[str, str]]
    job: str = ""
    cause: str = ""
    command: str = ""
    controller: Controller = field(default_factory=Controller)
    hours: float = 6.0
    ends_early_s: float = 0.0
    """So long before the end nothing is scraped any more."""

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
        Job("tabular", "growth", workers=2, accelerators=False, steps_per_s=2.5, total_steps=70000),
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

SCENES: dict[str, Scene] = {DOCUMENTATION: DOCUMENTED}
