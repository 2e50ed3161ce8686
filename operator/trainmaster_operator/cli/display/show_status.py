"""`trainmaster status`: the state of a run on this machine, from its status.yaml, or of a job on a cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.api.recovery_spec import BudgetSpec
from trainmaster_operator.cli import disruption_budgets, output_folder
from trainmaster_operator.cli.display import last_lines, live_display, plain_display, pod_rows, rank_pids, standstill
from trainmaster_operator.cli.display.memory_track import MemoryTrack
from trainmaster_operator.cli.display.scenes import Scene, scene_of_job, scene_of_run
from trainmaster_operator.cli.display.status_diff import described, described_whole, failed_when, reached
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.stored_state import standing, state_of
from trainmaster_operator.planning.facts import script_step_count
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.failure import failure_budget
from trainmaster_operator.planning.failure.failure_budget import LADDER

_TOLD = ("Running", "Recovering", "Suspended", "Complete")  # Conditions that the phase already shows.


def of_run(out: Path) -> int:
    """Show the state of a run on this machine, and return 0. Raise Refusal if there is no run."""
    return show_run(out, *output_folder.look(out))


def show_run(out: Path, resource: Mapping[str, Any], goes_on: bool) -> int:
    """Show the state of a run on this machine, and return 0. `resource`, `goes_on`: as `output_folder.look` returns
    them. Raise Refusal."""
    job = state_of(resource)
    scene = scene_of_run(resource, out)
    scene.memory = MemoryTrack.read(out / output_folder.MEMORY).describe_nearest()
    scene.words = last_lines.last_words(out, job)
    scene.goes_on = goes_on
    state, sentence = standing(out, resource, goes_on)
    console = Console(file=sys.stdout, highlight=False)
    age = standstill.last_step(job, time.time()) if goes_on and scene.standstill is None else ""
    progress = "  ".join(filter(None, [_progress(scene, goes_on), age]))
    colour = live_display.PHASE_STYLES.get(job.phase, "bold")
    console.print(Text.assemble(f"{scene.name}: ", (state, colour), f"  {progress}"), soft_wrap=True)
    if goes_on and (pids := rank_pids.describe(out / output_folder.PIDS)):
        console.print(pids, soft_wrap=True)
    _show_suspicion(scene, console)
    _show_last_failure(job, resource, console)
    page = out / output_folder.REPORT
    report = str(page) if page.exists() else f"`trainmaster report {out}` writes it"
    live_display.summary(scene, console, report, state_is_told=True)
    if sentence:
        console.print(sentence, soft_wrap=True, markup=False)
    return 0


def _progress(scene: Scene, goes_on: bool) -> str:
    """Return the progress on one line. If the run does not continue, its remaining time is left out, and also its
    speed, unless it has ended."""
    progress = scene.status.progress
    begun = progress.highestStep or (scene.total and scene.status.phase is not JobPhase.PENDING)
    if not begun or not script_step_count.is_known(scene.status):
        return reached(scene.status)
    if not goes_on:
        speed: dict[str, Any] = {} if scene.status.phase.finished else {"tokensPerSecond": 0.0, "stepsPerSecond": 0.0}
        stands = progress.model_copy(update={"etaSeconds": None, **speed})
        scene = replace(scene, status=scene.status.model_copy(update={"progress": stands}))
    return f"step {plain_display.describe(scene)}"


def of_job(where: Where, name: str) -> int:
    """Show the state of a job on a cluster, and return 0. Raise Refusal if there is no such job."""
    return asyncio.run(_of_job(where, name))


async def _of_job(where: Where, name: str) -> int:
    # These are imported here, because a local run needs no client of Kubernetes.
    from trainmaster_operator.cli import operator_presence
    from trainmaster_operator.cli.cluster_connection import connected
    from trainmaster_operator.cli.find_job import find
    from trainmaster_operator.cluster.port import POD, ApiError
    from trainmaster_operator.runtime.cache.cache_records import pod_entry

    async with connected(where) as target:
        job = await find(target, name)
        listing = await target.cluster.list(POD, target.namespace, {f"{GROUP}/job": name})
        drains: list[str] = []
        if target.disruption_budgets is not None:
            with suppress(ApiError):  # This is only a hint, and not every user has the right to read budgets.
                drains = disruption_budgets.refusals(await target.disruption_budgets(target.namespace), listing.items)
        scene = scene_of_job(job)
        gone = await operator_presence.absence(target.cluster, job, scene.status, listing.items, time.time())
    scene.unled = gone.sentence if gone is not None else ""
    pods = [pod_entry(pod, None, 0.0).record for pod in listing.items]
    scene.pods = [*pods, *operator_presence.missing_pods(name, scene.status, pods, gone)]
    console = Console(file=sys.stdout, highlight=False)
    show(scene, console, job)
    for words in drains:
        console.print(words, soft_wrap=True, markup=False)
    return 0


def show(scene: Scene, console: Console, resource: Mapping[str, Any]) -> None:
    """Print a job on a cluster: its progress, its problems and their reasons, its recoveries and its pods. `resource`:
    the job as it is stored."""
    job = scene.status
    progress = _progress(scene, goes_on=job.phase is JobPhase.RUNNING)
    console.print(f"{scene.name} in namespace {scene.namespace}: {job.phase.value}  {progress}")
    if scene.unled:
        console.print(scene.unled, soft_wrap=True, markup=False)
    for condition in job.conditions:
        name, wrong = ("Not scheduled", "False") if condition.type == "Scheduled" else (condition.type, "True")
        if condition.message and condition.status == wrong and condition.type not in _TOLD:
            console.print(f"{name}: {condition.reason}: {condition.message}", soft_wrap=True, markup=False)
    _show_suspicion(scene, console)
    if job.lastFailure:
        _show_last_failure(job, resource, console)
        if job.phase is JobPhase.FAILED and job.lastFailure.traceback:
            console.print(job.lastFailure.traceback.rstrip(), soft_wrap=True, markup=False)
    live_display.recovered(job, console)
    if scene.pods:
        console.print()
        console.print(pod_rows.table(scene.pods))


def _show_suspicion(scene: Scene, console: Console) -> None:
    suspicion = scene.status.suspicion
    if suspicion is not None and scene.status.phase is JobPhase.RUNNING and scene.goes_on:
        console.print(f"Ranks may hang: {suspicion.message}", soft_wrap=True, markup=False)


def _show_last_failure(job: JobState, resource: Mapping[str, Any], console: Console) -> None:
    if job.lastFailure:
        describe = described_whole if job.phase is JobPhase.FAILED else described
        failure = describe(job.lastFailure)
        console.print(f"Last failure: {failure}", soft_wrap=True, markup=False)
        if job.phase is not JobPhase.FAILED and (time_and_round := failed_when(job.lastFailure)):
            console.print(time_and_round, soft_wrap=True, markup=False)
        if not job.phase.finished and (words := restarts_left(job, resource["spec"], time.time())):
            console.print(words, soft_wrap=True, markup=False)


def restarts_left(job: JobState, spec: Mapping[str, Any], now: float) -> str:
    """Return how many restarts the budget still allows if the last failure comes again without progress; "" if it has
    used none, or if another version wrote the budget."""
    if job.lastFailure is None or not job.spent:
        return ""
    try:
        budget = BudgetSpec.model_validate((spec.get("recovery") or {}).get("budget") or {})
    except ValidationError:
        return ""
    cause, step = job.lastFailure.cause, job.progress.highestStep
    in_place, pod, full = (failure_budget.left(budget, job.spent, cause, rung, step, now) for rung in LADDER)
    return (
        f"If the cause {cause} comes again before the job makes progress, these restarts are left: {in_place} in "
        f"place, {pod} with a new pod, {full} with all pods new"
    )
