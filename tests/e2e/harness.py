"""Runs whole jobs with the real command, for tests: real operator, kubelet, agents and ranks on loopback.

Ranks are forked from the zygote of the test run (`machine_zygote`), and the command from a warm interpreter, so that no
run imports again what another one has imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import machine_zygote, tied
from tests.e2e.warm import COMMAND, WarmInterpreter, WarmRun
from tests.stored import flat_status
from trainmaster.contract.wire import environment as names

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
LIMIT_S = 240  # no test asserts on a time: this only ends a run that hangs

zygote: Path | None = None
"""The socket of the test run's zygote, set by a fixture; None: each run starts its own."""

interpreter: WarmInterpreter | None = None
"""That of the test run, set by a fixture; None: each run is executed."""

Command = subprocess.Popen[str] | WarmRun
Calm = Callable[[Path], "Outcome"]
"""Runs a job to its end undisturbed; a job that any test has run so already is not run again."""


@dataclass(frozen=True)
class Outcome:
    out: Path
    exit_code: int
    output: str

    @property
    def status(self) -> dict[str, Any]:
        return flat_status(yaml.safe_load((self.out / "status.yaml").read_text())["status"])

    def losses(self) -> dict[int, set[str]]:
        """Every loss that was ever recorded for a step, as exact text: more than one means a re-run differed."""
        seen: dict[int, set[str]] = {}
        for line in (self.out / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            seen.setdefault(record["step"], set()).add(float(record["loss"]).hex())
        return seen

    def final(self) -> dict[str, Any]:
        final: dict[str, Any] = json.loads((self.out / "final.json").read_text())
        return final


def small_demo_job(
    folder: Path, ranks: int, mesh: dict[str, int], steps: int, checkpoint: Any = None, **training: Any
) -> Path:
    """The demo's job, with fewer steps and a smaller model, over `ranks` ranks: a block for each pipeline stage."""
    job = yaml.safe_load((EXAMPLES / "stdlib-gpt.yaml").read_text())
    spec = job["spec"]
    spec["workers"]["replicas"] = ranks
    # A start is no hang on a machine that something else keeps busy. Once steps are known the limit is 8 s.
    spec["recovery"] = {"hang": {"limitSeconds": 20}}
    spec["training"] |= {
        "model": {"name": "gpt", "options": {"layers": mesh.get("pp", 1), "heads": 2, "width": 32, "context": 32}},
        "batch": {"global": 24},
        "parallelism": mesh,
        "steps": steps,
        "device": "CPU",
        **training,
    }
    spec["checkpoint"] = checkpoint or {"every": 7, "keep": 3}
    path = folder / f"job-{ranks}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def script_job(folder: Path, command: Sequence[str], name: str = "script", replicas: int = 2, **spec: Any) -> Path:
    """A job of a script that knows nothing of us; `spec` goes into the job's."""
    container = {"name": "worker", "command": list(command)}
    workers = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    document = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"framework": "PyTorch", "workers": workers, **spec},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def elastic(job: Path) -> Path:
    """The same job with a size between two pods and what it has, which it may change at once."""
    document = yaml.safe_load(job.read_text())
    document["spec"]["workers"]["min"] = 2
    document["spec"]["recovery"]["elastic"] = {"cooldownSeconds": 0}
    job.write_text(yaml.safe_dump(document))
    return job


def command(job: Path, out: Path, faults: Sequence[str] = (), *, digests: bool = False) -> list[str]:
    arguments = [sys.executable, "-m", COMMAND, "run", str(job), "--plain", "--out", str(out)]
    arguments += ["--digests"] if digests else []
    for fault in faults:
        arguments += ["--fault", fault]
    return arguments


def run_environment() -> dict[str, str]:
    """The variables of a command that runs a job."""
    shared = {names.ZYGOTE: str(zygote)} if zygote is not None else {}
    return {**machine_zygote.environment(), "COLUMNS": "120", **shared}


@contextmanager
def started(arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[Command]:
    """The command in a session of its own, which is ended with all that is in it.

    `variables` add to its environment."""
    with _start(arguments, {**run_environment(), **(variables or {})}) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> Command:
    if interpreter is not None:
        assert list(arguments[:3]) == [sys.executable, "-m", COMMAND], arguments
        return interpreter.start(arguments[3:], environment)
    return tied.popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def run(
    job: Path,
    out: Path,
    faults: Sequence[str] = (),
    *,
    digests: bool = False,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run to the end. A run that hangs is ended with its whole session, and fails the caller by its exit code.

    `options`: further ones of the command. `variables` add to its environment."""
    with started([*command(job, out, faults, digests=digests), *options], variables) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\n(the run was ended after {LIMIT_S} s)"
    return Outcome(out, process.wait(), output)


def run_calm(job: Path, folder: Path) -> Outcome:
    """Run a job below `folder`, or return the outcome of one like it that was run there before, by any process.

    The losses of an undisturbed run are a function of its spec, which names the folder."""
    spec = yaml.safe_load(job.read_text())["spec"]
    out = folder / hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    ended = out.with_suffix(".json")
    with open(out.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ended.exists():
            shutil.rmtree(out, ignore_errors=True)  # of a process that was killed: this run would go on from it
            outcome = run(job, out)
            ended.write_text(json.dumps([outcome.exit_code, outcome.output]))
    return Outcome(out, *json.loads(ended.read_text()))
