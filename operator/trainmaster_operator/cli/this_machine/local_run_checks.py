"""Checks of this machine before a local run starts: paths exist, and they are made absolute for the pods."""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmaster.contract.config import DataConfig
from trainmaster.contract.launch import LaunchRefused, UnknownOption, parse
from trainmaster.contract.launch.framework_packages import PACKAGES
from trainmaster.contract.launch.own_parser_process import OwnParsers
from trainmaster_operator.api.job_spec import CONTROLLER, Framework, JobSpec
from trainmaster_operator.api.validation import partial_model, pod_template
from trainmaster_operator.api.validation.problem import Problem, shown
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.this_machine import (
    cuda_devices,
    device_plan,
    script_checks,
    script_interpreter,
    trainer_checks,
)
from trainmaster_operator.local import container_variables
from trainmaster_operator.local.inherited_variables import base_environment

_CONTAINER = ("spec", "workers", "template", "spec", "containers", 0)
_BARE = script_checks.PYTHONS
_RESTART = ("spec", "workers", "restartCommand")


def localized(document: dict[str, Any], directory: Path, out: Path) -> dict[str, Any]:
    """Return a valid job with absolute paths, completed by `directory`, and with its checkpoints in the output
    directory."""
    job: dict[str, Any] = copy.deepcopy(document)
    job.pop("status", None)
    job["metadata"].setdefault("namespace", "default")
    spec = job["spec"]
    training = spec.get("training")
    evaluation = training.get("evaluation") if training is not None else None
    for part in (training, evaluation):
        if part is not None and not part["data"]["path"].startswith("@"):
            part["data"]["path"] = str(absolute(part["data"]["path"], directory))
        if part is not None and "tokenizer" in part["data"].get("options", {}):
            part["data"]["options"]["tokenizer"] = str(absolute(part["data"]["options"]["tokenizer"], directory))
    checkpoint = spec.setdefault("checkpoint", {})
    # A directory on a volume of the cluster does not exist on this machine.
    given = None if checkpoint.pop("volume", None) else checkpoint.get("directory")
    checkpoint["directory"] = str(absolute(given or str(out / "checkpoints"), directory))
    if checkpoint.get("resume", "Auto") not in ("Auto", "Never"):
        checkpoint["resume"] = str(absolute(checkpoint["resume"], directory))
    if spec.get("framework", "Trainmaster") != "Trainmaster":
        container = spec["workers"]["template"]["spec"]["containers"][0]
        container["workingDir"] = str(absolute(container.get("workingDir", "."), directory))
    return job


def problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    """Yield everything that would fail at once on this machine. `directory` completes relative paths.

    `spec`: invalid fields may be absent (`partial_model`); checks that need them are skipped.
    """
    checks = (
        _suspended,
        _of_clusters,
        _data_problems,
        _device_problems,
        _command_problems,
        _variable_problems,
        _checkpoint_problems,
        _checkpoint_folder_problems,
    )
    for check in checks:
        yield from partial_model.collect_findings(lambda check=check: check(spec, directory))  # type: ignore[misc]


