"""OUT/report.html: the course of a run on one page, without outside references, of bounded size for a run of any
length."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from trainmaster.contract.sample_unit import unit_of
from trainmaster.contract.wire.atomic_replace import replace
from trainmaster_operator.cli import output_folder
from trainmaster_operator.cli.display.memory_track import MemoryTrack
from trainmaster_operator.cli.display.number_words import loss, rate, seconds
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.report import goodput_table, html_page, report_curves, report_failure, report_recoveries
from trainmaster_operator.cli.report.guessing_loss import guessing_loss
from trainmaster_operator.cli.report.html_page import Fact
from trainmaster_operator.cli.report.metrics_file import Metrics, read
from trainmaster_operator.cli.report.report_failure import Printed
from trainmaster_operator.cli.report.svg_chart import bars_with_legend
from trainmaster_operator.cli.stored_state import state_of, was_stopped
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.timestamps import seconds_of

_DURATION = "from the start of the job to its end, with the start of the ranks"

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
    """Write the report of a run and print its path. Return 0. `file`: as in `write`. Raise Refusal if there is no
    run."""
    sys.stdout.write(f"{write(out, file)}\n")
    return 0


def write(out: Path, file: Path | None = None) -> Path:
    """Make the page from status.yaml, metrics.jsonl and memory.json of a run, and return its path. `file`: where to
    write it; None: report.html of the run. Raise Refusal for a directory without a run, or if the page cannot be
    written."""
    resource = output_folder.read_run(out)
    metrics, track = read(out / output_folder.METRICS), MemoryTrack.read(out / output_folder.MEMORY)
    path = file or out / output_folder.REPORT
    save(path, render(resource, metrics, track, out.absolute()))
    return path


def save(path: Path, text: str) -> None:
    """Write a page. Raise Refusal if it cannot be written there."""
    try:
        replace(path, text.encode())
    except OSError as error:
        other = "`trainmaster report --file` writes it to another place"  # The end of a run uses this function too.
        raise Refusal(f"{path}: cannot be written: {why(error)}; {other}") from None


def render(resource: dict[str, Any], metrics: Metrics, track: MemoryTrack, out: Path) -> str:
    """Return the page of a run on this machine. `out`: its output folder."""
    name = resource["metadata"]["name"]
    status = state_of(resource)
    return html_page.page(f"{name} - {status.phase.value}", _body(resource, name, status, metrics, track, out))


def render_job(job: dict[str, Any], sections: Sequence[str] = ()) -> str:
    """Return the page of a job on a cluster, which stores neither the losses of all steps nor the memory of ranks.
    `sections`: what is known in addition to its status."""
    name, status = job["metadata"]["name"], state_of(job)
    return html_page.page(f"{name} - {status.phase.value}", _body_of_job(job, name, status, sections))


def _body(
    resource: dict[str, Any], name: str, status: JobState, metrics: Metrics, track: MemoryTrack, out: Path
) -> Iterator[str]:
    failed = status.phase is JobPhase.FAILED
    training = resource["spec"].get("training") or {}
    unit = _unit(training)
    last_failure = report_failure.section(status, report_failure.printed_in(out, status))
    yield _header(resource, name, status)
    if failed:
        yield last_failure
    if status.phase is JobPhase.SUSPENDED:
        yield html_page.lead(was_stopped(resource, status))
    yield html_page.tiles(_facts(status, metrics, unit))
    # The text is read again only after a success, because its file system then answered up to the last step.
    guess = guessing_loss(training) if status.phase is JobPhase.SUCCEEDED and metrics.has_losses else None
    yield from report_curves.sections(status, metrics, track, unit, guess, skip_empty=failed, scripted=not training)
    yield from _after_the_curves(status)
    if not failed:
        yield last_failure
    yield _job(resource)
    *first, last = [
        output_folder.STATUS,
        *([output_folder.METRICS] if metrics.steps else []),
        *([output_folder.MEMORY] if track.samples else []),
    ]
    yield (
        f"<footer>Made by Trainmaster from {', '.join(first) + ' and ' if first else ''}{last}. "
        f"What the ranks printed is in <code>{escape(str(out / output_folder.LOGS))}</code>.</footer>"
    )


def _body_of_job(job: dict[str, Any], name: str, status: JobState, sections: Sequence[str]) -> Iterator[str]:
    place = f"{name} -n {job['metadata']['namespace']}"
    last_failure = report_failure.section(status, Printed.on_a_cluster(place, status))
    yield _header(job, name, status)
    if status.phase is JobPhase.FAILED:
        yield last_failure
    yield html_page.tiles(_facts(status, Metrics(), _unit(job["spec"].get("training") or {})))
    yield from _after_the_curves(status)
    if status.phase is not JobPhase.FAILED:
        yield last_failure
    yield from sections
    yield _job(job)
    yield (
        "<footer>Made by Trainmaster from the status and the events of the job, and from its metrics where they are "
        f"drawn. <code>trainmaster logs {escape(place)} --all</code> shows what the ranks print.</footer>"
    )


def _header(resource: dict[str, Any], name: str, status: JobState) -> str:
    tone = _TONES.get(status.phase, "")
    return (
        f'<header><h1>{escape(name)}</h1><span class="state {tone}">{status.phase.value}</span>'
        f"<p>{escape(_subtitle(resource['spec'], status))}</p></header>"
    )


def _after_the_curves(status: JobState) -> Iterator[str]:
    if status.lost:
        yield _goodput(status)
    if status.recoveries:
        yield report_recoveries.section(status)


def _job(resource: dict[str, Any]) -> str:
    shown = {key: value for key, value in resource.items() if key != "status"}
    return html_page.folded("The job", output_folder.dumped(shown))


def _unit(training: dict[str, Any]) -> str:
    return unit_of(str((training.get("data") or {}).get("source", "")))


def _subtitle(spec: dict[str, Any], status: JobState) -> str:
    workers, training = spec.get("workers") or {}, spec.get("training") or {}
    ranks = int(workers.get("replicas", 1)) * int(workers.get("ranksPerPod", 1))
    parts = [spec.get("framework", "Trainmaster"), counted(ranks, "rank")]
    mesh = {k: v for k, v in (training.get("parallelism") or {}).items() if v}
    if mesh:
        parts.append(" x ".join(f"{axis} {degree}" for axis, degree in mesh.items()))
    if training:
        parts.append(f"global batch {training['batch']['global']}")
        parts.append(f"seed {training.get('seed', 0)}")
    if status.startTime:
        parts.append(f"started {status.startTime[:19].replace('T', ' ')} UTC")
    return " · ".join(parts)


def _facts(status: JobState, metrics: Metrics, unit: str) -> Iterator[Fact]:
    progress = status.progress
    step = max(progress.step, metrics.steps[-1] if metrics.steps else 0)
    if script_step_count.is_known(status):
        yield Fact("step", f"{step} / {progress.totalSteps}" if progress.totalSteps else str(step))
    else:
        yield Fact("steps since the last restart", str(step))
    if metrics.has_losses or progress.loss:
        yield Fact("loss", loss(repr(metrics.losses[-1])) if metrics.has_losses else loss(progress.loss))
    if metrics.mean_throughput():
        yield Fact(f"{unit}/s", rate(metrics.mean_throughput()), "mean of all steps that count")
    if metrics.mean_utilization():
        yield Fact("MFU", f"{metrics.mean_utilization():.1%}", "share of the most that the devices can compute")
    if status.startTime and status.completionTime:
        yield Fact("duration", seconds(seconds_of(status.completionTime) - seconds_of(status.startTime)), _DURATION)
    yield Fact("restarts", str(status.restarts.total), "after failures")
    if status.goodput:
        yield Fact("goodput", status.goodput, "share of the time that went into steps that count")
    if status.checkpoint:
        yield Fact("last checkpoint", f"step {status.checkpoint.step}")


def _goodput(status: JobState) -> str:
    cells, parts = goodput_table.table(status), goodput_table.parts(status)
    rows = [("the run", parts)]
    return html_page.section(
        "Where the time went",
        *bars_with_legend(rows, seconds),
        html_page.table(cells.header, cells.rows, cells.numeric),
        html_page.note(
            "Goodput is the share of the time since the first step that went into steps that count. A step counts "
            "once: if a failure makes it run again, the second time is lost to that failure. The time in which no step "
            "runs is lost as well. The time is counted from the end of the first step to the last step, or to the "
            "failure that ended the job. It is shorter than the duration, because the start of the ranks is left out."
        ),
        html_page.meanings((name, words) for name, _ in parts if (words := goodput_table.meaning(name))),
    )
