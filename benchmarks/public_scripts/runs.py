"""Starts a public script under torchrun or under `trainmaster run`, to its end, with or without a kill."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from benchmarks import commands, load
from benchmarks.public_scripts import stamps
from benchmarks.public_scripts.scripts import PublicScript, unpack
from benchmarks.public_scripts.stamps import Kill, Step

OURS, PEER = "trainmaster", "torchrun"
RESTARTS = 20
_PACKAGES = ("torch", "torchvision", "transformers", "accelerate", "datasets", "lightning", "timm")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_FEW_STEPS = 4096  # bytes of their stamps
_TAIL = 1500  # characters of the output of a run that failed

EVERYWHERE = {
    # The same number of threads under both, so that sums are taken in the same order.
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    **commands.FAIR,
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


class Started:
    """A script that was started, in a folder of its own; to be used with `with`, which ends all that is left of it.

    `block`: its ranks wait after so many steps until `release` is called; 0: they never wait. Raises BadSources if the
    snapshot lacks what is needed.
    """

    def __init__(
        self,
        script: PublicScript,
        sources: Path,
        system: str,
        kill: Kill | None,
        pace_s: float,
        root: Path,
        block: int = 0,
    ) -> None:
        self.script, self.system, self._root = script, system, root
        self.folder = unpack(script, sources, root / "script")
        self._notes = root / "stamps"
        self._notes.mkdir()
        turns = [self._notes / f"turn-{rank}" for rank in range(script.ranks if block else 0)]
        for turn in turns:
            os.mkfifo(turn)
        self._pipes = [os.open(turn, os.O_RDWR) for turn in turns]  # to open one for both waits for nobody
        environment = {**EVERYWHERE, "HF_HOME": str(root / "hub"), **script.variables}
        environment |= stamps.variables(self._notes, kill, pace_s, script.hook, block)
        if system == OURS:
            command, variables = _trainmaster(script, root, environment), {}
        else:
            command, variables = torchrun_line(script), {**environment, **AT_ITS_BEST}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.process = commands.popen(command, {"PATH": path, **variables}, root / "output", self.folder)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self, limit_s: float) -> int | None:
        """Return the exit code; None if the run had to be ended after the limit."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def end(self) -> None:
        """Tell the run to end, which ends its ranks, and kill it if it does not."""
        commands.end_all(self.process)
        while self._pipes:
            os.close(self._pipes.pop())

    def release(self) -> None:
        """Let all ranks begin a block."""
        for pipe in self._pipes:
            os.write(pipe, b".")

    def at_step(self, count: int) -> int:
        """Return how many ranks have taken so many steps; only the last few steps of each are looked at."""
        return sum(step.count == count for step in stamps.read_steps(self._notes, _FEW_STEPS))

    def stamped(self) -> tuple[list[Step], list[int]]:
        """Return the steps and deaths so far."""
        return stamps.read_steps(self._notes), stamps.read_deaths(self._notes)

    def output(self) -> str:
        """What the ranks printed, rank 0 last, since ends are read from the last lines; and what the command said."""
        logs = sorted((self._root / "out" / "logs").glob("*"), reverse=True)
        files = [self._root / "output", *(path for path in logs if path.is_file())]
        return _COLOURS.sub("", "".join(path.read_text(errors="replace") for path in files))

    def recovered(self) -> list[Any]:
        """Return the recoveries that the job's status tells of; none of other systems."""
        path = self._root / "out" / "status.yaml"
        status = yaml.safe_load(path.read_text()).get("status", {}) if path.exists() else {}
        recoveries: list[Any] = status.get("recoveries", [])
        return recoveries


def run(
    script: PublicScript, sources: Path, system: str, kill: Kill | None, pace_s: float, limit_s: float
) -> dict[str, Any]:
    """Make a run to its end; return its row. Raises BadSources if the snapshot lacks what is needed."""
    before = load.look()
    with tempfile.TemporaryDirectory(prefix="public-") as made:
        began = time.monotonic()
        with Started(script, sources, system, kill, pace_s, Path(made)) as started:
            code = started.wait(limit_s)
        seconds = time.monotonic() - began
        steps, deaths = started.stamped()
        output = started.output()
        end = script.end.read(started.folder, output) if code == 0 else ""
        row = {
            **facts(script, system),
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
            "rates": [float(each) for each in re.findall(script.rate, output.replace(",", ""))] if script.rate else [],
            "told": started.recovered(),
            "busy_cores_before": round(before.busy, 2),
        }
        if code != 0 or not end:
            row["output"] = output[-_TAIL:]
        return row


def facts(script: PublicScript, system: str) -> dict[str, Any]:
    """Return what was run, and with which versions."""
    return {
        "script": script.name,
        "repository": script.repository,
        "commit": script.commit,
        "system": system,
        "versions": _versions(),
    }


def _trainmaster(script: PublicScript, root: Path, environment: dict[str, str]) -> list[str]:
    path = root / "job.yaml"
    path.write_text(yaml.safe_dump(job_of(script, environment)))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(path), "--plain"]
    return [*command, "--out", str(root / "out")]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
