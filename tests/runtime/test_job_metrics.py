"""Metrics of single jobs: which jobs are told of, what of them, and how many series that is at most."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.runtime.fakes import job
from trainmaster.contract.wire import Identity, RankReport, RankState, Report, Usage
from trainmaster_operator.control.job_usage_and_mfu import JobUsage
from trainmaster_operator.planning.facts.job_state import (
    CheckpointStatus,
    Condition,
    JobPhase,
    JobState,
    Pause,
    ProgressStatus,
    Restarts,
    Rung,
    Straggler,
    Totals,
    WorkersStatus,
)
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.lifecycle.metric_categories import FAILURE_WORDS, LOSS_WORDS, PHASE_WORDS
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.cache.cache_records import JobRecord, job_record
from trainmaster_operator.runtime.observability import job_metrics_page
from trainmaster_operator.runtime.observability.job_metric_table import FAMILIES, MOST_RUNNING_SERIES, MOST_SERIES
from trainmaster_operator.runtime.observability.job_metrics_page import CHUNK, JobMetrics

NOW = 1_800_000_000.0
HOUR = 3600.0

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Agents:
    """A fleet that has told this of each job."""

    def __init__(self, usage: JobUsage | None = None, *reports: Report) -> None:
        self._usage, self._reports = usage or JobUsage(), list(reports)

    def usage(self, key: object) -> JobUsage:
        return self._usage

    def reports(self, key: object) -> list[Report]:
        return self._reports


def metrics(agents: Agents | None = None, **settings: Any) -> JobMetrics:
    return JobMetrics(agents or Agents(), **settings)  # type: ignore[arg-type]


def record(
    name: str = "job", labels: dict[str, str] | None = None, spec: dict[str, Any] | None = None, **status: Any
) -> JobRecord:
    obj = job(name, **(spec or {}))
    meta = {"uid": f"uid-{name}", "resourceVersion": "1", "creationTimestamp": rfc3339(NOW - 500)}
    obj["metadata"] |= {**meta, "labels": labels or {}}
    obj["status"] = write_status(JobState(**status))
    return job_record(obj, None)


def series(made: JobMetrics, *records: JobRecord, now: float = NOW) -> Series:
    """What a scraper reads. Each series must stand there once, and each family in one piece."""
    text = made.render(records, now).decode()
    found: Series = {}
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(found: Series, name: str, job: str = "job", **labels: str) -> float | None:
    return found.get((f"trainmaster_job_{name}", frozenset({"namespace": "space", "job": job, **labels}.items())))


def labels_of(found: Series, name: str, label: str) -> set[str]:
    return {dict(labels)[label] for metric, labels in found if metric == f"trainmaster_job_{name}"}


def busy(name: str = "job", phase: JobPhase = JobPhase.RUNNING) -> JobRecord:
    """A job of which everything is known, and with which everything is wrong."""
    kinds = ["Scheduled", "Running", "Unprotected", "RevisionPending", "CheckpointFailed", "CheckpointStalled", "Held"]
    return record(
        name,
        labels={"kueue.x-k8s.io/queue-name": "team"},
        spec={"checkpoint": {"volume": {"claim": "c"}}},
        phase=phase,
        round=3,
        startTime=rfc3339(NOW - 1000),
        firstStepAt=rfc3339(NOW - 900),
        accountedAt=rfc3339(NOW - 100),
        usefulSeconds=600.0,
        lost={"Crash": 100.0, "NodeLost": 50.0, "Checkpoint": 30.0, "Evaluation": 20.0},
        conditions=[Condition(type=kind, status="True", reason="Because") for kind in kinds],
        restarts=Restarts(inPlace=2, pod=1, free=4),
        totals=Totals(failures={"Crash": 2, "AgentLost": 1, "NodeLost": 1}, recoveries=3, lostSteps=12),
        workers=WorkersStatus(replicas=2, ready=1, spares=1),
        progress=ProgressStatus(
            step=70,
            totalSteps=100,
            loss="1.5",
            tokensPerSecond=1000.0,
            stepsPerSecond=2.0,
            memoryStep=66,
            updatedAt=rfc3339(NOW - 1),
        ),
        checkpoint=CheckpointStatus(step=50, round=3, time=rfc3339(NOW - 40)),
        pauses={"save": Pause(count=5, typical=0.25)},
        straggler=Straggler(round=3, rank=1, computeSeconds=3.0, usualSeconds=2.0, told=True),
    )


def talking() -> Agents:
    ranks = [
        RankReport(
            0,
            1,
            RankState.RUNNING,
            rss_bytes=5,
            rss_peak_bytes=6,
            device_bytes=7,
            device_peak_bytes=8,
            device_limit_bytes=16,
        )
    ]
    told = Report(Identity("", "", "", "", 0, 0, ""), 3, ranks=ranks, container_bytes=10, container_limit_bytes=40)
    return Agents(JobUsage(Usage(12.5, 100, 200, 0.75, 4096), 0.42, 3.0), told)


def test_a_job_that_never_started_has_a_phase_and_tells_how_long_it_waits_and_why() -> None:
    scheduled = Condition(type="Scheduled", status="False", reason="ImageError")
    waits = record("waits", conditions=[scheduled], startTime=rfc3339(NOW - 300), roundOpenedAt=rfc3339(NOW - 200))
    unseen = record("unseen")
    found = series(metrics(), waits, unseen)
    assert value(found, "phase", "waits", phase="Pending") == 1
    assert value(found, "pending_seconds", "waits", reason="ImageError") == 200
    assert value(found, "pending_seconds", "unseen", reason="Starting") == 500
    assert value(found, "step", "waits") is None


def test_counters_of_a_new_job_are_all_there_at_zero() -> None:
    found = series(metrics(), record())
    for name, label, words in (
        ("restarts_total", "rung", {rung.value for rung in Rung}),
        ("failures_total", "cause", set(FAILURE_WORDS)),
        ("recovery_seconds_total", "phase", set(PHASE_WORDS)),
        ("lost_seconds_total", "category", set(LOSS_WORDS)),
    ):
        assert labels_of(found, name, label) == words
        assert all(value(found, name, **{label: word}) == 0 for word in words)
    for name in ("recoveries_total", "lost_steps_total", "useful_seconds_total"):
        assert value(found, name) == 0


def test_every_number_of_a_busy_job() -> None:
    found = series(metrics(talking()), busy())
    expected: dict[tuple[str, str, str], float] = {
        ("phase", "phase", "Running"): 1,
        ("restarts_total", "rung", "inPlace"): 2,
        ("restarts_total", "rung", "free"): 4,
        ("failures_total", "cause", "Crash"): 2,
        ("failures_total", "cause", "NodeLost"): 2,
        ("lost_seconds_total", "category", "restart"): 100,
        ("lost_seconds_total", "category", "hardware"): 50,
        ("lost_seconds_total", "category", "checkpoint"): 30,
        ("lost_seconds_total", "category", "other"): 20,
        ("checkpoint_step", "tier", "storage"): 50,
        ("checkpoint_step", "tier", "memory"): 66,
        ("checkpoint_age_seconds", "tier", "storage"): 40,
        ("checkpoint_age_seconds", "tier", "memory"): 3,
        ("checkpoint_duration_seconds", "tier", "storage"): 3,
        ("checkpoint_duration_seconds", "tier", "memory"): 0.25,
        ("workers", "state", "desired"): 2,
        ("workers", "state", "current"): 2,
        ("workers", "state", "ready"): 1,
        ("workers", "state", "spare"): 1,
        ("memory_bytes", "what", "process"): 5,
        ("memory_bytes", "what", "device"): 7,
        ("memory_bytes", "what", "container"): 10,
        ("memory_used_ratio", "what", "device"): 0.5,
        ("memory_used_ratio", "what", "container"): 0.25,
    }
    assert {key: value(found, key[0], **{key[1]: key[2]}) for key in expected} == expected
    plain = {
        "recoveries_total": 3.0,
        "lost_steps_total": 12.0,
        "useful_seconds_total": 600.0,
        "goodput_ratio": 0.75,
        "step": 70.0,
        "total_steps": 100.0,
        "loss": 1.5,
        "tokens_per_second": 1000.0,
        "mfu_ratio": 0.42,
        "straggler_slowdown": 1.5,
        "cpu_seconds_total": 12.5,
        "network_receive_bytes_total": 100.0,
        "network_transmit_bytes_total": 200.0,
        "accelerator_utilization_ratio": 0.75,
        "accelerator_memory_bytes": 4096.0,
    }
    assert {name: value(found, name) for name in plain} == plain
    assert value(found, "info", framework="Trainmaster", queue="team") == 1


def test_conditions_that_tell_of_trouble_come_first() -> None:
    found = series(metrics(), busy())
    kinds = {"Held", "Unprotected", "CheckpointFailed", "CheckpointStalled"}
    assert labels_of(found, "condition", "condition") == kinds
    calm = record(conditions=[Condition(type=kind, status="True", reason=kind) for kind in ("Running", "Scheduled")])
    assert labels_of(series(metrics(), calm), "condition", "condition") == {"Running", "Scheduled"}


@pytest.mark.parametrize("phase", JobPhase)
def test_the_series_of_a_job_are_bounded_in_every_phase(phase: JobPhase) -> None:
    status = busy(phase=phase)
    found = series(metrics(talking()), status)
    runs = phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING, JobPhase.RESIZING, JobPhase.SUSPENDING)
    assert len(found) <= MOST_SERIES + (MOST_RUNNING_SERIES if runs else 0)
    assert (value(found, "step") is not None) == runs


def test_the_bounds_are_not_wider_than_they_have_to_be() -> None:
    pending, running = (series(metrics(talking()), busy(phase=p)) for p in (JobPhase.PENDING, JobPhase.RUNNING))
    assert len(pending) == MOST_SERIES
    assert len(running) == MOST_SERIES - 1 + MOST_RUNNING_SERIES  # no pending_seconds


def test_each_family_of_the_table_is_told_of_some_job() -> None:
    found = series(metrics(talking()), busy(), busy("waits", JobPhase.PENDING))
    assert {name for name, _ in found} == {family.full_name for family in FAMILIES}


def test_a_finished_job_is_told_of_for_a_while_and_then_nothing_stays_of_it() -> None:
    made = metrics(finished_s=6 * HOUR)
    ended = record("ended", phase=JobPhase.FAILED, completionTime=rfc3339(NOW))
    assert value(series(made, ended, now=NOW + 6 * HOUR - 1), "phase", "ended", phase="Failed") == 1
    assert made.render([ended], NOW + 6 * HOUR) == b""
    assert made.render([], NOW) == b""
    assert made._kept == {}


def test_a_manifest_that_nobody_understands_is_a_phase_of_its_own() -> None:
    obj = job("broken")
    obj["spec"]["workers"] = {"replicas": "many"}
    obj["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    found = series(metrics(), job_record(obj, None))
    assert len(found) == 1
    assert value(found, "phase", "broken", phase="Unreadable") == 1


def test_a_first_checkpoint_that_does_not_come_grows_old_from_the_first_step_on() -> None:
    spec = {"checkpoint": {"volume": {"claim": "c"}}}
    begun = {"phase": JobPhase.RUNNING, "firstStepAt": rfc3339(NOW - 70)}
    saves, never = record("saves", spec=spec, **begun), record("never", **begun)
    found = series(metrics(), saves, never)
    assert value(found, "checkpoint_age_seconds", "saves", tier="storage") == 70
    assert value(found, "checkpoint_step", "saves", tier="storage") is None
    assert value(found, "checkpoint_age_seconds", "never", tier="storage") is None


def test_a_checkpoint_does_not_grow_old_while_its_job_is_suspended() -> None:
    """An alert would say that three days of work can be lost, minutes after the job was resumed."""
    saved = CheckpointStatus(step=50, round=3, time=rfc3339(NOW - 72 * HOUR))
    resumed = record("resumed", phase=JobPhase.RUNNING, startTime=rfc3339(NOW - 600), checkpoint=saved)
    found = series(metrics(), resumed)
    assert value(found, "checkpoint_age_seconds", "resumed", tier="storage") == 600
    assert value(found, "checkpoint_step", "resumed", tier="storage") == 50


def test_a_resumed_job_has_nothing_in_memory_before_its_first_step() -> None:
    """The memory was that of pods which are gone, and its age would be that of the suspend."""
    progress = ProgressStatus(step=70, memoryStep=66, stepsPerSecond=2.0, updatedAt=rfc3339(NOW - 72 * HOUR))
    spec = {"checkpoint": {"volume": {"claim": "c"}}}
    fields = {"phase": JobPhase.STARTING, "startTime": rfc3339(NOW - 600), "progress": progress}
    found = series(metrics(), record("resumed", spec=spec, **fields))
    for name in ("checkpoint_age_seconds", "checkpoint_step"):
        assert value(found, name, "resumed", tier="memory") is None
    newer = progress.model_copy(update={"updatedAt": rfc3339(NOW - 1)})
    found = series(metrics(), record("resumed", spec=spec, **{**fields, "progress": newer}))
    assert value(found, "checkpoint_age_seconds", "resumed", tier="memory") == 3


def test_what_is_known_of_a_job_is_written_again_only_if_its_record_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    of_state = job_metrics_page.job_metric_values.of_state
    monkeypatch.setattr(
        job_metrics_page.job_metric_values, "of_state", lambda record: asked.append(record.key.name) or of_state(record)
    )
    made, first, other = metrics(), record("first"), record("other")
    once = series(made, first, other)
    assert series(made, first, other) == once
    assert asked == ["first", "other"]
    changed = record("first", phase=JobPhase.FAILED)
    assert value(series(made, changed, other), "phase", "first", phase="Failed") == 1
    assert asked == ["first", "other", "first"]


def test_others_have_their_turn_while_many_jobs_are_told_of() -> None:
    async def main() -> None:
        records = [record(f"job-{number}") for number in range(CHUNK * 2 + 1)]
        made, turns = metrics(), 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert await made.collect(records, NOW) == metrics().render(records, NOW)
        task.cancel()
        assert turns >= 3

    asyncio.run(main())


def test_words_that_come_from_a_cluster_are_escaped_and_short() -> None:
    reason = 'a"b\\c\n' + "x" * 100
    wide = record(conditions=[Condition(type="Scheduled", status="False", reason=reason)])
    found = series(metrics(), wide)
    assert labels_of(found, "pending_seconds", "reason") == {reason[:64]}


@pytest.mark.parametrize(("loss", "shown"), [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf"), ("2.5", "2.5")])
def test_losses_that_are_no_numbers_are_told_as_prometheus_knows_them(loss: str, shown: str) -> None:
    found = series(
        metrics(), record(phase=JobPhase.RUNNING, progress=ProgressStatus(loss=loss, updatedAt=rfc3339(NOW)))
    )
    assert str(value(found, "loss")) == shown


@pytest.mark.parametrize(
    ("phase", "steps_per_s", "silent_s", "shown"),
    [
        (JobPhase.RUNNING, 2.0, 59.0, True),
        (JobPhase.RUNNING, 2.0, 61.0, False),
        (JobPhase.RUNNING, 0.01, 999.0, True),
        (JobPhase.RUNNING, 0.01, 1001.0, False),
        (JobPhase.RESIZING, 2.0, 1.0, True),
        (JobPhase.RECOVERING, 2.0, 1.0, False),
        (JobPhase.STARTING, 2.0, 1.0, False),
    ],
)
def test_a_job_that_makes_no_step_has_no_throughput_and_no_loss(
    phase: JobPhase, steps_per_s: float, silent_s: float, shown: bool
) -> None:
    progress = ProgressStatus(
        step=70, loss="1.5", tokensPerSecond=1000, stepsPerSecond=steps_per_s, updatedAt=rfc3339(NOW - silent_s)
    )
    found = series(metrics(talking()), record(phase=phase, progress=progress))
    assert value(found, "step") == 70
    for name in ("loss", "tokens_per_second", "mfu_ratio"):
        assert (value(found, name) is not None) == shown, name


def test_scripts_without_checkpoints_in_memory_tell_how_long_saving_stops_them() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i", "command": ["python", "x.py"]}]}}
    spec = {"framework": "PyTorch", "workers": {"replicas": 2, "template": template}, "training": None}
    script = record(spec=spec, phase=JobPhase.RUNNING, pauses={"save": Pause(count=2, typical=1.5)})
    found = series(metrics(talking()), script)
    assert value(found, "checkpoint_duration_seconds", tier="storage") == 1.5
    assert value(found, "checkpoint_duration_seconds", tier="memory") is None
    assert value(found, "info", framework="PyTorch", queue="") == 1


def test_recoveries_of_the_clock_are_told_by_phase() -> None:
    phases = {"detect": 0.1, "decide": 0.2, "fork": 1.0, "start": 2.0, "build": 3.0, "load": 4.0, "first_step": 5.0}
    found = series(metrics(), record(totals=Totals(phases=phases)))
    told = {word: value(found, "recovery_seconds_total", phase=word) for word in PHASE_WORDS}
    sums = {"detect": 0.1 + 0.2, "schedule": 0, "start": 3.0, "rendezvous": 0, "load": 7.0, "first_step": 5.0}
    assert told == pytest.approx(sums)


def test_a_new_leader_tells_the_same_of_a_status() -> None:
    """Nothing is counted beside the status."""
    status = busy()
    first = metrics()
    for now in (NOW - 20, NOW - 10):
        first.render([status], now)
    assert first.render([status], NOW) == metrics().render([status], NOW)
