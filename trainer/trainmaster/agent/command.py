"""What a user's command line means: an entry that can be watched and forked, or a program to execute as it is."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import Any

_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--run-path", "--module", "-m"}
_ACCELERATE_FLAGS = {
    "--cpu", "--multi-gpu", "--tpu", "--ipex", "--use-xpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm",
    "--use-parallelism-config", "--same-network", "--no-python", "--module", "-m", "--quiet", "-q", "--debug",
    "--enable-cpu-affinity", "--dynamo-use-fullgraph", "--dynamo-use-dynamic", "--tpu-cluster", "--no-tpu-cluster",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """`entry` is None for a program that is executed as it is, with `argv`."""

    argv: list[str]
    entry: dict[str, Any] | None = None
    flags: list[str] = field(default_factory=list)  # of the interpreter; any but -u rules out forking


def parse(argv: list[str]) -> Command:
    """Raises ValueError in words when there is nothing to run."""
    if not argv:
        raise ValueError("the command is empty: give for instance [python, train.py]")
    name = os.path.basename(argv[0])
    if name == "torchrun":
        return _launched(argv[1:], _TORCHRUN_FLAGS, "torchrun")
    if name == "accelerate" and argv[1:2] == ["launch"]:
        return _launched(argv[2:], _ACCELERATE_FLAGS, "accelerate launch")
    if not _is_ours(argv[0]):
        return Command(argv)
    flags: list[str] = []
    rest = argv[1:]
    while rest and rest[0].startswith("-"):
        flag, rest = rest[0], rest[1:]
        if flag == "-m" and rest:
            return _module(argv, flags, rest)
        if flag == "-c" and rest:
            return Command(argv, {"kind": "code", "code": rest[0], "args": rest[1:]}, flags)
        if flag in ("-", "-i", "-V", "-h", "--version", "--help") or flag.startswith(("-c", "-m")):
            return Command(argv)
        if flag in ("-X", "-W") and rest:
            flags += [flag, rest[0]]
            rest = rest[1:]
        elif flag != "-u":  # ranks are unbuffered anyway
            flags.append(flag)
    if not rest:
        return Command(argv)
    return Command(argv, {"kind": "script", "path": rest[0], "args": rest[1:]}, flags)


def _module(argv: list[str], flags: list[str], rest: list[str]) -> Command:
    if rest[0] in ("torch.distributed.run", "torch.distributed.launch"):
        return _launched(rest[1:], _TORCHRUN_FLAGS | {"--use-env"}, rest[0])
    if rest[0] in ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"):
        rest = rest[1:] if rest[1:2] == ["launch"] else rest
        return _launched(rest[1:], _ACCELERATE_FLAGS, "accelerate launch")
    return Command(argv, {"kind": "module", "name": rest[0], "args": rest[1:]}, flags)


def _launched(rest: list[str], flags: set[str], launcher: str) -> Command:
    """The command behind a launcher's own options: we are the launcher now."""
    as_module = no_python = False
    while rest and rest[0].startswith("-"):
        option, rest = rest[0].replace("_", "-"), rest[1:]
        as_module |= option in ("-m", "--module")
        no_python |= option == "--no-python"
        if "=" not in option and option not in flags:
            rest = rest[1:]
    if not rest:
        raise ValueError(f"{launcher}: no script follows its options")
    if no_python:
        return Command(rest)
    if as_module:
        return Command([sys.executable, "-m", *rest], {"kind": "module", "name": rest[0], "args": rest[1:]})
    return Command([sys.executable, *rest], {"kind": "script", "path": rest[0], "args": rest[1:]})


def _is_ours(program: str) -> bool:
    """Whether `program` is the interpreter that runs this agent; a bare `python` means it."""
    if program in ("python", "python3", f"python3.{sys.version_info.minor}"):
        return True
    found = shutil.which(program) or program
    # The folder too: a virtual environment's interpreter is a link to one that has other packages.
    return os.path.realpath(found) == os.path.realpath(sys.executable) and os.path.dirname(
        os.path.abspath(found)
    ) == os.path.dirname(os.path.abspath(sys.executable))
