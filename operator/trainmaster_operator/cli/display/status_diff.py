"""The changes between two statuses of a job, in words for a user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainmaster.contract.wire import Cause
from trainmaster_operator.cli.display.number_words import loss, seconds
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState, Recovery, Rung

MESSAGE_LIMIT = 160

RUNGS = {
    Rung.IN_PLACE: "the ranks restart in place",
    Rung.POD: "the pod is replaced",
    Rung.FULL: "all pods are replaced",
    Rung.SHRINK: "the job continues with fewer pods",
    Rung.FREE: "the ranks restart, which does not count towards a budget",
}


def logs_command(of: str, status: JobState) -> str:
    """Return the command that shows what the rank that made a job fail has printed. `of`: the run or the job, as the
    command line names it."""
    rank = status.lastFailure.rank if status.lastFailure is not None else None
    return f"trainmaster logs {of} {'--all' if rank is None else f'--rank {rank}'}"


_CONDITIONS = {
    "ReconcileError": "error",
    "CheckpointFailed": "not saved",
    "CheckpointStalled": "stalled",
    "Unprotected": "unsafe",
}
"""Conditions that are reported while they are true, each with its word."""


def news(old: JobState, new: JobState, *, scripted: bool = False) -> Iterator[News]:
    """Yield what happened between two statuses of a job, in the order in which it happened. `scripted`: its ranks
    run a user's script, which decides itself where it stops and what it saves."""
    failure = new.lastFailure
    if failure and failure != old.lastFailure:
        # If the job fails, the news about its end has the message.
        ends = new.phase is JobPhase.FAILED and old.phase is not JobPhase.FAILED
        text = _headed(failure) if ends else described(failure)
        yield News("failure", text, Tone.BAD)
    known = {recovery.round: recovery for recovery in old.recoveries}
    for recovery in new.recoveries:
        before = known.get(recovery.round)
        if before is None:
            yield News("recovery", f"round {recovery.round}: {RUNGS[recovery.rung]}", Tone.WARNING)
        closed = recovery.totalSeconds is not None and not recovery.overtaken
        if closed and (before is None or before.totalSeconds is None):
            yield News("recovered", recovered(recovery), Tone.GOOD)
    yield from _suspicion(old, new)
    if 0 < old.workers.replicas != new.workers.replicas > 0 and new.roundStore:
        less = new.workers.replicas < old.workers.replicas
        words = f"from {old.workers.replicas} to {counted(new.workers.replicas, 'pod')}"
        yield News("shrunk" if less else "grown", words, Tone.WARNING if new.workers.shrunkAt else Tone.PLAIN)
    checkpoint = new.checkpoint
    if checkpoint and (old.checkpoint is None or checkpoint.step > old.checkpoint.step):
        yield News("checkpoint", f"step {checkpoint.step} is saved")
    if new.phase is not old.phase:
        told = _phase(new, scripted)
        if told:
            yield told
    for condition in new.conditions:
        word = _CONDITIONS.get(condition.type)
        if word is not None and condition.status == "True" and condition not in old.conditions:
            yield News(word, condition.message, Tone.BAD)


def _suspicion(old: JobState, new: JobState) -> Iterator[News]:
    """Yield that ranks may hang, as the event HangSuspected says it, or that they do not after all."""
    before, now = old.suspicion, new.suspicion
    if now is not None and (before is None or (before.round, before.message) != (now.round, now.message)):
        yield News("hang?", now.message, Tone.WARNING)
    if before is not None and now is None and new.round == old.round and new.phase is JobPhase.RUNNING:
        yield News("no hang", "the ranks report again, so they did not hang", Tone.GOOD)


@dataclass
class OperatorBack:
    """Reports once, for each operator that died, that the next one works."""

    _deaths: int = 0

    def seen(self, deaths: int, ranks: Sequence[object]) -> News | None:
        """Return the news if the operator that was started after this number of `deaths` knows ranks and this was
        not reported yet."""
        if deaths <= self._deaths or not ranks:
            return None
        self._deaths = deaths
        return News("operator", "the operator is back: ranks report to it again", Tone.GOOD)


def described(failure: Failure) -> str:
    """Return a failure on one line: who, why, when, and the beginning of its message."""
    words = cut(_with_ending(failure, (failure.message.strip().splitlines() or [""])[0]))
    return f"{_who_and_when(failure)}: {words}" if words else _who_and_when(failure)


def described_whole(failure: Failure) -> str:
    """Return a failure with its whole message, which may have several lines."""
    words = _with_ending(failure, failure.message.strip())
    return f"{_who_and_when(failure)}: {words}" if words else _who_and_when(failure)


def _headed(failure: Failure) -> str:
    """Return a failure with the exception that its traceback ends with, if any, and without its message, which says
    why the job ends."""
    words = cut(_with_ending(failure, _exception(failure.traceback)))
    return f"{_who_and_when(failure)}: {words}" if words else _who_and_when(failure)


def _exception(traceback: str) -> str:
    """Return the last line of a traceback if it names an exception. The last line of a stack is a place."""
    last = (traceback.rstrip().splitlines() or [""])[-1]
    return last if re.match(r"[A-Za-z_][\w.]*(:|$)", last) else ""


def _who_and_when(failure: Failure) -> str:
    return f"{blamed(failure)}: {failure.cause} {when(failure)}"


def _with_ending(failure: Failure, words: str) -> str:
    """Return the words with the signal or the exit code in front, unless they name it."""
    end = ending(failure)
    if not end or end in words:
        return words
    return f"{end}: {words}" if words else end


