"""Starts a public script under torchrun or under `trainmaster run`, to its end, with or without a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from benchmarks import load
from benchmarks.public_scripts import stamps
from benchmarks.public_scripts.scripts import PublicScript, unpack
from benchmarks.public_scripts.stamps import Kill

OURS, PEER = "trainmaster", "torchrun"
RESTARTS = 20
ENDS_S = 15.0
_PACKAGES = ("torch", "torchvision", "transformers", "accelerate", "datasets", "lightning", "timm")
_TAIL = 1500  # characters of the output of a run that failed

EVERYWHERE = {
    # The same number of threads under both, so that sums are taken in the same order.
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "",
}
AT_ITS_BEST = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Of torchrun: with a shared store gloo meets addresses of ranks that are gone, and restarts mostly fail."""


def line(script: PublicScript, *more: str) -> list[str]:
    """Return the line by which a person starts the script."""
    return ["torchrun", "--standalone", f"--nproc-per-node={script.ranks}", *script.words, *more]


def torchrun_line(script: PublicScript) -> list[str]:
    """The same with restarts; arguments of later rounds are added by a shell, which torchrun has no option for."""
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={script.ranks}"]
    head += [f"--max-restarts={RESTARTS}"]
    if not script.restart:
        return [*head, *script.words]
    more = " ".join(script.restart)
    shell = f'[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || set -- "$@" {more}; exec "{sys.executable}" "$@"'
    return [*head, "--no-python", "sh", "-c", shell, "rank", *script.words]


def job_of(script: PublicScript, environment: dict[str, str]) -> dict[str, Any]:
    """A job of one pod, whose command is the line as it is."""
    container = {
        "name": "worker",
        "command": line(script),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    workers: dict[str, Any] = {
        "replicas": 1,
        "ranksPerPod": script.ranks,
        "template": {"spec": {"containers": [container]}},
    }
    if script.restart:
        workers["restartCommand"] = line(script, *script.restart)
    budget = dict.fromkeys(("inPlace", "pod", "full", "perCause"), RESTARTS)
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "public"},
        "spec": {"framework": "PyTorch", "workers": workers, "recovery": {"budget": budget}},
    }


def run(script: PublicScript, sources: Path, system: str, kill: Kill | None, pace_s: float) -> dict[str, Any]:
    """Make a run in a folder of its own; return its row. Raises BadSources if the snapshot lacks what is needed."""
    before = load.look()
    with tempfile.TemporaryDirectory(prefix="public-") as made:
        root = Path(made)
        folder = unpack(script, sources, root / "script")
        notes = root / "stamps"
        notes.mkdir()
        environment = {**EVERYWHERE, "HF_HOME": str(root / "hub"), **script.variables}
        environment |= stamps.variables(notes, kill, pace_s, script.hook)
        began = time.monotonic()
        if system == OURS:
            code = _start(_trainmaster(script, root, environment), folder, {}, root / "output", script.limit_s)
        else:
            variables = {**environment, **AT_ITS_BEST}
            code = _start(torchrun_line(script), folder, variables, root / "output", script.limit_s)
        seconds = time.monotonic() - began
        output = _output(system, root)
        steps, deaths = stamps.read_steps(notes), stamps.read_deaths(notes)
        end = script.end.read(folder, output) if code == 0 else ""
        status = _status(root) if system == OURS else {}
        row = {
            "script": script.name,
            "repository": script.repository,
            "commit": script.commit,
            "system": system,
            "killed": kill is not None,
            "command": line(script),
            "restart": list(script.restart),
            "changed": [f"{change.file}: {change.why}" for change in script.changes],
            "exit_code": code,
            "end": end,
            "seconds": round(seconds, 2),
            "steps": len(steps),
            "deaths": len(deaths),
            "recoveries_s": [None if each is None else round(each, 3) for each in stamps.recoveries(steps, deaths)],
            "restarts": max((step.attempt for step in steps), default=0),
            "told": [each.get("cause") or each.get("reason") for each in status.get("recoveries", [])],
            "versions": _versions(),
            "busy_cores_before": round(before.busy, 2),
        }
        if code != 0 or not end:
            row["output"] = output[-_TAIL:]
        return row


def _trainmaster(script: PublicScript, root: Path, environment: dict[str, str]) -> list[str]:
    path = root / "job.yaml"
    path.write_text(yaml.safe_dump(job_of(script, environment)))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(path), "--plain"]
    return [*command, "--out", str(root / "out")]


def _start(command: list[str], folder: Path, variables: dict[str, str], output: Path, limit_s: float) -> int | None:
    """Run a command to its end in a session of its own; None if it had to be ended after the limit."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None


def _output(system: str, root: Path) -> str:
    """What the ranks printed: rank 0 last, since ends are read from the last lines; and what the command said."""
    said = (root / "output").read_text(errors="replace")
    if system != OURS:
        return said
    logs = sorted((root / "out" / "logs").glob("*"), reverse=True)
    return said + "".join(path.read_text(errors="replace") for path in logs if path.is_file())


def _status(root: Path) -> dict[str, Any]:
    path = root / "out" / "status.yaml"
    status: dict[str, Any] = yaml.safe_load(path.read_text()).get("status", {}) if path.exists() else {}
    return status


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
