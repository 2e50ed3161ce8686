"""What the status of a job says, for all commands: from a cluster, or from a run's status.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.compact_lists import unpack_ranges
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import NEEDS_MIGRATION, former_status
from trainmaster_operator.planning.status_mapping import OtherLayout, read_status

_AGAIN = "To continue it, give the same trainmaster run command again."
WAS_STOPPED = f"The run was stopped. {_AGAIN}"
"""What is said of a run that has stopped because somebody asked for it."""


def state_of(job: Mapping[str, Any]) -> JobState:
    """Return the state in a job's status. Raise Refusal if another version of Trainmaster wrote it."""
    status = job.get("status") or {}
    if former_status(status):
        raise Refusal(
            f"{job['metadata']['name']}: {NEEDS_MIGRATION}: an earlier version of trainmaster wrote its status, which "
            f"this version doesn't read; its phase is {status.get('phase', 'unknown')}"
        )
    try:
        return read_status(status)
    except (OtherLayout, ValidationError) as error:
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


def standing(out: Path, job: JobState, goes_on: bool) -> tuple[str, str]:
    """Return the state of a run on this machine in one word and in a sentence. `goes_on`: its command is running."""
    if goes_on:
        return job.phase.value, f"Its command is running; `trainmaster logs {out} --follow` shows what rank 0 prints."
    if job.phase.finished:
        return job.phase.value, ""
    if job.phase is JobPhase.SUSPENDED:
        return job.phase.value, WAS_STOPPED
    was = job.phase.value.lower()
    return "Interrupted", f"The command of the run ended while the job was {was}. {_AGAIN}"