def blamed(failure: Failure) -> str:
    """Return who failed: a rank, else a pod, else the job."""
    return f"rank {failure.rank}" if failure.rank is not None else failure.pod or "the job"


def ending(failure: Failure) -> str:
    """Return the signal or the exit code of a failure; "" if it has none."""
    return failure.signal or (f"exit code {failure.exitCode}" if failure.exitCode is not None else "")


def when(failure: Failure) -> str:
    """Return the last step that was completed before a failure, in words. That is the one way to count: where a script
    fails between two steps is not known, since it is observed only at its optimizer."""
    if not failure.step and failure.cause != Cause.CHECKPOINT_FAILED:
        return "before any completed step was seen"
    return f"after step {failure.step}"


def failed_when(failure: Failure) -> str:
    """Return the round and the time of a failure as a sentence; "" if the time isn't known."""
    if not failure.time:
        return ""
    return f"It happened in round {failure.round}, at {failure.time[:19].replace('T', ' ')} UTC."


def cut(words: str) -> str:
    """Return the first line, at most MESSAGE_LIMIT characters long."""
    words = (words.strip().splitlines() or [""])[0]
    return words if len(words) <= MESSAGE_LIMIT else words[: MESSAGE_LIMIT - 3] + "..."


def recovered(recovery: Recovery) -> str:
    """Return a closed recovery as a clause."""
    assert recovery.totalSeconds is not None
    # The time of a hang counts from the last step, long before its failure is reported.
    since = "its last step" if recovery.cause == Cause.HANG else "the failure"
    text = f"training goes on in round {recovery.round}, {seconds(recovery.totalSeconds)} after {since}"
    if recovery.resumedStep is not None:
        text += f"; it continues after step {recovery.resumedStep}"
    if recovery.lostSteps is not None:
        lost = f"{counted(recovery.lostSteps, 'step')} must be done again" if recovery.lostSteps else "no step was lost"
        text += f", and {lost}"
    return text


def has_steps(status: JobState) -> bool:
    """Return whether any step of the job is known. For a script without an optimizer of torch, none is."""
    return bool(status.progress.step or status.progress.highestStep)


def _phase(status: JobState, scripted: bool) -> News | None:
    if status.phase is JobPhase.STARTING:
        return News("starting", f"round {status.round}")
    if status.phase is JobPhase.RUNNING:
        return News("running", _began(status))
    if status.phase is JobPhase.RESIZING:
        return News("resizing", _stopping(status, scripted) if status.stopAt else "the number of pods changes")
    if status.phase is JobPhase.SUSPENDING:
        return News("stopping", _stopping(status, scripted), Tone.WARNING)
    if status.phase is JobPhase.SUSPENDED:
        return News("suspended", _stopped(status), Tone.WARNING)
    if status.phase is JobPhase.HELD:
        held = next((c.message for c in status.conditions if c.type == "Held"), "")
        return News("held", held, Tone.WARNING)
    if status.phase is JobPhase.SUCCEEDED:
        told = f", loss {loss(status.progress.loss)}" if status.progress.loss else ""
        return News("succeeded", f"{reached(status)}{told}", Tone.GOOD)
    if status.phase is JobPhase.FAILED:
        return News("failed", _why_failed(status), Tone.BAD)
    return None


def _why_failed(status: JobState) -> str:
    """Return the whole reason for which a job failed; its condition has only the beginning."""
    failure = status.lastFailure
    if failure is not None and failure.message:
        return f"rank {failure.rank}: {failure.message}" if failure.rank is not None else failure.message
    failed = next((c.message for c in status.conditions if c.type == "Failed" and c.message), "")
    return failed or "see the last failure"


def _began(status: JobState) -> str:
    """Return where training goes on, as far as it is known."""
    if script_step_count.is_known(status):
        return f"from step {status.progress.step}"
    return "steps are counted again from the restart; the step where it began is not known"


def reached(status: JobState) -> str:
    """Return the step of a job in words. A job of the built-in trainer has steps before its first one is known, and
    the step of a script may be unknown after a restart."""
    if not script_step_count.is_known(status):
        steps = counted(status.progress.step, "step")
        return f"{steps} since the last restart; the step where that restart began is not known"
    if status.phase is JobPhase.PENDING and not status.progress.highestStep:
        return "no step yet"
    known = has_steps(status) or status.progress.totalSteps
    return f"step {status.progress.step}" if known else "no step is known"


def _stopping(status: JobState, scripted: bool) -> str:
    """Return what ranks do that are asked to stop. It is not known here whether a script uses run.steps()."""
    if not scripted:
        return f"all ranks stop {_stop(status)}"
    return (
        f"your script is asked to stop: with run.steps() it saves and stops {_stop(status)}, otherwise it gets SIGTERM"
    )


def _stopped(status: JobState) -> str:
    """Return what ranks did that were asked to stop. Of the saves of a script, only torch.save is known."""
    if status.checkpoint is not None:
        return f"saved at step {status.checkpoint.step}"
    saved = status.progress.lastSave
    return "all ranks have ended" + (f"; the script's last torch.save was after step {saved}" if saved else "")


def _stop(status: JobState) -> str:
    """Return where all ranks stop. They agree on a step some way ahead, which the job may not have, and on a later
    one if a rank had passed that step already. If no step of a job is known, there is no step to stop after."""
    last = status.progress.totalSteps
    if not has_steps(status):
        return "soon"
    if last and status.stopAt and status.stopAt >= last:
        return f"after step {last}, the last one"
    return f"after step {status.stopAt} or soon after" if status.stopAt else "soon"
