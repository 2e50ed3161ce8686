"""`trainmaster report NAME`: a page about a job on a cluster, from its status, its events and, if a Prometheus is
named, its metrics. The page also says what could not be read."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cli import operator_presence
from trainmaster_operator.cli.cluster_connection import Target, connected, one_line
from trainmaster_operator.cli.display.number_words import clock, rate
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.report import html_page, prometheus_curves
from trainmaster_operator.cli.report.prometheus_curves import Curves, NoMetrics
from trainmaster_operator.cli.report.run_report import render_job, save
from trainmaster_operator.cli.report.svg_chart import Line, line_chart
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cluster.objects import event_time, seconds
from trainmaster_operator.cluster.port import POD, ApiError, Object

MOST_EVENTS = 100
KEPT = "Kubernetes keeps events for an hour unless the cluster says otherwise, so earlier ones are not known."


@dataclass
class Found:
    """What is known in addition to the status. `unknown`: sentences about what is not known, and why."""

    events: list[Object] = field(default_factory=list)
    curves: Curves | None = None
    unknown: list[str] = field(default_factory=list)
    unled: str = ""


def report_of_job(where: Where, name: str, file: Path | None, prometheus: str | None = None) -> int:
    """Write the page to `file`, or to NAME-report.html. Return 0. `prometheus`: the address of a Prometheus that
    scrapes the operator. Raise Refusal if there is no such job."""
    return asyncio.run(_report(where, name, file or Path(f"{name}-report.html"), prometheus))


async def _report(where: Where, name: str, path: Path, prometheus: str | None) -> int:
    async with connected(where) as target:
        job = await find(target, name)
        found = await _look_around(target, job, prometheus)
    job["metadata"].pop("managedFields", None)
    save(path, render_job(job, list(sections(found))))
    sys.stdout.write(f"{path}\n")
    return 0


async def _look_around(target: Target, job: Object, prometheus: str | None) -> Found:
    found, meta, now = Found(), job["metadata"], time.time()
    try:
        found.events = list(await target.cluster.events_about(target.namespace, meta["uid"]))
        found.unknown.append(KEPT)
    except ApiError as error:
        found.unknown.append(f"The events of the job could not be read: {one_line(error)}.")
    status = state_of(job)
    try:
        pods = (await target.cluster.list(POD, target.namespace, {f"{GROUP}/job": meta["name"]})).items
        gone = await operator_presence.absence(target.cluster, job, status, pods, now)
        found.unled = gone.sentence if gone is not None else ""
    except ApiError as error:
        found.unknown.append(f"The pods of the job could not be read: {one_line(error)}.")
    if prometheus is None:
        found.unknown.append("The curves of loss and throughput are in Prometheus: --prometheus names its address.")
        return found
    start = seconds(status.startTime or meta["creationTimestamp"])
    end = seconds(status.completionTime) if status.completionTime else now
    try:
        read = prometheus_curves.read
        found.curves = await asyncio.to_thread(read, prometheus, target.namespace, meta["name"], start, end)
    except NoMetrics as error:
        found.unknown.append(f"The metrics of the job could not be read: {error}.")
    return found


def sections(found: Found) -> Iterator[str]:
    """Yield the sections of the page that do not come from the status."""
    if found.unled:
        yield html_page.section("No operator", html_page.lead(found.unled))
    if found.curves is not None:
        loss, throughput = found.curves.loss, found.curves.throughput
        yield html_page.section("Loss", line_chart([Line(loss, "main")], "loss", "step", _whole, _short))
        chart = line_chart([Line(throughput, "main")], "throughput", "time", clock, rate, from_zero=True)
        yield html_page.section("Throughput (tokens/s)", chart)
    if found.events:
        yield html_page.section("What happened", *_events(found.events))
    yield html_page.section("What this page does not know", html_page.note(" ".join([*found.unknown, *_NEVER_KNOWN])))


_NEVER_KNOWN = ("Only a run on one machine keeps the loss of every step, the evaluations and the memory of each rank.",)


def _events(events: Sequence[Object]) -> Iterator[str]:
    told = sorted(events, key=event_time)
    rows = [
        (event_time(event)[:19].replace("T", " "), event.get("reason") or "", event.get("message") or "", _times(event))
        for event in told[-MOST_EVENTS:]
    ]
    yield html_page.table(("time (UTC)", "event", "message", "times"), rows, (False, False, False, True))
    if len(told) > MOST_EVENTS:
        yield html_page.note(f"The last {MOST_EVENTS} of {len(told)} events.")


def _times(event: Object) -> str:
    return str(event.get("count") or 1)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _short(value: float) -> str:
    return f"{value:.4g}"
