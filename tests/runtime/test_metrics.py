"""What is counted: each recovery once, jobs by the leader alone, labels that nobody outside can make up."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from docs.generate.metrics_page import render
from tests.runtime.fakes import chance, cluster, job, pod
from trainmaster.contract.wire import (
    Cause,
    Directive,
    DirectiveState,
    Identity,
    RankReport,
    RankState,
    Report,
    altered,
)
from trainmaster_operator.cluster.port import JOB, POD
from trainmaster_operator.planning.facts.job_state import (
    JobPhase,
    JobState,
    ProgressStatus,
    Recovery,
    Rung,
    Straggler,
    Suspicion,
)
from trainmaster_operator.planning.facts.observation import Decision
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.observability.operator_metrics import SETTLED_S, Metrics
from trainmaster_operator.runtime.operator import Operator, default_policies
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual

KEY = JobKey("space", "job")
ROOT = Path(__file__).parents[2]


def recovery(**fields):
    return Recovery(**{"round": 2, "cause": Cause.CRASH.value, "rung": Rung.IN_PLACE, **fields})


def status(*recoveries):
    return JobState(recoveries=list(recoveries))


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"trainmaster_{name}", labels) or 0


def test_a_recovery_is_counted_when_it_begins_and_when_it_ends():
    metrics = Metrics()
    begun, ended = status(recovery()), status(recovery(totalSeconds=0.5, lostSteps=3))
    metrics.wrote(KEY, status(), begun, 0)
    metrics.wrote(KEY, begun, ended, 1)
    metrics.wrote(KEY, ended, status(recovery(totalSeconds=0.5, lostSteps=3, clock={"load": 1.0})), 2)
    assert value(metrics, "restarts_total", cause="Crash", scope="inPlace") == 1
    assert value(metrics, "recovery_seconds_count", phase="total") == 1
    assert value(metrics, "recovery_seconds_sum", phase="total") == 0.5
    assert value(metrics, "lost_steps_total") == 3


def test_a_phase_counts_with_what_the_slowest_pod_told_in_the_end():
    metrics = Metrics()
    begun = status(recovery())
    ended = status(recovery(totalSeconds=0.5, clock={"load": 0.1}))
    metrics.wrote(KEY, begun, ended, 0)
    metrics.wrote(KEY, ended, status(recovery(totalSeconds=0.5, clock={"load": 0.3, "start": 0.2})), 1)
    metrics.render(SETTLED_S / 2)
    assert value(metrics, "recovery_seconds_count", phase="load") == 0
    metrics.render(SETTLED_S)
    assert value(metrics, "recovery_seconds_sum", phase="load") == 0.3
    assert value(metrics, "recovery_seconds_sum", phase="start") == 0.2
    metrics.render(SETTLED_S * 2)
    assert value(metrics, "recovery_seconds_count", phase="load") == 1


def test_each_pod_that_is_replaced_for_its_silence_is_an_agent_that_was_lost():
    metrics = Metrics()
    lost = {"cause": Cause.AGENT_LOST.value, "rung": Rung.POD}
    before, after = JobState(incarnations="0*4"), JobState(incarnations="0,1*2,0", recoveries=[recovery(**lost)])
    metrics.wrote(KEY, before, after, 0)
    assert value(metrics, "agents_lost_total") == 2
    metrics.wrote(KEY, after, after, 1)
    assert value(metrics, "agents_lost_total") == 2


def test_counters_begin_at_zero_with_every_label_that_is_known():
    text = Metrics().render(0).decode()
    for series in (
        'restarts_total{cause="NodeLost",scope="pod"}',
        'lost_seconds_total{cause="Crash"}',
        'channel_requests_total{result="unauthorized"}',
        'reconcile_total{result="error"}',
        'hang_suspicions_total{result="raised"}',
        'recovery_seconds_count{phase="total"}',
        'recovery_seconds_count{phase="detect"}',
    ):
        assert f"trainmaster_{series} 0.0\n" in text


def test_names_that_agents_make_up_are_no_labels():
    metrics = Metrics()
    clock = {f"phase-{n}": 1.0 for n in range(100)}
    metrics.wrote(KEY, status(), status(recovery(cause="Gremlins", totalSeconds=1.0, clock=clock)), 0)
    metrics.render(SETTLED_S)
    assert value(metrics, "restarts_total", cause="other", scope="inPlace") == 1
    assert value(metrics, "recovery_seconds_count", phase="other") == 100
    assert b"phase-1" not in metrics.render(SETTLED_S)


def test_time_is_counted_as_useful_or_lost_to_a_cause():
    metrics = Metrics()
    first = JobState(firstStepAt="a", accountedAt="b", usefulSeconds=10.0, lost={"Crash": 2.0, "Checkpoint": 1.0})
    later = first.model_copy(
        update={"accountedAt": "c", "usefulSeconds": 15.0, "lost": {"Crash": 2.5, "Gremlins": 4.0}}
    )
    metrics.wrote(KEY, JobState(), first, 0)
    metrics.wrote(KEY, first, later, 1)
    metrics.wrote(KEY, later, later, 2)
    assert value(metrics, "useful_seconds_total") == 15.0
    assert value(metrics, "lost_seconds_total", cause="Crash") == 2.5
    assert value(metrics, "lost_seconds_total", cause="Checkpoint") == 1.0
    assert value(metrics, "lost_seconds_total", cause="other") == 4.0


def test_suspicions_are_counted_by_what_became_of_them():
    metrics = Metrics()
    quiet = JobState(round=1)
    suspects = quiet.model_copy(update={"suspicion": Suspicion(round=1, rank=0, slot=0)})
    confirmed = quiet.model_copy(update={"suspicion": Suspicion(round=1, rank=0, slot=0, confirmed=True)})
    metrics.wrote(KEY, quiet, suspects, 0)
    metrics.wrote(KEY, suspects, quiet, 1)
    metrics.wrote(KEY, quiet, suspects, 2)
    metrics.wrote(KEY, suspects, confirmed, 3)
    metrics.wrote(KEY, confirmed, JobState(round=2), 4)
    assert value(metrics, "hang_suspicions_total", result="raised") == 2
    assert value(metrics, "hang_suspicions_total", result="dropped") == 1
    assert value(metrics, "hang_suspicions_total", result="confirmed") == 1


def test_a_straggler_is_counted_once_it_is_told():
    metrics = Metrics()
    found = Straggler(round=1, rank=3, computeSeconds=3.0, usualSeconds=2.0)
    statuses = [JobState(straggler=s) for s in (None, found, found.model_copy(update={"told": True}))]
    for old, new in zip(statuses, [*statuses[1:], statuses[-1]], strict=True):
        metrics.wrote(KEY, old, new, 0)
    assert value(metrics, "stragglers_total") == 1


def test_calls_are_counted_by_verb_kind_and_code():
    metrics = Metrics()
    metrics.called("create", POD, 0.1, 201)
    metrics.called("create", POD, 0.1, 0)
    metrics.called("get", "SomethingElse", 0.1, 404)
    assert value(metrics, "api_calls_total", verb="create", kind="Pod", code="201") == 1
    assert value(metrics, "api_calls_total", verb="create", kind="Pod", code="0") == 1
    assert value(metrics, "api_calls_total", verb="get", kind="other", code="404") == 1
    assert value(metrics, "api_call_seconds_count", verb="create", kind="Pod") == 2


def operator(memory, identity, **settings):
    policies = default_policies()
    policies = type(policies)(
        **{**vars(policies), "plan": lambda spec, status, observed, now: Decision(status)}  # it leaves jobs alone
    )
    clock = asyncio.get_running_loop().clock
    lease = LeaseSettings(**settings.pop("lease", {}))
    return Operator(
        memory, clock, chance(), Settings(operator_url="", identity=identity, lease=lease, **settings), policies
    )


def scraped(one):
    """What a scraper reads: (name, labels) -> value. Each series must stand there once."""
    found = {}
    for family in text_string_to_metric_families(one.render_metrics().decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def put(store, name, **fields):
    made = store.create(JOB, job(name))
    store.update_status(JOB, {**made, "status": write_status(JobState(**fields))})


def test_jobs_are_told_by_the_leader_alone_and_gauges_only_of_those_that_run():
    async def main():
        store, memory = cluster()
        progress = ProgressStatus(step=7, totalSteps=10, loss="1.5", tokensPerSecond=100.0)
        times = {"firstStepAt": "2026-01-01T00:00:00.000Z", "accountedAt": "2026-01-01T00:00:40.000Z"}
        put(store, "runs", phase=JobPhase.RUNNING, progress=progress, usefulSeconds=30.0, lost={"Crash": 10.0}, **times)
        put(store, "nan", phase=JobPhase.RESIZING, progress=ProgressStatus(loss="nan"))
        put(store, "done", phase=JobPhase.SUCCEEDED, progress=progress)
        broken = job("broken")
        broken["spec"]["workers"] = {"replicas": "many"}
        store.create(JOB, broken)
        store.create(POD, pod("a"))
        leader, standby = operator(memory, "a"), operator(memory, "b")
        works = [asyncio.create_task(one.run()) for one in (leader, standby)]
        await asyncio.sleep(30)

        def read(one, name, **labels):
            return scraped(one).get((f"trainmaster_{name}", frozenset(labels.items())))

        assert (read(leader, "leader"), read(standby, "leader")) == (1, 0)
        assert (read(leader, "leader_epoch"), read(standby, "leader_epoch")) == (1, 0)
        phases = ("Running", "Resizing", "Succeeded", "Unreadable", "Pending")
        assert [read(leader, "jobs", phase=phase) for phase in phases] == [1, 1, 1, 1, 0]
        assert read(standby, "jobs", phase="Running") is None
        assert (read(leader, "pods"), read(standby, "pods")) == (1, None)
        assert read(leader, "job_step", namespace="space", job="runs") == 7
        assert read(leader, "job_goodput_ratio", namespace="space", job="runs") == 0.75
        assert read(leader, "job_step", namespace="space", job="done") is None
        assert str(read(leader, "job_loss", namespace="space", job="nan")) == "nan"
        assert read(leader, "job_goodput_ratio", namespace="space", job="nan") is None
        assert read(standby, "job_step", namespace="space", job="runs") is None
        assert read(leader, "watch_age_seconds", kind="Pod") is not None
        leader.stop()
        standby.stop()
        await asyncio.gather(*works)

    run_virtual(main())


def test_each_save_that_failed_is_counted_and_nothing_else_that_an_agent_says():
    async def main():
        store, memory = cluster()
        put(store, "job", phase=JobPhase.RUNNING)
        one = operator(memory, "a")
        work = asyncio.create_task(one.run())
        await asyncio.sleep(30)
        for reason in ("CheckpointFailed", "UploadsPending", "CheckpointFailed"):
            one.fleet._on_event(KEY, reason, "step 10 is not saved: disk full")
        assert one.metrics.registry.get_sample_value("trainmaster_checkpoint_failures_total") == 2
        one.stop()
        await work

    run_virtual(main())


def report(made, slot, *ranks, **fields):
    identity = Identity(made["metadata"]["uid"], "space", "runs", "worker", slot, 0, f"pod-{slot}")
    return Report(identity, round=1, ranks=list(ranks), **fields)


def test_memory_is_told_of_the_rank_that_has_most_and_of_what_is_fullest():
    async def main():
        store, memory = cluster()
        put(store, "runs", phase=JobPhase.RUNNING, round=1)
        put(store, "quiet", phase=JobPhase.RUNNING, round=1)
        made = operator(memory, "a")
        work = asyncio.create_task(made.run())
        await asyncio.sleep(1)
        job = store.get(JOB, "space", "runs")
        key = ("space", "runs")
        directive = Directive(1, DirectiveState.RUN, 1, "x")
        made.fleet.publish(key, job["metadata"]["uid"], 1, [0, 0, 0], lambda slot: directive)

        def read(name, what, job="runs"):
            labels = {"namespace": "space", "job": job, "what": what}
            return scraped(made).get((f"trainmaster_job_memory_{name}", frozenset(labels.items())))

        running = RankState.RUNNING
        ranks = [
            RankReport(0, 1, running, rss_bytes=5, rss_peak_bytes=6, device_bytes=70, device_peak_bytes=90),
            RankReport(1, 1, running, rss_bytes=7, rss_peak_bytes=7, device_bytes=50, device_peak_bytes=60),
        ]
        ranks = [altered(rank, device_limit_bytes=100) for rank in ranks]
        full = report(job, 0, *ranks, container_bytes=30, container_limit_bytes=40)
        roomy = report(job, 1, RankReport(2, 1, running, rss_bytes=1), container_bytes=50, container_limit_bytes=500)
        unlimited = report(job, 2, container_bytes=999)
        for told in (full, roomy, unlimited):
            await made.fleet.report(told.identity, told)
        assert [read("bytes", what) for what in ("process", "device", "container")] == [7, 70, 999]
        assert [read("peak_bytes", what) for what in ("process", "device", "container")] == [7, 90, None]
        assert [read("used_ratio", what) for what in ("process", "device", "container")] == [None, 0.9, 0.75]
        assert read("bytes", "process", job="quiet") is None
        # In another round nobody of this one counts any more.
        made.fleet.publish(key, job["metadata"]["uid"], 2, [0, 0, 0], lambda slot: directive)
        assert read("bytes", "process") is None
        made.stop()
        await work

    run_virtual(main())


def test_metrics_of_single_jobs_can_be_switched_off():
    async def main():
        store, memory = cluster()
        put(store, "runs", phase=JobPhase.RUNNING)
        made = operator(memory, "a", job_metrics=False)
        work = asyncio.create_task(made.run())
        await asyncio.sleep(1)
        text = made.render_metrics().decode()
        assert 'trainmaster_jobs{phase="Running"} 1.0' in text
        assert "trainmaster_job_" not in text
        made.stop()
        await work

    run_virtual(main())


def test_no_metric_has_a_label_for_pods_or_ranks():
    labels = {
        name for row in render().splitlines() if row.startswith("| `") for name in row.split(" | ")[2].split(", ")
    }
    allowed = {
        "",
        "verb",
        "kind",
        "code",
        "what",
        "result",
        "namespace",
        "job",
        "phase",
        "cause",
        "scope",
        "certificate",
    }
    of_jobs = {"condition", "reason", "framework", "queue", "rung", "category", "tier", "state"}
    assert {label.strip("`") for label in labels} <= allowed | of_jobs


def test_the_page_of_metrics_is_what_the_registry_holds():
    assert (ROOT / "docs" / "metrics.md").read_text() == render(), "stale: run `make generate`"
