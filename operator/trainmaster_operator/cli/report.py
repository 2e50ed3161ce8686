"""OUT/report.html: how a run went, on one page without outside references, of bounded size at any length."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from trainmaster.contract.samples import unit_of
from trainmaster.contract.wire.temporary import replace
from trainmaster_operator.cli import goodput, output, page, recoveries
from trainmaster_operator.cli.chart import Line, Marker, bars, line_chart
from trainmaster_operator.cli.memory import MemoryTrack, Most
from trainmaster_operator.cli.metrics import Metrics, read
from trainmaster_operator.cli.news import count, logs_command, loss, memory, rate, seconds, when
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.planning import step_count
from trainmaster_operator.planning.state import JobPhase, JobState

MARKERS = 40
MEMORY_LINES = 8

_TONES = {
    JobPhase.SUCCEEDED: "good",
    JobPhase.RUNNING: "good",
    JobPhase.FAILED: "bad",
    JobPhase.RECOVERING: "warn",
    JobPhase.SUSPENDED: "warn",
    JobPhase.SUSPENDING: "warn",
    JobPhase.RESIZING: "warn",
}


def report(out: Path, file: Path | None = None) -> int:
    """`trainmaster report` of a run. file: as of `write`. Raises Refusal when there is no run."""
    sys.stdout.write(f"{write(out, file)}\n")
    return 0


def write(out: Path, file: Path | None = None) -> Path:
    """Makes the page from status.yaml, metrics.jsonl and memory.json of a run. file: where to; None: report.html of the
    run. Raises Refusal for a folder without a run, or that can't be written."""
    resource = output.read_run(out)
    metrics, track = read(out / output.METRICS), MemoryTrack.read(out / output.MEMORY)
    path = file or out / output.REPORT
    save(path, render(resource, metrics, track))
    return path


def save(path: Path, text: str) -> None:
    """Raises Refusal when the page can't be written there."""
    try:
        replace(path, text.encode())
    except OSError as error:
        other = "`trainmaster report --file` writes it to another place"  # the end of a run comes here too
        raise Refusal(f"{path}: cannot be written: {why(error)}; {other}") from None


def render(resource: dict[str, Any], metrics: Metrics, track: MemoryTrack) -> str:
    """Return the page of a run on this machine."""
    name = resource["metadata"]["name"]
    status = state_of(resource)
    return page.page(f"{name} - {status.phase.value}", _body(resource, name, status, metrics, track))


def render_job(job: dict[str, Any]) -> str:
    """Return the page of a job on a cluster, which stores neither the losses of all steps nor the memory of ranks."""
    name, status = job["metadata"]["name"], state_of(job)
    return page.page(f"{name} - {status.phase.value}", _body_of_job(job, name, status))


def _body(resource: dict[str, Any], name: str, status: JobState, metrics: Metrics, track: MemoryTrack) -> Iterator[str]:
    yield _header(resource, name, status)
    training = resource["spec"].get("training") or {}
    unit = unit_of(str((training.get("data") or {}).get("source", "")))
    yield page.tiles(_facts(status, metrics, unit))
    if status.lastFailure and status.phase is JobPhase.FAILED:
        yield _failure(status)
    markers = _markers(status, metrics)
    yield _loss(metrics, markers)
    yield _throughput(metrics, markers, unit)
    yield _memory(track)
    yield from _after_the_curves(resource, status, _failure)
    yield (
        f"<footer>Made by Trainmaster from {output.STATUS}, {output.METRICS} and {output.MEMORY}. "
        f"{output.LOGS}/ beside this page holds what the ranks printed.</footer>"
    )


def _body_of_job(job: dict[str, Any], name: str, status: JobState) -> Iterator[str]:
    place = f"{name} -n {job['metadata']['namespace']}"
    training = job["spec"].get("training") or {}
    yield _header(job, name, status)
    yield page.tiles(_facts(status, Metrics(), unit_of(str((training.get("data") or {}).get("source", "")))))

    def failure(status: JobState) -> str:
        return _failure(status, logs_command(place, status))

    if status.lastFailure and status.phase is JobPhase.FAILED:
        yield failure(status)
    yield from _after_the_curves(job, status, failure)
    yield (
        "<footer>Made by Trainmaster from the status of the job. The metrics of the operator, in Prometheus, have its "
        f"curves. <code>trainmaster logs {escape(place)} --all</code> shows what the ranks print.</footer>"
    )


def _header(resource: dict[str, Any], name: str, status: JobState) -> str:
    tone = _TONES.get(status.phase, "")
    return (
        f'<header><h1>{escape(name)}</h1><span class="state {tone}">{status.phase.value}</span>'
        f"<p>{escape(_subtitle(resource['spec'], status))}</p></header>"
    )


