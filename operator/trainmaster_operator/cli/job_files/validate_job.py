"""`trainmaster validate`: reads a job from its file, or lists everything that is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainmaster.contract.config import ParallelismConfig, TrainingSpec
from trainmaster_operator.api.checkpoint_spec import CheckpointSpec
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.validation import (
    device_count,
    job_validation,
    launch_command,
    partial_model,
    unknown_pod_fields,
)
from trainmaster_operator.api.workers_spec import WorkersSpec
from trainmaster_operator.cli import kubeconfig
from trainmaster_operator.cli.job_files.job_document import Document, in_namespace, load, refuse
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.this_machine import local_run_checks, trainer_checks
from trainmaster_operator.planning.facts.counted_nouns import counted

LOCAL_ONLY = " (checked for a run on this machine; with --cluster it is not checked)"
"""The end of each problem that `trainmaster validate` finds on this machine only; the image of the job may have what
is missing here."""


def load_job(
    file: Path, *, here: Path | None = None, on_cluster: bool = False, hint: str = ""
) -> tuple[Document, DistributedTrainingJob]:
    """Return the job in a file. `here`: the directory for its relative paths, if it is to run on this machine.
    `on_cluster`: it is to run on a cluster. `hint`: the end of each problem that only a run on this machine has.

    Without `here`, a cluster checks the field names of its pod template. Raise Refusal with all problems of the job,
    one a line.
    """
    document = load(file)
    spec = document.value.get("spec") if isinstance(document.value, dict) else None
    launch_command.complete(spec)
    problems = job_validation.validate(document.value, on_cluster=on_cluster)
    problems += [job_validation.Problem(("spec", *path), words) for path, words in launch_command.uncounted(spec)]
    if isinstance(spec, dict):
        problems += _of_the_trainer(spec, planned=False)
        if here is not None:
            local = local_run_checks.problems(partial_model.read(JobSpec, spec), here)
            # Problems that exist everywhere were found before, and the hint is not true for them.
            found = [one for one in local if one not in problems]
            problems += [job_validation.Problem(one.path, one.message + hint) for one in found]
            problems += _names_in_template(spec)
    refuse(document, problems)
    return document, DistributedTrainingJob.model_validate({k: v for k, v in document.value.items() if k != "status"})


def load_training(file: Path) -> tuple[TrainingSpec | None, WorkersSpec, CheckpointSpec]:
    """Return (what a job trains, its workers, its checkpoints) for a layout plan. Its parallelism and its number of
    ranks need not fit each other.

    Raise Refusal with all problems of the job, one a line.
    """
    document = load(file)
    problems = job_validation.validate(document.value, sized=False)
    spec = document.value.get("spec") if isinstance(document.value, dict) else None
    if isinstance(spec, dict):
        problems += _of_the_trainer(spec, planned=True)
    refuse(document, problems)
    assert isinstance(spec, dict)
    workers = WorkersSpec.model_validate(spec.get("workers", {}))
    return _training(spec), workers, CheckpointSpec.model_validate(spec.get("checkpoint", {}))


def validate(file: Path, *, cluster: Where | None = None) -> int:
    """Print that the job is valid, and return 0. Raise Refusal with all its problems.

    `cluster`: the job need not run on this machine; if there is a kubeconfig, a dry run of the job and of one of its
    pods is made on that cluster.
    """
    here = None if cluster else Path.cwd()
    document, job = load_job(file, here=here, on_cluster=cluster is not None, hint=LOCAL_ONLY)
    tried = ""
    if cluster is not None:
        if cluster.given or kubeconfig.is_there():
            import asyncio  # it takes a tenth of the time that the command takes without a cluster

            tried = f"; it was checked on {asyncio.run(_try_on_cluster(document, cluster))}"
        else:
            refuse(document, _names_in_template(document.value["spec"]))
            tried = "; no cluster has checked it, because there is no kubeconfig"
    warn(job, on_cluster=cluster is not None)
    sys.stdout.write(f"{file}: job {job.metadata.name} is valid ({_size(job.spec)}){tried}\n")
    return 0


def _size(spec: JobSpec) -> str:
    """Return the number of ranks of a job in words. A launcher's option applies to each pod, which a person who has
    moved its line into a job may not expect, so the two factors are named then."""
    ranks = counted(spec.world_size, "rank")
    option = launch_command.option_for_each_pod(spec)
    if not option:
        return ranks
    workers = spec.workers
    return f"{ranks}: {counted(workers.replicas, 'pod')} x {counted(workers.ranksPerPod, 'rank')} of {option}"


def warn(job: DistributedTrainingJob, *, on_cluster: bool) -> None:
    """Print on standard error what is probably a mistake in a valid job. `on_cluster`: it is to run on a cluster."""
    found = list(device_count.warnings(job.spec))
    if on_cluster:
        from trainmaster_operator.planning.lifecycle.checkpoint_conditions import IN_PODS, is_in_pods

        if is_in_pods(job.spec):
            found.append(IN_PODS.format(folder=job.spec.checkpoint.directory))
    sys.stderr.writelines(f"trainmaster: warning: {words}\n" for words in found)


async def _try_on_cluster(document: Document, where: Where) -> str:
    """Return the address of the cluster. Raise Refusal if the cluster would refuse the job or its pods."""
    from trainmaster_operator.cli.cluster_connection import connected
    from trainmaster_operator.cli.job_files.dry_run import try_job

    async with connected(where) as target:
        await try_job(target, document, in_namespace(document, target.namespace, where.namespace))
        return target.address


def _names_in_template(spec: dict[str, Any]) -> Iterator[job_validation.Problem]:
    workers = spec.get("workers")
    return unknown_pod_fields.problems(workers.get("template") if isinstance(workers, dict) else None)


def _of_the_trainer(spec: dict[str, Any], *, planned: bool) -> Iterator[job_validation.Problem]:
    """Yield the problems that the trainer finds, as far as the job's own models find none. `planned`: its
    parallelism is ignored."""
    options = list(trainer_checks.option_problems(spec.get("training")))
    yield from options
    training = _training(spec)
    if training is not None and not options:
        if planned:
            training = training.model_copy(update={"parallelism": ParallelismConfig()})
        yield from trainer_checks.layout_problems(training)


def _training(spec: dict[str, Any]) -> TrainingSpec | None:
    """Return the training of a spec; None if there is none or it is invalid."""
    try:
        return TrainingSpec.model_validate(spec.get("training"))
    except ValidationError:
        return None
