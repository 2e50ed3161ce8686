"""`trainmaster run`: a job on this machine, from its file to its end."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob, Framework
from trainmaster_operator.cli import output_folder, resumed_run
from trainmaster_operator.cli.fault_injection import run_faults
from trainmaster_operator.cli.job_files.validate_job import load_job
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.run import lasting_output, operator_address
from trainmaster_operator.cli.run.prepared_run import Prepared
from trainmaster_operator.cli.run.resume_message import what_failed_before
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cli.this_machine import cuda_devices, device_plan, local_run_checks, script_interpreter
from trainmaster_operator.cli.this_machine.cuda_devices import DeviceLocks
from trainmaster_operator.cli.this_machine.device_plan import DevicePlan, NoDevices
from trainmaster_operator.planning.facts.job_state import JobPhase


@dataclass(frozen=True)
class RunOptions:
    """The arguments of `trainmaster run`."""

    job: Path
    out: Path | None = None
    faults: tuple[str, ...] = ()
    port: int = 0
    plain: bool = False
    quiet: bool = False  # What rank 0 prints is not shown.
    fresh: bool = False
    digests: bool = False  # Digests of all states are written after each step.
    pods_as_nodes: bool = False  # Local ranks are numbered within each pod.


def run(options: RunOptions) -> int:
    """Run a job. Return 0 if it succeeded, 1 if it failed, 3 if it succeeded and a requested fault never happened,
    130 if it was stopped. Raise Refusal."""
    prepared = prepare(options)
    if isinstance(prepared, str):
        sys.stdout.write(prepared + "\n")
        return 0
    from trainmaster_operator.cli.run.local_run import LocalRun

    try:
        with lasting_output.lasting(prepared.folder.path):
            return asyncio.run(LocalRun(prepared, options.plain, options.quiet).run())
    finally:
        prepared.control.close()
        prepared.folder.release()
        prepared.locks.release()


def prepare(options: RunOptions) -> Prepared | str:
    """Return a run that has passed all checks, or a text if there is nothing to do. Raise Refusal before anything is
    created."""
    document, given = load_job(options.job, here=Path.cwd())
    out = local_run_checks.absolute(options.out or Path("runs") / given.metadata.name, Path.cwd())
    localized = local_run_checks.localized(document.value, Path.cwd(), out)
    job = DistributedTrainingJob.model_validate(localized)
    encoded_faults = run_faults.parse(options.faults, job)
    python = None if job.spec.framework is Framework.TRAINMASTER else script_interpreter.of_job(options.job, job)

    before = output_folder.read_status(out, fresh=options.fresh)
    if before is not None:
        resumed_run.check_name(out, before, job)
    if before is not None and not options.fresh:
        resumed_run.check_same_job(out, before, job)
        finished = state_of(before).phase is JobPhase.SUCCEEDED and not _longer(before, job)
        run_faults.refuse_what_is_over(options.faults, encoded_faults, before, finished=finished)
        if finished:
            return f"{out}: job {job.metadata.name} has succeeded already; --fresh runs it again from the first step"
        resumed_run.check_steps(out, before, job)
    resumes = before is not None and not options.fresh
    with ExitStack() as undo:
        control = undo.enter_context(operator_address.listen(options.port))
        locks = DeviceLocks(cuda_devices.lock_folder(os.environ))
        undo.callback(locks.release)
        chosen = _choose_devices(options, job, locks)
        folder = output_folder.OutputFolder.claim(out)
        undo.callback(folder.release)
        if repr(output_folder.read_status(out, fresh=options.fresh)) != repr(before):  # NaN is not equal to itself.
            raise Refusal(f"{out}: another run has used this folder in this moment; give the same command again")
        if options.fresh:
            folder.clear()
        undo.pop_all()
    if before is not None and resumes:
        assert job.spec.checkpoint.directory is not None
        last_round = resumed_run.highest_round(Path(job.spec.checkpoint.directory))
        resource = resumed_run.resumed_resource(before, localized, last_round)
    else:
        resource = resumed_run.first_resource(localized)
    return Prepared(
        job=job,
        resource=resource,
        faults=encoded_faults,
        folder=folder,
        control=control,
        resumes=resumes,
        command=_command(options),
        devices=chosen,
        locks=locks,
        digests=options.digests,
        python=python,
        pods_as_nodes=options.pods_as_nodes or chosen.each > 0,
        failed_before=what_failed_before(state_of(before)) if before is not None and resumes else "",
    )


def _command(options: RunOptions) -> str:
    out = ["--out", str(options.out)] if options.out else []
    nodes = ["--pods-as-nodes"] if options.pods_as_nodes else []
    return shlex.join(["trainmaster", "run", str(options.job), *out, *nodes])


def _choose_devices(options: RunOptions, job: DistributedTrainingJob, locks: DeviceLocks) -> DevicePlan:
    """Return the devices of the run. Raise Refusal if the run asks for devices that it cannot get."""
    try:
        need = device_plan.need(job.spec, pods_as_nodes=options.pods_as_nodes)
        present = cuda_devices.present(os.environ) if need is not None else None
        if need is None or not present or need.asked == "CPU":
            return device_plan.decide(need, present, [])
        with locks.choosing():
            chosen = device_plan.decide(need, present, locks.take(present, need.most))
            if not chosen.names:
                locks.release()
        return chosen
    except NoDevices as error:
        raise Refusal(f"{options.job}: {error}") from None


def _longer(before: dict[str, Any], job: DistributedTrainingJob) -> bool:
    """Return whether a job that has ended has more steps now."""
    had = (before["spec"].get("training") or {}).get("steps", 0)
    return job.spec.training is not None and job.spec.training.steps > int(had)