def _after_the_curves(resource: dict[str, Any], status: JobState, failure: Callable[[JobState], str]) -> Iterator[str]:
    if status.lost:
        yield _goodput(status)
    if status.recoveries:
        yield _recoveries(status)
    if status.lastFailure and status.phase is not JobPhase.FAILED:
        yield failure(status)
    shown = {key: value for key, value in resource.items() if key != "status"}
    yield page.folded("The job", output.dumped(shown))


def _subtitle(spec: dict[str, Any], status: JobState) -> str:
    workers, training = spec.get("workers") or {}, spec.get("training") or {}
    ranks = int(workers.get("replicas", 1)) * int(workers.get("ranksPerPod", 1))
    parts = [spec.get("framework", "Trainmaster"), count(ranks, "rank")]
    mesh = {k: v for k, v in (training.get("parallelism") or {}).items() if v}
    if mesh:
        parts.append(" x ".join(f"{axis} {degree}" for axis, degree in mesh.items()))
    if training:
        parts.append(f"global batch {training['batch']['global']}")
        parts.append(f"seed {training.get('seed', 0)}")
    if status.startTime:
        parts.append(f"started {status.startTime[:19].replace('T', ' ')} UTC")
    return " · ".join(parts)


def _facts(status: JobState, metrics: Metrics, unit: str) -> Iterator[tuple[str, str]]:
    progress = status.progress
    step = max(progress.step, metrics.steps[-1] if metrics.steps else 0)
    if step_count.is_known(status):
        yield "step", f"{step} / {progress.totalSteps}" if progress.totalSteps else str(step)
    else:
        yield "steps since the last restart", str(step)
    if metrics.has_losses or progress.loss:
        yield "loss", loss(repr(metrics.losses[-1])) if metrics.has_losses else loss(progress.loss)
    if metrics.mean_throughput():
        yield f"{unit}/s", rate(metrics.mean_throughput())
    if metrics.mean_utilization():
        yield "MFU", f"{metrics.mean_utilization():.1%}"
    if status.startTime and status.completionTime:
        yield "duration", seconds(_moment(status.completionTime) - _moment(status.startTime))
    restarts = status.restarts
    yield "restarts", str(restarts.inPlace + restarts.pod + restarts.full)
    if status.goodput:
        yield "goodput", status.goodput
    if status.checkpoint:
        yield "last checkpoint", f"step {status.checkpoint.step}"


def _markers(status: JobState, metrics: Metrics) -> list[Marker]:
    """Where each new round began to step, told by its recovery where the status still has that."""
    causes = {r.round: r for r in status.recoveries}
    markers = []
    for number, first in metrics.rounds[1:][-MARKERS:]:
        r = causes.get(number)
        who = f" of rank {r.rank}" if r is not None and r.rank is not None else ""
        why = f"{r.cause}{who}, back after {seconds(r.totalSeconds)}" if r is not None else "a new round"
        markers.append(Marker(first, str(number), f"round {number} from step {first}: {why}"))
    return markers


def _loss(metrics: Metrics, markers: list[Marker]) -> str:
    lines = [Line(points, "replaced", "run again by a later round") for points in metrics.replaced]
    lines.append(Line(metrics.loss_curve(), "main"))
    entries = [("main", "loss")]
    if metrics.evaluations:
        lines.append(Line(metrics.evaluations, "r1", "of an evaluation"))
        entries.append(("r1", "of evaluations"))
    if metrics.replaced:
        entries.append(("replaced", "lost with a failure and run again"))
    content = [line_chart(lines, "loss", "step", _integer, _short, markers)]
    if len(entries) > 1:
        content.append(page.legend(entries))
    if metrics.repeated:
        content.append(page.note(continuity(metrics)))
    return page.section("Loss", *content)


def continuity(metrics: Metrics) -> str:
    """What the steps that ran twice say, as a sentence."""
    if not metrics.repeated:
        return "No step had to be run twice."
    ran = f"{count(metrics.repeated, 'step')} ran twice"
    if not metrics.has_losses:
        return f"{ran}; none reported a loss, so nothing can be compared."
    if not metrics.differences:
        each = "it had" if metrics.repeated == 1 else "each had"
        return f"{ran}; {each} bit for bit the same loss both times."
    step, before, after = metrics.differing[0]
    return (
        f"{ran}; {metrics.differences} had a different loss the second time, first step {step}: {before!r}, then "
        f"{after!r}."
    )


