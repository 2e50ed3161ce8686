"""Every expression that the chart brings, on what a real Prometheus scraped from a real operator while real jobs lost a
rank, hung, were resized, failed, were held and succeeded: the values are those of the jobs' own records."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.asking import Chosen, Json, all_asked, dashboards, everything, panels
from tests.dashboards.exported import labels_by_series
from tests.dashboards.prometheus import Prometheus, Series
from tests.dashboards.test_on_made_up_history import MADE_UP
from tests.dashboards.world import LIMIT_S, SCRAPE_S, Records, World, listen, running, scraped
from tests.e2e.harness import elastic, script_job, small_demo_job
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.lifecycle import metric_categories

# One parameter for all: the tests run on the worker that has the jobs' run, and each loops over its panels itself.
pytestmark = [pytest.mark.processes, pytest.mark.together, pytest.mark.parametrize("run", ["real"])]

BUSY, BROKEN, HELD = "busy", "broken", "held"
STEPS = 90
SLOW = [f"slow:rank=2,step={step},seconds=0.04,steps=10" for step in range(1, STEPS - 9, 10)]
FAULTS = ("kill:rank=1,step=10", "stop:rank=0,step=30")
PATIENT, SHORT = ({"recovery": {"hang": {"limitSeconds": seconds}}} for seconds in (120, 3))
DATA_ERROR = ["python", "-c", "import sys; sys.exit(91)"]
POLL_S = 0.5
RATE_S = 10.0
"""What $__rate_interval is: some scrapes may fail while other tests keep the machine busy."""

NO_DEVICE = "this machine has no accelerator, and knows no peak of its processors"
NO_QUEUE = "no job of the run has a queue"
LOCAL_NETWORK = "pods of one machine have no network of their own"
NO_LIMIT = "pods of one machine have no limit of memory"
NO_PROCESS = "the operator of a local run tells nothing of its process, nor of calls of an API server"
NO_CERTIFICATE = "a local run has no certificate"
NOTHING_IS_WRONG = "nothing of this kind happened in the run"
ENDED = "the job has ended, and gauges of running jobs are gone"

EMPTY = {
    "trainmaster-fleet 12": NO_DEVICE,
    "trainmaster-fleet 13": NO_QUEUE,
    "trainmaster-fleet 8": NOTHING_IS_WRONG,
    "trainmaster-job 8": NOTHING_IS_WRONG,
    "trainmaster-job 26": NOTHING_IS_WRONG,
    "trainmaster-operator 22": NOTHING_IS_WRONG,
    "trainmaster-job 13": NO_DEVICE,
    "trainmaster-job 18": NOTHING_IS_WRONG,
    "trainmaster-job 23": LOCAL_NETWORK,
    "trainmaster-job 24": NO_DEVICE,
    "trainmaster-job 25": NO_DEVICE,
    "trainmaster-job 22": NO_LIMIT,
    "trainmaster-operator 3": NO_PROCESS,
    "trainmaster-operator 6": NO_CERTIFICATE,
    "trainmaster-operator 11": NO_PROCESS,
    "trainmaster-operator 12": NO_PROCESS,
    "trainmaster-operator 19": NO_PROCESS,
    "trainmaster-operator 20": NO_PROCESS,
}
"""Panels without data in this run, and why. All but those of accelerators and queues are seen with data elsewhere."""

GONE_AT_THE_END = {"trainmaster-job 6": ENDED}
"""Numbers that are looked at while the job runs."""

FIRING = {"TrainmasterJobFailed", "TrainmasterJobHeld"}
"""Alerts whose expression holds at the end."""

LASTING = {"TrainmasterJobNoProgress"}
"""Alerts whose expression says little before their `for` is over: it looks at one value in a minute."""


@dataclass(frozen=True)
class Observed:
    prometheus: Prometheus
    records: Records
    middle_s: float
    """A time at which the busy job ran, after its first recovery."""

    @property
    def chosen(self) -> Chosen:
        length_s = math.ceil(self.records.ended_s - self.records.began_s)
        chosen = {**everything(namespace="default", pod=".*").variables, "job": BUSY}
        return Chosen(chosen, length_s, RATE_S, SCRAPE_S)

    def answer(self, target: Json, at_s: float | None = None) -> list[Series]:
        """What a panel's query has to show; a curve over the whole run."""
        expr = self.fill(target["expr"])
        if target["instant"]:
            return self.prometheus.at(expr, at_s or self.records.ended_s)
        return self.prometheus.over(expr, self.records.began_s, self.records.ended_s, SCRAPE_S)

    def fill(self, expr: str) -> str:
        namespace = ".*" if 'pod=~"$pod"' in expr else "default"
        chosen = self.chosen
        return replace(chosen, variables={**chosen.variables, "namespace": namespace}).fill(expr)


