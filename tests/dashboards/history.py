"""Made-up history of a fleet, for what no run on one small machine has: accelerators, queues, hours, many jobs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

STEP_S = 30.0
"""Between two samples."""

RUNGS = ("inPlace", "pod", "full", "shrink", "free")
CAUSES = (
    *("Crash", "OutOfMemory", "Hang", "Straggler", "HardwareFault", "NodeLost"),
    *("Preempted", "DataError", "Diverged", "ConfigError", "Other"),
)
CATEGORIES = ("hardware", "preemption", "checkpoint", "straggler", "detection", "queue", "restart", "other")
CLOCK = ("detect", "schedule", "start", "rendezvous", "load", "first_step")
RUNNING = ("Starting", "Running", "Recovering", "Resizing", "Suspending")
CONDITIONS = {
    "Failed": "Failed",
    "Held": "Held",
    "Succeeded": "Complete",
    "Running": "Running",
    "Recovering": "Recovering",
}

Change = Callable[[float, float, Mapping[str, str]], float | None]
"""From the seconds since the history began, the usual value and the labels to another value."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Episode:
    """From `at_s` on (seconds since the history begins) a job is in `phase`, because of `reason`.

    `rung`: the restart that answers a failure of this cause; "": none. `lost_steps`: to be done again.
    """

    at_s: float
    phase: str
    reason: str = ""
    rung: str = ""
    category: str = "restart"
    lost_steps: int = 0


