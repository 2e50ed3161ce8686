"""Run jobs on one device by the command itself, kill their rank, and see how and when it comes back.

Three jobs: a Llama of 0.3 billion parameters of our own loop, with checkpoints in memory; a small Llama whose losses
and states are proven to be those of an undisturbed run; and scripts that know nothing of Trainmaster.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.cuda import child
from benchmarks.cuda.checkpoints import SIZES, TOY
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting, file_name
from benchmarks.cuda.surroundings import ROOT, search_path

NEEDED = ("yaml", "aiohttp", "rich", "prometheus_client")
"""What `trainmaster run` imports beside the trainer."""
KILL_STEP, MORE_STEPS = 33, 12  # of the Llama
EVERY = 5  # steps from save to save in memory
KILLS, SEED = 2, 7  # of the proof
SCRIPTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a DDP script": ("device_script.py", "PyTorch", ()),
    "a script of Hugging Face's Trainer": ("transformers_script.py", "PyTorch", ("transformers", "accelerate")),
    "a script of Lightning": ("lightning_script.py", "PyTorch", ("lightning",)),
    "a script of JAX": ("jax_script.py", "JAX", ("jax",)),
}
"""The file of each, its framework, and the packages that it needs."""
SCRIPT_STEPS, SCRIPT_KILL_STEP, SCRIPT_SAVES_EVERY = 760, 700, 100
"""At 25 ms a step, the process that forks ranks has had the time that it needs to import what the script does."""
TOY_STEPS, TOY_KILL_STEP, TOY_SAVES_EVERY = 40, 25, 10


def check_packages(names: Sequence[str]) -> None:
    """Raises NotHere if this Python lacks one."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise NotHere(f"this Python has no {' and no '.join(missing)}")


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"workers": {"replicas": 1}, **spec},
    }


def llama_job(setting: Setting, name: str, options: dict[str, int], steps: int, **checkpoint: Any) -> dict[str, Any]:
    training = {
        "model": {"name": "llama", "options": options},
        "data": {"source": "text", "path": "@stdlib"},
        "device": setting.job_device,
        "precision": "bf16",
        "steps": steps,
        "batch": {"global": 8},
        "optimizer": {"name": "adamw", "lr": 1e-4},
    }
    return job(name, framework="Trainmaster", training=training, checkpoint=checkpoint)


def script_job(name: str, framework: str, words: Sequence[str]) -> dict[str, Any]:
    worker = {"name": "worker", "command": ["python", *words]}
    template = {"spec": {"containers": [worker]}}
    return job(name, framework=framework, workers={"replicas": 1, "template": template})


def command(setting: Setting, row: str, words: Sequence[str], spec: dict[str, Any], limit_s: float) -> int | None:
    """Run `trainmaster WORDS JOB --out FOLDER`; what it prints is the row's log. Returns its exit code."""
    check_packages(NEEDED)
    file, log = setting.folder / "jobs" / f"{file_name(row)}.json", setting.log(row)
    for folder in (file.parent, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(spec))  # JSON is YAML
    line = [sys.executable, "-m", "trainmaster_operator.cli.main", words[0], str(file), *words[1:], "--plain"]
    # A script's `python` is the first one in PATH that has torch: this one, for all jobs alike.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    variables = {"PYTHONPATH": search_path(os.environ), "PATH": path}
    return commands.run([*line, "--out", str(output(setting, row))], variables, log, limit_s)


def output(setting: Setting, row: str) -> Path:
    return (setting.folder / "runs" / file_name(row)).absolute()


def ended(code: int | None, log: Path, limit_s: float) -> None:
    """Raises WorkFailed unless the command has ended well."""
    if code != 0:
        how = f"it was stopped after {limit_s:.0f} s" if code is None else f"exit code {code}"
        raise child.WorkFailed(f"{how}; {child.last_words(log)}")


