"""From a rank's death to the next step, for each framework: under Trainmaster, and under the framework's own launcher.

    python -m benchmarks.framework_recovery [--only NAME ...] [--runs 1] [--kills 5] [--seconds 3600]

The examples of `examples/` train over two ranks, in the environments that `make frameworks` installs. A rank is killed
by SIGKILL again and again, right after a step, and resumes from the checkpoint that the script has saved. The time is
that from the SIGKILL to the moment at which both ranks have completed a step. Under Trainmaster, ranks are forked,
where they can be, and executed (`recovery.zygote: false`). The first kill of a run with forks comes after the zygote
has had the time to learn what the script imports. Systems take turns. Each run is added to the file of results once it
is over, and isn't made again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks import commands, kill_options, load, record
from benchmarks.markdown import busy, machines, spread, table, wrapped
from benchmarks.public_scripts import stamps
from benchmarks.public_scripts.stamps import Kill
from tests.frameworks import environments
from tests.frameworks.runs import SUBJECTS, Subject, job_of, script_words, trainmaster_command

RESULTS = record.RESULTS / "framework-recovery.jsonl"
FORKED, EXECUTED, OWN = "trainmaster, forked", "trainmaster, executed", "its own launcher"
SYSTEMS = (FORKED, EXECUTED, OWN)
RANKS = 2
VICTIM = 1
PAUSE_S = 0.1037  # After each step. Nothing else in a rank pauses for exactly this long.
RESTARTS = 1000
LOOK_EVERY_S = 0.5
LONG = "1000000"
_TAIL = 1500  # characters of the output of a run without recoveries
_REPEAT = ("sh", "-c", 'until "$@"; do :; done', "sh")

Words = list[str]


@dataclass(frozen=True)
class Launcher:
    """What starts the ranks without Trainmaster. words: the line for an interpreter, and a script with arguments."""

    name: str
    words: Callable[[Path, Words], Words]


def plain(framework: str) -> Launcher:
    """Return the restart of all ranks by `benchmarks.plain_restart`, for frameworks without a launcher."""
    line = (sys.executable, "-m", "benchmarks.plain_restart", framework, str(RANKS))
    return Launcher("plain restart", lambda python, script: [*line, str(python), *script])


DEEPSPEED = Launcher(
    "deepspeed, in a shell loop",
    lambda python, script: [*_REPEAT, str(python.parent / "deepspeed"), f"--num_gpus={RANKS}", *script],
)
TORCHRUN = Launcher(
    "torchrun",
    lambda python, script: [
        *(str(python.parent / "torchrun"), f"--nproc-per-node={RANKS}", f"--max-restarts={RESTARTS}"),
        *script,
    ],
)
ACCELERATE = Launcher(  # --multi_gpu is also what starts several ranks on CPU
    "accelerate launch",
    lambda python, script: [
        *(str(python.parent / "accelerate"), "launch", "--multi_gpu", f"--num_processes={RANKS}", "--num_machines=1"),
        *(f"--max_restarts={RESTARTS}", "--mixed_precision=no", "--dynamo_backend=no"),
        *script,
    ],
)
HOROVOD = Launcher(
    "horovodrun, in a shell loop",
    lambda python, script: [
        *(*_REPEAT, str(python.parent / "horovodrun"), "--gloo", "-np", str(RANKS)),
        *(str(python), *script),
    ],
)


@dataclass(frozen=True)
class Training:
    """A row of the table. packages: those whose versions are told, the framework first."""

    name: str
    subject: Subject
    packages: tuple[str, ...]
    launcher: Launcher | None
    systems: tuple[str, ...] = SYSTEMS


def trainings() -> tuple[Training, ...]:
    """Return the examples, each so long that it outlasts all kills."""
    kinds = (
        Training("DeepSpeed, ZeRO 2", SUBJECTS["deepspeed"], ("deepspeed", "torch"), DEEPSPEED),
        Training("DeepSpeed, ZeRO 3", SUBJECTS["deepspeed-zero-3"], ("deepspeed", "torch"), DEEPSPEED),
        Training("TensorFlow, loop", SUBJECTS["tensorflow"], ("tensorflow",), plain("TensorFlow")),
        Training("TensorFlow, fit", SUBJECTS["tf-keras"], ("tensorflow", "tf-keras"), plain("TensorFlow")),
        Training("JAX", SUBJECTS["jax"], ("jax",), plain("JAX")),
        Training("Hugging Face, Trainer", SUBJECTS["huggingface"], ("transformers", "accelerate", "torch"), ACCELERATE),
        Training("Lightning", SUBJECTS["lightning"], ("lightning", "torch"), TORCHRUN),
        Training("Horovod", SUBJECTS["horovod"], ("horovod", "torch"), HOROVOD),
        # Without an agent its script would need a tracker that somebody else starts.
        Training("XGBoost", SUBJECTS["xgboost"], ("xgboost",), None),
    )
    return tuple(replace(kind, subject=lengthened(kind.subject)) for kind in kinds)


def lengthened(subject: Subject) -> Subject:
    return replace(subject, length=(subject.length[0], LONG))


def measure(training: Training, system: str, kill: Kill, limit_s: float) -> dict[str, Any]:
    """Run a training until as many kills are recovered from as were asked for, or `limit_s` is over; return the row."""
    python = environments.python_of(training.subject.environment)
    before = load.look()
    with tempfile.TemporaryDirectory(prefix="framework-recovery-") as made:
        folder = Path(made)
        (folder / "stamps").mkdir()
        process = start(training, system, python, folder, kill)
        found: list[float | None] = []
        try:
            deadline = time.monotonic() + limit_s
            while process.poll() is None and time.monotonic() < deadline:
                found = stamps.recoveries(stamps.read_steps(folder / "stamps"), stamps.read_deaths(folder / "stamps"))
                if len(found) == kill.times and found[-1] is not None:
                    break
                time.sleep(LOOK_EVERY_S)
            code = process.poll()
        finally:
            commands.end_all(process)
            with suppress(ProcessLookupError):  # what a shell loop has started may outlive it
                os.killpg(process.pid, signal.SIGKILL)
        ranks, output = said(folder)
        row = {
            "training": training.name,
            "system": system,
            "launcher": training.launcher.name if training.launcher and system == OWN else "",
            "script": training.subject.script,
            "versions": versions(python, training.packages),
            "kills": kill.times,
            "seconds": [round(each, 3) for each in found if each is not None],
            "resumed": ranks.count("resumed at step") // RANKS,
            "forks": "ranks are forked from now on" in ranks,
            "told": recovered(folder),
            "exit_code": code,
            "busy_cores_before": round(before.busy, 2),
        }
        return row if len(row["seconds"]) == kill.times else {**row, "output": (output + ranks)[-_TAIL:]}


def start(training: Training, system: str, python: Path, folder: Path, kill: Kill) -> subprocess.Popen[bytes]:
    """Start a training under a system. What it says goes to `folder`/output."""
    script = script_words(training.subject, folder, PAUSE_S)
    variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **dict(training.subject.variables)}
    variables |= stamps.variables(folder / "stamps", kill, PAUSE_S, stamps.PAUSES)
    path = {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    if system == OWN:
        assert training.launcher is not None
        # Without Trainmaster nobody says that there is no device.
        own = {**path, **variables, "DS_ACCELERATOR": "cpu"}
        return commands.popen(training.launcher.words(python, script), own, folder / "output")
    recovery = {"zygote": system == FORKED, "budget": {"inPlace": RESTARTS, "perCause": RESTARTS}}
    job = job_of(training.subject, script, variables, recovery=recovery)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return commands.popen(trainmaster_command(python, folder), path, folder / "output")


def said(folder: Path) -> tuple[str, str]:
    """Return what the ranks printed, and what the command did. Launchers of others print both together."""
    output = (folder / "output").read_text(errors="replace")
    logs = sorted((folder / "out" / "logs").glob("*-worker-*"))
    return "".join(path.read_text(errors="replace") for path in logs) if logs else output, output


def recovered(folder: Path) -> list[Any]:
    """Return the recoveries that the job's status tells of; none of other systems."""
    path = folder / "out" / "status.yaml"
    status = yaml.safe_load(path.read_text()).get("status", {}) if path.exists() else {}
    recoveries: list[Any] = status.get("recoveries", [])
    return recoveries


def versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages in the environment of an interpreter."""
    ask = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    told = subprocess.run([python, "-c", ask, *packages], check=True, capture_output=True, text=True, timeout=60)
    return dict(zip(packages, told.stdout.split(), strict=True))


def main(arguments: Sequence[str] | None = None, chosen: Sequence[Training] | None = None) -> int:
    known = trainings() if chosen is None else chosen
    given = read(arguments, [training.name for training in known])
    deadline = time.monotonic() + given.seconds
    for number in range(1, given.runs + 1):
        for training in known:
            if given.only and training.name not in given.only:
                continue
            for system in training.systems[:: 1 if number % 2 else -1]:
                key = {"number": number, "training": training.name, "system": system}
                made = any(key.items() <= row.items() for row in record.read_rows(given.results))
                if made or (system == OWN and training.launcher is None):
                    continue
                if time.monotonic() > deadline:
                    print("not over yet: the same command goes on", flush=True)
                    return 0
                first, later = given.settle
                kill = Kill(VICTIM, 3, given.kills, (first if system == FORKED else later, later))
                with commands.sigterm_exits():
                    row = measure(training, system, kill, given.limit)
                record.append_row(given.results, {**key, **row})
                told = " ".join(f"{seconds:.2f}" for seconds in row["seconds"]) or "no recovery"
                print(f"run {number}, {training.name:18} {system:22} {told}", flush=True)
    return 0


def samples(rows: list[dict[str, Any]], name: str, system: str) -> list[float]:
    """Return the recoveries of all runs of a training under a system."""
    return [each for row in rows if (row["training"], row["system"]) == (name, system) for each in row["seconds"]]


def section() -> Iterator[str]:
    """Yield the lines of the block `framework-recovery` in docs/frameworks/README.md."""
    rows = record.read_rows(RESULTS)
    if not rows:
        yield "No run is committed yet; `python -m benchmarks.framework_recovery` makes them."
        return
    yield from wrapped(
        "Seconds from the SIGKILL of one of two ranks to the moment at which both have completed a step again, with "
        "the loading of the script's own checkpoint: the median, the range in brackets, and the number of kills. *From "
        "the start*: the script loads its checkpoint under Trainmaster only, so its launcher's time has no loading. "
        f"{busy(rows)}{machines(rows)}"
    )
    yield ""
    cells = []
    for name in dict.fromkeys(row["training"] for row in rows):
        of_name = [row for row in rows if row["training"] == name]
        told = ", ".join(f"{package} {version}" for package, version in of_name[-1]["versions"].items())
        launchers = [row["launcher"] for row in of_name if row["launcher"]]
        run = {row["system"] for row in of_name}
        none = {system: "no recovery" if system in run else "not run" for system in SYSTEMS}
        times = [spread(samples(rows, name, system), none[system]) for system in SYSTEMS]
        own = f"{times[2]}: {launchers[-1]}" if launchers else times[2]
        resumed = {how: any(row["resumed"] for row in of_name if bool(row["launcher"]) is how) for how in (True, False)}
        own += ", from the start" if launchers and resumed[False] and not resumed[True] else ""
        cells.append([name, told, f"`{of_name[-1]['script']}`", *times[:2], own])
    yield from table(["what trains", "versions", "script", "forked", "executed", "its own launcher"], cells)


def read(arguments: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.framework_recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"run these only, of: {', '.join(names)}")
    kill_options.add(parser, runs=1, kills=5, limit_s=600.0, results=RESULTS)
    given = parser.parse_args(arguments)
    for name in given.only or []:
        if name not in names:
            parser.error(f"--only {name}: there are {', '.join(names)}")
    kill_options.check(parser, given)
    return given


if __name__ == "__main__":
    sys.exit(main())
