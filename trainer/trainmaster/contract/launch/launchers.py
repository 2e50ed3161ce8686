"""Programs that start ranks: those that Trainmaster replaces, and those that are refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.python_options import is_python

TORCHRUN = "torchrun"
TORCH_LAUNCH = "torch.distributed.launch"
ACCELERATE = "accelerate launch"
DEEPSPEED = "deepspeed"
HOROVODRUN = "horovodrun"

_PROGRAMS = {
    ("torchrun",): TORCHRUN,
    ("accelerate", "launch"): ACCELERATE,
    ("accelerate-launch",): ACCELERATE,
    ("deepspeed",): DEEPSPEED,
    ("deepspeed.pt",): DEEPSPEED,
    ("ds",): DEEPSPEED,
    ("horovodrun",): HOROVODRUN,
}
_MODULES = {
    ("torch.distributed.run",): TORCHRUN,
    ("torch.distributed.launch",): TORCH_LAUNCH,
    ("accelerate.commands.launch",): ACCELERATE,
    ("accelerate.commands.accelerate_cli", "launch"): ACCELERATE,
    ("deepspeed.launcher.runner",): DEEPSPEED,
    ("horovod.runner.launch",): HOROVODRUN,
}
_FOREIGN_PROGRAMS = (
    *(("mpirun",), ("mpiexec",), ("mpiexec.hydra",), ("orterun",), ("prterun",)),
    *(("srun",), ("jsrun",), ("aprun",), ("ibrun",), ("torchx", "run"), ("composer",)),
    *(("fabric", "run"), ("lightning", "run"), ("colossalai", "run"), ("tune", "run")),
)
_FOREIGN_MODULES = (
    *(("deepspeed.launcher.launch",), ("torchx.apps.dist.ddp",), ("composer.cli.launcher",)),
    *(("lightning.fabric.cli",), ("lightning_fabric.cli",)),
    *(("torch_xla.distributed.xla_dist",), ("paddle.distributed.launch",)),
)


@dataclass(frozen=True)
class Launcher:
    """A launcher that Trainmaster replaces. `python` is the interpreter that it would start its ranks with."""

    kind: str  # TORCHRUN, TORCH_LAUNCH, ACCELERATE, DEEPSPEED, HOROVODRUN
    python: str
    options: list[str]  # its options, then the script with its arguments


def find_launcher(argv: list[str]) -> Launcher | None:
    """Return the launcher that a command line begins with, or None.

    Raises LaunchRefused for a launcher that Trainmaster does not replace.
    """
    if not argv:
        return None
    folder, slash, name = argv[0].rpartition("/")
    found = _found([name, *argv[1:]], _PROGRAMS)
    if found is not None:
        # A launcher starts the interpreter in its own folder.
        return Launcher(found[0], f"{folder}{slash}python", found[1])
    _refuse_foreign([name, *argv[1:]], _FOREIGN_PROGRAMS, " ")
    return None


def find_interpreted_launcher(python: str, entry: dict[str, Any] | None) -> Launcher | None:
    """Return the launcher that an interpreter runs, or None. Raises LaunchRefused as `find_launcher` does."""
    if entry is None or entry["kind"] == "code":
        return None
    if entry["kind"] == "module":
        return _launching_module(python, entry["name"], entry["args"])
    return _launching_script(python, entry["path"], entry["args"])


def _launching_module(python: str, name: str, args: list[str]) -> Launcher | None:
    """Return the launcher of `python -m torch.distributed.run …`, or None."""
    found = _found([name, *args], _MODULES)
    if found is not None:
        return Launcher(found[0], python, found[1])
    _refuse_foreign([name, *args], _FOREIGN_MODULES, " ", "python -m ")
    return None


def _launching_script(python: str, path: str, args: list[str]) -> Launcher | None:
    """Return the launcher of `python /opt/venv/bin/torchrun …`, or None."""
    if path.endswith(".py") or "/" not in path or is_python(path):
        return None
    found = find_launcher([path, *args])
    return Launcher(found.kind, python, found.options) if found is not None else None


def _found(words: list[str], known: dict[tuple[str, ...], str]) -> tuple[str, list[str]] | None:
    for beginning, kind in known.items():
        if tuple(words[: len(beginning)]) == beginning:
            return kind, words[len(beginning) :]
    return None


def _refuse_foreign(words: list[str], known: tuple[tuple[str, ...], ...], joint: str, before: str = "") -> None:
    for beginning in known:
        if tuple(words[: len(beginning)]) == beginning:
            raise LaunchRefused(refusal_of(before + joint.join(beginning)))


def refusal_of(launcher: str) -> str:
    """Return the sentence that refuses a launcher of ranks by name."""
    return (
        f"{launcher} starts processes of its own, and here Trainmaster starts the ranks: write the command that each "
        f"rank runs, [python, train.py, …], and their number as workers.replicas and workers.ranksPerPod"
    )