def recovery(folder: Path) -> Numbers:
    """What the status of a run says of its only recovery."""
    import yaml

    status = yaml.safe_load((folder / "status.yaml").read_text())["status"]
    recoveries = status.get("recoveries", [])
    if len(recoveries) != 1:
        raise child.WorkFailed(f"{len(recoveries)} recoveries are in {folder / 'status.yaml'}, where one is expected")
    (found,) = recoveries
    phases = {name: milliseconds / 1e3 for name, milliseconds in found["phaseMilliseconds"].items()}
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in phases.items())
    return {
        "total_s": found["totalMilliseconds"] / 1e3,
        "phases_s": phases,
        "resumed_step": found["resumedStep"],
        "lost_steps": found["lostSteps"],
        "tier": found.get("tier", ""),
        "passed": status["phase"] == "Succeeded",
        "said": f"seconds: {parts}",
    }


def killed(
    setting: Setting, row: str, make: Callable[[], dict[str, Any]], kill_step: int, tier: str, limit_s: float
) -> Numbers:
    """`tier`: from where the rank has to resume; "": a script loads what it has saved itself."""
    spec = make()
    code = command(
        setting, row, ["run", "--fresh", "--quiet", "--fault", f"kill:rank=0,step={kill_step}"], spec, limit_s
    )
    ended(code, setting.log(row), limit_s)
    found = recovery(output(setting, row))
    return {**found, "passed": found["passed"] and found["tier"] == tier}


def llama(setting: Setting) -> dict[str, Any]:
    options = {**(TOY if setting.toy else SIZES["0.3B"]), "vocabulary": 256 if setting.toy else 2**15}
    ram = {"every": EVERY, "limit": "16Gi" if not setting.toy else "256Mi"}
    return llama_job(setting, "device-llama", options, KILL_STEP + MORE_STEPS, every=20, keep=1, ram=ram)


def script(setting: Setting, name: str) -> dict[str, Any]:
    file, framework, packages = SCRIPTS[name]
    check_packages(packages)
    steps, every = (TOY_STEPS, TOY_SAVES_EVERY) if setting.toy else (SCRIPT_STEPS, SCRIPT_SAVES_EVERY)
    where = ROOT / "benchmarks" / "cuda" / "scripts" / file
    folder = setting.folder / "saved" / file_name(file)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    words = [str(where), "--folder", str(folder.absolute()), "--steps", str(steps), "--every", str(every)]
    return script_job(file.removesuffix(".py").replace("_", "-"), framework, words)


def proof(setting: Setting, row: str, limit_s: float) -> Numbers:
    """Run a small Llama undisturbed and with kills, and compare every loss and every state bit for bit."""
    options = TOY if setting.toy else {"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "context": 256}
    spec = llama_job(setting, "device-proof", options, 40, every=10, keep=2)
    code = command(setting, row, ["prove", "--kills", str(KILLS), "--seed", str(SEED)], spec, limit_s)
    ended(code, setting.log(row), limit_s)
    said = [line for line in setting.log(row).read_text().splitlines() if line.startswith("Proven")]
    return {"passed": bool(said), "said": "".join(said)}


def rows(setting: Setting) -> list[Row]:
    return [*_rows(setting)]


def _rows(setting: Setting) -> Iterator[Row]:
    row = "a Llama of 0.3B, killed"
    yield Row(row, partial(killed, setting, row, partial(llama, setting), KILL_STEP, "ram"), 40.0, 150.0)
    row = "a small Llama, proven"
    yield Row(row, partial(proof, setting, row), 40.0, 150.0)
    kill_step = TOY_KILL_STEP if setting.toy else SCRIPT_KILL_STEP
    for name in SCRIPTS:
        row = f"{name}, killed"
        yield Row(row, partial(killed, setting, row, partial(script, setting, name), kill_step, ""), 40.0, 150.0)


def cells(numbers: Numbers) -> Sequence[str]:
    if "total_s" not in numbers:
        return ()
    return f"{numbers['total_s']:.2f}", str(numbers["lost_steps"]), numbers["tier"] or "its own"


PART = Part("runs", ("back after, s", "steps lost", "resumes from"), rows, cells)