@dataclass
class Job:
    """One job and what becomes of it. `change`: other values of series by name, None for no sample at all."""

    name: str
    namespace: str = "research"
    queue: str = ""
    framework: str = "Trainmaster"
    workers: int = 8
    accelerators: bool = True
    steps_per_s: float = 1.2
    total_steps: int = 40000
    save_every_s: float = 600.0
    episodes: Sequence[Episode] = (Episode(0, "Running"),)
    slow_from_s: float | None = None
    slowdown: float = 1.0
    saves_fail_from_s: float | None = None
    save_s: float = 12.0
    change: Mapping[str, Change] = field(default_factory=dict)

    def play(self, length_s: float) -> Iterable[tuple[float, Samples]]:
        """Yield the samples at each time."""
        step, lost_steps, useful, saved_at, recoveries = 2000.0, 0.0, 7200.0, -120.0, 0
        saved = step
        cpu, received, sent = 0.0, 0.0, 0.0
        restarts, failures, lost, clock = (dict.fromkeys(names, 0.0) for names in (RUNGS, CAUSES, CATEGORIES, CLOCK))
        waits_since, at = 0.0, 0
        for number in range(int(length_s / STEP_S) + 1):
            now = number * STEP_S
            while at + 1 < len(self.episodes) and self.episodes[at + 1].at_s <= now:
                at += 1
                new = self.episodes[at]
                waits_since = new.at_s
                if new.reason in CAUSES and new.phase in ("Recovering", "Held", "Failed"):
                    failures[new.reason] += 1
                    step = max(0.0, step - new.lost_steps)
                    lost_steps += new.lost_steps
                if new.rung:
                    restarts[new.rung] += 1
            episode = self.episodes[at]
            slow = self.slowdown if self.slow_from_s is not None and now >= self.slow_from_s else 1.0
            if episode.phase == "Running":
                if at and self.episodes[at - 1].phase == "Recovering" and now - episode.at_s < STEP_S:
                    recoveries += 1
                    took = episode.at_s - self.episodes[at - 1].at_s
                    for share, name in zip((0.2, 0.3, 0.2, 0.1, 0.15, 0.05), CLOCK, strict=True):
                        clock[name] += share * took
                step += self.steps_per_s * STEP_S / slow
                useful += STEP_S  # slow steps are useful ones
                fails = self.saves_fail_from_s is not None and now >= self.saves_fail_from_s
                if now - saved_at >= self.save_every_s and not fails:
                    saved_at, saved = now, step
                    lost["checkpoint"] += 1.0
                cpu += 3.4 * self.workers * STEP_S / slow
                received += 2.1e9 * self.workers / 8 * STEP_S / slow
                sent += 2.0e9 * self.workers / 8 * STEP_S / slow
            elif episode.phase == "Recovering":
                lost[episode.category] += STEP_S
            made: Samples = {}

            def tell(name: str, value: float, made: Samples = made, now: float = now, **labels: str) -> None:
                changed = self.change.get(name)
                given = changed(now, value, labels) if changed is not None else value
                if given is not None:
                    own = {"namespace": self.namespace, "job": self.name, **labels}
                    made[f"trainmaster_job_{name}", tuple(sorted(own.items()))] = given

            tell("phase", 1, phase=episode.phase)
            if episode.phase in CONDITIONS:
                tell("condition", 1, condition=CONDITIONS[episode.phase], reason=episode.reason or episode.phase)
            tell("info", 1, framework=self.framework, queue=self.queue)
            if episode.phase == "Pending":
                tell("pending_seconds", now - waits_since, reason=episode.reason or "Starting")
            for names, values, label in (
                ("restarts_total", restarts, "rung"),
                ("failures_total", failures, "cause"),
                ("recovery_seconds_total", clock, "phase"),
                ("lost_seconds_total", lost, "category"),
            ):
                for word, value in values.items():
                    tell(names, value, **{label: word})
            tell("recoveries_total", recoveries)
            tell("lost_steps_total", lost_steps)
            tell("useful_seconds_total", useful)
            if any(e.phase in RUNNING for e in self.episodes[: at + 1]):
                tell("goodput_ratio", useful / (useful + sum(lost.values())))
            if episode.phase in RUNNING:
                runs = episode.phase == "Running"
                tell("step", int(step))
                tell("total_steps", self.total_steps)
                wobble = ((number * 37) % 17 - 8) / 100
                tell("loss", 2.0 + 6.0 / (1 + step / 4000) + wobble / 5)
                if runs:
                    tell("tokens_per_second", self.steps_per_s * 65536 / slow * (1 + wobble / 4))
                    if self.accelerators:
                        tell("mfu_ratio", 0.41 / slow * (1 + wobble / 8))
                tell("checkpoint_step", int(saved), tier="storage")
                tell("checkpoint_age_seconds", now - saved_at, tier="storage")
                tell("checkpoint_duration_seconds", self.save_s * (1 + wobble), tier="storage")
                if runs:
                    tell("checkpoint_age_seconds", 20.0 * ((number % 3) + 1), tier="memory")
                    tell("checkpoint_duration_seconds", 0.4 * (1 + wobble), tier="memory")
                ready = self.workers if runs else self.workers - 1
                for state, value in (
                    ("desired", self.workers),
                    ("current", self.workers),
                    ("ready", ready),
                    ("spare", 1),
                ):
                    tell("workers", value, state=state)
                if slow > 1:
                    tell("straggler_slowdown", slow * (1 + wobble / 4))
                tell("cpu_seconds_total", cpu)
                tell("memory_bytes", 38e9 * (1 + wobble / 20), what="container")
                tell("memory_bytes", 31e9 * (1 + wobble / 20), what="process")
                tell("memory_used_ratio", 0.6 * (1 + wobble / 20), what="container")
                tell("network_receive_bytes_total", received)
                tell("network_transmit_bytes_total", sent)
                if self.accelerators:
                    tell("memory_bytes", 61e9, what="device")
                    tell("memory_used_ratio", 0.82, what="device")
                    tell("accelerator_utilization_ratio", 0.96 / slow * (1 + wobble / 10) if runs else 0.02)
                    tell("accelerator_memory_bytes", 66e9 * self.workers)
            yield now, made