async def play(world: World, folder: Path, prometheus: Prometheus) -> float:
    """The jobs' lives. Return the time in the middle of the busy one's."""
    mesh = {"dpReplicate": 1}
    file = elastic(small_demo_job(folder, 3, mesh, STEPS, checkpoint={"every": 7, "keep": 3}))
    busy = yaml.safe_load(file.read_text())
    busy["metadata"]["name"] = BUSY
    busy["spec"]["recovery"]["hang"] = {"limitSeconds": 120}
    busy["spec"]["suspend"] = True
    await world.submit(busy, (*FAULTS, *SLOW))
    # Prometheus can only tell by how much a counter has grown since it saw it first.
    while not await asyncio.to_thread(prometheus.at, f'trainmaster_job_failures_total{{job="{BUSY}"}}', now_s()):
        await asyncio.sleep(POLL_S)
    world.patch(BUSY, {"suspend": False})
    hold = {"rules": [{"causes": ["DataError"], "action": "Hold"}]}
    for name, recovery in ((BROKEN, {}), (HELD, hold)):
        document = yaml.safe_load(script_job(folder, DATA_ERROR, name, 1, recovery=recovery).read_text())
        await world.submit(document)
    await world.until(BUSY, lambda s: s.progress.step >= 15 and s.phase is JobPhase.RUNNING)
    middle_s = world.records.statuses[BUSY][-1][0]
    world.patch(BUSY, SHORT)
    await world.until(BUSY, lambda s: any(r.cause == "Hang" for r in s.recoveries))
    world.patch(BUSY, PATIENT)
    await world.until(BUSY, lambda s: s.progress.step >= 40 and s.phase is JobPhase.RUNNING)
    world.patch(BUSY, {"workers": {"replicas": 2}})
    status = await world.until(BUSY, lambda s: s.phase.finished)
    assert status.phase is JobPhase.SUCCEEDED, status.lastFailure
    await world.until(BROKEN, lambda s: s.phase is JobPhase.FAILED)
    await world.until(HELD, lambda s: s.phase is JobPhase.HELD)
    return middle_s


async def observe(folder: Path, zygote: Path, prometheus: Prometheus, sock: Any, port: int) -> Observed:
    records = Records(began_s=now_s())
    async with running(folder, zygote, port, sock.fileno(), records) as world, asyncio.timeout(LIMIT_S):
        middle_s = await play(world, folder, prometheus)
        now = now_s()
        # Neither a scrape nor the account of a recovery's slowest agents tells anybody that it is done.
        while not await asyncio.to_thread(has_seen_all, prometheus, now):
            await asyncio.sleep(POLL_S)
        records.ended_s = scrape_s(prometheus)
    return Observed(prometheus, records, middle_s + 2 * SCRAPE_S)


def has_seen_all(prometheus: Prometheus, since_s: float) -> bool:
    """Whether Prometheus has scraped since then, and has the duration of a recovery."""
    newest_s = scrape_s(prometheus)
    count = 'trainmaster_recovery_seconds_count{phase="total"}'
    return newest_s > since_s + SCRAPE_S and any(series.value >= 1 for series in prometheus.at(count, newest_s))


def now_s() -> float:
    """In seconds since 1970."""
    return datetime.datetime.now(datetime.UTC).timestamp()