def _suspended(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.suspend:
        yield Problem(("spec", "suspend"), "is true, and a suspended job does not run; remove the field")


def _of_clusters(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    """Yield fields that only an operator on a cluster uses."""
    if spec.ttlSecondsAfterFinished is not None:
        words = "only a cluster deletes finished jobs, a run on this machine keeps its output folder; leave it out"
        yield Problem(("spec", "ttlSecondsAfterFinished"), words)
    if spec.managedBy not in (None, CONTROLLER):
        words = f"{spec.managedBy} is a controller on a cluster, and this machine has none; leave it out"
        yield Problem(("spec", "managedBy"), words)


def _data_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    training = spec.training
    if training is None:
        return
    evaluation = training.evaluation
    if evaluation is not None:
        evaluation = evaluation.model_copy(update={"data": _located(evaluation.data, directory)})
    changes = {"data": _located(training.data, directory), "evaluation": evaluation}
    known = partial_model.collect_findings(lambda: [spec.world_size])
    yield from trainer_checks.data_problems(training.model_copy(update=changes), known[0] if known else 1)


def _device_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    """Yield problems with devices. Whether other runs hold the devices is found out when the job runs."""
    if any(pod_template.problems(spec.workers.template)):
        return
    try:
        need = device_plan.need(spec)
        if need is not None and need.asked in ("CUDA", "MPS"):
            present = cuda_devices.present(os.environ)
            device_plan.decide(need, present, present or [])
    except device_plan.NoDevices as error:
        yield error.problem


def _located(data: DataConfig, directory: Path) -> DataConfig:
    path = data.path if data.path.startswith("@") else str(absolute(data.path, directory))
    options = data.options
    if isinstance(tokenizer := options.get("tokenizer"), str):
        options = {**options, "tokenizer": str(absolute(tokenizer, directory))}
    return data.model_copy(update={"path": path, "options": options})


def _command_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.framework is Framework.TRAINMASTER or any(pod_template.problems(spec.workers.template)):
        return
    container = spec.container()
    if any(container_variables.problems(container)):
        return
    given = container.get("workingDir") or "."
    if not isinstance(given, str):
        yield Problem((*_CONTAINER, "workingDir"), f"the path of a folder is expected, not {shown(given)}")
        return
    folder = absolute(given, directory)
    if spec.command() and not os.path.isdir(folder):
        yield Problem((*_CONTAINER, "workingDir"), f"{folder} is not a folder")
        return
    known = container_variables.of_container(container, {})
    package = PACKAGES.get(spec.framework.value, "torch")
    for place, argv in (((*_CONTAINER, "command"), spec.command()), (_RESTART, spec.workers.restartCommand or [])):
        for words in _of_command(container_variables.expand_all(argv, known), folder, known.get("PATH"), package):
            yield Problem(place, words)


def _of_command(argv: list[str], folder: Path, search: str | None, package: str) -> Iterator[str]:
    """Yield what would fail at once in a command that runs in a directory of this machine. `search`: the PATH of the
    container; None if it has none of its own. `package`: that of the framework."""
    if not argv:
        return
    try:
        command = parse(argv)
    except UnknownOption:
        python = script_interpreter.choose(os.environ.get("PATH", os.defpath)).path or sys.executable
        parsers = OwnParsers(os.environ, interpreter=lambda name: python if name in _BARE else name, folder=str(folder))
        try:
            command = parse(argv, parsers.read)
        except LaunchRefused as refusal:
            yield str(refusal)
            return
    except LaunchRefused:
        return  # `job_validation` reports it.
    program, entry = command.argv[0], command.entry
    searched = search or base_environment(os.environ)["PATH"]
    yield from script_checks.program_problems(program, folder, searched)
    script = entry["path"] if entry is not None and entry["kind"] == "script" else None
    if script is not None and "$" not in script:
        # A container with a PATH of its own may find another Python, and so may a command that names one.
        bare = search is None and program in _BARE
        own = bare and not script_interpreter.choose(os.environ.get("PATH", os.defpath), package).path
        yield from script_checks.script_problems(folder / script, own_python=own)


def _variable_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if not any(pod_template.problems(spec.workers.template)):
        for place, words in container_variables.problems(spec.container()):
            yield Problem((*_CONTAINER, *place), words)


def _checkpoint_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.checkpoint.resume in ("Auto", "Never"):
        return
    path = ("spec", "checkpoint", "resume")
    directory = absolute(spec.checkpoint.resume, directory)
    manifest = directory / "manifest.json"
    if not os.path.isdir(directory):
        yield Problem(path, f"there is no checkpoint {directory}; Auto, Never or the folder of one is expected")
    elif not os.path.isfile(manifest):
        yield Problem(path, f"{directory} is not a complete checkpoint: it has no manifest.json")
    else:
        try:
            content = json.loads(manifest.read_bytes())
        except (OSError, ValueError) as error:
            yield Problem(path, f"{manifest} can't be read: {error}")
            return
        if not isinstance(content, dict):
            yield Problem(path, f"{manifest} can't be read: it holds no JSON object")
        elif spec.training is not None:
            yield from trainer_checks.checkpoint_problems(spec.training, content.get("model"), directory)


def _checkpoint_folder_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    """Yield why checkpoints can't be written to the folder that the job names. It is tried by a folder that is removed
    at once, because the permissions of a folder don't say what its file system allows."""
    if spec.checkpoint.directory is None or spec.checkpoint.volume is not None:
        return
    folder = absolute(spec.checkpoint.directory, directory)
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    try:
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as error:
        does = "can't be written to" if there == folder else f"can't be created in {there}"
        words = f"{folder} {does}: {why(error)}; choose another folder"
        yield Problem(("spec", "checkpoint", "directory"), words)


def absolute(path: str | Path, directory: Path) -> Path:
    """Return a path that `directory` completes. Raise Refusal for one that cannot be written into a job."""
    try:
        # Unlike that of Path, this `expanduser` leaves the home of an unknown user as it is, as shells do.
        found = (directory / os.path.expanduser(path)).resolve()
        str(found).encode()
    except RuntimeError:
        raise Refusal(f"{path}: leads in a circle of symbolic links") from None
    except ValueError:  # A null character, bytes that are no text, or characters that the locale cannot encode.
        raise Refusal(f"{str(path)!a}: a path in UTF-8 without null characters is expected") from None
    return found
