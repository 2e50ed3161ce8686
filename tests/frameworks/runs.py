"""Runs a job of a framework in the environment that has it, with the real command, and tells what came of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests import tied
from tests.frameworks import environments

EXAMPLES = environments.ROOT / "examples"
LIMIT_S = 600  # no test asserts on a time: this only ends a run that hangs


@dataclass(frozen=True)
class Subject:
    """A framework and the script that it is tested with. `length`: the option that says how many steps there are."""

    framework: str
    environment: str
    script: str
    length: Sequence[str]
    launcher: Sequence[str] = ("python",)
    options: Sequence[str] = ()
    variables: tuple[tuple[str, str], ...] = ()
    end: int = 60  # steps of a whole run
    saves: int = 10  # steps between two checkpoints of the script

    def saved_before(self, step: int) -> int:
        """Return the newest step with a checkpoint when a rank fails at the end of `step`."""
        return (step - 1) // self.saves * self.saves


_ZERO = Subject("DeepSpeed", "deepspeed", "deepspeed_digits.py", ("--steps", "60"), ("deepspeed", "--num_gpus=1"))
# Those that take longest come first, since tests are handed to workers in this order.
SUBJECTS = {
    "deepspeed": _ZERO,
    "deepspeed-zero-1": replace(_ZERO, options=("--stage", "1")),
    "deepspeed-zero-3": replace(_ZERO, options=("--stage", "3")),
    "tensorflow": Subject("TensorFlow", "tensorflow", "tensorflow_digits.py", ("--steps", "60")),
    "tf-keras": Subject("TensorFlow", "tensorflow", "tf_keras_fit.py", ("--epochs", "4"), saves=15),
    "huggingface": Subject("HuggingFace", "huggingface", "huggingface_digits.py", ("--steps", "60")),
    "lightning": Subject("PyTorch", "lightning", "lightning_digits.py", ("--steps", "60")),
    "horovod": Subject("Horovod", "horovod", "horovod_digits.py", ("--steps", "60")),
    "horovod-tensorflow": Subject("Horovod", "horovod-tensorflow", "horovod_tensorflow_digits.py", ("--steps", "60")),
    "jax": Subject("JAX", "jax", "jax_digits.py", ("--steps", "60")),
    "xgboost": Subject("XGBoost", "xgboost", "xgboost_digits.py", ("--rounds", "60")),
}
SMOKE = tuple({subject.framework: name for name, subject in reversed(SUBJECTS.items())}.values())[::-1]
"""The first example of each framework: CI runs these."""


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    out: Path
    exit_code: int
    output: str

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = yaml.safe_load((self.out / "status.yaml").read_text())["status"]
        return status

    @property
    def log(self) -> str:
        """What all ranks have printed."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.out / "logs").glob("*-worker-*")))

    @property
    def final_losses(self) -> set[str]:
        return set(re.findall(r"final loss (\S+)", self.log))

    @property
    def pids(self) -> list[tuple[int, int]]:
        """(rank, pid) of each process of a rank that there was, in the order of starts of each rank."""
        return [(int(rank), int(pid)) for rank, pid in re.findall(r"rank (\d+) is process (\d+)", self.log)]


def script_words(subject: Subject, folder: Path, pause_s: float) -> list[str]:
    """Return the script of a subject with its arguments. Its checkpoints go to `folder`/saved."""
    script = EXAMPLES / subject.script
    return [str(script), "--folder", str(folder / "saved"), *subject.length, "--pause", str(pause_s), *subject.options]


def job_of(subject: Subject, script: Sequence[str], variables: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    """Return a job of two pods with a rank each."""
    container = {
        "name": "worker",
        "command": [*subject.launcher, *script],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    workers = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "digits"},
        "spec": {"framework": subject.framework, "workers": workers, **spec},
    }


def trainmaster_command(python: Path, folder: Path) -> list[str]:
    """Return the command that runs `folder`/job.yaml."""
    program = [str(python), "-m", "trainmaster_operator.cli.main", "run", str(folder / "job.yaml"), "--plain"]
    return [*program, "--out", str(folder / "out")]


def run(
    subject: Subject,
    folder: Path,
    faults: Sequence[str] = (),
    *,
    pause_s: float = 0.02,
    meanwhile: Sequence[str] = (),
    **spec: Any,
) -> Ended:
    """Run a job of two ranks to its end below `folder`."""
    job = job_of(subject, script_words(subject, folder, pause_s), dict(subject.variables), **spec)
    return run_job(job, environments.python_of(subject.environment), folder, faults, meanwhile)


def run_job(
    job: Mapping[str, Any],
    python: Path,
    folder: Path,
    faults: Sequence[str] = (),
    meanwhile: Sequence[str] = (),
) -> Ended:
    """Run a job to its end below `folder`, by an interpreter. A run that hangs is ended with its whole session.

    `meanwhile`: the words of another command, which is given before the scripts begin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
    arguments = [*trainmaster_command(python, folder), *(word for fault in faults for word in ("--fault", fault))]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    process = tied.popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        start_new_session=True,
    )
    begun = ""
    if meanwhile:
        begun = _first_line(process)  # by then there is a run
        program = [str(python), "-m", "trainmaster_operator.cli.main", *meanwhile]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        begun += done.stdout
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\n(the run was ended after {LIMIT_S} s)"
    return Ended(folder / "out", process.wait(), begun + output)


def _first_line(process: subprocess.Popen[str]) -> str:
    """Read the first line of a process, and nothing after it, which `communicate` would miss."""
    assert process.stdout is not None
    line = b""
    while (character := os.read(process.stdout.fileno(), 1)) not in (b"", b"\n"):
        line += character
    return f"{line.decode()}\n"