def scrape_s(prometheus: Prometheus) -> float:
    """When the newest scrape began, in seconds since 1970; 0 before the first one."""
    (target,) = prometheus.targets()
    text = target["lastScrape"]
    if target["health"] != "up" or text.startswith("0001"):
        return 0.0
    head, _, rest = text.partition(".")
    return datetime.datetime.fromisoformat(f"{head}.{rest[:6].rstrip('Z'):0<6}+00:00").timestamp()


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, machine_zygote: Path) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    sock, port = listen()
    with scraped(folder, port) as prometheus:
        seen = asyncio.run(observe(folder, machine_zygote, prometheus, sock, port))
        sock.close()
        yield seen


def key(uid: str, panel: Json) -> str:
    return f"{uid} {panel['id']}"


# -- what the records say


def by(word: str) -> Callable[[Series], str]:
    return lambda series: series.of(word)


def failures(records: Records, *jobs: str) -> dict[str, float]:
    """Failures by the metrics' words for causes, counted from the statuses and not from their totals."""
    found: dict[str, float] = {}
    for job in jobs:
        status = records.last(job)
        causes = [r.cause for r in status.recoveries if r.cause != "Resized"]
        if status.phase in (JobPhase.FAILED, JobPhase.HELD) and status.lastFailure is not None:
            causes.append(status.lastFailure.cause)
        for cause in causes:
            word = metric_categories.FAILURES.get(cause, metric_categories.OTHER)
            found[word] = found.get(word, 0) + 1
    return found


def clock(status: JobState) -> dict[str, float]:
    found: dict[str, float] = {}
    for recovery in status.recoveries:
        for phase, seconds in recovery.clock.items():
            if phase in metric_categories.PHASES:
                word = metric_categories.PHASES[phase]
                found[word] = found.get(word, 0) + seconds
    return found


def answered(status: JobState) -> int:
    """Recoveries from failures that came to a step."""
    return sum(r.totalSeconds is not None and not r.overtaken and r.cause != "Resized" for r in status.recoveries)


def lost_steps(status: JobState) -> int:
    return sum(r.lostSteps or 0 for r in status.recoveries)


def restarts(status: JobState) -> dict[str, float]:
    return {name: value for name, value in status.restarts.model_dump().items() if name != "total" and value}


def share(status: JobState) -> float:
    return status.usefulSeconds / (status.usefulSeconds + sum(status.lost.values()))


def of_wall_time(status: JobState) -> float:
    first, last = (datetime.datetime.fromisoformat(at) for at in (status.firstStepAt, status.accountedAt))
    return status.usefulSeconds / (last - first).total_seconds()


Expected = dict[str, float]


@dataclass(frozen=True)
class Compared:
    """A panel's series by the value of `label`, and what the records say of them. Series at 0 may be left out.

    `tolerance`: relative. `grown`: the panel shows by how much counters grew, which Prometheus extrapolates, and which
    misses what happened before the first scrape of a job.
    """

    label: str
    expected: Callable[[Records], Expected]
    tolerance: float = 1e-6
    middle: bool = False


def one(value: Callable[[Records], float]) -> Callable[[Records], Expected]:
    return lambda records: {"": value(records)}


GROWN = 0.15
"""Prometheus reckons growth from the first to the last scrape in the window and stretches it to the whole window."""


