"""What a scrape of the operator's metrics costs: series, bytes and seconds with 100, 1,000 and 10,000 jobs, and what an
operator needs for it with and without the metrics of single jobs.

    python -m benchmarks.scrape

One job in ten runs, with two agents; the others wait, or have ended lately. The first scrape writes the lines of all
jobs. A later one finds one job in ten changed, which is more than a fleet does in 15 seconds. Seconds are CPU time of
the thread that writes the text; nothing waits in it. Compressing and sending are not in it.

The operator of the second half leads, and its cache has the same jobs; it is a real one, whose cluster is in memory.
Its later scrapes are measured: all metrics of the operator, with those of single jobs and without them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks import counts, load
from benchmarks.record import Case, name_of, write
from trainmaster.contract.wire import Identity, RankReport, RankState, Report, Usage
from trainmaster_operator.cluster.port import JOB
from trainmaster_operator.control.job_usage_and_mfu import JobUsage
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import (
    CheckpointStatus,
    Condition,
    JobPhase,
    JobState,
    ProgressStatus,
    Totals,
    WorkersStatus,
)
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.status_mapping import write_status
from trainmaster_operator.runtime.cache.cache_records import JobRecord, job_record
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.observability.job_metrics_page import JobMetrics
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual

JOBS = [100, 1000, 10_000]
LIMIT_S = 2.0
NOW = 1_800_000_000.0
SYSTEM = "trainmaster"
_OTHER_PHASES = (JobPhase.PENDING, JobPhase.SUCCEEDED, JobPhase.FAILED)


class Agents:
    """Two agents of each running job, which tell all that agents of a job with GPUs tell."""

    def __init__(self) -> None:
        rank = RankReport(
            0, 1, RankState.RUNNING, rss_bytes=10**9, rss_peak_bytes=10**9, device_bytes=10**10,
            device_peak_bytes=10**10, device_limit_bytes=8 * 10**10, mfu=0.4,
        )  # fmt: skip
        told = Report(
            Identity("", "", "", "", 0, 0, ""), 1, ranks=[rank], container_bytes=10**9, container_limit_bytes=10**10
        )
        self._reports = [told, told]
        self._usage = JobUsage(Usage(1000.5, 10**9, 10**9, 0.8, 10**10), 0.4, 2.5)

    def usage(self, key: JobKey) -> JobUsage:
        return self._usage

    def reports(self, key: JobKey) -> list[Report]:
        return self._reports


def record(number: int) -> JobRecord:
    """One job in ten runs."""
    phase = JobPhase.RUNNING if number % 10 == 0 else _OTHER_PHASES[number % 3]
    status = JobState(
        phase=phase,
        round=2,
        startTime=rfc3339(NOW - 5000),
        completionTime=rfc3339(NOW - 60) if phase.finished else "",
        firstStepAt=rfc3339(NOW - 4000),
        accountedAt=rfc3339(NOW - 100),
        usefulSeconds=3000.25,
        lost={"Crash": 20.5, "Checkpoint": 30.25, "NodeLost": 12.125},
        totals=Totals(failures={"Crash": 2, "NodeLost": 1}, recoveries=3, lostSteps=7, phases={"detect": 1.5}),
        workers=WorkersStatus(replicas=2, ready=2),
        progress=ProgressStatus(
            step=700,
            totalSteps=1000,
            loss="1.25",
            tokensPerSecond=1e5,
            stepsPerSecond=2.0,
            memoryStep=690,
            updatedAt=rfc3339(NOW - 1),
        ),
        checkpoint=CheckpointStatus(step=650, round=2, time=rfc3339(NOW - 30)),
        conditions=[Condition(type=kind, status="True", reason=kind) for kind in ("Scheduled", "Running")],
    )
    obj: dict[str, Any] = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": JOB,
        "metadata": {"name": f"job-{number:05}", "namespace": f"team-{number % 20:02}", "uid": f"{number}"},
        "spec": {
            "workers": {"replicas": 2},
            "training": {"data": {"path": "/data"}, "steps": 1000, "batch": {"global": 2}},
            "checkpoint": {"volume": {"claim": "checkpoints"}},
        },
        "status": write_status(status),
    }
    obj["metadata"]["resourceVersion"] = "1"
    return job_record(obj, None)


def measure(jobs: int, repetitions: int) -> list[Case]:
    """Scrape that many jobs, for the first time and again."""
    records = [record(number) for number in range(jobs)]
    first, later = (
        Case(f"{jobs} jobs, first scrape", SYSTEM, "CPU s"),
        Case(f"{jobs} jobs, later scrape", SYSTEM, "CPU s"),
    )
    text = b""
    gc.freeze()  # as the operator does
    for _ in range(repetitions):
        metrics = JobMetrics(Agents())  # type: ignore[arg-type]
        for case in (first, later):
            began = time.thread_time()
            text = metrics.render(records, NOW)
            case.samples.append(time.thread_time() - began)
            records = changed(records)
    lines = text.decode().splitlines()
    count = sum(not line.startswith("#") for line in lines)
    sizes = {"series": count, "bytes": len(text), "bytes compressed": len(gzip.compress(text, 1))}
    return [first, later, *(Case(f"{jobs} jobs, {what}", SYSTEM, "", [float(n)]) for what, n in sizes.items())]


def changed(records: list[JobRecord]) -> list[JobRecord]:
    """What a later scrape finds: one record in ten is another one."""
    return [replace(r) if number % 10 == 5 else r for number, r in enumerate(records)]


class Cache:
    """The jobs of an operator, without a watch."""

    kind, age_s = JOB, 0.0

    def __init__(self, records: list[JobRecord]) -> None:
        self.records = records

    def values(self) -> Iterator[JobRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


def measure_operator(jobs: int, repetitions: int, *, of_jobs: bool) -> Case:
    """The CPU time of an operator that leads for each scrape but the first. `of_jobs`: with metrics of single jobs."""
    case = Case(f"{jobs} jobs, operator {'with' if of_jobs else 'without'} metrics of jobs", SYSTEM, "CPU s")

    async def scraped() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        settings = Settings(operator_url="", identity="measured", job_metrics=of_jobs)
        operator = Operator(MemoryCluster(MemoryStore()), clock, random.Random(1), settings)
        work = asyncio.create_task(operator.run())
        while not operator.leader.leading:
            await asyncio.sleep(1)
        watched, cache = operator.jobs, Cache([record(number) for number in range(jobs)])
        operator.jobs = cache  # type: ignore[assignment]
        for _ in range(repetitions + 1):
            began = time.thread_time()
            operator.render_metrics()
            case.samples.append(time.thread_time() - began)
            cache.records = changed(cache.records)
        operator.jobs = watched
        operator.stop()
        await work

    run_virtual(scraped())
    del case.samples[0]
    return case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=JOBS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    counts.check(parser, given, jobs=1, repetitions=1)
    before = load.look()
    cases = [case for jobs in given.jobs for case in measure(jobs, given.repetitions)]
    for jobs in given.jobs:
        cases += [measure_operator(jobs, given.repetitions, of_jobs=of_jobs) for of_jobs in (True, False)]
    for case in cases:
        print(f"{case.case:48} {case.median:14,.3f} {case.unit}".rstrip(), flush=True)
    if not given.no_write:
        print(
            f"written to {write(name_of('scrape', given.jobs, JOBS), cases, busy_cores_before=round(before.busy, 2))}"
        )
    slow = [case for case in cases if case.unit == "CPU s" and case.median > LIMIT_S]
    for case in slow:
        print(f"{case.case} took {case.median:.2f} s: more than {LIMIT_S:g} s", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