def _throughput(metrics: Metrics, markers: list[Marker], counted: str) -> str:
    unit = f"{counted}/s" if any(metrics.tokens) else "steps/s"
    curve = metrics.throughput_curve()
    chart = line_chart([Line(curve, "main")], "throughput", "step", _integer, rate, markers, from_zero=True)
    return page.section(f"Throughput ({unit})", chart)


def _memory(track: MemoryTrack) -> str:
    if not track.samples:
        return page.section("Memory by rank", '<p class="empty">No memory was recorded.</p>')
    began = track.samples[0][0]
    ranks = sorted({rank for _, sizes in track.samples for rank in sizes})
    # Of many ranks those that ever took the most.
    most = {rank: track.most.get(rank, Most()) for rank in ranks}
    peaks = {rank: max(most[rank].size, *(sizes.get(rank, 0) for _, sizes in track.samples)) for rank in ranks}
    shown = sorted(sorted(ranks, key=lambda rank: -peaks[rank])[:MEMORY_LINES])
    size, unit = (2**30, "GiB") if max(peaks.values()) >= 2 * 2**30 else (2**20, "MiB")
    lines = [
        Line(
            [(at - began, sizes[rank] / size) for at, sizes in track.samples if rank in sizes],
            f"r{i}",
            f"rank {rank}, at most {memory(peaks[rank])}",
        )
        for i, rank in enumerate(shown)
    ]
    chart = line_chart(lines, "memory", "time", _clock, lambda value: f"{value:g} {unit}", from_zero=True)
    names = [(f"r{i}", f"rank {rank} (at most {memory(peaks[rank])})") for i, rank in enumerate(shown)]
    content = [chart, page.legend(names)]
    if len(ranks) > len(shown):
        content.append(page.note(f"The {len(shown)} of {len(ranks)} ranks that used the most memory."))
    if track.nearest() is not None:
        rows = [[str(rank), memory(peaks[rank]), most[rank].beside or "-"] for rank in shown]
        content += [
            page.note(track.told()),
            page.table(["rank", "at most", "nearest to its limit"], rows, [True, True, False]),
        ]
    return page.section("Memory by rank", *content)


def _goodput(status: JobState) -> str:
    cells = goodput.table(status)
    return page.section(
        "Where the time went",
        bars([("the run", goodput.parts(status))], seconds),
        page.table(cells.header, cells.rows, cells.numeric),
        page.note(
            "From the first step to the last. Steps count once: what was done again after a failure is lost to that "
            "failure, as the time is in which nothing stepped."
        ),
    )


def _recoveries(status: JobState) -> str:
    cells = recoveries.actions(status.recoveries)
    content = [page.table(cells.header, cells.rows, cells.numeric)]
    shares = [
        (f"round {r.round}", [(recoveries.named(p), r.clock[p]) for p in recoveries.PHASES if p in r.clock])
        for r in status.recoveries
        if r.clock
    ]
    if shares:
        clocks = recoveries.clocks(status.recoveries)
        content += [
            "<h3>Phase by phase</h3>",
            bars(shares, seconds),
            page.table(clocks.header, clocks.rows, clocks.numeric),
            page.note("Of phases that every rank goes through, the slowest rank's time."),
        ]
    every = status.restarts.total + status.restarts.free
    if every > len(status.recoveries):
        content.append(page.note(f"The last {len(status.recoveries)} of {every}."))
    return page.section("Recoveries", *content)


def _failure(status: JobState, logs: str = "") -> str:
    """logs: the command that shows what the rank printed; "": its log lies beside the page."""
    failure = status.lastFailure
    assert failure is not None
    facts = [failure.cause, f"rank {failure.rank}" if failure.rank is not None else "", failure.pod, failure.node]
    facts.append(failure.signal or (f"exit code {failure.exitCode}" if failure.exitCode is not None else ""))
    facts.append(f"{when(failure, status.progress.totalSteps)}, round {failure.round}")
    text = "\n\n".join(part for part in (failure.message.strip(), failure.traceback.strip()) if part)
    title = "Why it failed" if status.phase is JobPhase.FAILED else "The last failure"
    place = logs or (f"{output.LOGS}/{failure.pod}.log beside this page" if failure.pod else "")
    printed = [page.note(f"What it printed: {place}.")] if place else []
    return page.section(title, page.note(" · ".join(f for f in facts if f)), page.preformatted(text), *printed)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _integer(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else ""


def _short(value: float) -> str:
    return f"{value:.6g}"


def _clock(value: float) -> str:
    return f"{value:.0f} s" if value < 120 else seconds(value)
