"""What the status of a job says, for all commands: from a cluster, or from a run's status.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster_operator.api.compact_lists import unpack_ranges
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.terminal_text import all_without_controls
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import NEEDS_MIGRATION, former_status
from trainmaster_operator.planning.status_mapping import OtherLayout, read_status


def state_of(job: Mapping[str, Any]) -> JobState:
    """Return the state in a job's status, with texts that a terminal may show. Raise Refusal if another version of
    Trainmaster wrote it."""
    status = job.get("status") or {}
    if former_status(status):
        raise Refusal(
            f"{job['metadata']['name']}: {NEEDS_MIGRATION}: an earlier version of trainmaster wrote its status, which "
            f"this version doesn't read; its phase is {status.get('phase', 'unknown')}"
        )
    try:
        return read_status(all_without_controls(status))
    except (OtherLayout, ValueError) as error:
        first = str(error).splitlines()[0]
        raise Refusal(f"{job['metadata']['name']}: its status is of another version of trainmaster: {first}") from None


def is_scripted(job: Mapping[str, Any]) -> bool:
    """Return whether the ranks of a job run a user's script instead of the built-in trainer."""
    return bool((job.get("spec") or {}).get("framework", Framework.TRAINMASTER) != Framework.TRAINMASTER)


def slots_in_rank_order(job: dict[str, Any]) -> list[int]:
    """Return the slots of the open round, or of the last one, in the order of their ranks; [] before the first
    round. This also works for jobs of an earlier version, so that their output can be shown. Raise Refusal."""
    status = job.get("status") or {}
    members = status.get("roundMap") or "" if former_status(status) else state_of(job).roundMap
    return list(unpack_ranges(members))


ENDS_WITH_ITS_RANKS = "the run ends when all ranks have ended; a second Ctrl-C ends it at once"
"""What a run waits for that is asked to stop."""
INTERRUPTED = "Interrupted"
"""The state of a run whose command has ended before its job."""


def standing(out: Path, job: Mapping[str, Any], goes_on: bool) -> tuple[str, str]:
    """Return the state of a run on this machine in one word and in a sentence. `goes_on`: its command is running."""
    status = state_of(job)
    phase = status.phase
    if goes_on and (job.get("spec") or {}).get("suspend") and not phase.finished:
        return phase.value, f"Ctrl-C or a signal has asked the run to stop: {ENDS_WITH_ITS_RANKS}."
    if goes_on:
        return phase.value, f"Its command is running; `trainmaster logs {out} --follow` shows what rank 0 prints."
    if phase.finished:
        return phase.value, ""
    if phase is JobPhase.SUSPENDED:
        return phase.value, was_stopped(job, status)
    ended = f"The command of the run ended while the job was {phase.value.lower()}."
    return INTERRUPTED, f"{ended} {how_to_go_on(job, status)}"


def was_stopped(job: Mapping[str, Any], status: JobState) -> str:
    """Return what is said of a run that has stopped because somebody asked for it."""
    return f"The run was stopped. {how_to_go_on(job, status)}"


def how_to_go_on(job: Mapping[str, Any], status: JobState, command: str = "") -> str:
    """Return what a user may type next whose run has ended before its job, and what that does. `command`: that of the
    run; "": it is not known."""
    again = f"give the same command again: {command}" if command else "give the same trainmaster run command again."
    if ((job.get("spec") or {}).get("checkpoint") or {}).get("resume") == "Never":
        return f"To start it again from the first step, since spec.checkpoint.resume is Never, {again}"
    if status.checkpoint is not None:
        return f"To continue it after step {status.checkpoint.step}, {again}"
    if is_scripted(job):
        saved = last_torch_save(status)
        return f"To start the script again, which continues from what it has saved itself{saved}, {again}"
    if status.phase is JobPhase.SUSPENDED:
        return f"Nothing was saved yet. To start it again from the first step, {again}"
    # A run that was interrupted may have saved a checkpoint that its status doesn't name yet.
    return f"To continue it from its newest checkpoint, or from the first step if there is none, {again}"


def last_torch_save(status: JobState) -> str:
    """Return the last save of a script as a clause in brackets; "" if none is known."""
    step = status.progress.lastSave
    return f" (its last torch.save was after step {step})" if step else ""
