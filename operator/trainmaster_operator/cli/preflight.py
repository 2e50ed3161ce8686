"""What must be true on this machine before a local run starts: paths exist, made absolute for the pods."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmaster.contract.config import DataConfig
from trainmaster_operator.api import partly, template
from trainmaster_operator.api.job import Framework, JobSpec
from trainmaster_operator.api.problem import Problem
from trainmaster_operator.cli import image

_CONTAINER = ("spec", "workers", "template", "spec", "containers", 0)
_PROVIDED = ("python", "python3", "torchrun", "accelerate")  # the agent runs these with its own interpreter


def localized(document: dict[str, Any], directory: Path, out: Path) -> dict[str, Any]:
    """A valid job with the paths that `directory` completes, and with its checkpoints in the output folder."""
    job: dict[str, Any] = copy.deepcopy(document)
    job.pop("status", None)
    job["metadata"].setdefault("namespace", "default")
    spec = job["spec"]
    training = spec.get("training")
    evaluation = training.get("evaluation") if training is not None else None
    for part in (training, evaluation):
        if part is not None and not part["data"]["path"].startswith("@"):
            part["data"]["path"] = str(_absolute(part["data"]["path"], directory))
    checkpoint = spec.setdefault("checkpoint", {})
    # A directory on a volume of the cluster is none of this machine's.
    given = None if checkpoint.pop("volume", None) else checkpoint.get("directory")
    checkpoint["directory"] = str(_absolute(given or str(out / "checkpoints"), directory))
    if checkpoint.get("resume", "Auto") not in ("Auto", "Never"):
        checkpoint["resume"] = str(_absolute(checkpoint["resume"], directory))
    if spec.get("framework", "Trainmaster") != "Trainmaster":
        container = spec["workers"]["template"]["spec"]["containers"][0]
        container["workingDir"] = str(_absolute(container.get("workingDir", "."), directory))
    return job


def problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    """Yield everything that would fail at once on this machine, where `directory` completes paths.

    spec: fields that are wrong may be absent (`partly`); what needs these is not looked at.
    """
    for check in (_suspended, _data_problems, _command_problems, _checkpoint_problems):
        yield from partly.told(lambda check=check: check(spec, directory))  # type: ignore[misc]


def _suspended(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.suspend:
        yield Problem(("spec", "suspend"), "is true: a suspended job doesn't run; leave it out")


def _data_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    training = spec.training
    if training is None:
        return
    evaluation = training.evaluation
    if evaluation is not None:
        evaluation = evaluation.model_copy(update={"data": _located(evaluation.data, directory)})
    changes = {"data": _located(training.data, directory), "evaluation": evaluation}
    known = partly.told(lambda: [spec.world_size])
    yield from image.data_problems(training.model_copy(update=changes), known[0] if known else 1)


def _located(data: DataConfig, directory: Path) -> DataConfig:
    path = data.path if data.path.startswith("@") else str(_absolute(data.path, directory))
    return data.model_copy(update={"path": path})


def _command_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.framework is Framework.TRAINMASTER or any(template.problems(spec.workers.template)):
        return
    command = spec.command()
    if not command:
        return
    working_directory = _absolute(spec.container().get("workingDir") or ".", directory)
    if not working_directory.is_dir():
        yield Problem((*_CONTAINER, "workingDir"), f"{working_directory} is no folder")
        return
    first = command[0]
    if first not in _PROVIDED and not shutil.which(first, path=None) and not (working_directory / first).is_file():
        yield Problem((*_CONTAINER, "command"), f"no program {first} is found")
    script = next((word for word in command[1:] if word.endswith(".py") and not word.startswith("-")), None)
    if script is not None and not (working_directory / script).is_file():
        yield Problem((*_CONTAINER, "command"), f"there is no script {working_directory / script}")


def _checkpoint_problems(spec: JobSpec, directory: Path) -> Iterator[Problem]:
    if spec.checkpoint.resume in ("Auto", "Never"):
        return
    path = ("spec", "checkpoint", "resume")
    directory = _absolute(spec.checkpoint.resume, directory)
    manifest = directory / "manifest.json"
    if not directory.is_dir():
        yield Problem(path, f"there is no checkpoint {directory}; Auto, Never or the folder of one is expected")
    elif not manifest.is_file():
        yield Problem(path, f"{directory} is no complete checkpoint: it holds no manifest.json")
    else:
        try:
            content = json.loads(manifest.read_bytes())
        except (OSError, ValueError) as error:
            yield Problem(path, f"{manifest} can't be read: {error}")
            return
        if not isinstance(content, dict):
            yield Problem(path, f"{manifest} can't be read: it holds no JSON object")
        elif spec.training is not None:
            yield from image.checkpoint_problems(spec.training, content.get("model"), directory)


def _absolute(path: str, directory: Path) -> Path:
    return (directory / Path(path).expanduser()).resolve()
