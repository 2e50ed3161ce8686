"""What a report says about a failure: its cause, the last lines of the rank, and where its log is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainmaster_operator.cli.display import last_lines
from trainmaster_operator.cli.display.status_diff import (
    MESSAGE_LIMIT,
    blamed,
    described,
    described_whole,
    ending,
    logs_command,
)
from trainmaster_operator.cli.output_folder import LOGS
from trainmaster_operator.cli.report import html_page
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState

LINE_LIMIT = 1000
"""Maximum number of characters of one line of a log."""


@dataclass(frozen=True)
class Printed:
    """What the rank that failed printed. `place`: a path or a command, "" if nothing was printed. `what`: the words
    before it. `lines`: the last lines of its log, if the log can be read."""

    what: str = ""
    place: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def on_a_cluster(cls, job: str, status: JobState) -> Printed:
        """Return where the output of a job on a cluster is. `job`: the job as the command line names it."""
        return cls("Its log is shown by", logs_command(job, status))


def printed_in(out: Path, status: JobState) -> Printed:
    """Return where the output of a run is, with its last lines, from its output folder."""
    failure = status.lastFailure
    words = last_lines.last_words(out, status)
    if words is None:
        return Printed()
    log = last_lines.log_of(out, failure)
    if log is None:
        return Printed("The logs of all ranks:", str(out / LOGS))
    what = f"The log of rank {failure.rank}:" if failure is not None and failure.rank is not None else "Its log:"
    return Printed(what, str(log), tuple(line[:LINE_LIMIT] for line in words.lines))


def section(status: JobState, output: Printed) -> str:
    """Return the section about the last failure; "" if there was none and the job did not fail."""
    failure, failed = status.lastFailure, status.phase is JobPhase.FAILED
    reason = next((c.message for c in status.conditions if c.type == "Failed" and c.message), "") if failed else ""
    title = "Why it failed" if failed else "The last failure"
    if failure is None:
        if not failed:
            return ""
        content = [html_page.lead(reason or "The status of the job has no cause.")]
    else:
        message = failure.message.strip()
        # The lead of a job that failed has the whole message, if it is one line: also what to do about it.
        whole = failed and "\n" not in message
        describe = described_whole if whole else described
        content = [html_page.lead(describe(failure)), html_page.note(_place(failure))]
        # Usually the reason says the same as the message, or has its beginning.
        if reason and not f"{blamed(failure)}: {message}".startswith(reason) and not (message and message in reason):
            content.append(html_page.note(reason))
        text = _words(failure, output.lines, told=whole)
        content += (
            [html_page.heading(f"The last words of {blamed(failure)}"), html_page.preformatted(text)] if text else []
        )
    if output.place:
        content.append(html_page.place(output.what, output.place))
    return html_page.section(title, *content)


def _place(failure: Failure) -> str:
    parts = [f"pod {failure.pod}" if failure.pod else "", f"node {failure.node}" if failure.node else ""]
    parts.append(ending(failure))
    return " · ".join(part for part in (*parts, f"round {failure.round}") if part)


def _words(failure: Failure, lines: tuple[str, ...], *, told: bool) -> str:
    """Return the message, if the sentence above it has only a part of it, the traceback and the last lines; none of
    them twice. `told`: the sentence has the whole message."""
    message, traceback = failure.message.strip(), failure.traceback.rstrip()
    shown = set(map(str.strip, lines))
    parts = []
    if not told and (len(message) > MESSAGE_LIMIT or "\n" in message):
        parts.append(message)
    if traceback and traceback.splitlines()[-1].strip() not in shown:
        parts.append(traceback)
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