@dataclass
class Controller:
    """The operators of a fleet. `change` as in `Job`, by the whole name of a metric without its prefix."""

    pods: Sequence[str] = ("trainmaster-operator-6f4c-a", "trainmaster-operator-6f4c-b")
    namespace: str = "trainmaster-system"
    change: Mapping[str, Change] = field(default_factory=dict)
    certificate_ends_in_s: float = 60 * 86400.0
    starts_at_s: Sequence[float] = ()
    """When the leader's process started again."""
    leads_until_s: float | None = None
    """From then on nobody leads, so nobody tells of jobs."""

    def play(self, length_s: float, jobs: int, begin_s: float) -> Iterable[tuple[float, Samples]]:
        for number in range(int(length_s / STEP_S) + 1):
            now = number * STEP_S
            made: Samples = {}
            for place, pod in enumerate(self.pods):
                own = {"namespace": self.namespace, "pod": pod, "instance": f"10.0.0.{place + 4}:8080"}

                def tell(
                    name: str,
                    value: float,
                    made: Samples = made,
                    now: float = now,
                    own: dict[str, str] = own,
                    prefix: str = "trainmaster_",
                    **labels: str,
                ) -> None:
                    changed = self.change.get(name)
                    given = changed(now, value, labels) if changed is not None else value
                    if given is not None:
                        made[f"{prefix}{name}", tuple(sorted({**own, **labels}.items()))] = given

                leads = place == 0 and (self.leads_until_s is None or now < self.leads_until_s)
                tell("leader", float(leads))
                tell("leader_epoch", 3.0 if leads else 0.0)
                started = max([-86400.0, *(at for at in self.starts_at_s if at <= now)]) if leads else -86400.0
                tell("process_start_time_seconds", begin_s + started, prefix="")
                tell("process_resident_memory_bytes", 1.3e8 + 1e5 * jobs + (now - max(started, 0)) * 2e3, prefix="")
                tell("process_cpu_seconds_total", now * (0.08 if leads else 0.01), prefix="")
                tell(
                    "certificate_expiry_timestamp_seconds", begin_s + self.certificate_ends_in_s, certificate="control"
                )
                tell("queue_depth", 0.0)
                tell("event_loop_lag_seconds", 0.002)
                for kind in ("DistributedTrainingJob", "Pod"):
                    tell("watch_age_seconds", now % 60, kind=kind)
                if not leads:
                    continue
                tell("agents_connected", 8.0 * jobs)
                tell("pods", 8.0 * jobs)
                tell("agents_lost_total", 0.0)
                tell("jobs", 0.0, phase="Unreadable")
                for result, share in (("ok", 1.0), ("conflict", 0.02), ("unavailable", 0.0), ("error", 0.0)):
                    tell("reconcile_total", now * share * jobs / 5, result=result)
                for result, share in (("ok", 1.0), ("unauthorized", 0.0)):
                    tell("channel_requests_total", now * share * jobs * 4, result=result)
                for code, share in (("200", 1.0), ("201", 0.05), ("409", 0.01), ("0", 0.0)):
                    tell("api_calls_total", now * share * jobs / 10, verb="patch", kind="Pod", code=code)
                for what, share in (("progress", 1.0), ("intent", 0.05)):
                    tell("api_writes_total", now * share * jobs / 10, what=what)
                tell("events_total", now * jobs / 600, result="told")
                tell("checkpoint_failures_total", 0.0)
                for result in ("raised", "dropped", "confirmed"):
                    tell("hang_suspicions_total", 0.0, result=result)
                for name, labels in (
                    ("queue_wait_seconds", {}),
                    ("reconcile_seconds", {}),
                    ("recovery_decide_seconds", {}),
                    ("api_call_seconds", {"verb": "patch"}),
                ):
                    for le, share in (("0.01", 0.7), ("0.1", 0.99), ("1", 1.0), ("60", 1.0), ("+Inf", 1.0)):
                        tell(f"{name}_bucket", now * share, le=le, **labels)
                for le, share in (("60", 0.2), ("120", 0.4), ("300", 1.0), ("+Inf", 1.0)):
                    tell("recovery_seconds_bucket", now * share, le=le, phase="total")
            yield now, made


def openmetrics(begin_s: float, length_s: float, jobs: Sequence[Job], controller: Controller | None = None) -> str:
    """The history of `length_s` seconds from `begin_s` on, as promtool reads it."""
    series: dict[str, list[str]] = defaultdict(list)
    operators = controller or Controller()
    told_until_s = math.inf if operators.leads_until_s is None else operators.leads_until_s
    plays = [(job.play(length_s), told_until_s) for job in jobs]
    plays.append((operators.play(length_s, len(jobs), begin_s), math.inf))
    for play, until_s in plays:
        for now, samples in play:
            if now >= until_s:
                break
            for (name, labels), value in samples.items():
                told = ",".join(f'{label}="{word}"' for label, word in labels)
                series[name].append(f"{name}{{{told}}} {value} {begin_s + now:.3f}\n")
    return "".join(line for lines in series.values() for line in lines) + "# EOF\n"