COMPARED: dict[str, Compared] = {
    "trainmaster-fleet 1": Compared("", one(lambda r: 2)),
    "trainmaster-fleet 2": Compared("", one(lambda r: 0)),
    "trainmaster-fleet 3": Compared("", one(lambda r: 0)),
    "trainmaster-fleet 4": Compared("", one(lambda r: share(r.last(BUSY))), 0.1),
    "trainmaster-fleet 5": Compared("", one(lambda r: 0)),  # of the jobs that are to run only the held one is left
    "trainmaster-fleet 6": Compared("", one(lambda r: 1)),
    "trainmaster-fleet 7": Compared("job", lambda r: {BROKEN: 1, HELD: 1}),
    "trainmaster-fleet 17": Compared("job", lambda r: {BROKEN: 1, HELD: 1}),
    "trainmaster-fleet 15": Compared("job", lambda r: {BUSY: share(r.last(BUSY))}, 0.02),
    "trainmaster-job 1": Compared("phase", lambda r: {"Succeeded": 1}),
    # What was useful and what was lost are added up pass by pass, from durations that agents tell: some hundredths of a
    # second may lie between their sum and the time of the clock.
    "trainmaster-job 3": Compared("", one(lambda r: of_wall_time(r.last(BUSY))), 0.01),
    "trainmaster-job 4": Compared("", one(lambda r: sum(failures(r, BUSY).values()))),
    "trainmaster-job 5": Compared("", one(lambda r: lost_steps(r.last(BUSY)))),
    "trainmaster-job 7": Compared("condition", lambda r: true_conditions(r.last(BUSY))),
    "trainmaster-job 9": Compared("cause", lambda r: failures(r, BUSY)),
    "trainmaster-recovery 1": Compared("", one(lambda r: sum(failures(r, BUSY).values())), GROWN),
    "trainmaster-recovery 2": Compared("", one(lambda r: answered(r.last(BUSY))), GROWN),
    "trainmaster-recovery 3": Compared(
        "", one(lambda r: sum(clock(r.last(BUSY)).values()) / answered(r.last(BUSY))), 0.05
    ),
    "trainmaster-recovery 4": Compared("", one(lambda r: lost_steps(r.last(BUSY))), GROWN),
    "trainmaster-recovery 5": Compared("", one(lambda r: sum(r.last(BUSY).lost.values())), GROWN),
    "trainmaster-recovery 6": Compared("", one(lambda r: share(r.last(BUSY))), 0.1),
    "trainmaster-recovery 8": Compared(
        "phase", lambda r: {p: s / answered(r.last(BUSY)) for p, s in clock(r.last(BUSY)).items() if s > 0}, 0.05
    ),
    "trainmaster-recovery 13": Compared("cause", lambda r: failures(r, BUSY), GROWN),
    "trainmaster-recovery 14": Compared(
        "rung", lambda r: {rung: often for rung, often in restarts(r.last(BUSY)).items() if rung != "free"}
    ),
    "trainmaster-operator 1": Compared("", one(lambda r: 1)),
    "trainmaster-operator 2": Compared("", one(lambda r: 1)),
    "trainmaster-operator 5": Compared("", one(lambda r: 0)),
}
"""Numbers, bars and tables of one query, at the end of the run."""


IN_TESTS_OF_THEIR_OWN = {
    *("trainmaster-job 2", "trainmaster-job 6", "trainmaster-job 27"),  # while the job runs
    *("trainmaster-recovery 11", "trainmaster-recovery 12", "trainmaster-job 14"),  # bars
    "trainmaster-fleet 16",  # the table of jobs
    # In test_signs.py: what is wrong, what a job waits for, and its straggler.
    *("trainmaster-job 26", "trainmaster-operator 22", "trainmaster-job 8", "trainmaster-job 18"),
}


def true_conditions(status: JobState) -> Expected:
    return {c.type: 1 for c in status.conditions if c.status == "True"}


CURVES: dict[str, tuple[str, Callable[[str, JobState, dict[str, Any]], float]]] = {
    "trainmaster-job 10": ("A", lambda label, s, spec: s.progress.step),
    "trainmaster-job 11": ("A", lambda label, s, spec: float(s.progress.loss or "nan")),
    "trainmaster-job 12": ("A", lambda label, s, spec: s.progress.tokensPerSecond),
    "trainmaster-job 19": ("A", lambda label, s, spec: workers(label, s, spec)),
}
"""Curves whose every point is what the job's status said at that time."""


def workers(state: str, status: JobState, spec: dict[str, Any]) -> float:
    if state == "desired":
        return int(spec["workers"]["replicas"])
    return {"current": status.workers.replicas, "ready": status.workers.ready, "spare": status.workers.spares}[state]


def at_that_time(records: Records, at_s: float) -> Iterator[tuple[JobState, dict[str, Any]]]:
    """The busy job's statuses and specs that an operator can have known at the scrape before `at_s`."""
    states = list(zip(records.statuses[BUSY], records.specs[BUSY], strict=True))
    for number, ((from_s, status), (_, spec)) in enumerate(states):
        until_s = states[number + 1][0][0] if number + 1 < len(states) else math.inf
        if from_s <= at_s + 0.2 and until_s >= at_s - 3 * SCRAPE_S:
            yield status, spec


