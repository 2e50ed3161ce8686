"""Runs whole jobs with the real command, for tests: real operator, kubelet, agents and ranks on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import tied

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
LIMIT_S = 240  # no test asserts on a time: this only ends a run that hangs


@dataclass(frozen=True)
class Outcome:
    out: Path
    exit_code: int
    output: str

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = yaml.safe_load((self.out / "status.yaml").read_text())["status"]
        return status

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


def small_demo_job(folder: Path, ranks: int, mesh: dict[str, int], steps: int, **training: Any) -> Path:
    """The demo's job, with fewer steps and a smaller model, over `ranks` ranks."""
    job = yaml.safe_load((EXAMPLES / "stdlib-gpt.yaml").read_text())
    spec = job["spec"]
    spec["workers"]["replicas"] = ranks
    # A start is no hang on a machine that something else keeps busy. Once steps are known the limit is 8 s.
    spec["recovery"] = {"hang": {"limitSeconds": 20}}
    spec["training"] |= {
        "model": {"name": "gpt", "options": {"layers": 2, "heads": 2, "width": 32, "context": 32}},
        "batch": {"global": 24},
        "parallelism": mesh,
        "steps": steps,
        "checkpoint": {"every": 7, "keep": 3},
        **training,
    }
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
    arguments = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(job), "--plain", "--out", str(out)]
    arguments += ["--digests"] if digests else []
    for fault in faults:
        arguments += ["--fault", fault]
    return arguments


@contextmanager
def started(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, which is ended with all that is in it."""
    with tied.popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run(job: Path, out: Path, faults: Sequence[str] = (), *, digests: bool = False) -> Outcome:
    """Run to the end. A run that hangs is ended with its whole session, and fails the caller by its exit code."""
    with started(command(job, out, faults, digests=digests)) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\n(the run was ended after {LIMIT_S} s)"
    return Outcome(out, process.returncode, output)