PANELS = {key(uid, panel): panel for uid, dashboard in dashboards().items() for panel in panels(dashboard)}


def test_every_expression_is_understood_by_prometheus(observed: Observed, run: str) -> None:
    for asked in all_asked():
        observed.prometheus.at(observed.fill(asked.expr), observed.records.ended_s)


def test_every_panel_has_data_or_a_known_reason_to_have_none(observed: Observed, run: str) -> None:
    wrong = []
    for name, panel in PANELS.items():
        at_s = observed.middle_s if name in GONE_AT_THE_END else None
        found = [series for target in panel["targets"] for series in observed.answer(target, at_s)]
        if bool(found) == (name in EMPTY):
            wrong.append(
                f"{name} ({panel['title']}) has {len(found)} series, {EMPTY.get(name, 'though it should have')}"
            )
    assert not wrong, "\n".join(wrong)


def test_no_counter_ever_falls(observed: Observed, run: str) -> None:
    """Prometheus would take it for a restart of the operator, and count everything once more."""
    window = f"{observed.chosen.range_s:.0f}s"
    counters = [name for name in labels_by_series() if name.endswith("_total")]
    at_s = observed.records.ended_s
    fallen = [name for name in counters if observed.prometheus.at(f"resets({name}[{window}]) > 0", at_s)]
    assert not fallen


def test_each_panel_shows_what_the_records_of_the_jobs_say(observed: Observed, run: str) -> None:
    wrong = []
    for name, compared in COMPARED.items():
        (target,) = PANELS[name]["targets"]
        shown = {series.of(compared.label): series.value for series in observed.answer(target)}
        expected = compared.expected(observed.records)
        near = {label: pytest.approx(value, rel=compared.tolerance) for label, value in expected.items()}
        if {label: value for label, value in shown.items() if value or label in near} != near:
            wrong.append(f"{name} ({PANELS[name]['title']}) shows {shown}; the records say {expected}")
    assert not wrong, "\n".join(wrong)


def test_each_curve_goes_through_what_the_status_said_at_each_time(observed: Observed, run: str) -> None:
    wrong = []
    for name, (letter, value_of) in CURVES.items():
        (target,) = [target for target in PANELS[name]["targets"] if target["refId"] == letter]
        curves = observed.answer(target)
        assert sum(len(curve.points) for curve in curves) > 3  # one a second, while the job trains or hangs
        for curve in curves:
            for at_s, value in curve.points:
                known = [value_of(curve.of("state"), *state) for state in at_that_time(observed.records, at_s)]
                if not any(value == pytest.approx(k, rel=1e-6, nan_ok=True) for k in known):
                    wrong.append(f"{name} shows {value} at {at_s:.2f} s, the status said {known}")
    assert not wrong, "\n".join(wrong)


def test_the_progress_and_the_checkpoint_are_those_of_the_job_while_it_runs(observed: Observed, run: str) -> None:
    """The age of the checkpoint is gone once the job has ended."""
    (progress,) = observed.answer(PANELS["trainmaster-job 2"]["targets"][0], observed.middle_s)
    states = list(at_that_time(observed.records, observed.middle_s))
    assert any(progress.value == pytest.approx(s.progress.step / STEPS) for s, _ in states)
    (saved_step,) = observed.answer(PANELS["trainmaster-job 27"]["targets"][0], observed.middle_s)
    assert any(s.checkpoint and s.checkpoint.step == saved_step.value for s, _ in states)
    (age,) = observed.answer(PANELS["trainmaster-job 6"]["targets"][0], observed.middle_s)
    saved = [datetime.datetime.fromisoformat(s.checkpoint.time).timestamp() for s, _ in states if s.checkpoint]
    assert any(abs(observed.middle_s - at - age.value) < 3 * SCRAPE_S for at in saved)


def test_the_restarts_of_the_annotations_are_those_of_the_job(observed: Observed, run: str) -> None:
    asked = {a.where: a for a in all_asked() if "annotation" in a.where}
    for where, label in (
        ("trainmaster-job: annotation Restarts", "rung"),
        ("trainmaster-job: annotation Failures", "cause"),
    ):
        expr = observed.fill(asked[where].expr)
        found = observed.prometheus.over(expr, observed.records.began_s, observed.records.ended_s, SCRAPE_S)
        status = observed.records.last(BUSY)
        known = restarts(status) if label == "rung" else failures(observed.records, BUSY)
        assert {series.of(label) for series in found} == set(known)
    resizes = observed.prometheus.over(
        observed.fill(asked["trainmaster-job: annotation Resizes"].expr),
        observed.records.began_s,
        observed.records.ended_s,
        SCRAPE_S,
    )
    assert resizes, "the resize is not marked"


def test_each_failure_and_each_restart_is_one_bar_and_one_mark_of_whole_numbers(observed: Observed, run: str) -> None:
    status = observed.records.last(BUSY)
    known = {"cause": failures(observed.records, BUSY), "rung": restarts(status)}
    asked = {a.where: a.expr for a in all_asked()}
    for where, label in (
        ("trainmaster-recovery: Failures by cause (A)", "cause"),
        ("trainmaster-recovery: Restarts by how much was restarted (A)", "rung"),
        ("trainmaster-job: Restarts (A)", "rung"),
        ("trainmaster-job: annotation Failures", "cause"),
        ("trainmaster-job: annotation Restarts", "rung"),
    ):
        found = observed.prometheus.over(
            observed.fill(asked[where]), observed.records.began_s, observed.records.ended_s, SCRAPE_S
        )
        drawn = {series.of(label): [value for _, value in series.points if value] for series in found}
        assert {word: sum(values) for word, values in drawn.items() if values} == known[label], where
        assert all(value == int(value) for values in drawn.values() for value in values), where


def test_the_table_of_jobs_has_each_job_with_its_phase_and_failures(observed: Observed, run: str) -> None:
    answers = [observed.answer(target) for target in PANELS["trainmaster-fleet 16"]["targets"]]
    assert {(s.of("job"), s.of("phase")) for s in answers[0]} == {
        (BUSY, "Succeeded"),
        (BROKEN, "Failed"),
        (HELD, "Held"),
    }
    signs = {s.of("job"): s.value for s in answers[4]}
    assert signs == {BUSY: 0, BROKEN: 1, HELD: 1}
    counted = {s.of("job"): s.value for s in answers[2]}
    assert counted == {job: sum(failures(observed.records, job).values()) for job in (BUSY, BROKEN, HELD)}


def test_the_alerts_that_hold_are_those_of_what_happened(observed: Observed, run: str) -> None:
    rules = [asked for asked in all_asked() if asked.rule is not None and "alert" in asked.rule]
    held = {a.rule["alert"] for a in rules if a.rule and observed.prometheus.at(a.expr, observed.records.ended_s)}
    assert held - LASTING == FIRING


def test_a_namespace_without_jobs_and_a_foreign_prometheus_bring_no_error(observed: Observed, run: str) -> None:
    """There the panels say in words that they have nothing."""
    nowhere = Chosen({"namespace": "nowhere", "job": "nothing", "pod": "nobody"}, 60, 4)
    for name, panel in PANELS.items():
        for target in panel["targets"]:
            found = observed.prometheus.at(nowhere.fill(target["expr"]), observed.records.ended_s)
            if "namespace=~" in target["expr"] and "or 0 *" not in target["expr"] and "leader" not in target["expr"]:
                assert found == [], f"{name} shows something of a namespace that there is not"
    before = observed.records.began_s - 3600
    for asked in all_asked():
        found = observed.prometheus.at(observed.fill(asked.expr), before)
        if not asked.where.endswith("TrainmasterOperatorAbsent"):
            assert found == [], asked.where


def test_every_panel_is_compared_with_a_number_from_elsewhere(run: str) -> None:
    assert not set(COMPARED) & set(EMPTY)
    assert set(EMPTY) | set(GONE_AT_THE_END) <= set(PANELS)
    assert set(COMPARED) | set(CURVES) | set(MADE_UP) | IN_TESTS_OF_THEIR_OWN == set(PANELS)
